import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad
from scipy.stats import multivariate_normal, norm

from orbitwise.inference.risk.evidence import SquaredEvidence, logistic_evidence, tilted_moments


def small(count=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return torch.exp(-0.5 * torch.cdist(x, x).square()), y, torch.ones(count, 1, dtype=torch.float64)


def test_without_a_basis_it_is_the_density_of_the_targets():
    gram, y, ones = small()
    rates = torch.tensor([0.1, 1.0, 30.0], dtype=torch.float64)
    found = SquaredEvidence(gram, y, ones[:, :0], torch.ones(8).double())(rates, scale=1.7)
    for value, rate in zip(found, rates, strict=True):
        covariance = 1.7 * (gram + torch.eye(8) / (2 * rate))
        expected = multivariate_normal(np.zeros(8), covariance.numpy()).logpdf(y[:, 0].numpy())
        assert float(value) == pytest.approx(expected)


def test_a_basis_is_integrated_out():
    """A bias of prior variance v → ∞ adds -½ log(2πv·n) to the restricted likelihood."""
    gram, y, ones = small()
    rate, scale, wide = 2.0, 0.8, 1e8
    evidence = SquaredEvidence(gram, y, ones, torch.ones(8).double())
    found = float(evidence(torch.tensor([rate]).double(), scale)[0])
    covariance = scale * (gram + torch.eye(8) / (2 * rate)) + wide
    expected = multivariate_normal(np.zeros(8), covariance.numpy()).logpdf(y[:, 0].numpy())
    assert found == pytest.approx(expected + 0.5 * math.log(2 * math.pi * wide * 8), abs=1e-4)


def test_the_scale_is_the_best_one_and_outputs_add_up():
    gram, y, ones = small()
    evidence = SquaredEvidence(gram, y, ones, torch.ones(8).double())
    rates = torch.tensor([0.5, 5.0], dtype=torch.float64)
    best = evidence.best_scale(rates)[:, 0]
    for i in range(2):
        around = [evidence(rates[i : i + 1], float(best[i]) * factor)[0] for factor in (0.9, 1.0, 1.1)]
        assert around[1] == max(around)
        torch.testing.assert_close(evidence(rates)[i], around[1])
    two = SquaredEvidence(gram, torch.cat([y, 2 * y], 1), ones, torch.ones(8).double())
    other = SquaredEvidence(gram, 2 * y, ones, torch.ones(8).double())
    torch.testing.assert_close(two(rates), evidence(rates) + other(rates))


def test_a_weight_of_two_is_half_the_noise():
    gram, y, ones = small()
    weights = torch.linspace(0.5, 3, 8, dtype=torch.float64)
    found = SquaredEvidence(gram, y, ones[:, :0], weights)(torch.tensor([1.5]).double(), scale=1.0)
    covariance = gram + torch.diag(1 / (3 * weights))
    expected = multivariate_normal(np.zeros(8), covariance.numpy()).logpdf(y[:, 0].numpy())
    assert float(found[0]) == pytest.approx(expected)


def test_too_few_targets():
    gram, y, ones = small(1)
    with pytest.raises(ValueError, match="are too few for"):
        SquaredEvidence(gram, y, ones, torch.ones(1).double())


def test_the_conditional_evidence_is_bounded_where_the_joint_one_is_not():
    """METHOD 8: four labels, 30 slopes of zero; the joint evidence grows with ν, the conditional peaks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 4, dtype=torch.float64)
    z = 4 * torch.rand(30, generator=generator, dtype=torch.float64) - 2
    y = torch.tanh(3 * x)[:, None]
    rows = torch.cat([x, z])
    delta = rows[:, None] - rows[None, :]
    kernel = torch.exp(-0.5 * delta.square())
    gram = kernel.clone()
    gram[:4, 4:] = (delta * kernel)[:4, 4:]
    gram[4:, :4] = (-delta * kernel)[4:, :4]
    gram[4:, 4:] = ((1 - delta.square()) * kernel)[4:, 4:]
    joint, conditional = [], []
    for nu in (1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6):
        noise = torch.cat([torch.full((4,), 0.05), torch.full((30,), 1 / (2 * nu))]).double()
        covariance = (gram + torch.diag(noise)).numpy()
        both = multivariate_normal(np.zeros(34), covariance).logpdf(np.r_[y[:, 0].numpy(), np.zeros(30)])
        zeros = multivariate_normal(np.zeros(30), covariance[4:, 4:]).logpdf(np.zeros(30))
        joint.append(both)
        inner = torch.linalg.solve(gram[4:, 4:] + torch.eye(30) / (2 * nu), gram[4:, :4])
        folded = gram[:4, :4] - gram[:4, 4:] @ inner
        evidence = SquaredEvidence(folded, y, torch.zeros(4, 0).double(), torch.ones(4).double())
        conditional.append(float(evidence(torch.tensor([10.0]).double(), scale=1.0)[0]))
        assert conditional[-1] == pytest.approx(both - zeros, abs=1e-6)
    assert all(after > before for before, after in pairwise(joint))
    assert conditional.index(max(conditional)) < 3


def two_labels(rate: float, correlation: float = 0.4) -> float:
    """log ∫ σ(f₁) σ(-f₂) N(f; 0, λK) df by quadrature."""
    prior, end = multivariate_normal(np.zeros(2), rate * np.array([[1, correlation], [correlation, 1]])), 9
    end *= max(1.0, math.sqrt(rate))
    value = dblquad(
        lambda b, a: prior.pdf([a, b]) / (1 + math.exp(-a)) / (1 + math.exp(b)), -end, end, -end, end
    )
    return math.log(value[0])


class TestLogistic:
    gram = torch.tensor([[1.0, 0.4], [0.4, 1.0]], dtype=torch.float64)
    labels = torch.tensor([1.0, -1.0], dtype=torch.float64)
    none = torch.zeros(2, 0, dtype=torch.float64)

    @pytest.mark.parametrize("rate", [0.1, 1.0, 30.0])
    def test_it_is_the_integral_of_two_labels(self, rate: float):
        found = logistic_evidence(self.gram, self.labels, self.none, torch.full((2,), rate).double())
        assert float(found) == pytest.approx(two_labels(rate), abs=1e-3)

    def test_it_becomes_the_probability_of_the_signs_as_the_rate_grows(self):
        """arccos(-ρ)/2π less a quarter; Laplace's approximation is 5 nats below."""
        found = logistic_evidence(self.gram, self.labels, self.none, torch.full((2,), 1e6).double())
        assert float(found) == pytest.approx(math.log(0.25 - math.asin(0.4) / (2 * math.pi)), abs=2e-3)

    def test_it_is_the_integral_of_many_labels(self):
        """Against the mean likelihood of 400,000 draws of f."""
        gram, y, _ = small(12)
        labels, generator = torch.where(y[:, 0] > 0, 1.0, -1.0).double(), torch.Generator().manual_seed(1)
        lower = torch.linalg.cholesky(gram + 1e-9 * torch.eye(12))
        for rate in (1.0, 25.0):
            noise = torch.randn(400_000, 12, generator=generator, dtype=torch.float64)
            f = math.sqrt(rate) * noise @ lower.mT
            likelihood = torch.nn.functional.logsigmoid(labels * f).sum(-1)
            expected = likelihood.logsumexp(0) - math.log(len(f))
            found = logistic_evidence(
                gram, labels, torch.zeros(12, 0).double(), torch.full((12,), rate).double()
            )
            assert float(found) == pytest.approx(float(expected), abs=0.05)

    def test_a_weight_is_a_power_of_the_likelihood(self):
        """Weights (0.5, 1.5) of two labels without correlation: a product of two integrals."""
        weights = torch.tensor([0.5, 1.5], dtype=torch.float64)
        found = logistic_evidence(torch.eye(2).double(), self.labels, self.none, 4.0 * weights)
        expected = sum(
            math.log(quad(lambda f, w=w: norm.pdf(f, 0, 2) / (1 + math.exp(-f)) ** w, -20, 20)[0])
            for w in (0.5, 1.5)
        )
        assert float(found) == pytest.approx(expected, abs=1e-5)

    def test_a_batch_is_its_members(self):
        gram, y, ones = small()
        labels = torch.where(y[:, 0] > 0, 1.0, -1.0).double()
        rates = torch.tensor([0.3, 3.0], dtype=torch.float64)[:, None].expand(2, 8)
        values = logistic_evidence(gram, labels, ones, rates)
        alone = [logistic_evidence(gram, labels, ones, rate) for rate in rates]
        torch.testing.assert_close(values, torch.stack(alone), rtol=0, atol=1e-5)

    def test_a_bias_is_as_wide_as_the_function_and_separated_classes_keep_it_bounded(self):
        gram, _, ones = small()
        labels = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(4)
        rates = torch.logspace(-2, 8, 6, dtype=torch.float64)[:, None].expand(6, 8)
        biased = logistic_evidence(gram, labels, 3 * ones, rates)
        torch.testing.assert_close(biased, logistic_evidence(gram + 1, labels, ones[:, :0], rates))
        assert (biased < 0).all()


@pytest.mark.parametrize(
    ("mean", "variance", "power"),
    [(0.0, 1.0, 1.0), (3.0, 1e4, 1.0), (-50.0, 4.0, 1.0), (20.0, 1e-3, 2.0), (40.0, 100.0, 0.3)],
)
def test_tilted_moments_are_those_of_a_fine_sum(mean: float, variance: float, power: float):
    f = torch.linspace(mean - 9 * variance**0.5, mean + 9 * variance**0.5, 400_001, dtype=torch.float64)
    log_weights = power * torch.nn.functional.logsigmoid(f) - 0.5 * (f - mean).square() / variance
    log_weights += math.log(float(f[1] - f[0])) - 0.5 * math.log(2 * math.pi * variance)
    mass = log_weights.logsumexp(0)
    shares = (log_weights - mass).exp()
    centre = (shares * f).sum()
    expected = [mass, centre, (shares * (f - centre).square()).sum()]
    given = [torch.tensor([each]).double() for each in (mean, variance, 1.0, power)]
    for found, value in zip(tilted_moments(*given), expected, strict=True):
        assert float(found) == pytest.approx(float(value), rel=1e-4, abs=1e-6)
