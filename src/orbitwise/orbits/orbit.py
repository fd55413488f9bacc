"""What every orbit promises: the points A(x) that an input is moved to, with weights, and how they were drawn.

An orbit chooses the parameters of a transform: all elements of a finite family, fresh draws between learnable bounds, or
frozen nodes. The record of how points were drawn (`draw`, `groups`) lets `orbitwise.process` avoid every bias (METHOD 4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """A set of points drawn together. Groups of one `family` are independent replicates of each other.

    `population` is the size of the finite orbit that the group was drawn from without replacement, or None for
    independent draws from a density.
    """

    family: int
    population: int | None = None


@dataclass(frozen=True)
class Symmetry:
    """Marks atoms that come in runs of `size`, each run the whole orbit of a group, the identity first.

    `token` tells groups apart (by identity), `isometric` says that the group acts on the points by maps that preserve
    distances and norms. If the base kernel is invariant to the group, one side of a double sum suffices.
    """

    token: object
    size: int
    isometric: bool


@dataclass(frozen=True)
class OrbitPoints:
    """The points that each row is moved to. The weighted sum of g over them is the orbit average of g, or estimates it."""

    points: Float[Tensor, "n s d"]
    weights: Float[Tensor, "n s"]
    draw: Int[Tensor, " s"]
    groups: tuple[Group, ...] = ()
    symmetry: Symmetry | None = None


class Orbit(nn.Module, ABC):
    """The set, or the density, of points that an input may be moved to."""

    size: int | None = None
    """The number of elements of a finite orbit, None for a density."""

    is_drawn: bool = False
    """Whether `points` draws at random, so that engines need unbiased reductions."""

    @abstractmethod
    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        """Move every row of x; random draws come from `generator`."""


class DrawnOrbit(Orbit):
    """An orbit whose points are drawn afresh: noise ε moves x to t(x, ε), so gradients reach the bounds of the moves.

    Draws come in `num_groups` independent groups (two halves by default), so that quadratic terms can be estimated without
    bias.
    """

    is_drawn = True

    def __init__(self, num_samples: int = 32, num_groups: int = 2) -> None:
        super().__init__()
        check_samples(num_samples, num_groups)
        self.num_samples = num_samples
        self.num_groups = num_groups

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
        """Standard noise ε [*shape, q], drawn where the generator lives, of the precision and device of `like`."""

    @abstractmethod
    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        """Row i of x moved by each of its s draws of noise."""

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        return drawn_points(self.move(x, self.noise((len(x), self.num_samples), generator, x)), self.num_groups)


def exact_points(
    points: Float[Tensor, "n s d"], weights: Float[Tensor, " s"], symmetry: Symmetry | None = None
) -> OrbitPoints:
    """Points that involve no randomness, the same weights for every row."""
    count, samples, _ = points.shape
    draw = torch.zeros(samples, dtype=torch.long, device=points.device)
    return OrbitPoints(points, weights.to(points).expand(count, samples), draw, (), symmetry)


def drawn_points(points: Float[Tensor, "n s d"], num_groups: int, population: int | None = None) -> OrbitPoints:
    """Points drawn in `num_groups` equal independent groups, each point with weight 1/s."""
    count, samples, _ = points.shape
    draw = torch.arange(num_groups, device=points.device).repeat_interleave(samples // num_groups) + 1
    weights = points.new_full((count, samples), 1 / samples)
    return OrbitPoints(points, weights, draw, (Group(1, population),) * num_groups)


def check_samples(num_samples: int, num_groups: int) -> None:
    """Raise a ValueError unless the draws can be split into equal groups that allow unbiased estimates."""
    if num_groups < 1 or num_samples < 1 or num_samples % num_groups:
        raise ValueError(
            f"num_samples={num_samples} cannot be split into num_groups={num_groups} equal groups; choose a multiple."
        )
    if num_samples < 2:
        raise ValueError("An unbiased estimate needs at least two draws: choose num_samples of 2 or more.")
