import json
import sys

import pytest

from orbitwise.experiments import recovery


def found(learned: float, error: float, low: float, high: float) -> dict[str, float]:
    return {"learned": learned, "error": error, "low": low, "high": high}


def fit(problem: str, draw: int, truth: float, interval: dict[str, float]) -> recovery.Fit:
    keys = {"part": "model", "problem": problem, "draw": draw}
    return keys | {
        "truth": {"angle": truth},
        "ranges": {"angle": interval},
        "converged": True,
        "seconds": 1.0,
    }


def test_a_summary_counts_intervals_that_hold_the_truth():
    fits = [
        fit("a", 0, 2.0, found(2.5, 0.5, 1.5, 3.5)),
        fit("a", 1, 2.0, found(1.0, 0.5, 0.5, 1.5)),
        fit("b", 0, 0.0, found(0.0, 0.1, 0.0, 0.2)),
    ]
    summary = recovery.summarise(fits)
    of_a = summary["problems"]["a"]
    assert of_a["coverage"] == 0.5
    assert of_a["ranges"]["angle"]["bias"] == pytest.approx(-0.25)
    assert of_a["median_half_width"] == pytest.approx((0.5 + 0.25) / 2)
    assert of_a["root_mean_square_z"] == pytest.approx(((1 + 4) / 2) ** 0.5)
    # a truth of zero can be held, but has no relative width
    assert summary["problems"]["b"]["coverage"] == 1
    assert summary["problems"]["b"]["median_half_width"] is None
    assert summary["pooled"]["coverage"] == pytest.approx(2 / 3)


def test_a_small_run_writes_its_record_and_goes_on(monkeypatch, tmp_path):
    out = tmp_path / "record.json"
    wanted = ["signals, shifted", "digits, turned by ±30°"]
    command = ["recovery", "--quick", "--out", str(out), "--problems", *wanted]
    monkeypatch.setattr(sys, "argv", command)
    recovery.main()
    first = json.loads(out.read_text())
    assert [each["problem"] for each in first["fits"]] == wanted
    for each in first["fits"]:
        for name, truth in each["truth"].items():
            learned = each["ranges"][name]
            assert learned["low"] <= learned["learned"] <= learned["high"]
            assert 0 < learned["learned"] < 5 * truth
    assert set(first["summary"]["problems"]) == set(wanted)
    monkeypatch.setattr(recovery, "measured", lambda *_: pytest.fail("it was done already"))
    recovery.main()
    assert json.loads(out.read_text())["fits"] == first["fits"]
