"""InvariantGPRegressor trained on slopes, differences and values together."""

import numpy as np
import pytest
import torch

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FiniteDifference,
    Gradient,
)

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RIGHT = torch.tensor([1.0])


def rmse(model, x, y) -> float:
    return float(np.sqrt(np.mean((model.predict(x) - y) ** 2)))


@pytest.fixture
def curve(rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.linspace(-3, 3, 6)[:, None]
    new = np.linspace(-3, 3, 50)[:, None]
    return x, np.sin(2 * x[:, 0]) + 0.01 * rng.normal(size=6), new


@pytest.mark.parametrize(
    ("functional", "noise"),
    [
        (Gradient(), 1e-4),
        (Gradient(), None),
        (DirectionalDerivative(RIGHT), 1e-4),
        (FiniteDifference(RIGHT), 1e-4),
    ],
    ids=["gradient", "noise learned", "direction", "difference"],
)
def test_slopes_improve_a_fit(curve, functional, noise):
    x, y, new = curve
    truth = np.sin(2 * new[:, 0])
    slopes = 2 * np.cos(2 * x[:, 0])
    values = InvariantGPRegressor(max_iterations=20).fit(x, y)
    both = InvariantGPRegressor(max_iterations=20).fit(x, y, observations=[(functional, x, slopes, noise)])
    assert rmse(both, new, truth) < 0.2 * rmse(values, new, truth)
    np.testing.assert_allclose(both.predict_functional(functional, x), slopes, atol=0.1)
    (learned,) = both.observation_noise_
    assert learned == pytest.approx(1e-4) if noise else 0 < learned < 0.1


def test_second_differences_improve_a_fit(curve):
    x, y, new = curve
    truth, bends = np.sin(2 * new[:, 0]), -4 * np.sin(2 * x[:, 0])
    bend = FiniteDifference(RIGHT, step=1e-2, order=2)
    values = InvariantGPRegressor(max_iterations=20).fit(x, y)
    both = InvariantGPRegressor(max_iterations=20).fit(x, y, observations=[(bend, x, bends, 1e-2)])
    assert rmse(both, new, truth) < 0.5 * rmse(values, new, truth)
    np.testing.assert_allclose(both.predict_functional(bend, x), bends, atol=0.3)


def test_values_may_be_observed_elsewhere_with_another_noise(curve):
    x, y, new = curve
    precise = [(Evaluation(), new[::5], 10 + np.sin(2 * new[::5, 0]), 1e-6)]
    both = InvariantGPRegressor(max_iterations=20).fit(x, 10 + y, observations=precise)
    assert rmse(both, new[::5], 10 + np.sin(2 * new[::5, 0])) < 1e-2


def test_slopes_of_an_invariant_function_are_mirrored(rng):
    x = rng.uniform(-2, 2, size=(12, 2))
    y = np.sin(x).sum(1)
    model = InvariantGPRegressor(invariance="permutation", max_iterations=15).fit(
        x, y, observations=[(Gradient(), x, np.cos(x), 1e-3)]
    )
    slopes = model.predict_functional(Gradient(), x).reshape(12, 2)
    mirrored = model.predict_functional(Gradient(), x[:, ::-1]).reshape(12, 2)
    np.testing.assert_allclose(mirrored[:, ::-1], slopes, atol=1e-9)
    np.testing.assert_allclose(slopes, np.cos(x), atol=0.1)


def test_functionals_of_the_posterior_come_with_their_deviation(data, new):
    model = InvariantGPRegressor(max_iterations=10).fit(*data)
    mean, deviation = model.predict_functional(Gradient(), new, return_std=True)
    again, covariance = model.predict_functional(Gradient(), new, return_cov=True)
    assert mean.shape == deviation.shape == (14,)
    np.testing.assert_allclose(mean, again, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(covariance), deviation**2, atol=1e-9)
    step = 1e-5
    ahead, behind = (model.predict(new + np.array([h, 0.0])) for h in (step, -step))
    np.testing.assert_allclose(mean[::2], (ahead - behind) / (2 * step), atol=1e-6)
