"""Classes or numbers."""

import numpy as np
import pytest

from orbitwise.cli.data import checked_targets, infer_task
from orbitwise.cli.errors import CommandError


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["a", "b"], "classification"),
        ([True, False], "classification"),
        ([0, 1], "classification"),
        (["0", "1", "1"], "classification"),
        (np.tile(np.arange(10), 4), "classification"),
        (np.arange(40), "regression"),
        ([0.5, 1.0], "regression"),
        (["0.5", "1"], "regression"),
        (np.tile(np.arange(60), 4), "regression"),
        ([[1, 2], [2, 3]], "regression"),
    ],
)
def test_the_task_is_told_from_the_targets(y, task):
    assert infer_task(np.array(y)) == task
    if np.ndim(y) == 1:
        assert infer_task(np.array(y, dtype=object)) == task


def test_targets_become_what_estimators_take():
    assert checked_targets(np.array(["1", "2"], dtype=object), "classification", "y").dtype == np.int64
    assert list(checked_targets(np.array([0.5, 1.0]), "classification", "y")) == ["0.5", "1.0"]
    assert list(checked_targets(np.array([True, False]), "classification", "y")) == ["True", "False"]
    assert checked_targets(np.array(["1", "2.5"], dtype=object), "regression", "y").dtype == np.float64


@pytest.mark.parametrize(
    ("y", "task", "says"),
    [
        (["a", "1"], "regression", "holds 'a'"),
        ([1, 1], "regression", "1 in every row"),
        ([1, 1], "classification", "one class only, '1'"),
        ([[1, 2], [2, 3]], "classification", "2 columns"),
    ],
)
def test_targets_that_do_not_serve_say_why(y, task, says):
    with pytest.raises(CommandError, match=says):
        checked_targets(np.array(y), task, "y")
