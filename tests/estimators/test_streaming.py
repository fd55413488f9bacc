from copy import deepcopy

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise import SparseGPRegressor

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def wave(rng):
    x = rng.uniform(-3, 3, size=(150, 2))
    return x, 5 + 3 * np.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=150)


def fixed(**settings):
    return SparseGPRegressor(
        ScaleKernel(RBFKernel()), noise=0.1, max_iterations=0, normalize_y=False, random_state=0, **settings
    )


@pytest.mark.parametrize("invariance", [None, "permutation"])
def test_batches_give_the_posterior_of_all_rows(wave, invariance):
    x, y = wave
    weight = np.random.default_rng(1).integers(1, 4, size=150).astype(float)
    stream = fixed(invariance=invariance, num_inducing=30)
    for part in (slice(0, 60), slice(60, 61), slice(61, 150)):
        stream.partial_fit(x[part], y[part], weight[part])
    whole = fixed(invariance=invariance, num_inducing=30)
    whole.partial_fit(x[:60], y[:60], weight[:60])  # the same inducing variables
    whole.partial_fit(x[60:], y[60:], weight[60:])
    for mine, theirs in zip(*(m.predict(x, return_std=True) for m in (stream, whole)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
    assert stream.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-6)
    assert stream.certificate_.num_rows == pytest.approx(weight.sum())


def test_one_batch_is_a_fit_and_bounds_cover_all_rows(wave):
    x, y = wave
    batched = fixed(num_inducing=60, selection="greedy").partial_fit(x[:75], y[:75])
    assert (
        batched.log_evidence_ == fixed(num_inducing=60, selection="greedy").fit(x[:75], y[:75]).log_evidence_
    )
    batched.partial_fit(x[75:], y[75:])
    exact = fixed(num_inducing=150, selection="greedy").fit(x, y)
    assert batched.certificate_.lower <= exact.log_evidence_ + 1e-6
    assert exact.log_evidence_ <= batched.certificate_.upper + 1e-6


def test_stochastic_steps_learn_hyperparameters_and_the_rows_are_shown_again(wave):
    x, y = wave
    model = SparseGPRegressor(num_inducing=40, max_iterations=0, random_state=0, num_steps=80, batch_size=50)
    model.partial_fit(x[:75], y[:75])
    model.partial_fit(x[75:], y[75:])
    before, noise = model.log_evidence_, model.noise_
    for _ in range(3):
        for part in (slice(0, 75), slice(75, 150)):
            model.partial_fit(x[part], y[part], learn=True, num_rows=150)
    assert model.noise_ != noise
    assert model.certificate_.gap == np.inf
    estimate, error = model.log_evidence_, model.log_evidence_error_
    assert np.isfinite(model.predict(x, return_std=True)[1]).all()
    for part in (slice(0, 75), slice(75, 150)):
        model.partial_fit(x[part], y[part])
    assert model.log_evidence_ > before
    assert abs(estimate - model.log_evidence_) < 30, "0.2 nats per row"
    assert 0 < error < 20
    assert model.score(x, y) > 0.95
    assert model.certificate_.num_rows == 150


def test_stochastic_steps_count_weights_as_repetitions(wave):
    x, y = wave
    weight = np.random.default_rng(1).integers(0, 4, size=150).astype(float)

    start = SparseGPRegressor(num_inducing=60, max_iterations=0, noise=0.1, num_steps=20, random_state=0)
    start.fit(x, y)

    def learned(*batch: np.ndarray, num_rows: int | None = None) -> SparseGPRegressor:
        return deepcopy(start).partial_fit(*batch, learn=True, num_rows=num_rows)

    copies, total = weight.astype(int), int(weight.sum())
    repeated = learned(x.repeat(copies, axis=0), y.repeat(copies), num_rows=total)
    weighted, plain = learned(x, y, weight, num_rows=total), learned(x, y, num_rows=total)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), atol=1e-4)
    assert np.abs(weighted.predict(x) - plain.predict(x)).max() > 0.1
    assert weighted.log_evidence_ == pytest.approx(repeated.log_evidence_, abs=0.5)
    assert weighted.certificate_.num_rows == total
    assert weighted.log_evidence_error_ == 0, "the batch is all rows"
    half = learned(x, y, weight, num_rows=2 * total)
    assert 0 < half.log_evidence_error_ < 40
    assert half.log_evidence_ == pytest.approx(2 * weighted.log_evidence_, rel=0.3)
    with pytest.raises(ValueError, match=r"num_rows=150 is less than the \d+ rows"):
        learned(x, y, weight)
    with pytest.raises(ValueError, match="at least one non-zero"):
        learned(x, y, 0 * weight)


def test_wrong_batches_are_refused(wave):
    x, y = wave
    model = fixed(num_inducing=10).partial_fit(x, y)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(x[:, :1], y)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full((2, 2), np.nan), [1.0, 2.0])
    with pytest.raises(ValueError, match="num_rows=3 is less"):
        model.partial_fit(x, y, learn=True, num_rows=3)
