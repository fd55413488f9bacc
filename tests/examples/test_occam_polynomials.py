"""The example of polynomials: a hill under one prior, an asymptote under the other."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "occam_polynomials.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("occam_polynomials")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--largest", "12"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "occam_polynomials.png").stat().st_size > 10_000
    return json.loads((out / "occam_polynomials.json").read_text(encoding="utf-8"))


def test_the_isotropic_prior_makes_a_hill(record):
    evidence = record["evidence"]["isotropic"]
    best = int(np.argmax(evidence))
    assert 2 <= best <= 6
    assert evidence[best] - evidence[-1] > 8
    # it falls at every step once it is past the top, and goes on falling
    assert (np.diff(evidence[best + 2 :]) < 0).all()
    assert evidence[-2] - evidence[-1] > 0.5


def test_the_geometric_prior_makes_an_asymptote(record):
    evidence = record["evidence"]["geometric"]
    assert max(evidence) - evidence[-1] < 2
    assert abs(evidence[-1] - evidence[-4]) < 0.4
    assert evidence[-1] - evidence[0] > 40
    # γ was learned: coefficients get smaller
    assert 1.5 < record["learned"]["ratio"][-1] < 20


def test_probabilities_sum_to_one_and_averages_are_good(record):
    for prior, values in record["probability"].items():
        assert sum(values) == pytest.approx(1.0)
        assert record["errors"][prior]["average"] < 0.1
    assert record["errors"]["geometric"]["12"] < record["errors"]["isotropic"]["12"]
