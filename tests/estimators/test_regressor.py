"""InvariantGPRegressor: scikit-learn's contract, units, and predictions beside scikit-learn's."""

import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import (
    DirectionalDerivative,
    Gradient,
)
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Rotation
from tests.contracts.estimator_contract import assert_follows_scikit_learn

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def fixed_kernel(scale: float = 1.7, lengthscale: float = 0.9) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = torch.tensor(
        [scale, lengthscale], dtype=torch.float64
    )
    return kernel


@pytest.mark.parametrize("invariance", [None, pytest.param("negation", marks=pytest.mark.slow)])
def test_follows_scikit_learn(invariance):
    assert_follows_scikit_learn(InvariantGPRegressor(invariance=invariance, max_iterations=2))


def test_what_is_not_fitted_cannot_predict(new):
    model = InvariantGPRegressor()
    for ask in (model.predict, model.sample_y, lambda x: model.predict_functional(Gradient(), x)):
        with pytest.raises(NotFittedError):
            ask(new)


def test_the_kernel_given_is_not_changed(data):
    kernel = ScaleKernel(RBFKernel())
    orbit = SampledOrbit(Rotation(), -0.3, 0.3).freeze(3, torch.Generator().manual_seed(0))
    before = [each.clone() for each in (*kernel.parameters(), *orbit.parameters())]
    model = InvariantGPRegressor(kernel, orbit, max_iterations=5).fit(*data)
    after = [*kernel.parameters(), *orbit.parameters()]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, after, strict=True))
    assert kernel.raw_outputscale.dtype == torch.float32
    assert model.kernel is kernel
    assert model.kernel_ is not kernel
    assert model.kernel_.base_kernel.lengthscale.item() != kernel.base_kernel.lengthscale.item()


def test_clones_start_afresh_and_fit_the_same(data, new):
    model = InvariantGPRegressor(ScaleKernel(MaternKernel()), "permutation", max_iterations=5).fit(*data)
    other = clone(model)
    assert not hasattr(other, "kernel_")
    assert other.kernel is not model.kernel
    np.testing.assert_array_equal(other.fit(*data).predict(new), model.predict(new))


def test_a_fitted_model_survives_pickling(data, new):
    model = InvariantGPRegressor(invariance="permutation", mean="linear", max_iterations=5).fit(*data)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(new, return_std=True), model.predict(new, return_std=True))


def test_a_fit_can_be_repeated_and_restarts_are_seeded(data):
    def evidence(seed: int) -> list[float]:
        return InvariantGPRegressor(num_restarts=2, random_state=seed, max_iterations=3).fit(*data).history_

    assert evidence(1) == evidence(1)
    single = InvariantGPRegressor(max_iterations=3).fit(*data).log_evidence_
    assert (
        InvariantGPRegressor(num_restarts=2, random_state=1, max_iterations=3).fit(*data).log_evidence_
        >= single
    )


def test_what_is_learned_is_told(data):
    model = InvariantGPRegressor().fit(*data)
    assert model.evidence_kind_ == "exact"
    assert model.converged_
    assert model.jitter_ == 0.0
    assert len(model.history_) > 3
    assert model.noise_ == pytest.approx(0.01, rel=0.6)
    assert model.log_evidence_ == pytest.approx(sum(model.evidence_terms_.values()))
    assert set(model.evidence_terms_) == {"fit", "complexity", "constant"}
    assert not InvariantGPRegressor(max_iterations=1).fit(*data).converged_


@pytest.mark.parametrize("invariance", [None, "permutation"])
def test_the_evidence_is_that_of_the_given_targets(data, invariance):
    x, y = data
    model = InvariantGPRegressor(
        fixed_kernel(), invariance, noise=0.2, normalize_y=False, max_iterations=0
    ).fit(x, y)

    def k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return 1.7 * np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(-1) / 0.81)

    gram = k(x, x) if invariance is None else (k(x, x) + k(x, x[:, ::-1])) / 2
    expected = multivariate_normal(cov=gram + 0.2 * np.eye(25)).logpdf(y)
    assert model.log_evidence_ == pytest.approx(expected, rel=1e-9)


def test_the_evidence_does_not_depend_on_standardisation_when_the_models_are_equal(data):
    x, y = data[0], 50 * data[1]
    shift, scale = y.mean(), y.std()
    same = {"noise": 300.0, "max_iterations": 0}
    standard = InvariantGPRegressor(fixed_kernel(), **same).fit(x, y)
    plain = InvariantGPRegressor(fixed_kernel(1.7 * scale**2), normalize_y=False, **same).fit(x, y - shift)
    assert standard.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-9)
    assert standard.evidence_terms_ == pytest.approx(plain.evidence_terms_, rel=1e-9)
    np.testing.assert_allclose(standard.predict(x), plain.predict(x) + shift)
    assert standard.noise_ == pytest.approx(300)
    assert plain.noise_ == 300


@pytest.mark.parametrize("mean", ["zero", "linear"])
@pytest.mark.parametrize(("of_x", "of_y"), [(1e8, 1e-8), (1e-8, 1e8)])
def test_units_of_inputs_and_targets_do_not_matter(data, new, of_x, of_y, mean):
    x, y = data
    expected = InvariantGPRegressor(mean=mean).fit(x, y)
    scaled = InvariantGPRegressor(mean=mean).fit(of_x * x, of_y * y)
    np.testing.assert_allclose(scaled.predict(of_x * new) / of_y, expected.predict(new), atol=2e-3)
    jacobian = -25 * np.log(of_y)
    assert scaled.log_evidence_ == pytest.approx(expected.log_evidence_ + jacobian, abs=1e-3)
    assert scaled.noise_ == pytest.approx(expected.noise_ * of_y**2, rel=2e-2)


@pytest.mark.parametrize("offset", [1e6, -1e6])
def test_an_offset_of_targets_moves_predictions_by_it(data, new, offset):
    x, y = data
    expected = InvariantGPRegressor().fit(x, y).predict(new)
    moved = InvariantGPRegressor().fit(x, y + offset).predict(new)
    np.testing.assert_allclose(moved - offset, expected, atol=1e-4)


@pytest.mark.parametrize("outputs", [None, 1, 2])
@pytest.mark.parametrize("normalize_y", [True, False])
def test_predictions_are_those_of_scikit_learn(data, new, outputs, normalize_y):
    x, y = data
    y = y if outputs is None else np.stack([y, 3 * y**2][:outputs], axis=1)
    fixed = {"noise": None if outputs == 2 else 0.3, "max_iterations": 0, "normalize_y": normalize_y}
    ours = InvariantGPRegressor(fixed_kernel(), **fixed).fit(x, y)
    noise = ours.likelihood_.noise.item()
    theirs = GaussianProcessRegressor(
        ConstantKernel(1.7) * RBF(0.9), alpha=noise, optimizer=None, normalize_y=normalize_y
    ).fit(x, y)
    shape = (7,) if outputs is None else (7, outputs)
    mean, deviation = ours.predict(new, return_std=True, include_noise=False)
    assert mean.shape == deviation.shape == ours.predict(new).shape == shape
    _, covariance = ours.predict(new, return_cov=True, include_noise=False)
    assert covariance.shape == (7, 7) if outputs is None else (7, 7, outputs)
    np.testing.assert_allclose(mean.reshape(7, -1), theirs.predict(new).reshape(7, -1), atol=1e-9)
    for mine, asked in ((deviation, "return_std"), (covariance, "return_cov")):
        _, other = theirs.predict(new, **{asked: True})
        np.testing.assert_allclose(mine.reshape(*other.shape), other, atol=1e-8)


def test_samples_have_the_shapes_of_scikit_learn(data, new):
    x, y = data
    for targets in (y, np.stack([y, y**2], axis=1)):
        ours = InvariantGPRegressor(max_iterations=0).fit(x, targets)
        theirs = GaussianProcessRegressor(alpha=0.1).fit(x, targets)
        for count in (1, 3):
            assert ours.sample_y(new, count).shape == theirs.sample_y(new, count).shape
        np.testing.assert_array_equal(
            ours.sample_y(new, 2, random_state=3), ours.sample_y(new, 2, random_state=3)
        )
        assert (ours.sample_y(new, 2, random_state=3) != ours.sample_y(new, 2, random_state=4)).any()


def test_samples_have_the_moments_that_are_predicted(data, new):
    y = np.stack([data[1], 40 + 10 * data[1] ** 2], axis=1)
    model = InvariantGPRegressor(invariance="permutation", max_iterations=5).fit(data[0], y)
    draws = model.sample_y(new, 20_000, random_state=0)
    mean, deviation = model.predict(new, return_std=True, include_noise=False)
    assert (np.abs(draws.mean(-1) - mean) / deviation * np.sqrt(20_000)).max() < 4.5
    # the sample deviation has a relative standard error of 1/√(2q)
    assert (np.abs(draws.std(-1) / deviation - 1) * np.sqrt(40_000)).max() < 4.5


@pytest.mark.parametrize("outputs", [1, 2])
def test_noise_is_added_unless_it_is_left_out(data, new, outputs):
    y = np.stack([data[1], 40 + 10 * data[1] ** 2], axis=1)[:, :outputs]
    model = InvariantGPRegressor(max_iterations=5).fit(data[0], y)
    noise = np.broadcast_to(model.noise_, (outputs,))
    (_, of_f), (_, of_y) = (model.predict(new, return_std=True, include_noise=each) for each in (False, True))
    np.testing.assert_allclose(of_y**2, of_f**2 + noise, rtol=1e-12)
    (_, of_f), (_, of_y) = (model.predict(new, return_cov=True, include_noise=each) for each in (False, True))
    np.testing.assert_allclose(of_y, of_f + noise * np.eye(7)[..., None], rtol=1e-12)
    np.testing.assert_array_equal(model.predict(new, include_noise=True), model.predict(new))


def test_deviation_and_covariance_are_not_asked_for_together(data, new):
    with pytest.raises(ValueError, match="At most one"):
        InvariantGPRegressor(max_iterations=0).fit(*data).predict(new, return_std=True, return_cov=True)


def test_many_rows_are_predicted_in_parts_with_the_same_result(data, rng):
    model = InvariantGPRegressor(max_iterations=0).fit(*data)
    many = rng.normal(size=(2500, 2))
    directions = rng.normal(size=(2500, 2))
    np.testing.assert_allclose(model.predict(many)[2040:2060], model.predict(many[2040:2060]), atol=1e-12)
    slopes = model.predict_functional(DirectionalDerivative(torch.from_numpy(directions)), many)
    gradients = model.predict_functional(Gradient(), many).reshape(2500, 2)
    np.testing.assert_allclose(slopes, (gradients * directions).sum(1), atol=1e-9)
