"""A sum of kernels taken apart, against dense algebra, draws of the summands, and the whole posterior."""

import pytest
import torch
from gpytorch.kernels import LinearKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor

from orbitwise.functionals import Difference, Evaluation, OrbitAverage
from orbitwise.inference.exact import components, condition, summands
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms.permutations import negation

X = torch.linspace(0, 3, 25, dtype=torch.float64)[:, None]
NEW = torch.linspace(-1, 5, 40, dtype=torch.float64)[:, None]
NOISE = torch.full((25,), 0.05, dtype=torch.float64)


def trend_and_season():
    trend, season = ScaleKernel(RBFKernel()), ScaleKernel(PeriodicKernel() * RBFKernel())
    trend.outputscale, trend.base_kernel.lengthscale = 2.0, 1.5
    season.outputscale = 0.4
    return (trend + season + ScaleKernel(RQKernel())).double()


def targets(columns: int = 1) -> Tensor:
    return torch.cat([torch.sin((3 + i) * X) + 0.5 * X for i in range(columns)], dim=1)


def dense(kernel, left: Tensor, right: Tensor) -> Tensor:
    return kernel(left, right).to_dense()


@torch.no_grad()
def test_means_add_up_to_the_posterior_mean():
    posterior = condition(Process(None, trend_and_season()), Evaluation().atoms(X), targets(2), NOISE)
    parts = components(posterior, Evaluation().atoms(NEW))
    assert len(parts) == 3
    whole = posterior.moments(Evaluation(), NEW)
    torch.testing.assert_close(sum(part.mean for part in parts), whole.mean, rtol=1e-9, atol=1e-9)
    assert all(part.mean.abs().max() > 0.01 for part in parts)


@torch.no_grad()
def test_moments_are_those_of_dense_algebra():
    kernel = trend_and_season()
    posterior = condition(Process(None, kernel), Evaluation().atoms(X), targets(), NOISE)
    inverse = torch.linalg.inv(dense(kernel, X, X) + torch.diag(NOISE))
    for part, summand in zip(components(posterior, Evaluation().atoms(NEW)), kernel.kernels, strict=True):
        assert part.kernel is summand
        cross = dense(summand, NEW, X)
        torch.testing.assert_close(part.mean, cross @ inverse @ targets(), rtol=1e-7, atol=1e-8)
        covariance = dense(summand, NEW, NEW) - cross @ inverse @ cross.T
        torch.testing.assert_close(part.variance, covariance.diagonal(), rtol=1e-7, atol=1e-8)


@torch.no_grad()
def test_variances_are_those_of_summands_given_their_sum():
    # g₁, g₂ and y are jointly normal: regress draws of g₁(x*) on draws of y.
    kernel, count = trend_and_season(), 40_000
    point, generator = NEW[30:31], torch.Generator().manual_seed(0)
    places = torch.cat([X, point])
    draws = []
    for summand in kernel.kernels:
        root = torch.linalg.cholesky(dense(summand, places, places) + 1e-9 * torch.eye(26).double())
        draws.append(root @ torch.randn(26, count, generator=generator, dtype=torch.float64))
    noise = NOISE.sqrt()[:, None] * torch.randn(25, count, generator=generator, dtype=torch.float64)
    y = sum(draws)[:25] + noise
    posterior = condition(Process(None, kernel), Evaluation().atoms(X), targets(), NOISE)
    for part, draw in zip(components(posterior, Evaluation().atoms(point)), draws, strict=True):
        coefficients = torch.linalg.lstsq(y.T, draw[25]).solution
        residual = (draw[25] - coefficients @ y).var()
        # the variance of count residuals, less 25 fitted coefficients, has a relative deviation of √(2/count)
        z = (residual / part.variance[0] - 1) / (2 / count) ** 0.5
        assert z.abs() < 4


@torch.no_grad()
def test_sums_inside_scales_and_products_are_multiplied_out():
    inner = ScaleKernel(RBFKernel() + LinearKernel())
    inner.outputscale = 3.0
    kernel = ((inner + RQKernel()) * PeriodicKernel()).double()
    parts = summands(kernel)
    assert len(parts) == 3
    total = sum(dense(part, X, NEW) for part in parts)
    torch.testing.assert_close(total, dense(kernel, X, NEW))
    inner.outputscale = 5.0
    torch.testing.assert_close(sum(dense(part, X, NEW) for part in parts), dense(kernel, X, NEW))
    posterior = condition(Process(None, kernel), Evaluation().atoms(X), targets(), NOISE)
    means = [part.mean for part in components(posterior, Evaluation().atoms(NEW))]
    torch.testing.assert_close(sum(means), posterior.moments(Evaluation(), NEW).mean)


@torch.no_grad()
def test_parts_may_be_put_together_and_kernels_without_sums_stay_whole():
    kernel = trend_and_season()
    posterior = condition(Process(None, kernel), Evaluation().atoms(X), targets(), NOISE)
    trend, *others = kernel.kernels
    fine = components(posterior, Evaluation().atoms(NEW))
    coarse = components(posterior, Evaluation().atoms(NEW), [trend, others[0] + others[1]])
    torch.testing.assert_close(coarse[1].mean, fine[1].mean + fine[2].mean)
    assert summands(trend) == [trend]
    product = RBFKernel() * PeriodicKernel()
    assert summands(product) == [product]


@torch.no_grad()
def test_a_mean_function_is_a_component_of_its_own():
    mean = ConstantMean().double()
    mean.constant = 7.0
    posterior = condition(Process(mean, trend_and_season()), Evaluation().atoms(X), targets() + 7, NOISE)
    parts = components(posterior, Evaluation().atoms(NEW))
    assert parts[0].kernel is None
    assert bool((parts[0].mean == 7).all())
    assert bool((parts[0].variance == 0).all())
    torch.testing.assert_close(sum(part.mean for part in parts), posterior.moments(Evaluation(), NEW).mean)


@torch.no_grad()
def test_any_functional_and_an_invariant_process_are_taken_apart():
    functional = OrbitAverage(FiniteOrbit(negation(1)))
    posterior = condition(Process(None, trend_and_season()), functional.atoms(X), targets(), NOISE)
    pairs = torch.stack([NEW, NEW.flip(0)], dim=1)
    for rows in (functional.atoms(NEW), Difference().atoms(pairs), Evaluation().atoms(NEW)):
        means = [part.mean for part in components(posterior, rows)]
        torch.testing.assert_close(sum(means), posterior.row_moments(rows).mean, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_precision_is_kept(dtype):
    posterior = condition(
        Process(None, trend_and_season().to(dtype)),
        Evaluation().atoms(X.to(dtype)),
        targets().to(dtype),
        NOISE.to(dtype),
    )
    parts = components(posterior, Evaluation().atoms(NEW.to(dtype)))
    assert {part.mean.dtype for part in parts} == {dtype}
    whole = posterior.moments(Evaluation(), NEW.to(dtype)).mean
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(sum(part.mean for part in parts), whole, rtol=tolerance, atol=tolerance)


def test_parts_that_are_not_the_whole_are_refused():
    kernel = trend_and_season()
    posterior = condition(Process(None, kernel), Evaluation().atoms(X), targets(), NOISE)
    with pytest.raises(ValueError, match=r"2 parts do not sum .* summands\(kernel\)"):
        components(posterior, Evaluation().atoms(NEW), list(kernel.kernels)[:2])
