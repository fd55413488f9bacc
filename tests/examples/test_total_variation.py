"""The example of total variation: absolute slopes keep jumps and leave noise, with few coordinates."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "total_variation.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("total_variation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--num-nodes", "100", "--most", "70"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "total_variation.png").stat().st_size > 10_000
    return json.loads((out / "total_variation.json").read_text(encoding="utf-8"))


def test_absolute_slopes_come_nearer_to_the_step_function(record):
    squared, absolute = record["squared"], record["absolute"]
    assert absolute["error"] < 0.85 * squared["error"]
    assert squared["error"] < squared["error_of_strongest"]
    assert 1.5 < absolute["total_variation"] < 2.2
    assert squared["total_variation"] > 2 * absolute["total_variation"]


def test_the_jump_stays_steep(record):
    # a height of 1 within a tenth of the interval would be a slope of 10
    assert record["absolute"]["steepest_slope"] > 30


def test_few_coordinates_come_close_to_the_least_risk(record):
    count = record["num_data"] + record["num_nodes"]
    for name in ("squared", "absolute"):
        assert 0 < record[name]["coordinates"] < 0.5 * count
        assert -1e-6 < record[name]["excess"] < 0.01
        assert record[name]["error"] == pytest.approx(record[name]["error_of_least_risk"], rel=0.1)
    assert record["absolute"]["excess"] < record["random"]["excess"]
