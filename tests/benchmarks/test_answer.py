"""The benchmark of learned answers: its bars, and a small run."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from orbitwise.functionals import averages

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "answer.py"


@pytest.fixture(scope="module")
def answer():
    spec = importlib.util.spec_from_file_location("answer", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(seed, scramble, learned, error, evidence):
    return {
        "problem": "digits",
        "seed": seed,
        "scramble": scramble,
        "rows": 100,
        "image_size": 8,
        "common_evidence": {"128": evidence - 1, "256": evidence},
        "test_error": 0.02,
        "log_loss": 0.1,
        "ranges": {
            "angle": {"learned": learned, "error": error, "low": learned - 0.2, "high": learned + 0.2}
        },
        "undetermined": [],
        "converged": True,
        "seconds": 1.0,
    }


def test_bars_are_judged_over_seeds_and_over_scrambles(answer):
    fits = [record(0, 0, 0.5, 0.1, 2500), record(1, 0, 0.5, 0.1, 2500), record(0, 1, 0.9, 0.2, 2520)]
    summary = answer.summarise(fits)
    assert summary["seeds"]["largest_difference_in_errors"] == 0
    assert summary["seeds"]["evidence_spread_per_row"] == 0
    assert summary["scrambles"]["fits"] == 2
    assert summary["scrambles"]["largest_difference_in_errors"] == pytest.approx(4)
    assert summary["scrambles"]["evidence_spread_per_row"] == pytest.approx(0.2)
    assert summary["scrambles"]["intervals_that_hold_other_fits"] == 0
    missed = answer.misses("digits", summary)
    assert len(missed) == 2
    assert all(each.startswith("scrambles") for each in missed)


def test_an_error_is_wide_beyond_30_per_cent_and_half_a_pixel(answer):
    found = {"learned": 0.1, "error": 0.1}
    assert not answer.is_wide(found, 8)
    assert answer.is_wide(found, 28)
    assert answer.is_wide(found, None)
    assert not answer.is_wide({"learned": 1.0, "error": 0.2}, 28)


def test_a_small_run_goes_on_and_leaves_the_nodes_of_other_fits_alone(answer, monkeypatch, tmp_path):
    out, first = tmp_path / "answer.json", averages.FIRST_SCRAMBLE
    monkeypatch.setattr(sys, "argv", ["answer", "--quick", "--problems", "signals", "--out", str(out)])
    answer.main()
    written = json.loads(out.read_text())
    assert [(each["seed"], each["scramble"]) for each in written["fits"]] == [(0, 0), (1, 0), (0, 1)]
    assert written["summary"]["signals"]["seeds"]["largest_difference_in_errors"] == 0
    assert all(set(each["common_evidence"]) == {"8", "16"} for each in written["fits"])
    assert first == averages.FIRST_SCRAMBLE
    monkeypatch.setattr(answer, "fit", lambda *_: pytest.fail("it was done already"))
    answer.main()
