"""Heavy tails: the density, its expectation by a fine sum, gradients, and clipped curvature."""

import pytest
import torch

from orbitwise.likelihoods import StudentT
from orbitwise.process.process import Moments

MEAN = torch.tensor([[0.3], [0.0], [1.0]], dtype=torch.float64)
VARIANCE = torch.tensor([[0.2], [0.05], [0.5]], dtype=torch.float64)
TARGETS = torch.tensor([[0.1], [4.0], [0.5]], dtype=torch.float64)
AT = Moments(MEAN, VARIANCE, MEAN.square() + VARIANCE)


def by_a_fine_sum(likelihood: StudentT) -> torch.Tensor:
    nodes = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * nodes.square(), 0)
    values = (MEAN + VARIANCE.sqrt() * nodes).T[..., None]
    return (likelihood.log_density(values, TARGETS) * weights[:, None, None]).sum(0).squeeze(-1)


def test_the_density_is_that_of_torch():
    likelihood = StudentT(0.4, 3.0)
    theirs = torch.distributions.StudentT(torch.tensor(3.0).double(), MEAN, 0.4).log_prob(TARGETS)
    torch.testing.assert_close(likelihood.log_density(MEAN, TARGETS), theirs)


def test_the_expected_log_likelihood_and_its_gradients_are_those_of_a_fine_sum():
    likelihood = StudentT(0.5, 4.0)
    mine, right = likelihood.expected_log_likelihood(AT, TARGETS), by_a_fine_sum(likelihood)
    torch.testing.assert_close(mine, right, atol=2e-3, rtol=0)
    parameters = list(likelihood.parameters())
    given = torch.autograd.grad(mine.sum(), parameters)
    for value, truth in zip(given, torch.autograd.grad(right.sum(), parameters), strict=True):
        torch.testing.assert_close(value, truth, atol=1e-2, rtol=0)
    fine = StudentT(0.5, 4.0, num_nodes=120)
    assert (fine.expected_log_likelihood(AT, TARGETS) - right).abs().max() < 1e-5, "more nodes, less error"


def test_an_outlier_pulls_with_no_negative_precision():
    quadratic = StudentT(0.3, 4.0).expansion(AT, TARGETS)
    assert quadratic.curvature[1, 0] < 0 < quadratic.curvature[0, 0]
    concave = quadratic.concave(MEAN)
    assert concave.curvature[1, 0] == 0
    assert concave.slope[1, 0] > 0, "but still towards it"


@pytest.mark.parametrize(("scale", "degrees"), [(0.0, 4.0), (1.0, -1.0), (float("inf"), 4.0)])
def test_scale_and_degrees_are_positive(scale, degrees):
    with pytest.raises(ValueError, match="positive and finite"):
        StudentT(scale, degrees)
