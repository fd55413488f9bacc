"""Invariances as they are written on the command line."""

import numpy as np
import pytest

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.invariances import candidates, has_images, parse
from orbitwise.orbits import FiniteOrbit


def data(width: int, **about) -> Data:
    return Data(np.zeros((2, width)), np.zeros(2), ["1", "2"], **about)


TABLE = data(3, columns=("a", "b", "c"))
IMAGES = data(16, shape=(4, 4), is_image=True)
POINTS = data(12, shape=(4, 3), kinds=np.array([6, 1, 1, 1]))


def test_images_have_candidates_of_their_own():
    assert candidates([], IMAGES) == ["none", "rotation", "affine", "affine+deformation"]
    assert candidates([], TABLE) == ["none"]
    assert candidates(["sign", "none", "sign"], TABLE) == ["sign", "none"]
    assert has_images(["none"], IMAGES)
    assert has_images(["none"], data(16, shape=(4, 4)))
    assert not has_images(["none", "permutation:1,2"], POINTS)
    assert not has_images(["none"], TABLE)


def test_names_are_those_of_estimators():
    assert parse("none", TABLE) is None
    assert parse("permutation", TABLE) == "permutation"
    assert parse("affine", IMAGES) == "affine"


def test_some_columns_change_places():
    orbit = parse("permutation:a, c", TABLE)
    assert isinstance(orbit, FiniteOrbit)
    assert orbit.transform.index.tolist() == [[0, 1, 2], [2, 1, 0]]


def test_points_of_one_kind_change_places():
    every, some = parse("permutation", POINTS), parse("permutation:1,2", POINTS)
    assert isinstance(every, FiniteOrbit)
    assert isinstance(some, FiniteOrbit)
    assert every.size == 6
    assert some.transform.index.tolist()[1] == [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rotate", "did you mean 'rotation'"),
        ("rotation", "--image-shape HxW"),
        ("permutation:a,d", "no column 'd'"),
        ("sign:a", "only permutation"),
    ],
)
def test_errors_say_what_there_is(name, says):
    with pytest.raises(CommandError, match=says):
        parse(name, TABLE)
