"""Slice sampling of coordinates: a skewed density in two dimensions, and what is carried along."""

import math

import torch
from torch import Tensor

from orbitwise.inference.sampling import slice_coordinates
from tests.inference.sampling.problems import z_scores


def skewed(theta: Tensor) -> tuple[float, Tensor]:
    """A Gamma density of the logarithm of a variable of shape 2, and a normal one that depends on it."""
    first, second = theta.tolist()
    return 2 * first - math.exp(first) - 0.5 * (second - first) ** 2, theta.clone()


def run(width: float, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    theta, kept = torch.zeros(2, dtype=torch.float64), []
    found = skewed(theta)
    for _ in range(count):
        theta, found, evaluations = slice_coordinates(skewed, theta, found, width, generator)
        assert evaluations >= 2
        assert torch.equal(found[1], theta), "what belongs to the point comes with it"
        assert found[0] == skewed(theta)[0]
        kept.append(theta)
    return torch.stack(kept)


def test_moments_are_known_whatever_the_width():
    for width in (0.3, 5.0):
        samples = torch.stack([run(width, 120, seed) for seed in range(2)])
        # E log Gamma(2) = 1 - γ, var = π²/6 - 1
        mean, variance = 1 - 0.5772156649, math.pi**2 / 6 - 1
        assert z_scores(samples, torch.tensor([mean, mean]).double()).abs().max() < 4
        spread = (samples - mean).square()
        assert z_scores(spread, torch.tensor([variance, variance + 1]).double()).abs().max() < 4


def test_a_point_stays_where_everything_else_is_impossible():
    here = torch.zeros(1, dtype=torch.float64)

    def only_here(theta: Tensor) -> tuple[float, None]:
        return (0.0 if theta.item() == 0.0 else -math.inf), None

    point, found, count = slice_coordinates(only_here, here, (0.0, None), 1.0)
    assert torch.equal(point, here)
    assert found == (0.0, None)
    assert count > 10
