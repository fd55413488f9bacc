"""How many labels one label stands for, in the likelihoods of classes that know it."""

import math

import pytest
import torch

from orbitwise.likelihoods import Bernoulli, Dirichlet
from orbitwise.likelihoods.bernoulli import polya_gamma_mean, polya_gamma_slope
from orbitwise.likelihoods.label_count import FLOOR, LabelCount
from orbitwise.likelihoods.likelihood import gaussian_expectation
from orbitwise.process.process import Moments

LIKE = torch.zeros((), dtype=torch.float64)
SIGNS = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)


def test_a_learned_count_starts_as_given_and_stays_below_a_million():
    learned = LabelCount(50.0, learnable=True)
    assert learned.value(LIKE).item() == pytest.approx(50)
    assert len(list(learned.parameters())) == 1
    assert len(list(LabelCount(50.0).parameters())) == 0
    assert learned.raw_dispersion is not None
    learned.raw_dispersion.data.fill_(-1e3)
    assert learned.value(LIKE).item() == pytest.approx(1 / FLOOR)


@pytest.mark.parametrize("count", [0.0, -1.0, math.inf, math.nan])
def test_a_count_is_positive_and_finite(count):
    with pytest.raises(ValueError, match="count must be positive"):
        LabelCount(count)


def test_doubt_is_below_a_half_and_goes_with_a_learnable_count():
    for doubt in (-0.1, 0.5, math.nan):
        with pytest.raises(ValueError, match="doubt must be"):
            Bernoulli(doubt=doubt)
    with pytest.raises(ValueError, match="needs a positive doubt"):
        Bernoulli(learnable=True)
    with pytest.raises(ValueError, match="starts below"):
        Dirichlet(count=1e7, learnable=True)


def test_a_label_without_doubt_that_counts_three_times_is_three_labels():
    tilt = torch.full_like(SIGNS, 1.3)
    for mine, one in zip(
        Bernoulli(3.0).quadratic(SIGNS, tilt), Bernoulli().quadratic(SIGNS, tilt), strict=True
    ):
        torch.testing.assert_close(mine, 3 * one)
    f = torch.full_like(SIGNS, 0.7)
    torch.testing.assert_close(Bernoulli(3.0).log_density(f, SIGNS), 3 * Bernoulli().log_density(f, SIGNS))


def test_shares_have_a_density():
    """For fixed f it integrates to one over the shares of a label: so evidence can choose the count."""
    shares = torch.linspace(0.001, 0.499, 400, dtype=torch.float64)
    f, one = torch.full((1, 1), 0.4, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    for count in (40.0, 400.0):
        density = [
            Bernoulli(count, float(share)).log_density(f, sign * one).exp().item()
            for sign in (1, -1)
            for share in shares
        ]
        assert sum(density) * 0.498 / 399 == pytest.approx(1, abs=0.02)


def expected(likelihood: Bernoulli, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return gaussian_expectation(lambda f: likelihood.log_density(f, SIGNS), mean, variance, 80)


@pytest.mark.parametrize(("count", "doubt"), [(1.0, 0.0), (5.0, 0.2), (40.0, 0.01)])
def test_the_bound_stays_below_the_expected_log_density(count, doubt):
    likelihood = Bernoulli(count, doubt)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        mean = 3 * torch.randn(1, 3, generator=generator, dtype=torch.float64)
        variance = torch.rand(1, 3, generator=generator, dtype=torch.float64)
        square = mean.square() + variance
        at = Moments(mean, variance, square)
        best = likelihood.quadratic(SIGNS, square.sqrt()).expectation(at)
        assert bool((best <= expected(likelihood, mean, variance) + 1e-7).all())
        other = likelihood.quadratic(SIGNS, square.sqrt() + 0.5).expectation(at)
        assert bool((other <= best + 1e-12).all())


def test_the_response_is_the_curvature_of_the_bound_at_its_best_tilt():
    likelihood = Bernoulli(7.0, 0.1)
    mean = torch.tensor([[0.3, -2.0, 1.0]], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([[0.5, 0.1, 0.2]], dtype=torch.float64)
    square = mean.square() + variance
    at = Moments(mean, variance, square)
    # the tilt follows the mean
    value = likelihood.quadratic(SIGNS, square.sqrt()).expectation(at).sum()
    (slope,) = torch.autograd.grad(value, mean, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), mean)
    with torch.no_grad():
        response = likelihood.response(at, SIGNS, square.sqrt())
        curvature = likelihood.quadratic(SIGNS, square.sqrt()).curvature
    torch.testing.assert_close(response, -second)
    assert bool((response[:, :2] < curvature[:, :2]).all())
    with pytest.raises(ValueError, match="needs a tilt"):
        likelihood.response(at, SIGNS)


@pytest.mark.parametrize("tilt", [1e-6, 9.9e-3, 1.01e-2, 0.5, 3.0, 40.0])
def test_the_slope_of_the_mean_of_polya_gamma_is_its_derivative(tilt):
    point = torch.tensor(tilt, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(polya_gamma_mean(point), point)
    assert polya_gamma_slope(point.detach()).item() == pytest.approx(slope.item() / tilt, rel=1e-4)


def test_what_was_doubted_of_the_labels_is_taken_out_of_predictions():
    """f of a label without doubt lies where its share does, and its class has 99 %."""
    doubt = 0.2
    sure = torch.full((1, 1), math.log((1 - doubt) / doubt), dtype=torch.float64)
    at = Moments(sure, torch.zeros_like(sure), sure.square())
    assert Bernoulli(10.0, doubt).class_probabilities(at)[0, 0].item() == pytest.approx(0.99)
    assert Bernoulli().class_probabilities(at)[0, 0].item() == pytest.approx(1 - doubt)
