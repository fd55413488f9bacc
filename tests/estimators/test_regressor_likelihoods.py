"""InvariantGPRegressor with other likelihoods than Gaussian noise: counts, heavy tails, and one's own."""

import pickle
from contextlib import nullcontext
from typing import final

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

import orbitwise
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.functionals import Gradient
from orbitwise.likelihoods import Gaussian, Likelihood, Poisson, StudentT

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-3, 3, (60, 1))
RATE = np.exp(1 + np.sin(X[:, 0]))
COUNTS = GENERATOR.poisson(RATE)
NEW = np.linspace(-2.5, 2.5, 9)[:, None]
QUICK = {"max_iterations": 15, "random_state": 0}


@final
class Exponential(Likelihood):
    """Waiting times of mean exp f."""

    is_quadratic = False

    def log_density(self, f: Tensor, targets: Tensor) -> Tensor:
        return -f - targets * torch.exp(-f)

    def conditional_mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def conditional_variance(self, f: Tensor) -> Tensor:
        return (2 * f).exp()


@pytest.fixture(scope="module")
def counts() -> InvariantGPRegressor:
    return InvariantGPRegressor(likelihood="poisson", **QUICK).fit(X, COUNTS)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_counts_are_predicted_as_rates(counts):
    assert counts.inference_ == "collapsed"
    assert counts.evidence_kind_ == "lower bound"
    mean, deviation = counts.predict(NEW, return_std=True)
    right = np.exp(1 + np.sin(NEW[:, 0]))
    assert (deviation > np.sqrt(mean)).all(), (
        "a count scatters by the root of its rate, and the rate is unsure"
    )
    _, of_rate = counts.predict(NEW, return_std=True, include_noise=False)
    assert (np.abs(mean - right) < 4 * of_rate).all()
    assert (of_rate < 0.5 * mean).all(), "and sixty counts say something"
    np.testing.assert_allclose(deviation**2, of_rate**2 + mean)
    constant = InvariantGPRegressor(likelihood="poisson", max_iterations=0, random_state=0).fit(X, COUNTS)
    assert counts.log_evidence_ > constant.log_evidence_
    assert not hasattr(counts, "noise_")
    assert isinstance(counts.likelihood_, Poisson)


def test_draws_and_quantiles_of_counts_agree_with_mean_and_deviation(counts):
    rates = counts.sample_y(NEW, 4000)
    mean, deviation = counts.predict(NEW, return_std=True, include_noise=False)
    np.testing.assert_allclose(rates.mean(1), mean, rtol=0.05)
    np.testing.assert_allclose(rates.std(1), deviation, rtol=0.1)
    drawn = np.random.default_rng(1).poisson(rates)
    low, middle, high = counts.predict_quantiles(NEW).T
    inside = ((drawn >= low[:, None]) & (drawn <= high[:, None])).mean(1)
    assert (inside > 0.93).all()
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert counts.predict_quantiles(NEW, 0.5).shape == (9, 1)
    held = (
        (counts.predict_quantiles(X)[:, 0] <= COUNTS) & (counts.predict_quantiles(X)[:, 2] >= COUNTS)
    ).mean()
    assert held > 0.9


def test_other_functionals_are_those_of_the_logarithm_of_the_rate(counts):
    step = 1e-5
    slope = counts.predict_functional(Gradient(), NEW)
    ends = [
        counts.posterior_.row_mean(counts.functional_.atoms(torch.from_numpy(NEW + s))) for s in (step, -step)
    ]
    np.testing.assert_allclose(
        slope, ((ends[0] - ends[1]) / (2 * step)).detach().numpy()[:, 0], rtol=1e-4, atol=1e-6
    )


def test_at_fixed_parameters_the_mean_is_that_of_the_posterior_of_counts():
    """One row with many counts: the posterior of its rate is known by quadrature."""
    model = InvariantGPRegressor(
        likelihood="poisson", normalize_y=False, max_iterations=0, random_state=0, num_inducing=4
    ).fit(np.zeros((4, 1)), [6, 8, 7, 9])
    variance = model.kernel_(torch.zeros(1, 1).double()).to_dense().item()
    f = torch.linspace(-8, 8, 40_001, dtype=torch.float64)
    density = torch.exp(30 * f - 4 * f.exp() - 0.5 * f.square() / variance - (30 * np.log(7.5) - 30))
    right = ((f.exp() * density).sum() / density.sum()).item()
    assert model.predict(np.zeros((1, 1)))[0] == pytest.approx(right, rel=0.01)


def test_outliers_do_not_mislead_heavy_tails():
    y = np.sin(X[:, 0]) + 0.05 * np.random.default_rng(3).standard_normal(60)
    y[::12] += 15
    right = np.sin(NEW[:, 0])
    errors = {}
    for name in ("gaussian", "student_t", "laplace"):
        model = InvariantGPRegressor(likelihood=name, max_iterations=40, random_state=0).fit(X, y)
        errors[name] = np.abs(model.predict(NEW) - right).max()
    assert errors["student_t"] < 0.15
    assert errors["laplace"] < 0.5
    assert errors["gaussian"] > 2 * errors["student_t"]


def test_units_of_the_targets_do_not_matter_to_heavy_tails():
    y = np.sin(X[:, 0]) + 0.2 * np.random.default_rng(3).standard_t(3, 60)
    one = InvariantGPRegressor(likelihood="student_t", **QUICK).fit(X, y)
    other = InvariantGPRegressor(likelihood="student_t", **QUICK).fit(X, 1000 * y + 7)
    np.testing.assert_allclose(other.predict(NEW), 1000 * one.predict(NEW) + 7, rtol=1e-4)
    assert other.log_evidence_ == pytest.approx(one.log_evidence_ - 60 * np.log(1000), rel=1e-4)
    np.testing.assert_allclose(other.predict_quantiles(NEW), 1000 * one.predict_quantiles(NEW) + 7, rtol=1e-3)


def test_a_likelihood_of_ones_own_is_usable_at_once():
    y = np.random.default_rng(5).exponential(RATE)
    model = InvariantGPRegressor(likelihood=Exponential(), invariance="sign", **QUICK).fit(X, y)
    mean, deviation = model.predict(NEW, return_std=True)
    assert (deviation >= mean).all(), "an exponential deviates by its mean"
    np.testing.assert_allclose(mean, model.predict(-NEW), rtol=1e-6)
    with pytest.raises(ValueError, match="Exponential has no quantiles"):
        model.predict_quantiles(NEW)


@pytest.mark.parametrize("engine", ["collapsed", "variational"])
def test_orbits_are_learned_with_counts(engine):
    images = GENERATOR.uniform(size=(24, 6, 6))
    y = GENERATOR.poisson(2 + 3 * images[:, 2:4, 2:4].mean((1, 2)))
    sizes = {"num_inducing": 12, "num_nodes": 4, "num_steps": 30}
    model = InvariantGPRegressor(
        likelihood="poisson", invariance="rotation", inference=engine, **sizes, **QUICK
    )
    with pytest.warns(ConvergenceWarning) if engine == "variational" else nullcontext():
        model.fit(images, y)
    assert model.log_evidence_error_ > 0, "the nodes matter a little"
    assert model.orbit_.learned().keys() == {"angle"}
    assert np.isfinite(model.predict(images)).all()


@pytest.mark.parametrize(
    "likelihood", ["poisson", "student_t", "laplace", StudentT(0.2, 5.0, num_nodes=30)], ids=str
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_models_are_saved_cloned_and_pickled(likelihood, tmp_path):
    model = InvariantGPRegressor(likelihood=likelihood, max_iterations=2, random_state=0).fit(
        X[:20], COUNTS[:20]
    )
    orbitwise.save(model, tmp_path / "model.orbit")
    for back in (orbitwise.load(tmp_path / "model.orbit"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(back.predict(NEW), model.predict(NEW))
        np.testing.assert_array_equal(back.predict_quantiles(NEW), model.predict_quantiles(NEW))
        assert back.log_evidence_ == model.log_evidence_
        assert type(back.likelihood_) is type(model.likelihood_)
    again = clone(model).fit(X[:20], COUNTS[:20])
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    model.set_params(warm_start=True).fit(X[:20], COUNTS[:20])
    assert model.log_evidence_ > again.log_evidence_ - 0.1


@pytest.mark.parametrize(
    ("settings", "y", "match"),
    [
        ({"likelihood": "poisson"}, -COUNTS, "targets of 0 or more, but there is one of -"),
        ({"likelihood": "poisson"}, COUNTS + 0.5, r"whole targets of 0 or more, but there is one of \d+\.5"),
        ({"likelihood": "poisson", "noise": 0.1}, COUNTS, "Poisson does not take noise=0.1"),
        ({"likelihood": "poisson", "inference": "exact"}, COUNTS, "does not take inference='exact'"),
        ({"likelihood": "negative_binomial"}, COUNTS, "likelihood must be one of 'gaussian'"),
        ({"likelihood": Gaussian(0.1), "noise": 0.1}, COUNTS, "as noise=…, with likelihood='gaussian'"),
        ({"likelihood": Gaussian(0.1, learnable=False)}, COUNTS, "gives the start of learned noise"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(settings, y, match):
    with pytest.raises(ValueError, match=match):
        InvariantGPRegressor().set_params(**settings).fit(X, y)


def test_weights_and_covariances_go_with_gaussian_noise(counts):
    with pytest.raises(ValueError, match="does not take sample weights other than 1"):
        InvariantGPRegressor(likelihood="poisson").fit(X, COUNTS, sample_weight=np.full(60, 2.0))
    with pytest.raises(ValueError, match="return_cov needs Gaussian noise, not Poisson"):
        counts.predict(NEW, return_cov=True)


def test_quantiles_of_gaussian_noise_are_closed():
    model = InvariantGPRegressor(**QUICK).fit(X, np.log1p(COUNTS))
    mean, deviation = model.predict(NEW, return_std=True)
    low, middle, high = model.predict_quantiles(NEW).T
    np.testing.assert_allclose(middle, mean, atol=1e-12)
    np.testing.assert_allclose(high - low, 2 * 1.959963984540054 * deviation)
    assert isinstance(model.likelihood_, Gaussian)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        model.predict_quantiles(NEW, [0.0, 0.5])


@pytest.mark.parametrize("inference", ["exact", "collapsed"])
def test_gaussian_noise_starts_where_an_instance_says(inference):
    y = np.sin(X[:, 0]) + 0.1 * GENERATOR.standard_normal(len(X))
    start = Gaussian(0.3)
    settings = {"likelihood": start, "inference": inference, "num_inducing": 20, "random_state": 0}
    begun = InvariantGPRegressor(max_iterations=0, **settings).fit(X, y)
    assert begun.noise_ == pytest.approx(0.3 * y.var(), rel=1e-6)
    learned = InvariantGPRegressor(max_iterations=60, **settings).fit(X, y)
    assert learned.noise_ == pytest.approx(0.01, rel=0.6)
    assert start.noise.item() == pytest.approx(0.3), "the instance is not changed"
