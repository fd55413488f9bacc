"""Quadratics in f, expansions about moments, and what likelihoods refuse."""

import pytest
import torch
from torch import Tensor

from orbitwise.likelihoods import (
    Bernoulli,
    Dirichlet,
    Gaussian,
    Laplace,
    Poisson,
    Quadratic,
    Softmax,
    StudentT,
)
from orbitwise.likelihoods.likelihood import expand
from orbitwise.process.process import Moments


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


@pytest.mark.parametrize("likelihood", [Poisson(), StudentT(), Laplace(), Softmax(2)])
def test_general_likelihoods_have_no_quadratic_for_all_moments(likelihood):
    assert not likelihood.is_quadratic
    with pytest.raises(ValueError, match="no bound that is quadratic in f"):
        likelihood.quadratic(torch.ones(3, 2).double())
    with pytest.raises(ValueError, match="expanded about moments"):
        likelihood.expansion(None, torch.ones(3, 2).double())


COUNTS = torch.tensor([[1.0, 3.0], [0.0, 2.0], [4.0, 0.0]], dtype=torch.float64)
SIGNS = torch.tensor([[1.0, -1.0], [0.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)


def torch_densities(f: Tensor) -> dict[str, tuple]:
    """Likelihoods, targets, and log p(y | f) by torch.distributions."""
    real = seeded(3, 2, seed=3)
    distributions = torch.distributions
    return {
        "gaussian": (Gaussian(0.3), real, distributions.Normal(f, 0.3**0.5).log_prob(real)),
        "poisson": (Poisson(), COUNTS, distributions.Poisson(f.exp()).log_prob(COUNTS)),
        "student": (StudentT(0.4, 3.0), real, distributions.StudentT(3.0, f, 0.4).log_prob(real)),
        "laplace": (Laplace(0.4), real, distributions.Laplace(f, 0.4).log_prob(real)),
        "bernoulli": (
            Bernoulli(),
            SIGNS,
            SIGNS.abs() * distributions.Bernoulli(logits=f).log_prob((SIGNS > 0).double()),
        ),
    }


@pytest.mark.parametrize("name", ["gaussian", "poisson", "student", "laplace", "bernoulli"])
def test_the_pointwise_density_is_that_of_torch_for_a_batch_of_samples(name):
    f = seeded(5, 4, 3, 2)
    likelihood, targets, theirs = torch_densities(f)[name]
    assert likelihood.is_separable
    torch.testing.assert_close(likelihood.log_density(f, targets), theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(likelihood.log_density(f[0, 0], targets), theirs[0, 0], rtol=1e-6, atol=1e-6)


def test_the_density_of_classes_is_a_sum_over_outputs():
    f, likelihood = seeded(4, 3, 2), Softmax(2)
    theirs = [
        torch.distributions.Multinomial(int(count.sum()), logits=f[:, n]).log_prob(count)
        for n, count in enumerate(COUNTS)
    ]
    assert not likelihood.is_separable
    torch.testing.assert_close(likelihood.log_density(f, COUNTS).sum(-1), torch.stack(theirs, dim=-1))
    with pytest.raises(ValueError, match="made for 2 classes, not 3"):
        likelihood.log_density(seeded(4, 3), torch.ones(4, 3).double())


def test_a_quadratic_bound_is_below_the_density_and_touches_it():
    f = torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None, None].expand(-1, 3, 2)
    tilt = torch.full((3, 2), 2.0, dtype=torch.float64)
    bound = Bernoulli().quadratic(SIGNS, tilt)
    below = -0.5 * bound.curvature * f.square() + bound.slope * f + bound.constant
    density = Bernoulli().log_density(f, SIGNS)
    assert bool((below <= density + 1e-12).all())
    at = (f.abs() == 2.0) & (SIGNS != 0)
    torch.testing.assert_close(below[at], density[at])
    targets = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(3, 2)
    gaussian = Dirichlet().quadratic(targets)
    exact = -0.5 * gaussian.curvature * f.square() + gaussian.slope * f + gaussian.constant
    torch.testing.assert_close(Dirichlet().log_density(f, targets), exact)


@pytest.mark.parametrize(
    ("likelihood", "response"),
    [
        (Gaussian(), lambda f: f),
        (StudentT(), lambda f: f),
        (Laplace(), lambda f: f),
        (Poisson(), torch.exp),
        (Bernoulli(), torch.sigmoid),
        (Dirichlet(), lambda f: torch.softmax(f, -1)),
        (Softmax(2), lambda f: torch.softmax(f, -1)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, torch.nn.Module) else "",
)
def test_predictions_are_means_over_samples_of_f(likelihood, response):
    mean, shared = seeded(3, 2, seed=4), torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    values = response(mean + shared[:, None].sqrt() * seeded(100_000, 3, 2, seed=6))
    at = Moments(mean, shared, mean.square() + shared[:, None])
    error = values.std(0) / len(values) ** 0.5
    # the classes of a Dirichlet are averaged over 256 fixed draws
    slack = 0.03 if isinstance(likelihood, Dirichlet) else 0.0
    assert bool(((values.mean(0) - likelihood.predict(at)).abs() < 4 * error + slack).all())
