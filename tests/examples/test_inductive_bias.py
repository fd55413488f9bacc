"""The example of inductive bias: all data sets, and what four models find likely."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "inductive_bias.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("inductive_bias")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--draws", "100000"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "inductive_bias.png").stat().st_size > 10_000
    return json.loads((out / "inductive_bias.json").read_text(encoding="utf-8"))


def test_supports_are_those_of_the_models(record):
    simple, flexible, smooth, mirrored = record["models"].values()
    assert simple["support"] == 18
    assert flexible["support"] == record["num_data_sets"] == 512
    assert 18 < smooth["support"] <= 512
    assert mirrored["support"] <= 32
    assert mirrored["share_of_symmetric"] == 1.0


def test_probability_is_spread_or_kept_together(record):
    simple, flexible, smooth, _ = record["models"].values()
    assert simple["perplexity"] < smooth["perplexity"] < flexible["perplexity"]
    assert flexible["perplexity"] == pytest.approx(512, rel=0.01)
    # 74 of the 512 data sets change their sign at most twice
    assert flexible["share_of_at_most_two_changes"] == pytest.approx(74 / 512, abs=0.005)
    assert smooth["share_of_at_most_two_changes"] > 0.6


def test_each_data_set_has_its_own_best_model(record):
    simple, flexible, smooth, mirrored = record["models"]
    assert record["best"] == {"a step": simple, "a hill": mirrored, "noise": flexible}
    # the flexible model with a bias comes second to both simple ones, where these are right
    for what, best in (("a step", simple), ("a hill", mirrored)):
        values = {name: model[what] for name, model in record["models"].items() if name != best}
        assert max(values, key=values.__getitem__) == smooth
