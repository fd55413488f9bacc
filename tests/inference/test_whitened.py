"""q(v): divergence against torch, and natural-gradient steps."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from orbitwise.inference.sparse.posterior import Whitened

SIZE, OUTPUTS, ROWS = 4, 3, 6


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def precision(shared: bool) -> Tensor:
    root = seeded(SIZE, SIZE) if shared else seeded(OUTPUTS, SIZE, SIZE)
    return root @ root.mT + torch.eye(SIZE)


def natural(shared: bool) -> Whitened:
    return Whitened(precision(shared), seeded(SIZE, OUTPUTS, seed=1))


def covariances(q: Whitened) -> Tensor:
    """S of every output."""
    return torch.linalg.inv(q.precision).expand(OUTPUTS, SIZE, SIZE)


@pytest.mark.parametrize("shared", [True, False])
def test_divergence_and_spread_are_those_of_the_gaussian(shared):
    q = natural(shared)
    assert q.is_shared == shared
    prior = MultivariateNormal(torch.zeros(SIZE).double(), torch.eye(SIZE).double())
    total = sum(
        kl_divergence(MultivariateNormal(mean, covariance), prior)
        for mean, covariance in zip(q.mean.detach().T, covariances(q), strict=True)
    )
    torch.testing.assert_close(q.divergence().detach(), total)
    columns = seeded(ROWS, SIZE, seed=3)
    spread = q.spread(columns.reshape(2, 3, SIZE)).detach()
    right = torch.einsum("nu,cuw,mw->cnm", columns, covariances(q), columns)
    mine = spread @ spread.mT
    torch.testing.assert_close(mine.expand(OUTPUTS, ROWS, ROWS), right)


def test_the_mean_solves_the_natural_parameters():
    for shared in (True, False):
        q = natural(shared)
        right = torch.einsum("cuw,wc->uc", covariances(q), q.shift)
        torch.testing.assert_close(q.mean, right)


@pytest.mark.parametrize("shared", [True, False])
def test_the_prior_has_no_divergence(shared):
    q = Whitened.prior(SIZE, OUTPUTS, shared)
    assert q.divergence().item() == pytest.approx(0, abs=1e-12)
    assert q.mean.abs().max() == 0


@pytest.mark.parametrize("shared", [True, False])
def test_a_step_is_a_natural_gradient(shared):
    """P ← P - 2ρ ∂L/∂S and h ← h + ρ(∂L/∂m - 2 ∂L/∂S m), with gradients from autograd."""
    q, columns = natural(shared), seeded(ROWS, SIZE, seed=3)
    curvature = seeded(ROWS, 1 if shared else OUTPUTS, seed=4).square().expand(ROWS, OUTPUTS)
    slope, rate = seeded(ROWS, OUTPUTS, seed=5), 0.3
    stepped = q.step(columns, curvature, slope, rate)
    for output in range(OUTPUTS):
        mean = q.mean[:, output].clone().requires_grad_()
        covariance = covariances(q)[output].clone().requires_grad_()
        values = columns @ mean
        square = values.square() + torch.einsum("nu,uw,nw->n", columns, covariance, columns)
        data = (slope[:, output] * values - 0.5 * curvature[:, output] * square).sum()
        divergence = 0.5 * (covariance.trace() + mean @ mean - torch.logdet(covariance))
        by_mean, by_covariance = torch.autograd.grad(data - divergence, (mean, covariance))
        old = q.precision if shared else q.precision[output]
        new = stepped.precision if shared else stepped.precision[output]
        torch.testing.assert_close(new, old - 2 * rate * by_covariance)
        shift = q.shift[:, output] + rate * (by_mean - 2 * by_covariance @ mean.detach())
        torch.testing.assert_close(stepped.shift[:, output], shift)
