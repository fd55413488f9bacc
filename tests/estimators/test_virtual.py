"""VirtualSVC is scikit-learn's SVC on samples and their copies."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from orbitwise.estimators.invariances import image_orbit
from orbitwise.estimators.machines.task import median_distance
from orbitwise.estimators.virtual import VirtualSVC
from orbitwise.functionals.tangents import PAPER_MOVES, moved_images
from orbitwise.orbits import ImageOrbit
from tests.contracts.estimator_contract import assert_follows_scikit_learn

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(40, 2)), RNG.normal(size=(25, 2))
Y = np.where(X[:, 0] + 0.2 * RNG.normal(size=40) > 0, 1, -1)
THREE = np.array(["ash", "elm", "oak"])[np.digitize(X[:, 0], [-0.4, 0.5])]
MOVES = [("shift_x", 1.0), ("shift_y", -1.0), ("angle", 0.2)]


def test_follows_scikit_learn():
    assert_follows_scikit_learn(VirtualSVC())


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, ...]:
    """Twos and threes of 8×8 pixels: rows to learn from, labels, and rows that are tested."""
    data: Any = load_digits()
    chosen = np.isin(data.target, (2, 3))
    x, y = data.data[chosen], data.target[chosen]
    return x[:40], y[:40], x[40:200], y[40:200]


def svc_on(x: np.ndarray, y: np.ndarray, copies: np.ndarray, width: float, **settings: Any) -> SVC:
    """scikit-learn's own on rows and their copies [n, k, d]."""
    rows = np.concatenate([x, copies.reshape(-1, x.shape[1])])
    labels = np.concatenate([y, np.repeat(y, copies.shape[1])])
    return SVC(gamma=0.5 / width**2, **settings).fit(rows, labels)


@pytest.mark.parametrize("labels", [Y, THREE], ids=["two", "three"])
@pytest.mark.parametrize("virtual", ["samples", "support_vectors"])
def test_without_invariance_it_is_a_support_vector_machine(labels: np.ndarray, virtual: str):
    model = VirtualSVC(C=3.0, bandwidth=0.7, virtual=virtual).fit(X, labels)
    expected = SVC(C=3.0, gamma=0.5 / 0.7**2).fit(X, labels)
    np.testing.assert_array_equal(model.decision_function(NEW), expected.decision_function(NEW))
    np.testing.assert_array_equal(model.predict(NEW), expected.predict(NEW))
    np.testing.assert_array_equal(model.classes_, expected.classes_)
    assert model.num_samples_ == 40


def test_the_median_distance_is_the_usual_bandwidth():
    model = VirtualSVC().fit(np.concatenate([X, X[:5]]), np.concatenate([Y, Y[:5]]))
    assert model.bandwidth_ == median_distance(torch.from_numpy(np.unique(X, axis=0)))


@pytest.mark.parametrize("shaped", [False, True])
def test_moved_images_are_learned_from(digits, shaped: bool):
    x, y, new, _ = digits
    model = VirtualSVC("moves", C=2.0, bandwidth=20.0, moves=MOVES, image_shape=None if shaped else (8, 8))
    model.fit(x.reshape(-1, 8, 8) if shaped else x, y)
    copies = moved_images(torch.from_numpy(x), (8, 8), MOVES).numpy()
    assert copies.shape == (40, 3, 64)
    expected = svc_on(x, y, copies, 20.0, C=2.0)
    asked = new.reshape(-1, 8, 8) if shaped else new
    np.testing.assert_allclose(model.decision_function(asked), expected.decision_function(new), atol=1e-9)
    assert model.num_samples_ == 40 * 4


def test_what_comes_in_from_outside_is_background(digits):
    x, y, new, _ = digits
    settings: dict[str, Any] = {"bandwidth": 20.0, "image_shape": (8, 8)}
    low, high = (VirtualSVC("moves", **settings).fit(x + shift, y) for shift in (0.0, 5.0))
    np.testing.assert_allclose(low.decision_function(new), high.decision_function(new + 5), atol=1e-9)
    assert low.num_samples_ == 40 * (1 + len(PAPER_MOVES))


def test_moves_help_where_images_are_moved(digits):
    x, y, new, labels = digits
    moved = moved_images(torch.from_numpy(new), (8, 8), [("shift_x", 1.0), ("shift_y", 1.0)]).numpy()
    rows, classes = moved.reshape(-1, 64), np.repeat(labels, 2)
    shifts = [(name, sign) for name in ("shift_x", "shift_y") for sign in (1.0, -1.0)]
    model = VirtualSVC("moves", C=10.0, moves=shifts, image_shape=(8, 8)).fit(x, y)
    plain = VirtualSVC(C=10.0).fit(x, y)
    assert model.score(rows, classes) > plain.score(rows, classes) + 0.02


def test_copies_of_an_orbit_follow_the_seed(digits):
    x, y, new, _ = digits
    orbit = ImageOrbit((8, 8), {"angle": 0.3})
    model = VirtualSVC(orbit, num_copies=3, bandwidth=20.0, random_state=0)
    first, second = (clone(model).fit(x, y).decision_function(new) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = clone(model).set_params(random_state=1).fit(x, y)
    assert np.abs(other.decision_function(new) - first).max() > 1e-3
    assert other.num_samples_ == 40 * 4
    # by hand: the same noise from the same generator
    seed = int(np.random.RandomState(0).randint(2**31))
    rows = torch.from_numpy(x)
    noise = orbit.noise((40, 3), torch.Generator().manual_seed(seed), rows)
    copies = orbit.move(rows, noise).detach().numpy()
    np.testing.assert_allclose(svc_on(x, y, copies, 20.0).decision_function(new), first, atol=1e-9)


def mirrored(x: np.ndarray) -> np.ndarray:
    return np.stack([x * [1, -1], x + np.array([0, 0.5])], axis=1)


def test_copies_of_a_function_are_learned_from():
    model = VirtualSVC(mirrored, C=3.0, bandwidth=0.7, class_weight="balanced").fit(X, THREE)
    expected = svc_on(X, THREE, mirrored(X), 0.7, C=3.0, class_weight="balanced")
    np.testing.assert_array_equal(model.decision_function(NEW), expected.decision_function(NEW))
    assert model.decision_function(NEW).shape == (25, 3)
    assert model.num_samples_ == 120


def test_support_vectors_alone_are_copied():
    model = VirtualSVC(mirrored, virtual="support_vectors", C=3.0, bandwidth=0.7).fit(X, Y)
    support = SVC(C=3.0, gamma=0.5 / 0.7**2).fit(X, Y).support_
    assert model.num_samples_ == 3 * len(support) < 3 * len(X)
    expected = svc_on(X[support], Y[support], mirrored(X[support]), 0.7, C=3.0)
    np.testing.assert_array_equal(model.decision_function(NEW), expected.decision_function(NEW))
    # the whole set would have taught something else
    whole = VirtualSVC(mirrored, C=3.0, bandwidth=0.7).fit(X, Y)
    assert np.abs(whole.decision_function(NEW) - model.decision_function(NEW)).max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"C": 0.0}, ValueError, "C must be positive and finite, not 0.0"),
        ({"C": -1.0}, ValueError, "C must be positive and finite, not -1.0"),
        ({"bandwidth": 0.0}, ValueError, "bandwidth must be positive and finite, or 'median'"),
        (
            {"virtual": "vectors"},
            ValueError,
            "virtual must be one of samples, support_vectors, not 'vectors'",
        ),
        ({"invariance": "moves"}, ValueError, r"pass image_shape=\(height, width\)"),
        ({"invariance": lambda x: x}, ValueError, r"finite copies \[n, k, d\], not \(40, 2\)"),
        ({"invariance": lambda x: x[:3, None]}, ValueError, r"rows \(40, 2\) into .* not \(3, 1, 2\)"),
        ({"invariance": lambda x: np.nan * x[:, None]}, ValueError, "finite copies"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], error: type, message: str):
    with pytest.raises(error, match=message):
        VirtualSVC(**settings).fit(X, Y)


def test_an_invariance_that_makes_no_copies_is_refused():
    model = VirtualSVC()
    model.invariance = cast(Any, 3)
    with pytest.raises(TypeError, match="None, a name, an orbit or a function of rows, not"):
        model.fit(X, Y)
    with pytest.raises(ValueError, match=r"'tangent' .*use InvariantSVC or InvariantKernelRidge"):
        VirtualSVC("tangent").fit(X, Y)


def test_copies_by_name_are_those_of_the_orbit():
    images = np.random.default_rng(0).uniform(size=(12, 16))
    settings: dict[str, Any] = {"image_shape": (4, 4), "random_state": 0, "num_copies": 3}
    named = VirtualSVC("rotation", **settings).fit(images - images.min(), Y[:12])
    orbit = VirtualSVC(image_orbit(("rotation",), (4, 4)), **settings).fit(images - images.min(), Y[:12])
    assert named.num_samples_ == 12 * 4
    np.testing.assert_allclose(named.decision_function(images), orbit.decision_function(images))


def test_one_class_is_not_enough():
    with pytest.raises(ValueError, match="class"):
        VirtualSVC().fit(X, np.ones(40))


def test_one_class_for_all_is_warned_of():
    draw = np.random.default_rng(0)
    labels = (np.arange(30) == 0).astype(int)
    with pytest.warns(
        UserWarning,
        match="VirtualSVC predicts class .* for all 30 training rows, although .* Raise C, use class_weight=",
    ):
        VirtualSVC(C=1e-3).fit(draw.normal(size=(30, 2)), labels)
