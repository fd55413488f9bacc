import pickle
import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPRegressor, SparseGPRegressor
from orbitwise.inference import exact
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Translation
from tests.contracts.estimator_contract import assert_follows_scikit_learn

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def wave(rng):
    x = rng.uniform(-3, 3, size=(120, 2))
    return x, 5 + 3 * np.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=120)


def test_follows_scikit_learn():
    assert_follows_scikit_learn(SparseGPRegressor(max_iterations=2, random_state=0))


def test_it_agrees_with_the_exact_gaussian_process(wave):
    x, y = wave
    sparse = SparseGPRegressor(random_state=0, tolerance=1e-3).fit(x, y)
    exact = InvariantGPRegressor(inference="exact").fit(x, y)
    assert sparse.certificate_.is_met
    assert sparse.certificate_.lower == sparse.log_evidence_
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.3)
    assert sparse.noise_ == pytest.approx(exact.noise_, rel=0.05)
    for mine, theirs in zip(*(m.predict(x[:9] + 0.1, return_std=True) for m in (sparse, exact)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0.05, atol=0.03)


def test_at_fixed_hyperparameters_the_certificate_brackets_the_exact_evidence(wave):
    x, y = wave
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    settings = {"max_iterations": 0, "noise": 0.1}
    exact = InvariantGPRegressor(kernel, inference="exact", **settings).fit(x, y)
    for count in (5, 20, 60):
        found = SparseGPRegressor(kernel, num_inducing=count, random_state=0, **settings).fit(x, y)
        assert found.certificate_.num_inducing == count
        assert found.certificate_.lower - 1e-6 <= exact.log_evidence_ <= found.certificate_.upper + 1e-6


@pytest.mark.parametrize("bound", ["tight", "titsias", "cg"])
@pytest.mark.parametrize("count", [15, "auto"])
def test_every_bound_learns(wave, bound, count):
    x, y = wave
    model = SparseGPRegressor(num_inducing=count, bound=bound, max_iterations=40, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.9
    assert model.certificate_.lower <= model.certificate_.upper
    assert np.isfinite(model.predict(x, return_std=True)[1]).all()


def test_weights_count_repetitions_and_repeated_rows_merge(wave):
    x, y = wave
    settings = {"max_iterations": 0, "noise": 0.3, "num_inducing": 20, "selection": "greedy"}
    repeated = SparseGPRegressor(**settings, random_state=0).fit(np.repeat(x, 2, 0), np.repeat(y, 2))
    weighted = SparseGPRegressor(**settings, random_state=0).fit(x, y, sample_weight=np.full(len(y), 2.0))
    np.testing.assert_allclose(repeated.predict(x), weighted.predict(x))
    assert repeated.log_evidence_ == pytest.approx(weighted.log_evidence_)
    exact = InvariantGPRegressor(noise=0.3, max_iterations=0).fit(np.repeat(x, 2, 0), np.repeat(y, 2))
    assert repeated.certificate_.lower <= exact.log_evidence_ <= repeated.certificate_.upper


def test_permutation_invariance_is_exact_and_values_of_f_are_inducing(rng):
    x = rng.normal(size=(80, 3))
    y = x.prod(1) + 0.05 * rng.normal(size=80)
    model = SparseGPRegressor(invariance="permutation", random_state=0, max_iterations=40).fit(x, y)
    np.testing.assert_allclose(model.predict(x), model.predict(x[:, ::-1]), rtol=1e-8, atol=1e-8)
    assert model.certificate_.num_inducing <= 80
    exact = InvariantGPRegressor(invariance="permutation", inference="exact").fit(x, y)
    assert model.log_evidence_ == pytest.approx(exact.log_evidence_, abs=0.02 * 80)


def test_a_drawn_orbit_is_frozen_and_learned(rng):
    x = rng.uniform(-3, 3, size=(60, 1))
    y = np.sin(x[:, 0])
    orbit = SampledOrbit(Translation(1), -0.5, 0.5)
    model = SparseGPRegressor(invariance=orbit, random_state=0, max_iterations=15, num_inducing=20).fit(x, y)
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_means_extrapolate(rng, mean):
    x = rng.uniform(0, 1, size=(60, 1))
    y = 100 + 50 * x[:, 0] + 0.1 * rng.normal(size=60)
    model = SparseGPRegressor(mean=mean, random_state=0, max_iterations=40).fit(x, y)
    far = model.predict(np.array([[3.0]]))[0]
    assert far == pytest.approx(250, abs=60) if mean == "linear" else np.isfinite(far)


def test_several_outputs_and_other_kernels(wave):
    x, y = wave
    both = np.stack([y, -2 * y], axis=1)
    model = SparseGPRegressor(MaternKernel(1.5), random_state=0, max_iterations=20).fit(x, both)
    mean, std = model.predict(x[:4], return_std=True)
    assert mean.shape == std.shape == (4, 2)
    np.testing.assert_allclose(mean[:, 1], -2 * mean[:, 0], rtol=1e-5)
    assert model.predict(x[:3], return_cov=True)[1].shape == (3, 3, 2)
    assert model.sample_y(x[:3], 5).shape == (3, 2, 5)


def test_the_same_seed_gives_the_same_numbers_and_models_are_pickled(wave):
    x, y = wave
    settings = {"num_inducing": 12, "max_iterations": 10, "random_state": 3}
    one, other = (SparseGPRegressor(**settings).fit(x, y) for _ in range(2))
    assert (one.predict(x) == other.predict(x)).all()
    copy = pickle.loads(pickle.dumps(one))
    assert (one.predict(x) == copy.predict(x)).all()
    assert clone(one).get_params()["num_inducing"] == 12


# Bad input, and input that looks bad.


def test_more_inducing_points_than_rows_are_clipped_and_it_is_said(wave):
    x, y = wave
    with pytest.warns(UserWarning, match="num_inducing=500 is more than the 120 distinct rows"):
        model = SparseGPRegressor(num_inducing=500, max_iterations=3, random_state=0).fit(x, y)
    assert model.certificate_.num_inducing <= 120


def test_an_unreachable_tolerance_is_said(rng):
    x = rng.uniform(size=(100, 3))
    y = np.sin(20 * x).sum(1) + 0.01 * rng.normal(size=100)
    model = SparseGPRegressor(max_inducing=8, tolerance=1e-9, max_iterations=5, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_inducing was reached before the tolerance"):
        model.fit(x, y)
    assert not model.certificate_.is_met


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_scales_and_single_precision_just_work(wave, dtype, scale):
    x, y = wave
    model = SparseGPRegressor(num_inducing=20, max_iterations=15, random_state=0)
    model.fit((scale * x).astype(dtype), (y / scale).astype(dtype))
    assert model.score((scale * x).astype(dtype), y / scale) > 0.8


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((1, 2)), np.ones(1)),
        (np.ones((5, 2)), np.arange(5.0)),
        (np.arange(10.0)[:, None], np.full(10, 3.0)),
        (np.repeat(np.arange(4.0), 6)[:, None], np.arange(24.0)),
        (np.arange(12.0)[:, None], np.arange(12.0) ** 2),
    ],
    ids=["one row", "equal inputs", "constant targets", "duplicates", "no noise"],
)
@pytest.mark.parametrize("bound", ["tight", "titsias", "cg"])
def test_degenerate_data_just_work(x, y, bound):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "One target does not say")
        model = SparseGPRegressor(bound=bound, random_state=0, max_iterations=30).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert model.certificate_.lower <= model.certificate_.upper + 1e-6 * abs(model.certificate_.upper)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be"),
        ({"num_inducing": "many"}, "num_inducing must be"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"tolerance": float("nan")}, "tolerance must be positive"),
        ({"max_seconds": -1.0}, "max_seconds must be positive"),
        ({"bound": "loose"}, "bound must be"),
        ({"selection": "best"}, "selection must be"),
        ({"noise": 0}, "needs noise"),
        ({"noise": -1.0}, "noise must be a finite variance"),
        ({"max_inducing": 0}, "max_inducing must be"),
        ({"optimize_inducing": "yes"}, "optimize_inducing must be"),
        ({"max_iterations": -1}, "max_iterations must be"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wave, settings, message):
    model = SparseGPRegressor().set_params(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(*wave)


def test_conjugate_gradients_refuse_too_many_rows(wave, monkeypatch):
    monkeypatch.setattr("orbitwise.estimators.sparse_regressor.ITERATIVE_ROWS", 100)
    with pytest.raises(ValueError, match="use bound='tight'"):
        SparseGPRegressor(bound="cg").fit(*wave)


def test_not_finite_values_are_refused(wave):
    x, y = wave
    x[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SparseGPRegressor().fit(x, y)


def test_noise_driven_to_zero_stays_positive(rng):
    x = rng.uniform(size=(40, 1))
    model = SparseGPRegressor(random_state=0).fit(x, 7 * x[:, 0] + 1)
    assert model.noise_ > 0
    assert np.abs(model.predict(x) - 7 * x[:, 0] - 1).max() < 1e-2


@pytest.mark.parametrize("count", [15, "auto"])
def test_a_limit_of_time_is_kept_and_said(wave, count, monkeypatch):
    """A second passes with every evaluation of the bound, or of the exact evidence if the number is free."""
    seconds = 0.0

    def slowly(compute):
        def slow(*arguments):
            nonlocal seconds
            seconds += 1
            return compute(*arguments)

        return slow

    monkeypatch.setattr(SparseModel, "forward", slowly(SparseModel.forward))
    if count == "auto":
        monkeypatch.setattr(exact, "evidence", slowly(exact.evidence))
    # without a kernel, starts would be compared before the clock is looked at
    kernel = ScaleKernel(RBFKernel())
    model = SparseGPRegressor(kernel, num_inducing=count, max_seconds=4.5, tolerance=1e-6, random_state=0)
    model._clock = lambda: seconds
    with pytest.warns(ConvergenceWarning, match="max_seconds was reached .*; raise max_seconds"):
        model.fit(*wave)
    # where learning from some rows was ended, learning from all of them still evaluates its start
    assert seconds == 5 + (count == "auto")
    assert model.certificate_.stopped == "time_limit"
    assert not model.certificate_.is_met
    assert not model.converged_


def test_where_all_rows_are_needed_it_is_exact_inference():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 6))
    y = np.sin(x).sum(1) + 0.3 * random.normal(size=200)
    sparse, exactly = SparseGPRegressor(random_state=0).fit(x, y), InvariantGPRegressor().fit(x, y)
    assert sparse.certificate_.num_inducing > 50
    assert sparse.certificate_.is_met
    assert sparse.log_evidence_ == pytest.approx(exactly.log_evidence_, abs=0.3)
    at = random.normal(size=(20, 6))
    for ours, theirs in zip(sparse.predict(at, True), exactly.predict(at, True), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_a_callback_is_told(wave):
    seen = []
    SparseGPRegressor(max_iterations=5, random_state=0, callback=lambda *step: seen.append(step)).fit(*wave)
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))
    assert torch.tensor([bound for _, bound in seen]).isfinite().all()
