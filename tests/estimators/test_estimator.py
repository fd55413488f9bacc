import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, datasets
from orbitwise.functionals import OrbitSum
from orbitwise.orbits import ComposedOrbit, FiniteOrbit, PatchOrbit, PointCloudOrbit, SampledOrbit
from orbitwise.transforms import Rotation, block_permutations

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
    assert model.orbit_.bounds.half_width.item() > 0.6
    assert model.invariance.upper.item() == pytest.approx(0.3)


def test_samples_stay_on_the_circle_within_the_learned_bounds(model, rings):
    X = rings[0][:4]
    samples = model.sample_orbit(X, n=20)
    assert samples.shape == (4, 20, 2)
    np.testing.assert_allclose(
        np.linalg.norm(samples, axis=-1), np.linalg.norm(X, axis=1)[:, None].repeat(20, 1)
    )
    middle = model.orbit_.bounds.middle.item()
    angles = np.angle(samples @ [1, 1j]) - np.angle(X @ [1, 1j])[:, None] - middle
    turned = np.angle(np.exp(1j * angles))
    assert np.abs(turned).max() <= model.orbit_.bounds.half_width.item() + 1e-9
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
    settings = {"invariance": "rotation", "image_shape": (5, 5), "random_state": 0, "num_nodes": 8}
    zero = InvariantGPClassifier(**settings).fit(images, y).predict_proba(images)
    minus_one = InvariantGPClassifier(**settings).fit(2 * images - 1, y).predict_proba(2 * images - 1)
    np.testing.assert_allclose(zero, minus_one, atol=0.01)


def test_each_move_of_an_image_is_told_apart():
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(20, 36))
    model = InvariantGPRegressor(
        invariance="affine+deformation", image_shape=(6, 6), num_nodes=4, max_iterations=1, random_state=0
    ).fit(images, rng.normal(size=20))
    change = model.insensitivity(images[:5])
    assert set(change) == {"all", "deformation", *model.orbit_.bounds.names}
    moves = set(change) - {"all", "deformation"}
    unneeded = {name for name in moves if model.orbit_.learned()[name] == (0, 0)}
    assert all(change[name]["prior"] < 1e-9 for name in unneeded)
    assert all(0 < change[name]["prior"] < 1.2 * change["all"]["prior"] for name in moves - unneeded)


def covered(model, x, y) -> float:
    """The share of targets within 1.96 deviations of their predictions, which is said to be 95 %."""
    mean, deviation = model.predict(x, return_std=True)
    return float(np.mean(np.abs(y - mean) <= 1.96 * deviation))


@pytest.mark.parametrize("kind", [InvariantGPRegressor, SparseGPRegressor])
def test_deviations_cover_new_targets_of_diabetes(kind):
    x, y = load_diabetes(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(x))
    train, test = rows[:220], rows[220:]
    model = kind(random_state=0).fit(x[train], y[train])
    assert 0.90 <= covered(model, x[test], y[test]) <= 0.99


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.requires_data(f"uci_reg_{name}"))
        for name in ("boston", "concrete", "energy", "power", "wine_red")
    ],
)
def test_deviations_cover_new_targets_of_real_sets(name):
    given = datasets.load(f"uci_reg_{name}")
    rows = np.random.default_rng(0).permutation(len(given.x))
    train, test = rows[:300], rows[300:1000]
    model = InvariantGPRegressor(random_state=0).fit(given.x[train], given.y[train])
    assert 0.90 <= covered(model, given.x[test], given.y[test]) <= 0.99


def test_noise_is_part_of_deviations_unless_it_is_left_out(rings):
    x, y = rings
    model = InvariantGPRegressor(noise=0.04, max_iterations=0).fit(x, y)
    of_y, of_f = (model.predict(x, return_std=True, include_noise=each)[1] for each in (True, False))
    np.testing.assert_array_equal(model.predict(x, return_std=True)[1], of_y)
    np.testing.assert_allclose(of_y**2, of_f**2 + 0.04)
    covariance = model.predict(x, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), of_y)


def test_deviations_at_noiseless_training_rows_are_small_but_not_zero(rings):
    x, y = rings
    model = InvariantGPRegressor(noise=0, max_iterations=0).fit(x, y)
    deviation = model.predict(x, return_std=True)[1]
    assert (deviation > 0).all()
    assert deviation.max() < 1e-3 * y.std()


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


@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier, SparseGPRegressor])
def test_patches_are_not_rows_that_a_row_can_be_moved_to(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 100))
    patches = OrbitSum(PatchOrbit((1, 10, 10), (3, 3)))
    model = kind(invariance=patches, max_iterations=2, random_state=0).fit(X, np.arange(12) % 2)
    assert model.orbit_ is None
    assert model.orbit_errors_ == {}
    np.testing.assert_array_equal(model.sample_orbit(X[:2], n=3), np.repeat(X[:2, None], 3, axis=1))
    assert model.insensitivity(X[:2]) == {}


@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier, SparseGPRegressor])
def test_an_orbit_without_a_move_is_told(kind, rings):
    X, y = rings[0], rings[1] > 0
    settings = {"max_iterations": 0, "random_state": 0}
    with pytest.warns(UserWarning, match="PointCloudOrbit has no move that is on") as seen:
        kind(invariance=PointCloudOrbit(1, 2), **settings).fit(X, y)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        kind(invariance=PointCloudOrbit(1, 2, angle=0.3), **settings).fit(X, y)
        kind(invariance=SampledOrbit(Rotation(), 0.3, 0.3, learnable=False), **settings).fit(X, y)
        exchanged = ComposedOrbit(PointCloudOrbit(1, 2), FiniteOrbit(block_permutations(2, 1)))
        kind(invariance=exchanged, **settings).fit(X, y)
