"""InvariantGPRegressor on weighted, repeated, few and dull data, and with kernels and means of all kinds."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import NormalPrior
from scipy.stats import multivariate_normal

from orbitwise import InvariantGPRegressor, SparseGPRegressor
from orbitwise.functionals import (
    DirectionalDerivative,
)

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RIGHT = torch.tensor([1.0])


def fixed_kernel(scale: float = 1.7, lengthscale: float = 0.9) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = torch.tensor(
        [scale, lengthscale], dtype=torch.float64
    )
    return kernel


def test_a_weight_is_a_repetition(data, new, rng):
    x, y = data
    weight = rng.integers(0, 4, size=25)
    repeated = np.repeat(np.arange(25), weight)
    weighted = InvariantGPRegressor().fit(x, y, sample_weight=weight)
    plain = InvariantGPRegressor().fit(x[repeated], y[repeated])
    assert weighted.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-6)
    assert weighted.evidence_terms_ == pytest.approx(plain.evidence_terms_, rel=1e-6)
    np.testing.assert_allclose(
        weighted.predict(new, return_std=True), plain.predict(new, return_std=True), atol=1e-5
    )


def test_duplicated_rows_fit_and_have_the_evidence_of_all_rows(data):
    x, y = np.concatenate([data[0]] * 2), np.concatenate([data[1], data[1] + 0.05])
    arguments = {"noise": 0.2, "normalize_y": False, "max_iterations": 0}
    model = InvariantGPRegressor(fixed_kernel(), **arguments).fit(x, y)
    gram = 1.7 * np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1) / 0.81)
    assert model.log_evidence_ == pytest.approx(multivariate_normal(cov=gram + 0.2 * np.eye(50)).logpdf(y))
    assert model.jitter_ == 0.0
    residual = -0.5 * y @ np.linalg.solve(gram + 0.2 * np.eye(50), y)
    assert model.evidence_terms_["fit"] == pytest.approx(residual)


def test_the_order_of_rows_does_not_matter(data, new, rng):
    x, y = data
    order = rng.permutation(25)
    first = InvariantGPRegressor(invariance="permutation").fit(x, y).predict(new, return_std=True)
    np.testing.assert_array_equal(
        InvariantGPRegressor(invariance="permutation").fit(x[order], y[order]).predict(new, return_std=True),
        first,
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8, -1e-8])
def test_constant_targets_are_predicted_with_confidence(data, new, value):
    model = InvariantGPRegressor().fit(data[0], np.full(25, value))
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-9, atol=1e-12)
    assert (deviation < 1e-2).all()
    assert np.isfinite(model.log_evidence_)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("invariance", [None, "permutation"])
def test_one_row_is_enough(invariance, mean):
    with pytest.warns(UserWarning, match="One target does not say how far targets vary"):
        model = InvariantGPRegressor(invariance=invariance, mean=mean).fit([[1.0, 2.0]], [3.0])
    assert model.predict([[1.0, 2.0]])[0] == pytest.approx(3)
    assert np.isfinite(model.predict([[5.0, 5.0]], return_std=True)).all()


@pytest.mark.parametrize("estimator", [InvariantGPRegressor, SparseGPRegressor])
def test_two_rows_do_not_say_how_far_targets_vary(estimator):
    x = np.array([[-1.0, 0.3], [0.2, -0.8]])
    with pytest.warns(UserWarning, match="2 targets do not say how far targets vary"):
        estimator().fit(x, np.sin(x).sum(1))


def test_error_bars_of_three_rows_are_not_far_too_small():
    errors = []
    for seed in range(6):
        x, new = np.split(np.random.default_rng(seed).normal(size=(203, 3)), [3])
        mean, deviation = InvariantGPRegressor().fit(x, np.sin(x).sum(1)).predict(new, return_std=True)
        errors.append(np.sqrt(np.mean(((mean - np.sin(new).sum(1)) / deviation) ** 2)))
    # in deviations; up to 15 by the evidence alone
    assert max(errors) < 4


def test_lengthscales_of_columns_that_do_not_matter_stay_finite(rng):
    x = rng.normal(size=(20, 4)) * [1.0, 10.0, 1.0, 1.0]
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=20)
    kernel = InvariantGPRegressor().fit(x, y).kernel_
    (relative,) = kernel.base_kernel.lengthscale.detach().numpy() / (2 * x.std(0))
    assert relative[0] < 1.2
    # above 100 by the evidence alone
    assert (relative[1:] > 2).all()
    assert (relative[1:] < 20).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8])
def test_constant_columns_do_not_matter(data, new, value):
    x, y = data

    def wider(rows: np.ndarray) -> np.ndarray:
        return np.c_[rows, np.full(len(rows), value)]

    narrow, wide = InvariantGPRegressor().fit(x, y), InvariantGPRegressor().fit(wider(x), y)
    assert wide.log_evidence_ == pytest.approx(narrow.log_evidence_, abs=1e-3)
    np.testing.assert_allclose(wide.predict(wider(new)), narrow.predict(new), atol=1e-3)


def test_no_noise_interpolates(data, new):
    x, y = data
    model = InvariantGPRegressor(noise=0.0, max_iterations=20).fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, atol=1e-5)
    assert model.noise_ == 0.0
    twice = InvariantGPRegressor(noise=0.0, max_iterations=20).fit(np.r_[x, x], np.r_[y, y])
    np.testing.assert_allclose(twice.predict(new), model.predict(new), atol=1e-6)
    with pytest.raises(ValueError, match="different targets"):
        InvariantGPRegressor(noise=0.0).fit(np.r_[x, x], np.r_[y, y + 1])


def test_hyperpriors_pull_what_is_learned(data):
    free = InvariantGPRegressor(ScaleKernel(RBFKernel())).fit(*data)
    prior = NormalPrior(0.2, 0.01)
    held = InvariantGPRegressor(ScaleKernel(RBFKernel(lengthscale_prior=prior))).fit(*data)
    assert free.kernel_.base_kernel.lengthscale.item() > 0.8
    assert held.kernel_.base_kernel.lengthscale.item() == pytest.approx(0.2, abs=0.1)
    assert held.log_evidence_ < free.log_evidence_, "the evidence itself does not count the prior"


@pytest.mark.parametrize(
    "kernel",
    [MaternKernel(nu=0.5), PeriodicKernel(), LinearKernel() + RBFKernel(), RBFKernel(active_dims=[1])],
)
def test_any_gpytorch_kernel_is_a_base_kernel(kernel, data, new):
    model = InvariantGPRegressor(ScaleKernel(kernel), "permutation", max_iterations=5).fit(*data)
    np.testing.assert_allclose(model.predict(new), model.predict(new[:, ::-1]), atol=1e-10)
    assert (
        model.log_evidence_
        > InvariantGPRegressor(ScaleKernel(kernel), "permutation", max_iterations=0).fit(*data).log_evidence_
    )


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_a_mean_function_reaches_beyond_the_data(mean, rng):
    x = rng.uniform(-1, 1, size=(30, 2))
    slope = np.array([3.0, -2.0]) if mean == "linear" else np.zeros(2)
    y = 7 + x @ slope + 0.1 * rng.normal(size=30)
    model = InvariantGPRegressor(mean=mean, max_iterations=30).fit(x, y)
    far = np.array([[20.0, 0.0], [0.0, 20.0]])
    np.testing.assert_allclose(model.predict(far), 7 + far @ slope, rtol=0.05)
    if mean == "linear":
        assert np.abs(InvariantGPRegressor().fit(x, y).predict(far) - (7 + far @ slope)).max() > 10


def test_a_linear_mean_learns_from_slopes(rng):
    x = rng.uniform(-1, 1, size=(2, 1))
    slopes = [(DirectionalDerivative(RIGHT), x + 3, np.array([4.0, 4.0]), 1e-4)]
    with_slopes = InvariantGPRegressor(mean="linear", noise=0.01, normalize_y=False, max_iterations=15)
    with_slopes.fit(x, 4 * x[:, 0] + 1, observations=slopes)
    assert with_slopes.predict([[50.0]])[0] == pytest.approx(201, rel=0.05)
    (steep,) = with_slopes.predict_functional(DirectionalDerivative(RIGHT), [[50.0]])
    assert steep == pytest.approx(4, rel=0.05)


def test_several_outputs_have_one_kernel_and_their_own_scale(data, new, rng):
    x, y = data
    both = np.stack([y, 100 - 50 * y], axis=1)
    model = InvariantGPRegressor(invariance="permutation").fit(x, both)
    single = InvariantGPRegressor(invariance="permutation").fit(x, y)
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean[:, 1], 100 - 50 * mean[:, 0], rtol=1e-8)
    np.testing.assert_allclose(deviation[:, 1], 50 * deviation[:, 0], rtol=1e-8)
    np.testing.assert_allclose(mean[:, 0], single.predict(new), atol=1e-3)
    assert model.noise_[1] == pytest.approx(2500 * model.noise_[0])
    assert model.log_evidence_ == pytest.approx(2 * single.log_evidence_ - 25 * np.log(50), rel=1e-5)
