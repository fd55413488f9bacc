"""Fits that end too early say so, always, with the argument to raise."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.convergence import fit_quietly, shortfall, warn_of_shortfalls


@pytest.fixture(scope="module")
def waves() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=60)


@pytest.mark.parametrize("inference", ["exact", "collapsed"])
@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_a_limit_of_iterations_that_ends_learning_is_said(kind, inference, waves):
    x, y = waves
    targets = (y > 0).astype(int) if kind is InvariantGPClassifier else y
    model = kind(max_iterations=2, inference=inference, num_inducing=20, random_state=0)
    with pytest.warns(ConvergenceWarning, match="within max_iterations=2: raise max_iterations") as caught:
        model.fit(x, targets)
    assert len(caught) == 1
    assert not model.converged_
    assert shortfall(model) == str(caught[0].message)


@pytest.mark.parametrize("inference", ["exact", "collapsed"])
@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_learning_that_came_to_its_end_says_nothing(kind, inference, waves):
    x, y = waves
    targets = (y > 0).astype(int) if kind is InvariantGPClassifier else y
    model = kind(max_iterations=500, inference=inference, num_inducing=20, random_state=0).fit(x, targets)
    assert model.converged_
    assert shortfall(model) is None


@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantGPClassifier])
def test_stochastic_steps_that_end_too_early_say_so(kind, waves):
    x, y = waves
    targets = (y > 0).astype(int) if kind is InvariantGPClassifier else y
    model = kind(inference="variational", num_steps=6, num_inducing=10, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"num_steps=6\): raise num_steps") as caught:
        model.fit(x, targets)
    assert len(caught) == 1
    assert not model.converged_


def test_nothing_to_learn_is_nothing_missed(waves):
    for inference in ("exact", "collapsed"):
        model = InvariantGPRegressor(max_iterations=0, inference=inference).fit(*waves)
        assert shortfall(model) is None
    model = SparseGPRegressor(max_iterations=0, tolerance=10.0, random_state=0).fit(*waves)
    assert shortfall(model) is None


@pytest.mark.parametrize(
    ("settings", "stopped", "advice"),
    [
        ({"num_inducing": 3}, "fixed", "raise num_inducing"),
        ({"num_inducing": 3, "max_iterations": 0}, "fixed", "raise num_inducing"),
        ({"max_inducing": 4, "optimize_inducing": False}, "max_inducing", "raise max_inducing"),
        ({"max_inducing": 4, "max_seconds": 1e-9}, "time_limit", "raise max_seconds"),
    ],
)
def test_a_certificate_that_is_not_met_is_said_whatever_the_reason(waves, settings, stopped, advice):
    model = SparseGPRegressor(tolerance=1e-4, random_state=0, **settings)
    with pytest.warns(ConvergenceWarning, match=advice) as caught:
        model.fit(*waves)
    assert len(caught) == 1
    assert model.certificate_.stopped == stopped
    assert not model.certificate_.is_met


def test_batches_are_certified_too(waves):
    x, y = waves
    with pytest.warns(ConvergenceWarning, match="not met") as caught:
        model = SparseGPRegressor(num_inducing=3, random_state=0).partial_fit(x[:30], y[:30])
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(x[30:], y[30:])
    assert "not met" in shortfall(model), "it is told once, not at every batch"
    with pytest.warns(ConvergenceWarning, match="not met"):
        model.fit(x, y)
    # after stochastic steps the certificate is unknown, which is not the same
    model.set_params(num_steps=2).partial_fit(x, y, learn=True)
    assert np.isinf(model.certificate_.gap)
    assert "not bracketed" in str(model.certificate_)


def test_a_certificate_that_is_met_says_nothing(waves):
    model = SparseGPRegressor(random_state=0).fit(*waves)
    assert model.certificate_.is_met
    assert model.converged_


def test_several_fits_are_summed_up(waves):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [fit_quietly(InvariantGPRegressor(max_iterations=each), *waves) for each in (1, 500)]
        warn_of_shortfalls(["long"], models[1:])
    with pytest.warns(ConvergenceWarning, match=r"1 of 2 fits ended too early \(short\)"):
        warn_of_shortfalls(["short", "long"], models)
