"""The best q of any likelihood: exact where the truth is known, else a maximum with the right slopes."""

import math
from typing import final

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from scipy.optimize import minimize
from torch import Tensor

from orbitwise.functionals.functional import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.inference.stochastic.nonconjugate import bound_at, fit_q
from orbitwise.likelihoods import Laplace, Likelihood, Poisson, Softmax, StudentT
from orbitwise.likelihoods.likelihood import hermite
from orbitwise.process.process import Process

X = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
COUNTS = torch.tensor([[0.0], [1], [3], [7], [4], [2], [0], [1], [5]], dtype=torch.float64)


@final
class NormalNoise(Likelihood):
    """Gaussian noise that hides that it is quadratic."""

    is_quadratic = False
    is_additive = True

    def log_density(self, f: Tensor, targets: Tensor) -> Tensor:
        return -0.5 * math.log(2 * math.pi * 0.04) - 0.5 * (targets - f).square() / 0.04


def process(constant: float = 0.0) -> Process:
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.3, 0.8
    mean = ConstantMean()
    mean.initialize(constant=constant)
    return Process(mean, kernel).double()


def given(prior: Process, likelihood: Likelihood, x: Tensor, targets: Tensor):
    return LatentModel(prior, Evaluation(), likelihood), Observations(Evaluation(), x, targets)


def test_under_gaussian_noise_it_is_the_exact_posterior_with_its_evidence():
    targets = torch.sin(2 * X) + 0.3
    model = process(0.4)
    rows = Evaluation().atoms(X)
    right = exact.condition(model, rows, targets, torch.full((9,), 0.04, dtype=torch.float64))
    q, bound = fit_q(*given(model, NormalNoise(), X, targets), X)
    assert bound == pytest.approx(right.evidence().value.item(), rel=1e-6)
    at = Evaluation().atoms(torch.tensor([[0.3], [1.7]], dtype=torch.float64))
    mine, theirs = SparsePosterior(model, X, q).row_moments(at), right.row_moments(at)
    torch.testing.assert_close(mine.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine.variance[:, 0], theirs.variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "likelihood", [Poisson(), Laplace(0.5), StudentT(0.4, 3.0)], ids=lambda each: type(each).__name__
)
def test_of_one_row_it_is_the_best_gaussian_and_below_the_evidence(likelihood):
    x, y = X[:1], torch.tensor([[3.0]], dtype=torch.float64)
    model = process(0.2)
    variance = model.variance(Evaluation().atoms(x)).item()
    nodes, weights = hermite(200, y)

    def negative(point: np.ndarray) -> float:
        mean, deviation = point[0], math.exp(point[1])
        values = mean + deviation * nodes
        data = (likelihood.log_density(values[:, None, None], y)[:, 0, 0] * weights).sum().item()
        ratio = deviation**2 / variance
        return 0.5 * (ratio + (mean - 0.2) ** 2 / variance - 1 - math.log(ratio)) - data

    with torch.no_grad():
        right = -min(minimize(negative, [start, -0.5], method="Nelder-Mead").fun for start in (0.0, 2.5))
        _, bound = fit_q(*given(model, likelihood, x, y), x)
        assert bound == pytest.approx(right, abs=3e-3), "quadrature of 40 and of 200 nodes"
        fine = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
        f = 0.2 + variance**0.5 * fine
        density = torch.exp(likelihood.log_density(f[:, None, None], y)[:, 0, 0] - 0.5 * fine.square())
        evidence = math.log(torch.trapezoid(density, fine).item() / math.sqrt(2 * math.pi))
    assert bound < evidence + 3e-3
    assert bound > evidence - 0.5


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (Poisson(), COUNTS),
        (Laplace(0.5), torch.sin(X)),
        # an outlier, where the curvature of the expected log-likelihood is negative
        (StudentT(0.2, 3.0), torch.where(X > 1.9, 9.0, torch.sin(X))),
        (Softmax(3), torch.eye(3).double()[torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0])]),
    ],
    ids=["poisson", "laplace", "student_t", "softmax"],
)
def test_no_step_in_q_raises_the_bound_and_its_slopes_are_those_of_the_best_bound(likelihood, targets):
    model, inducing = process(0.3), X[::2]
    parts = (*given(model, likelihood, X, targets), inducing)
    q, bound = fit_q(*parts)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        assert bound_at(*parts, q).item() == pytest.approx(bound, rel=1e-9)
        for _ in range(5):
            noise = 0.02 * torch.randn(q.shift.shape, generator=generator, dtype=torch.float64)
            assert bound_at(*parts, Whitened(q.precision, q.shift + noise)).item() < bound + 1e-5
        for factor in (0.97, 1.03):
            assert bound_at(*parts, Whitened(factor * q.precision, factor * q.shift)).item() < bound + 1e-5
    parameters = [*model.parameters(), *likelihood.parameters()]
    slopes = torch.autograd.grad(bound_at(*parts, q), parameters)
    for parameter, slope in zip(parameters, slopes, strict=True):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-3
                ends.append(fit_q(*parts, q).bound)
                parameter -= sign * 1e-3
        assert slope.sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=2e-2, abs=2e-2)


def test_targets_out_of_any_scale_are_an_error_not_an_answer():
    with pytest.raises(ValueError, match="not finite"):
        fit_q(*given(process(800.0), Poisson(), X, COUNTS), X)
