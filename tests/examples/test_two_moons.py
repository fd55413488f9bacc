"""The example of two moons: flatness at unlabelled points finds the gap, and the evidence asks for it."""

import json
import math
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "two_moons.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("two_moons")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--draws", "0"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "two_moons.png").stat().st_size > 10_000
    return json.loads((out / "two_moons.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["logistic, squared", "hinge, ε = 0.01"])
def test_flatness_at_unlabelled_points_finds_the_gap(record, name):
    accuracy = record["accuracy"][name]
    assert record["strengths"] == [0, 0.01, 0.1, 1]
    assert accuracy[0] < 0.9
    assert accuracy[1] > accuracy[0] + 0.1
    assert min(accuracy[2:]) > 0.99


def test_a_band_as_wide_as_the_slopes_frees_them(record):
    assert record["accuracy"]["hinge, ε = 0.1"][-1] < record["accuracy"]["hinge, ε = 0.01"][-1]


def test_the_evidence_of_a_handful_of_labels_asks_for_flatness(record):
    assert record["evidence_8"]["strength"] > 0
    assert record["evidence_8"]["accuracy"] > record["evidence_8"]["accuracy_without"] + 0.02
    # two labels cannot tell: with them, the best machine explains labels no better than a coin
    assert record["evidence_2"]["log_evidence"] == pytest.approx(2 * math.log(0.5), abs=0.01)
    assert record["evidence_8"]["log_evidence"] > 8 * math.log(0.5) + 0.5
