"""Quadratics in f, expansions about moments, and what likelihoods refuse."""

import pytest
import torch
from torch import Tensor

from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian, Poisson, Quadratic, Softmax, StudentT
from orbitwise.likelihoods.likelihood import expand
from orbitwise.process.moments import Moments


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moments(mean: Tensor, variance: Tensor) -> Moments:
    return Moments(mean, variance, mean.square() + variance)


def test_the_expectation_of_a_quadratic_is_that_of_samples():
    quadratic = Quadratic(*(seeded(3, 2, seed=s) for s in range(3)))
    mean, variance = seeded(3, 2, seed=4), seeded(3, 2, seed=5).square()
    values = mean + variance.sqrt() * seeded(200_000, 3, 2, seed=6)
    sampled = -0.5 * quadratic.curvature * values.square() + quadratic.slope * values + quadratic.constant
    error = sampled.std(0) / len(sampled) ** 0.5
    z = (sampled.mean(0) - quadratic.expectation(moments(mean, variance))) / error
    assert z.abs().max() < 4


def test_a_concave_quadratic_has_no_negative_curvature_and_the_same_slope_at_the_mean():
    quadratic = Quadratic(torch.tensor([[-2.0, 3.0]]), torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    mean = torch.tensor([[1.5, 1.5]])
    concave = quadratic.concave(mean)
    assert concave.curvature.tolist() == [[0.0, 3.0]]
    slopes = [each.slope - each.curvature * mean for each in (quadratic, concave)]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_an_expansion_agrees_in_value_and_gradients():
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def expected(mean: Tensor, variance: Tensor) -> Tensor:
        return scale * (mean.sin() * torch.exp(-variance) - variance.square())

    mean, variance = seeded(4, 2), seeded(4, 2, seed=1).square()
    arguments = [each.clone().requires_grad_() for each in (mean, variance)]
    at = moments(*arguments)
    value = expand(expected, at).expectation(at).sum()
    truth = expected(*arguments).sum()
    assert value.item() == pytest.approx(truth.item(), rel=1e-12)
    given = torch.autograd.grad(value, [*arguments, scale])
    wanted = torch.autograd.grad(truth, [*arguments, scale])
    for mine, right in zip(given, wanted, strict=True):
        torch.testing.assert_close(mine, right)


def test_an_expansion_takes_a_variance_that_outputs_share_and_one_of_zero():
    mean, shared = seeded(3, 2), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    at = Moments(mean, shared, mean.square() + shared[:, None])
    with torch.no_grad():
        quadratic = Poisson().expansion(at, torch.ones(3, 2, dtype=torch.float64))
    wide = Poisson().expansion(moments(mean, shared[:, None].expand(3, 2)), torch.ones(3, 2).double())
    torch.testing.assert_close(quadratic.curvature, wide.curvature)
    assert bool(torch.stack(tuple(quadratic)).isfinite().all())
    assert not quadratic.constant.requires_grad, "nothing is kept for a backward pass without gradients"


@pytest.mark.parametrize("likelihood", [Gaussian(), Dirichlet(), Bernoulli()])
def test_quadratic_likelihoods_do_not_look_at_the_moments(likelihood):
    targets, tilt = torch.ones(3, 2).double(), torch.ones(3, 2).double()
    assert likelihood.is_quadratic
    far = likelihood.expansion(moments(seeded(3, 2), torch.ones(3, 2)), targets, tilt)
    for mine, other in zip(far, likelihood.quadratic(targets, tilt), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("likelihood", [Poisson(), StudentT(), Softmax(2)])
def test_general_likelihoods_have_no_quadratic_for_all_moments(likelihood):
    assert not likelihood.is_quadratic
    with pytest.raises(ValueError, match="no bound that is quadratic in f"):
        likelihood.quadratic(torch.ones(3, 2).double())
    with pytest.raises(ValueError, match="expanded about moments"):
        likelihood.expansion(None, torch.ones(3, 2).double())
