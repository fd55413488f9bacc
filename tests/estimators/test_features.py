"""`features=`: the kernel lives on φ of moved inputs, in every engine and every form of images."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted
from torch import nn

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, compare
from orbitwise.estimators.features import unfitted_copy
from orbitwise.estimators.learned_ranges import most_nodes
from orbitwise.functionals import DirectionalDerivative, FiniteDifference
from orbitwise.functionals.averages import features_of
from orbitwise.orbits import ImageOrbit
from tests.contracts.estimator_contract import assert_follows_scikit_learn

QUICK = {"max_iterations": 2}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
MODELS = [
    InvariantGPClassifier(**QUICK),
    InvariantGPRegressor(**QUICK),
    SparseGPRegressor(num_inducing=24, tolerance=10.0, random_state=0, **QUICK),
]
SPARSE = {"inference": "collapsed", "num_inducing": 6, "random_state": 0}
STEPS = {"inference": "variational", "num_inducing": 6, "num_steps": 6, "random_state": 0}


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.GELU(), nn.BatchNorm2d(6), nn.Flatten())


def moments(array: np.ndarray) -> np.ndarray:
    """24 features, more than the columns that get lengthscales of their own."""
    flat = array.reshape(len(array), -1)
    return np.concatenate([flat[:, :23] ** 2, flat.sum(1, keepdims=True)], 1)


def images(count: int = 24) -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(count, 5, 6))


def labels(x: np.ndarray) -> np.ndarray:
    left = x[:, :, :3].mean((1, 2))
    return (left > np.median(left)).astype(int)


def by_hand(features: object, x: np.ndarray) -> np.ndarray:
    if isinstance(features, nn.Module):
        with torch.no_grad():
            seen = copy.deepcopy(features).eval()(torch.from_numpy(x[:, None]).float())
        return seen.double().numpy()
    return features.transform(x.reshape(len(x), -1)) if hasattr(features, "transform") else features(x)


FEATURES = [network(), moments, PCA(22).fit(images().reshape(24, -1)), StandardScaler()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("features", FEATURES, ids=lambda each: type(each).__name__)
def test_a_model_with_features_is_the_model_of_the_features(model, features):
    x = images()
    y = labels(x)
    fitted = clone(model).set_params(features=features).fit(x, y)
    if isinstance(features, StandardScaler):
        with pytest.raises(NotFittedError):
            check_is_fitted(features)
        features = StandardScaler().fit(x.reshape(24, -1))
    seen = by_hand(features, x)
    # in the regressors the columns of a table have lengthscales of their own
    kernel = copy.deepcopy(fitted.kernel_)
    expected = clone(model).set_params(kernel=kernel, max_iterations=0).fit(seen, y)
    again = clone(fitted).set_params(kernel=kernel, max_iterations=0, features=features).fit(x, y)
    assert again.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-6)
    np.testing.assert_allclose(again.predict(x), expected.predict(seen), rtol=1e-4, atol=1e-6)
    assert type(fitted.features_) is type(features)


@pytest.mark.parametrize("settings", [{}, SPARSE, STEPS], ids=["exact", "collapsed", "variational"])
@pytest.mark.parametrize("kind", [InvariantGPClassifier, InvariantGPRegressor])
def test_moves_come_before_features(kind, settings):
    """φ is not invariant to a flip of its input, but f is, because g is averaged over φ of both images."""
    x, features = images(), network()
    model = kind(invariance="flip", features=features, **settings, **QUICK).fit(x, labels(x))
    answer = model.predict_proba if kind is InvariantGPClassifier else model.predict
    np.testing.assert_allclose(answer(x[:, :, ::-1]), answer(x), rtol=1e-5, atol=1e-6)
    assert np.ptp(by_hand(features, x) - by_hand(features, x[:, :, ::-1].copy())) > 0.1
    mean = model.posterior_.mean(model.functional_, torch.from_numpy(x.reshape(24, -1)))
    seen = [torch.from_numpy(by_hand(features, each)) for each in (x, x[:, :, ::-1].copy())]
    process = model.posterior_.process
    assert mean.shape[0] == 24
    covariance = sum(process.kernel(a, b).to_dense() for a in seen for b in seen) / 4
    rows = model.functional_.atoms(torch.from_numpy(x.reshape(24, -1)))
    torch.testing.assert_close(process.covariance(rows), covariance.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("settings", [{"num_nodes": 4}, {"num_nodes": 4, **SPARSE}, STEPS])
def test_ranges_are_learned_through_a_network(settings):
    x = images()
    model = InvariantGPRegressor(invariance="rotation", features=network(), **settings, **QUICK)
    angle = ImageOrbit((5, 6), {"angle": 0.2}).learned()["angle"][1]
    model.fit(x, labels(x))
    assert model.orbit_.learned()["angle"][1] != pytest.approx(angle, rel=1e-3)
    assert np.isfinite(model.predict(x)).all()
    assert features_of(model.functional_) is not None


def test_ranges_are_not_learned_through_a_function():
    x = images()
    with pytest.raises(ValueError, match=r"moments has no derivatives.*learnable=\(\)"):
        InvariantGPRegressor(invariance="rotation", features=moments).fit(x, labels(x))
    fixed = ImageOrbit((5, 6), {"angle": 0.3}, learnable=())
    model = InvariantGPRegressor(invariance=fixed, features=moments, num_nodes=4, **QUICK)
    assert np.isfinite(model.fit(x, labels(x)).predict(x)).all()


def test_slopes_go_through_a_network_and_differences_through_a_function():
    x, direction = images(), torch.zeros(30, dtype=torch.float64)
    direction[14] = 1.0
    rows = x[:3].reshape(3, -1)
    model = InvariantGPRegressor(features=network().double(), **QUICK).fit(x, labels(x))
    slopes = model.predict_functional(DirectionalDerivative(direction), rows)
    ahead, behind = (model.predict(rows + sign * 1e-5 * direction.numpy()) for sign in (1, -1))
    np.testing.assert_allclose(slopes, (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-7)
    assert np.abs(slopes).max() > 1e-3
    other = InvariantGPRegressor(features=moments, **QUICK).fit(x, labels(x))
    with pytest.raises(ValueError, match="FiniteDifference"):
        other.predict_functional(DirectionalDerivative(direction), rows)
    expected = (other.predict(rows + 1e-3 * direction.numpy()) - other.predict(rows)) / 1e-3
    found = other.predict_functional(FiniteDifference(direction), rows)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=1e-3)


def test_every_layout_is_seen_as_a_network_and_a_function_should():
    colour = np.random.default_rng(0).integers(0, 256, size=(12, 5, 6, 3), dtype=np.uint8)
    y, first = np.arange(12) % 2, np.moveaxis(colour, -1, 1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    expected = None
    for given, shape in (
        (colour, None),
        (first, None),
        (torch.from_numpy(colour), None),
        (list(colour), None),
        (colour.reshape(12, -1), (5, 6, 3)),
        (first.reshape(12, -1), (3, 5, 6)),
    ):
        for invariance in (None, "flip"):
            model = InvariantGPClassifier(invariance=invariance, features=net, image_shape=shape, **QUICK)
            found = model.fit(given, y).predict_proba(given)
            if invariance is None:
                expected = found if expected is None else expected
                np.testing.assert_allclose(found, expected, rtol=1e-5)
    seen: list[tuple[int, ...]] = []

    def seeing(array: np.ndarray) -> np.ndarray:
        seen.append(array.shape[1:])
        return array.reshape(len(array), -1)

    for invariance in (None, "flip"):
        for given in (colour, first):
            InvariantGPClassifier(invariance=invariance, features=seeing, **QUICK).fit(given, y)
            assert set(seen) == {given.shape[1:]}
            seen.clear()


def test_a_transformer_is_given_rows_as_they_were_given():
    """One that was fitted to images with their channels last meets them so, whatever moves them."""
    colour = np.random.default_rng(0).uniform(size=(12, 5, 6, 3))
    rows, y = colour.reshape(12, -1), np.arange(12) % 2
    features = PCA(8).fit(rows)
    model = InvariantGPRegressor(invariance="flip", features=features, **QUICK).fit(colour, y)
    probes = features_of(model.functional_).answers
    np.testing.assert_allclose(probes, features.transform(rows[:4]), rtol=1e-9)


def test_features_see_images_as_they_are_however_dark():
    """Warps fill with zeros, so images are shifted by their darkest value; φ sees them shifted back."""
    x, least = images() - 3.0, []

    def seeing(array: np.ndarray) -> np.ndarray:
        least.append(array.min())
        return array.reshape(len(array), -1)

    orbit = ImageOrbit((5, 6), {"angle": 0.3}, learnable=())
    model = InvariantGPRegressor(invariance=orbit, features=seeing, num_nodes=4, **QUICK).fit(x, labels(x))
    model.predict(x)
    assert min(least) == pytest.approx(x.min())
    assert max(least) < 0


@pytest.mark.parametrize("invariance", [None, "flip"])
def test_fixed_rows_are_seen_once_in_a_fit(invariance):
    x, counts = images(), []

    def counted(array: np.ndarray) -> np.ndarray:
        counts.append(len(array))
        return array.reshape(len(array), -1)

    InvariantGPRegressor(invariance=invariance, features=counted, max_iterations=15).fit(x, labels(x))
    # those that features are tried on, the rows themselves, their moved ones, and single ones for shapes
    assert sum(counts) <= 4 * len(x)


def test_lengthscales_start_at_the_scale_of_the_features():
    x = images()
    for kind in (InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor):
        scales = []
        for factor in (1.0, 1000.0):
            features = lambda array, factor=factor: factor * moments(array)  # noqa: E731
            model = kind(features=features, max_iterations=0).fit(x, labels(x))
            scales.append(model.kernel_.base_kernel.lengthscale.item())
        assert scales[1] == pytest.approx(1000 * scales[0], rel=1e-6)


def test_copies_keep_or_forget_what_a_transformer_was_fitted_to():
    x = images()
    y, fitted = labels(x), PCA(3).fit(images(40).reshape(40, -1)[20:])
    model = InvariantGPClassifier(features=fitted, **QUICK)
    assert model.get_params()["features"] is fitted
    assert unfitted_copy(model).features is fitted
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(model).features)
    frozen = clone(InvariantGPClassifier(features=FrozenEstimator(fitted), **QUICK)).fit(x, y)
    np.testing.assert_array_equal(frozen.predict_proba(x), model.fit(x, y).predict_proba(x))
    assert model.features_ is fitted
    piped = InvariantGPClassifier(features=make_pipeline(StandardScaler(), PCA(3)), **QUICK).fit(x, y)
    assert piped.features_ is not piped.features
    assert features_of(piped.functional_).answers.shape == (4, 3)


@pytest.mark.parametrize("features", [network(), np.tanh, PCA(3)], ids=["module", "function", "transformer"])
def test_fitted_models_pickle_where_features_do(features):
    x = images() if isinstance(features, nn.Module) else images().reshape(24, -1)
    model = InvariantGPClassifier(features=features, **QUICK).fit(x, np.arange(24) % 2)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def test_a_warm_start_takes_the_features_of_the_moment():
    x = images()
    y = labels(x)
    model = InvariantGPClassifier(invariance="flip", features=network(), warm_start=True, **QUICK).fit(x, y)
    model.set_params(features=network(1)).fit(x, y)
    expected = by_hand(network(1), x[:4])
    np.testing.assert_allclose(features_of(model.functional_).answers, expected, rtol=1e-5, atol=1e-6)
    model.set_params(features=None).fit(x, y)
    assert model.features_ is None


def test_candidates_are_compared_on_the_same_features():
    x = images()
    features = PCA(6).fit(images(60).reshape(60, -1))
    comparison = compare(x, labels(x), [None, "flip"], features=features, **QUICK)
    for each in comparison.candidates:
        assert each.estimator.features_ is features


def test_columns_of_a_transformer_are_those_of_x():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(images().reshape(24, -1)[:, :2], columns=["a", "b"])
    scaler = StandardScaler().fit(frame)
    with pytest.raises(ValueError, match="was fitted to columns"):
        InvariantGPRegressor(features=scaler, **QUICK).fit(frame[["b", "a"]], np.arange(24.0))


def test_more_costly_features_take_fewer_nodes():
    place = torch.device("cpu")
    assert most_nodes(500, 64, place) > most_nodes(500, 64, place, 1e8) >= 4


def test_what_is_no_features_is_refused_by_name():
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module.*the class PCA, not an instance"):
        InvariantGPClassifier(features=PCA).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.slow
def test_estimators_with_features_follow_scikit_learn():
    assert_follows_scikit_learn(InvariantGPRegressor(max_iterations=2, features=StandardScaler()))
