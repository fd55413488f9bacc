"""The example of sampled hyperparameters: Gibbs creeps, the better scheme does not, and evenness helps."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "sampling_hyperparameters.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("sampling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--num-samples", "24"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "sampling_hyperparameters.png").stat().st_size > 10_000
    return json.loads((out / "sampling_hyperparameters.json").read_text(encoding="utf-8"))


def test_the_approximation_is_the_better_source(record):
    better = record["approximation"]
    assert better["acceptance"] > 0.5
    for name in ("gibbs", "gibbs_whitened"):
        assert better["effective_samples"] > 2 * record[name]["effective_samples"]
    plain = record["gibbs"]["effective_per_1000_factorisations"]
    assert better["effective_per_1000_factorisations"] > 2 * plain
    assert record["gibbs"]["problems"], "chains that do not mix are said"


def test_evenness_is_kept_and_helps(record):
    assert record["prediction_even"]["asymmetry"] < 1e-4 < record["prediction_plain"]["asymmetry"]
    assert record["prediction_even"]["log_density"] > record["prediction_plain"]["log_density"]
    assert record["prediction_even"]["error_of_log_rate"] < record["prediction_plain"]["error_of_log_rate"]
