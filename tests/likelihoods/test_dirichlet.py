"""The Dirichlet likelihood beside GPyTorch's, and probabilities from samples."""

import pytest
import torch
from gpytorch.likelihoods import DirichletClassificationLikelihood

from orbitwise.likelihoods import Dirichlet
from orbitwise.likelihoods.dirichlet import one_hot, softmax_mean
from orbitwise.process.process import Moments

LABELS = torch.tensor([2, 0, 1, 1, 2])


@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_targets_and_noise_are_those_of_gpytorch_but_for_a_common_shift(alpha):
    theirs = DirichletClassificationLikelihood(LABELS, alpha_epsilon=alpha, dtype=torch.float64)
    targets, noise = Dirichlet(alpha).observations(one_hot(LABELS, 3))
    expected = theirs.transformed_targets.T
    torch.testing.assert_close(targets, expected - expected.mean(1, keepdim=True))
    torch.testing.assert_close(noise, theirs.noise_covar.noise.T)


def test_a_label_that_counts_several_times_has_less_noise_on_the_same_target():
    plain, counted = (Dirichlet(0.1, count).observations(one_hot(LABELS, 3)) for count in (1.0, 8.0))
    torch.testing.assert_close(counted[0], plain[0])
    torch.testing.assert_close(8 * counted[1], plain[1])


def test_the_expected_log_density_is_gaussian_on_those_targets():
    targets, noise = Dirichlet(0.1).observations(one_hot(LABELS, 3))
    mean = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = Moments(mean, torch.zeros(5).double(), mean.square())
    density = torch.distributions.Normal(mean, noise.sqrt()).log_prob(targets).sum(-1)
    torch.testing.assert_close(Dirichlet(0.1).expected_log_likelihood(at, one_hot(LABELS, 3)), density)


def test_one_hot_rows_name_their_class():
    codes = one_hot(LABELS, 4)
    assert codes.dtype == torch.float64
    assert codes.argmax(1).tolist() == LABELS.tolist()
    assert codes.sum(1).tolist() == [1.0] * 5


def test_probabilities_are_a_softmax_where_f_is_known_and_flatter_where_not():
    mean = torch.tensor([[2.0, 0.0, -1.0]]).double()
    known = softmax_mean(mean, torch.zeros(1, 3).double(), torch.Generator().manual_seed(0))
    torch.testing.assert_close(known, torch.softmax(mean, -1))
    unsure = softmax_mean(mean, torch.full((1, 3), 9.0).double(), torch.Generator().manual_seed(0), 4000)
    torch.testing.assert_close(unsure.sum(-1), torch.ones(1).double())
    assert unsure[0, 0] < known[0, 0] - 0.05


@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_alpha_is_positive(alpha):
    with pytest.raises(ValueError, match="alpha must be positive"):
        Dirichlet(alpha)
