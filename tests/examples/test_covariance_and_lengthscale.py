"""The example of lengthscales: zero crossings, and bumps that tend to an RBF kernel of √2·l."""

import json
import math
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "covariance_and_lengthscale.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("covariance_and_lengthscale")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out)])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "covariance_and_lengthscale.png").stat().st_size > 10_000
    return json.loads((out / "covariance_and_lengthscale.json").read_text(encoding="utf-8"))


def test_functions_cross_zero_as_rice_says(record):
    for lengthscale, rate in record["crossings"].items():
        assert rate == pytest.approx(1 / (math.pi * float(lengthscale)), rel=0.05)


def test_bumps_tend_to_root_two_and_not_to_what_is_printed(record):
    differences = list(record["differences"].values())
    assert differences == sorted(differences, reverse=True) or differences[-2] < 1e-12
    assert differences[0] > 0.5
    assert differences[-1] < 1e-12
    # sup |exp(-τ²/4l²) - exp(-τ²/2l²)| = 1/4, where exp(-τ²/4l²) = 1/2
    assert record["differences_as_printed"]["200"] == pytest.approx(0.25, abs=1e-3)
