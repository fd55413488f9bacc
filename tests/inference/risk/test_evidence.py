import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad
from scipy.stats import multivariate_normal

from orbitwise.inference.risk.evidence import SquaredEvidence, laplace_evidence


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


class TestLaplace:
    def test_it_is_close_to_the_integral_of_two_labels(self):
        gram = torch.tensor([[1.0, 0.4], [0.4, 1.0]], dtype=torch.float64)
        labels = torch.tensor([1.0, -1.0], dtype=torch.float64)
        for rate in (0.1, 1.0):
            prior = multivariate_normal(np.zeros(2), rate * gram.numpy())
            exact = dblquad(
                lambda b, a, prior=prior: prior.pdf([a, b]) / (1 + np.exp(-a)) / (1 + np.exp(b)), -8, 8, -8, 8
            )[0]
            rates = torch.full((2,), rate, dtype=torch.float64)
            found = laplace_evidence(gram, labels, torch.zeros(2, 0).double(), rates)
            assert float(found) == pytest.approx(math.log(exact), abs=0.02)

    def test_a_batch_is_its_members(self):
        gram, y, ones = small()
        labels = torch.where(y[:, 0] > 0, 1.0, -1.0).double()
        rates = torch.tensor([0.3, 3.0], dtype=torch.float64)[:, None].expand(2, 8)
        values = laplace_evidence(gram, labels, ones, rates)
        alone = [laplace_evidence(gram, labels, ones, rate) for rate in rates]
        torch.testing.assert_close(values, torch.stack(alone))

    def test_a_bias_is_as_wide_as_the_function_and_separated_classes_keep_it_bounded(self):
        gram, _, ones = small()
        labels = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat_interleave(4)
        rates = torch.logspace(-2, 8, 6, dtype=torch.float64)[:, None].expand(6, 8)
        biased = laplace_evidence(gram, labels, 3 * ones, rates)
        torch.testing.assert_close(biased, laplace_evidence(gram + 1, labels, ones[:, :0], rates))
        assert (biased < 0).all()
