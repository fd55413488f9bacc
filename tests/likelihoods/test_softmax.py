"""Classes by quasi-random nodes: against many samples and, for two classes, against quadrature of a logit."""

import pytest
import torch

from orbitwise.likelihoods import Softmax
from orbitwise.likelihoods.bernoulli import logistic_mean
from orbitwise.likelihoods.likelihood import hermite
from orbitwise.likelihoods.softmax import normal_nodes
from orbitwise.process.process import Moments

MEAN = torch.tensor([[1.0, 0.2, -1.0], [0.0, 0.5, 2.0]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.5, 0.3, 1.0], [0.1, 0.1, 0.2]], dtype=torch.float64)
LABELS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)


def at(mean: torch.Tensor, variance: torch.Tensor) -> Moments:
    return Moments(mean, variance, mean.square() + variance)


def test_the_expected_log_likelihood_is_that_of_many_samples():
    noise = torch.randn(100_000, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    density = (torch.log_softmax(MEAN + VARIANCE.sqrt() * noise, -1) * LABELS).sum(-1)
    error = density.std(0) / len(density) ** 0.5
    mine = Softmax(3, 2048).expected_log_likelihood(at(MEAN, VARIANCE), LABELS)
    assert ((mine - density.mean(0)) / error).abs().max() < 4


def test_two_classes_are_a_logit_of_their_difference():
    mean, variance = MEAN[:, :2], VARIANCE[:, :2]
    nodes, weights = hermite(60, mean)
    difference = mean[:, 0] - mean[:, 1]
    spread = variance.sum(-1).sqrt()
    values = torch.nn.functional.logsigmoid(difference[:, None] + spread[:, None] * nodes)
    likelihood = Softmax(2, 1024)
    mine = likelihood.expected_log_likelihood(at(mean, variance), torch.tensor([[1.0, 0.0]] * 2).double())
    torch.testing.assert_close(mine, (values * weights).sum(-1), atol=1e-3, rtol=0)
    right = logistic_mean(difference[:, None], variance.sum(-1, keepdim=True))
    torch.testing.assert_close(likelihood.predict(at(mean, variance))[:, :1], right, atol=1e-3, rtol=0)


def test_counts_are_a_multinomial():
    counts = torch.tensor([[2.0, 0.0, 3.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    known = at(MEAN, torch.zeros_like(MEAN))
    mine = Softmax(3).expected_log_likelihood(known, counts)
    for row in range(2):
        theirs = torch.distributions.Multinomial(int(counts[row].sum()), logits=MEAN[row])
        assert mine[row].item() == pytest.approx(theirs.log_prob(counts[row]).item(), abs=1e-5)


def test_the_curvature_is_positive_and_about_p_times_one_minus_p():
    quadratic = Softmax(3, 2048).expansion(at(MEAN, VARIANCE), LABELS)
    noise = torch.randn(200_000, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.softmax(MEAN + VARIANCE.sqrt() * noise, -1)
    torch.testing.assert_close(quadratic.curvature, (share * (1 - share)).mean(0), atol=5e-3, rtol=0)


def test_nodes_are_symmetric_with_unit_covariance():
    nodes = normal_nodes(64, 5, seed=0)
    assert nodes.shape == (64, 5)
    torch.testing.assert_close(nodes.mean(0), torch.zeros(5).double())
    torch.testing.assert_close(nodes.T @ nodes / 64, torch.eye(5).double())
    torch.testing.assert_close(nodes, normal_nodes(64, 5, seed=0))
    assert (nodes - normal_nodes(64, 5, seed=1)).abs().max() > 0.1


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        Softmax(1)
    with pytest.raises(ValueError, match="at least 40 nodes"):
        Softmax(10, 16)
    with pytest.raises(ValueError, match="made for 3 classes"):
        Softmax(3).expansion(at(MEAN[:, :2], VARIANCE[:, :2]), LABELS[:, :2])
