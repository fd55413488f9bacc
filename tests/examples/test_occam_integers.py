"""The example of integers: the odds of two rules, counted, and what each says comes next."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "occam_integers.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("occam_integers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out)])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "occam_integers.png").stat().st_size > 10_000
    return json.loads((out / "occam_integers.json").read_text(encoding="utf-8"))


def test_about_forty_million_to_one(record):
    assert record["odds"] == pytest.approx(39_847_656, abs=1)
    assert record["probability_progression"] == pytest.approx(1 / 101**2)
    # MacKay's product: 1/101 for the first number, then 4, 4 and 2 of 101·50 fractions
    assert record["probability_cubic"] == pytest.approx(4 * 4 * 2 / (101 * 5050**3))
    assert record["ways"] == [4, 4, 2]


def test_the_cubic_has_the_sign_that_fits(record):
    assert record["cubic"] == ["-1/11", "9/11", "23/11"]
    assert record["next_by_progression"] == [15.0, 19.0]
    assert record["next_by_cubic"] == pytest.approx([-219 / 11, 1043.7956], abs=1e-3)
