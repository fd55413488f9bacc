"""The example of two pitfalls: Nyström's variance is negative, and the training loss overfits."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "sparse_pitfalls.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("sparse_pitfalls")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out)])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "sparse_pitfalls.png").stat().st_size > 10_000
    return json.loads((out / "sparse_pitfalls.json").read_text(encoding="utf-8"))


def test_only_nystroms_variance_is_negative(record):
    least = record["least_variance"]
    assert least["Nyström"] < -0.1
    assert min(value for name, value in least.items() if name != "Nyström") >= 0


def test_the_training_loss_overfits_and_the_evidence_does_not(record):
    by_loss, by_evidence = record["by_training_loss"], record["by_marginal_likelihood"]
    assert by_loss["training"] < 0.1 * by_evidence["training"]
    assert by_evidence["test"] < 0.6 * by_loss["test"]
