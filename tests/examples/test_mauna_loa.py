"""The example of Mauna Loa at a small size: what the lecture's kernel misses, and what an average knows."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

pytestmark = [
    pytest.mark.requires_data("co2_mauna_loa"),
    # Short runs are enough for what is tested here.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "mauna_loa.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("mauna_loa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--every", "4", "--iterations", "40"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "mauna_loa.png").stat().st_size > 10_000
    return json.loads((out / "mauna_loa.json").read_text(encoding="utf-8"))


def test_the_lecture_misses_the_acceleration(record):
    lecture, rates = record["lecture"]["scores"], record["lecture"]["growth"]
    assert lecture["20"]["months"] == 240
    assert lecture["5"]["rmse"] < lecture["10"]["rmse"] < lecture["20"]["rmse"]
    assert lecture["20"]["bias_of_last_year"] > 5
    assert lecture["20"]["coverage"] < 0.8
    assert rates["measured_last"] - rates["measured_first"] > 0.3
    assert rates["predicted_last"] < rates["predicted_first"]


def test_an_average_by_evidence_improves_the_log_density(record):
    assert sum(record["probabilities"].values()) == pytest.approx(1)
    assert (
        record["average"]["scores"]["20"]["log_density"]
        > record["lecture"]["scores"]["20"]["log_density"] + 0.5
    )
    assert record["average"]["scores"]["20"]["coverage"] > 0.9


def test_components_add_up(record):
    assert record["largest_difference_of_sum"] < 1e-6
    deviations = record["deviations"]
    assert list(deviations) == ["trend", "season", "irregularities", "correlated noise"]
    assert deviations["trend"] > 10 * deviations["season"] > 10 * deviations["correlated noise"]
