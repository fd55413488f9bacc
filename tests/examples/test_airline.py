"""The example of airline passengers: the spectral mixture halves the error of the RBF, chosen by evidence."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

pytestmark = [
    pytest.mark.requires_data("airline_passengers"),
    # Short runs are enough for what is tested here.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "airline.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("airline")
    small = ["--mixtures", "4", "--seeds", "0", "--iterations", "150"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), *small])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "airline.png").stat().st_size > 10_000
    return json.loads((out / "airline.json").read_text(encoding="utf-8"))


def test_the_year_and_its_half_are_the_strongest_lines(record):
    assert record["lines"][:2] == pytest.approx([1, 2], abs=0.05)


def test_the_mixture_that_evidence_chooses_halves_the_error(record):
    chosen = record["chosen"]
    for kind, name in chosen.items():
        rivals = [each for each in record["fits"] if each.startswith(kind)]
        assert name == max(rivals, key=lambda each: record["fits"][each]["log_evidence"])
    smooth, wave = (record["fits"][chosen[kind]] for kind in ("rbf", "sm"))
    assert wave["log_evidence"] > smooth["log_evidence"] + 30
    assert record["ratio"] == pytest.approx(wave["rmse"] / smooth["rmse"])
    assert record["ratio"] < 0.5
    assert wave["rmse_passengers"] < 0.5 * smooth["rmse_passengers"]
    assert wave["rmse"] < min(record["fits"][name]["rmse"] for name in record["fits"] if name[:3] == "rbf")
