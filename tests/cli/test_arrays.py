"""Inputs and targets among arrays."""

import numpy as np
import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import inputs_and_targets, npz_arrays

X, Y = np.zeros((4, 2)), np.arange(4)


@pytest.mark.parametrize(
    ("names", "target", "part", "found"),
    [
        (("x", "y"), None, "train", "y"),
        (("x", "y"), "y", "test", "y"),
        (("X", "labels"), None, "train", "labels"),
        (("x_train", "y_train"), "y", "train", "y"),
        (("x_train", "y_train"), "y_train", "train", "y"),
        (("x", "energy"), "energy", "train", "energy"),
    ],
)
def test_the_usual_names_are_found(names, target, part, found):
    arrays = dict(zip(names, (X, Y), strict=True))
    x, y, name = inputs_and_targets(arrays, target, part, "a.npz")
    assert x is X
    assert y is Y
    assert name == found


def test_a_test_part_is_taken_where_there_is_one():
    arrays = {"x_train": X, "y_train": Y, "x_test": X + 1, "y_test": Y + 1}
    for target in (None, "y", "y_train"):
        x, y, _ = inputs_and_targets(arrays, target, "test", "a.npz")
        assert x is arrays["x_test"]
        assert y is arrays["y_test"]


@pytest.mark.parametrize(
    ("arrays", "target", "says"),
    [
        ({"a": X}, None, "no array of inputs"),
        ({"x": X}, None, "--target NAME"),
        ({"x": X, "energy": Y}, "enery", "did you mean 'energy'"),
        ({"x": X, "y": Y[:3]}, None, "one target per row of x, which has 4"),
        ({"x": X[:, 0], "y": Y}, None, "one row per input"),
        ({"x": X.astype(str), "y": Y}, None, "must hold numbers"),
    ],
)
def test_errors_name_the_array(arrays, target, says):
    with pytest.raises(CommandError, match=says):
        inputs_and_targets(arrays, target, "train", "a.npz")


def test_code_and_rubbish_are_refused(tmp_path):
    np.savez(tmp_path / "code.npz", x=np.array([{}], dtype=object))
    (tmp_path / "rubbish.npz").write_bytes(b"rubbish")
    for name in ("code.npz", "rubbish.npz"):
        with pytest.raises(CommandError, match="plain arrays"):
            npz_arrays(tmp_path / name)
