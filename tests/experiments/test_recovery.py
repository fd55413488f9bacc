import json
import sys

import numpy as np
import pytest

from orbitwise.experiments import recovery

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_digits_are_turned_within_the_angle():
    still, labels = recovery.turned_digits(0, 0)
    turned, same = recovery.turned_digits(40, 0)
    assert set(labels) == {0, 1}
    np.testing.assert_array_equal(labels, same)
    assert 0.1 < np.abs(turned - still).mean() < 4


def test_a_small_run_writes_its_record(monkeypatch, tmp_path):
    out = tmp_path / "record.json"
    command = f"recovery --angle 60 --num-train 60 --num-inducing 20 --max-iterations 3 --out {out}"
    monkeypatch.setattr(sys, "argv", command.split())
    recovery.main()
    models = json.loads(out.read_text())["models"]
    assert models["none"]["learned_degrees"] is None
    assert models["rotation"]["learned_degrees"] > 1
    assert all(0 <= model["test_error"] < 0.6 and np.isfinite(model["bound"]) for model in models.values())
