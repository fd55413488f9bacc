"""Moments are plain data: a variance for each output or one for all, and a mean square of its own."""

import torch

from orbitwise.process.process import Moments


def test_the_mean_square_is_not_computed_from_the_other_two():
    """Unbiased estimates need not agree: a mean square may be below the square of the mean."""
    mean, variance = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, -0.1]])
    moments = Moments(mean, variance, mean_square=torch.tensor([[0.9, 3.0]]))
    assert moments.mean_square.tolist() == torch.tensor([[0.9, 3.0]]).tolist()
    assert moments._fields == ("mean", "variance", "mean_square")
    shared = Moments(mean, torch.tensor([0.5]), mean.square() + 0.5)
    assert shared.variance.shape == (1,)
