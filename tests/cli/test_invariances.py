"""Invariances as they are written on the command line."""

import numpy as np
import pytest

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError
from orbitwise.cli.invariances import candidates, has_images, not_images, parse
from orbitwise.orbits import FiniteOrbit, OrderOrbit


def data(width: int, **about) -> Data:
    return Data(np.zeros((2, width)), np.zeros(2), ["1", "2"], **about)


TABLE = data(3, columns=("a", "b", "c"))
IMAGES = data(16, shape=(4, 4), is_image=True)
POINTS = data(12, shape=(4, 3), kinds=np.array([6, 1, 1, 1]))


def test_images_have_candidates_of_their_own():
    assert candidates([], IMAGES) == ["none", "rotation", "affine", "affine+deformation"]
    assert candidates([], TABLE) == ["none", "negation", "permutation"]
    assert candidates([], data(30, columns=None)) == ["none", "negation"]
    assert candidates([], data(60, shape=(2, 30))) == [
        "none",
        "signal:shift",
        "signal:shift+warp",
        "signal:scale",
    ]
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


def test_points_of_one_kind_may_be_many():
    assert isinstance(parse("permutation", data(60, shape=(20, 3))), OrderOrbit)


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


CLOUDS = data(24, shape=(12, 2))


def test_points_are_not_taken_for_images():
    assert candidates([], CLOUDS) == ["none", "cloud:rotation", "cloud:permutation"]
    assert candidates([], POINTS) == ["none", "permutation"]
    assert not has_images(["none"], CLOUDS)
    assert "If they are images, add --image-shape 12x2." in not_images(CLOUDS)
    assert "PointCloudOrbit" in not_images(CLOUDS)
    assert not_images(IMAGES) == not_images(TABLE) == not_images(data(16, shape=(4, 4))) == ""
    with pytest.raises(ValueError, match=r"clouds of 12 points in 2 dim.*say --image-shape 12x2"):
        parse("rotation", CLOUDS)
    assert parse("rotation", data(24, shape=(12, 2), is_image=True)) == "rotation"


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("cyclic", IMAGES, "of tables, but these inputs are images"),
        ("permutation", IMAGES, "of tables, but these inputs are images"),
        ("permutation:1,2", IMAGES, "of tables, but these inputs are images"),
        ("cyclic", CLOUDS, 'of tables, but these inputs are clouds of points: use "cloud:rotation"'),
        ("sign", CLOUDS, "clouds of points"),
        ("cyclic", data(64, shape=(8, 8)), "images"),
        ("quarter_turn", data(20, shape=(4, 5), is_image=True), "square"),
    ],
)
def test_an_invariance_moves_data_of_its_family(name, inputs, says):
    with pytest.raises(ValueError, match=says):
        parse(name, inputs)


def test_images_of_one_candidate_are_no_points_of_another():
    with pytest.raises(ValueError, match="'permutation' is an invariance of tables"):
        candidates(["rotation", "permutation:1,2"], data(64, shape=(8, 8)))
    assert candidates(["rotation", "negation", "none"], IMAGES) == ["rotation", "negation", "none"]
