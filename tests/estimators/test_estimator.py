import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Rotation


@pytest.fixture(scope="module")
def rings():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    return X, np.sin(2 * np.linalg.norm(X, axis=1))


@pytest.fixture(scope="module")
def model(rings):
    orbit = SampledOrbit(Rotation(), -0.3, 0.3)
    return InvariantGPRegressor(invariance=orbit, num_nodes=8, max_iterations=20, random_state=0).fit(*rings)


def test_the_orbit_is_learned_and_the_argument_untouched(model):
    assert model.orbit_.upper.item() > 0.6
    assert model.invariance.upper.item() == pytest.approx(0.3)


def test_samples_stay_on_the_circle_within_the_learned_bounds(model, rings):
    X = rings[0][:4]
    samples = model.sample_orbit(X, n=20)
    assert samples.shape == (4, 20, 2)
    np.testing.assert_allclose(
        np.linalg.norm(samples, axis=-1), np.linalg.norm(X, axis=1)[:, None].repeat(20, 1)
    )
    turned = np.angle(np.exp(1j * (np.angle(samples @ [1, 1j]) - np.angle(X @ [1, 1j])[:, None])))
    assert np.abs(turned).max() <= model.orbit_.upper.item() + 1e-9
    np.testing.assert_array_equal(samples, model.sample_orbit(X, n=20))


def test_error_bars_are_finite_and_positive(model):
    errors = model.orbit_errors_
    assert set(errors) == set(model.orbit_.learned())
    assert all(0 < error < 10 for error in errors.values())


def test_a_learned_invariance_makes_f_less_sensitive_than_a_plain_gp(model, rings):
    plain = InvariantGPRegressor(max_iterations=20).fit(*rings)
    X = rings[0][:10]
    change = model.insensitivity(X)["all"]
    assert 0 <= change["prior"] < 1
    assert model.insensitivity(X)["angle"] == change, "the angle is the only move"
    assert plain.insensitivity(X) == {}
    moved = model.sample_orbit(X, n=4)
    pairs = plain.predict(moved.reshape(-1, 2)).reshape(10, 4) - plain.predict(X)[:, None]
    ours = model.predict(moved.reshape(-1, 2)).reshape(10, 4) - model.predict(X)[:, None]
    assert np.mean(ours**2) < np.mean(pairs**2)


def test_without_an_orbit_there_is_nothing_to_sample_or_to_bar(rings):
    X, y = rings
    plain = InvariantGPRegressor(max_iterations=2).fit(X, y)
    assert plain.orbit_ is None
    assert plain.orbit_errors_ == {}
    np.testing.assert_array_equal(plain.sample_orbit(X[:2], n=3)[:, 1], X[:2])


def test_images_may_have_any_background():
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(20, 25)) * (rng.uniform(size=(20, 25)) > 0.5)
    y = np.arange(20) % 2
    settings = {"invariance": "rotation", "image_shape": (5, 5), "random_state": 0, "max_iterations": 3}
    zero = InvariantGPClassifier(**settings).fit(images, y).predict_proba(images)
    minus_one = InvariantGPClassifier(**settings).fit(2 * images - 1, y).predict_proba(2 * images - 1)
    np.testing.assert_allclose(zero, minus_one, atol=1e-3)


def test_each_move_of_an_image_is_told_apart():
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(20, 36))
    model = InvariantGPRegressor(
        invariance="affine+deformation", image_shape=(6, 6), num_nodes=4, max_iterations=1, random_state=0
    ).fit(images, rng.normal(size=20))
    change = model.insensitivity(images[:5])
    assert set(change) == {"all", "deformation", *model.orbit_.bounds.names}
    assert all(0 < part["prior"] < change["all"]["prior"] * 1.2 for part in change.values())


def test_a_finite_invariance_has_an_orbit_with_nothing_to_learn():
    x = np.random.default_rng(0).normal(size=(8, 3))
    model = InvariantGPRegressor(invariance="permutation", max_iterations=2).fit(x, np.sin(x).sum(1))
    assert model.orbit_.size == 6
    assert model.orbit_errors_ == {}
    moved = model.sample_orbit(x, n=30)
    assert moved.shape == (8, 30, 3)
    np.testing.assert_allclose(np.sort(moved, -1), np.sort(x, -1)[:, None].repeat(30, 1))
    assert len(np.unique(moved[0], axis=0)) > 3
    np.testing.assert_allclose(model.predict(moved[:, 0]), model.predict(x), atol=1e-9)
    change = model.insensitivity(x)
    assert set(change) == {"all"}
    assert change["all"]["prior"] < 1e-6
