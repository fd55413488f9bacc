"""q(v) in its two forms: divergence against torch, natural-gradient steps, one form turned into the other."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from orbitwise.inference.sparse.posterior import Whitened, WhitenedFactor

SIZE, OUTPUTS, ROWS = 4, 3, 6


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def precision(shared: bool) -> Tensor:
    root = seeded(SIZE, SIZE) if shared else seeded(OUTPUTS, SIZE, SIZE)
    return root @ root.mT + torch.eye(SIZE)


def natural(shared: bool) -> Whitened:
    return Whitened(precision(shared), seeded(SIZE, OUTPUTS, seed=1))


def factored(shared: bool) -> WhitenedFactor:
    q = WhitenedFactor(SIZE, OUTPUTS, shared)
    with torch.no_grad():
        q.mean.copy_(seeded(SIZE, OUTPUTS, seed=1))
        q.raw.copy_(0.3 * seeded(*q.raw.shape, seed=2))
    return q


def covariances(q: Whitened | WhitenedFactor) -> Tensor:
    """S of every output."""
    natural = isinstance(q, Whitened)
    each = torch.linalg.inv(q.precision) if natural else (q.factor @ q.factor.mT).detach()
    return each.expand(OUTPUTS, SIZE, SIZE)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("form", [natural, factored])
def test_divergence_and_spread_are_those_of_the_gaussian(form, shared):
    q = form(shared)
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
    for q in (Whitened.prior(SIZE, OUTPUTS, shared), WhitenedFactor(SIZE, OUTPUTS, shared)):
        assert q.divergence().item() == pytest.approx(0, abs=1e-12)
        assert q.mean.abs().max() == 0


@pytest.mark.parametrize("shared", [True, False])
def test_a_factor_turned_natural_is_the_same_gaussian(shared):
    q = factored(shared)
    other = q.natural()
    torch.testing.assert_close(other.mean, q.mean.detach())
    torch.testing.assert_close(covariances(other), covariances(q))
    torch.testing.assert_close(other.divergence(), q.divergence().detach())


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


def test_adam_moves_a_factor_to_the_optimum():
    q, columns = WhitenedFactor(SIZE, 1, shared=True), seeded(ROWS, SIZE, seed=3)
    slope = seeded(ROWS, 1, seed=5)
    best = Whitened.prior(SIZE, 1, shared=True).step(columns, torch.ones(ROWS, 1).double(), slope, 1.0)
    optimizer = torch.optim.Adam(q.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        values = columns @ q.mean
        square = values.square() + q.spread(columns).square().sum(-1, keepdim=True)
        loss = q.divergence() - (slope * values - 0.5 * square).sum()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(q.mean.detach(), best.mean, atol=2e-2, rtol=0)
    torch.testing.assert_close(covariances(q)[0], torch.linalg.inv(best.precision), atol=2e-2, rtol=0)
