"""The Pólya-Gamma bound: below the truth for any tilt, tight at the best; sticks; LIM eq. 22 and 23."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from orbitwise.likelihoods import Bernoulli
from orbitwise.likelihoods.bernoulli import (
    logistic_mean,
    polya_gamma_mean,
    stick_breaking_probabilities,
    stick_breaking_targets,
)
from orbitwise.likelihoods.likelihood import hermite
from orbitwise.process.process import Moments

SIGNS = torch.tensor([[1.0, -1.0]], dtype=torch.float64)


def number(value: float) -> Tensor:
    return torch.full((1, 2), value, dtype=torch.float64)


def bound(mean: float, variance: float, tilt: float) -> Tensor:
    """The bound of E[log σ(yf)] for y of 1 and of -1."""
    at = Moments(number(mean), number(variance), number(mean**2 + variance))
    return Bernoulli().quadratic(SIGNS, number(tilt)).expectation(at)


def truth(mean: float, variance: float) -> Tensor:
    nodes, weights = hermite(80, SIGNS)
    values = mean + math.sqrt(variance) * nodes
    return (torch.nn.functional.logsigmoid(SIGNS[..., None] * values) * weights).sum(-1)


@given(st.floats(0, 30), st.floats(-20, 20), st.floats(0, 25))
def test_the_bound_is_below_the_expected_log_likelihood(tilt, mean, variance):
    assert bool((bound(mean, variance, tilt) <= truth(mean, variance) + 1e-6).all())


@given(st.floats(-20, 20), st.floats(0, 25), st.floats(0, 30))
def test_the_best_tilt_is_the_root_of_the_mean_square(mean, variance, other):
    best = bound(mean, variance, math.sqrt(mean**2 + variance))
    assert bool((best >= bound(mean, variance, other) - 1e-9).all())


@pytest.mark.parametrize("value", [0.0, 0.4, -3.0, 12.0])
def test_the_bound_is_tight_where_f_is_known(value):
    torch.testing.assert_close(bound(value, 0.0, abs(value)), truth(value, 0.0))
    gap = truth(value, 0.0) - bound(value, 0.0, abs(value) + 2)
    assert gap.max() > 1e-3, "and nowhere else"


@pytest.mark.parametrize("tilt", [0.0, 1e-8, 9.9e-4, 1e-3, 1.01e-3, 0.3, 5.0, 80.0])
def test_the_mean_of_polya_gamma_and_its_gradient_are_smooth_at_zero(tilt):
    point = torch.tensor(tilt, dtype=torch.float64, requires_grad=True)
    value = polya_gamma_mean(point)
    (slope,) = torch.autograd.grad(value, point)
    c = max(tilt, 1e-4)
    # tanh(c/2)/(2c) = ¼ - c²/48 + c⁴/480 - …, and its derivative
    if c < 0.1:
        right, right_slope = 0.25 - tilt**2 / 48, -tilt / 24
    else:
        right = math.tanh(c / 2) / (2 * c)
        right_slope = (1 / math.cosh(c / 2) ** 2) / (4 * c) - math.tanh(c / 2) / (2 * c * c)
    assert value.item() == pytest.approx(right, rel=1e-9)
    assert slope.item() == pytest.approx(right_slope, rel=1e-5, abs=1e-12)
    half = polya_gamma_mean(torch.tensor(tilt, dtype=torch.float32))
    assert half.item() == pytest.approx(right, rel=1e-4)


def test_the_tilt_gets_gradients_and_the_constant_is_even():
    tilt = torch.tensor([[0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    quadratic = Bernoulli().quadratic(SIGNS, tilt)
    (slope,) = torch.autograd.grad(quadratic.expectation(Moments(SIGNS, SIGNS**2, 2 * SIGNS**2)).sum(), tilt)
    assert slope[0, 0] == 0
    # θ′(c)(c² - E f²)/2 at c = 2, E f² = 2: θ′ < 0
    assert slope[0, 1] < 0
    mirrored = Bernoulli().quadratic(SIGNS, -tilt)
    torch.testing.assert_close(quadratic.constant, mirrored.constant)


def test_a_target_of_zero_says_nothing():
    quadratic = Bernoulli().quadratic(torch.zeros(1, 2).double(), number(1.3))
    assert torch.stack(tuple(quadratic)).abs().max() == 0


def test_the_bound_needs_a_tilt():
    with pytest.raises(ValueError, match="needs a tilt"):
        Bernoulli().quadratic(SIGNS)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_sticks_sum_to_one_and_invert(num_classes):
    labels = torch.arange(num_classes)
    targets = stick_breaking_targets(labels, num_classes)
    # Sticks that are sure of the targets give the label back.
    certain = torch.sigmoid(50 * targets)
    torch.testing.assert_close(stick_breaking_probabilities(certain).argmax(-1), labels)
    sticks = torch.rand(5, num_classes - 1, generator=torch.Generator().manual_seed(0)).double()
    classes = stick_breaking_probabilities(sticks)
    torch.testing.assert_close(classes.sum(-1), torch.ones(5).double())
    left = 1 - torch.cat([torch.zeros(5, 1), classes.cumsum(-1)[:, :-2]], dim=-1)
    torch.testing.assert_close(classes[:, :-1] / left, sticks)


def test_the_likelihood_of_the_sticks_is_that_of_the_class():
    """Π_j σ(t_j f_j) over the sticks that were observed is the probability of the class."""
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    classes = stick_breaking_probabilities(torch.sigmoid(values))
    for label in range(4):
        targets = stick_breaking_targets(torch.full((4,), label), 4)
        density = torch.where(targets == 0, 0, torch.nn.functional.logsigmoid(targets * values)).sum(-1)
        torch.testing.assert_close(density.exp(), classes[:, label])


def test_probabilities_are_those_of_samples():
    mean, variance = torch.tensor([[-1.0, 2.0]]).double(), torch.tensor([[4.0, 0.3]]).double()
    noise = torch.randn(400_000, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sampled = torch.sigmoid(mean + variance.sqrt() * noise)
    error = sampled.std(0) / len(sampled) ** 0.5
    assert ((sampled.mean(0) - logistic_mean(mean, variance)[0]) / error).abs().max() < 4
    assert logistic_mean(mean, 0 * variance)[0, 0].item() == pytest.approx(1 / (1 + math.e))


def polya_gamma_draws(count: int) -> Tensor:
    """ω ~ PG(1, 0) = Σ_k g_k / (2π²(k-½)²), g_k standard exponential, to many terms."""
    k = torch.arange(1, 201, dtype=torch.float64) - 0.5
    uniform = torch.rand(count, 200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (-torch.log1p(-uniform) / (2 * math.pi**2 * k.square())).sum(-1)


@pytest.mark.parametrize("value", [-2.0, 0.7])
def test_lim_eq_22_has_the_mean_y_over_2_omega(value):
    """σ(yf) = ½ E[exp(yf/2 - ωf²/2)]: a Gaussian of mean y/(2ω). Printed is the mean y/2."""
    omega = polya_gamma_draws(40_000)
    right = 0.5 * torch.exp(0.5 * value - 0.5 * omega * value**2)
    error = right.std() / len(right) ** 0.5
    sigmoid = 1 / (1 + math.exp(-value))
    assert abs(right.mean() - sigmoid) < 4 * error
    # The same up to a factor free of f: exp(-ω(f - m)²/2) with m = y/(2ω), against its value at f = 0.
    ratios = [torch.exp(-0.5 * omega * ((value - m) ** 2 - m**2)) for m in (0.5 / omega, 0.5 + 0 * omega)]
    good, printed = (0.5 * each.mean() for each in ratios)
    assert abs(good - sigmoid) < 4 * error
    assert abs(printed - sigmoid) > 40 * error


def test_lim_eq_23_is_a_bound_only_with_the_divergence_of_omega():
    """yf/2 - θf²/2 - log 2 - KL[q(ω) ‖ p(ω)], KL = log cosh(c/2) - θc²/2: without it, above the truth."""
    tilt, mean, variance = 4.0, 0.5, 0.2
    theta = math.tanh(tilt / 2) / (2 * tilt)
    divergence = math.log(math.cosh(tilt / 2)) - 0.5 * theta * tilt**2
    without = 0.5 * mean - 0.5 * theta * (mean**2 + variance) - math.log(2)
    mine = bound(mean, variance, tilt)[0, 0].item()
    assert mine == pytest.approx(without - divergence, rel=1e-12)
    assert mine < truth(mean, variance)[0, 0] < without
