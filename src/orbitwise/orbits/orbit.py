"""What every orbit promises: the points A(x) that an input is moved to, their weights, how they were drawn.

An orbit chooses the parameters of a transform: all elements of a finite family, fresh draws between learnable
bounds, or frozen nodes. The record of how points were drawn (`draw`, `groups`) lets `orbitwise.process` avoid
every bias (METHOD 4). A frozen orbit is a drawn one whose noise is fixed, so that it is an ordinary finite
sum: its nodes still move with the learnable bounds. Exact, collapsed and risk engines take such rows, and
refuse drawn ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orbitwise.declarations import (
    MOST_COUNTED,
    OMITTED,
    SMALLEST,
    Field,
    Stored,
    is_plain_numbers,
    require,
)
from orbitwise.orbits.certainty import Unit, describe
from orbitwise.orbits.nodes import Draws, Nodes, Noise, Rule, nodes_for
from orbitwise.orbits.ranges import Bounds, Interval, Widths
from orbitwise.transforms.transform import check_rows


@dataclass(frozen=True)
class Group:
    """A set of points drawn together. Groups of one `family` are independent replicates of each other.

    `population` is the size of the finite orbit that the group was drawn from without replacement, or None
    for draws from a density; these are `independent` of each other, unless they form a Sobol set, of which
    only pairs of different groups may be used.
    """

    family: int
    population: int | None = None
    independent: bool = True


@final
@dataclass(frozen=True)
class Symmetry:
    """Marks atoms that come in runs of `size`, each run the whole orbit of a group, the identity first.

    `token` tells groups apart (by identity), `isometric` says that the group acts on the points by maps that
    preserve distances and norms. If the base kernel is invariant to the group, one side of a double sum
    suffices.
    """

    token: object
    size: int
    isometric: bool

    stored = Stored({"size": Field(least=1, most=MOST_COUNTED)})

    def check_parts(self) -> None:
        """Raise a ValueError unless the size is that of the orbit that is the token."""
        require(getattr(self.token, "size", None) == self.size, "a symmetry of another orbit")


@dataclass(frozen=True)
class OrbitPoints:
    """Where rows are moved to; the weighted sum of g over the points is, or estimates, its orbit average."""

    points: Float[Tensor, "n s d"]
    weights: Float[Tensor, "n s"]
    draw: Int[Tensor, " s"]
    groups: tuple[Group, ...] = ()
    symmetry: Symmetry | None = None


MOST_SAMPLES = 4096
"""Draws that a file may ask for: each row is moved so often, and all pairs of its points are compared."""
LONGEST = 1e12
"""Ranges of a file are no longer, in whatever unit."""
NATURAL = Field((tuple,), Field((int, float)), least=SMALLEST, most=LONGEST)
"""How wide ranges ordinarily are; earlier versions did not store it."""


class Orbit(nn.Module, ABC):
    """The set, or the density, of points that an input may be moved to."""

    size: int | None = None
    """The number of elements of a finite orbit, None for a density."""

    is_drawn: bool = False
    """Whether `points` draws at random, so that engines need unbiased reductions."""

    stored = Stored(
        {
            "learnable": OMITTED,
            "num_groups": Field(least=1, most=MOST_SAMPLES),
            "num_samples": Field(least=1, most=MOST_SAMPLES),
            "two_sided": OMITTED,
        },
        {"bounds.natural": NATURAL, "widths.natural": NATURAL},
        infinite=("bounds.limit",),
    )

    @abstractmethod
    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        """Move every row of x; random draws come from `generator`."""

    def learned(self) -> dict[str, Interval]:
        """The present range of every move that is not fixed at the identity, by name."""
        parts = [getattr(self, part, None) for part in ("bounds", "widths")]
        ranges: dict[str, Interval] = {}
        for part in parts:
            ranges |= part.intervals() if isinstance(part, Bounds | Widths) else {}
        return ranges

    def units(self) -> Mapping[str, Unit]:
        """The units of the ranges whose names do not tell them."""
        return {}

    def describe(self) -> str:
        """The learned ranges in natural units: degrees, per cent, pixels."""
        return describe(self.learned(), self.units())


class DrawnOrbit(Orbit):
    """An orbit whose points are drawn afresh: noise ε moves x to t(x, ε), so gradients reach the bounds.

    Draws come in `num_groups` independent groups (two halves by default), so that quadratic terms can be
    estimated without bias. `draws` are "random", or "sobol": a scrambled Sobol set for every group and row.
    """

    is_drawn = True
    is_smooth: bool = False
    """Whether points move smoothly with the noise, so that Gauss nodes serve; a class of yours may say so."""

    def __init__(self, num_samples: int = 32, num_groups: int = 2, draws: Draws = "random") -> None:
        super().__init__()
        check_samples(num_samples, num_groups)
        if draws not in ("random", "sobol"):
            raise ValueError(f"draws must be 'random' or 'sobol', not {draws!r}.")
        if draws == "sobol" and num_groups < 2:
            raise ValueError(
                "The points of one Sobol set depend on each other, so an unbiased estimate needs two sets: "
                "choose num_groups of 2 or more."
            )
        self.num_samples = num_samples
        self.num_groups = num_groups
        self.draws: Draws = draws

    def check_parts(self) -> None:
        """Raise a ValueError where a range makes no sense."""
        for ranges in (getattr(self, part, None) for part in ("bounds", "widths")):
            if isinstance(ranges, Bounds | Widths):
                ends = [end for interval in ranges.intervals().values() for end in interval]
                fits = all(abs(end) <= LONGEST for end in ends)
                require(fits, "a range that is not finite, or absurdly long")
                half = ranges.half_width if isinstance(ranges, Bounds) else ranges.values
                require(is_plain_numbers(half.detach(), 0.0), "a range of negative length")
                require(len(ranges.natural) == len(ranges.names), "natural sizes of other ranges")

    @property
    @abstractmethod
    def randomness(self) -> Noise:
        """What the q entries of the noise are."""

    @abstractmethod
    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s e"]:
        """Row i of x moved by each of its s draws of noise."""

    @property
    def num_noise(self) -> int:
        """q, the number of entries of noise that a draw takes."""
        return self.randomness.num_entries

    @property
    def active(self) -> Bool[Tensor, " q"]:
        """Which entries of the noise move anything; the others belong to moves fixed at the identity.

        The first entries are those of `bounds`, where an orbit has them.
        """
        bounds = getattr(self, "bounds", None)
        first = [bounds.active.cpu()] if isinstance(bounds, Bounds) else []
        rest = self.num_noise - sum(len(each) for each in first)
        return torch.cat([*first, torch.ones(rest, dtype=torch.bool)])

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
        """Standard noise ε [*shape, q], drawn where the generator lives, then made like `like`."""
        return self.randomness.draw(shape, generator, like)

    def move_and_weigh(
        self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]
    ) -> tuple[Float[Tensor, "n s e"], Float[Tensor, "n s"] | None]:
        """The moved rows, and a factor for the weight of each where there are such factors."""
        return self.move(x, noise), None

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_rows(x, type(self).__name__)
        if self.draws == "sobol":
            count = self.num_samples // self.num_groups
            noise = self.randomness.sobol(len(x), self.num_groups, count, generator, x)
        else:
            noise = self.noise((len(x), self.num_samples), generator, x)
        moved, factors = self.move_and_weigh(x, noise)
        drawn = drawn_points(moved, self.num_groups, independent=self.draws == "random")
        return drawn if factors is None else replace(drawn, weights=drawn.weights * factors)

    def complete(self, nodes: Nodes) -> Nodes:
        """The nodes of a frozen orbit made from nodes of its noise: all of what needs no drawing is added."""
        return nodes

    def freeze(
        self, num_nodes: int, generator: torch.Generator | None = None, rule: Rule = "random"
    ) -> FrozenOrbit:
        """The same orbit with fixed nodes, shared by all rows, that still move with the bounds.

        `rule` says which nodes: draws ("random"), one scrambled Sobol set ("sobol"), or Gauss's nodes with
        their own weights, for one or two dimensions ("gauss").
        """
        device = next((tensor.device for tensor in self.state_dict().values()), None)
        return freeze(self, num_nodes, generator, torch.zeros((), dtype=torch.float64, device=device), rule)

    def __repr__(self) -> str:
        parts = [self.describe(), f"num_samples={self.num_samples}"]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"


def exact_points(
    points: Float[Tensor, "n s d"], weights: Float[Tensor, " s"], symmetry: Symmetry | None = None
) -> OrbitPoints:
    """Points that involve no randomness, the same weights for every row."""
    count, samples, _ = points.shape
    draw = torch.zeros(samples, dtype=torch.long, device=points.device)
    return OrbitPoints(points, weights.to(points).expand(count, samples), draw, (), symmetry)


def drawn_points(
    points: Float[Tensor, "n s d"], num_groups: int, population: int | None = None, independent: bool = True
) -> OrbitPoints:
    """Points drawn in `num_groups` equal independent groups, each point with weight 1/s."""
    count, samples, _ = points.shape
    draw = torch.arange(num_groups, device=points.device).repeat_interleave(samples // num_groups) + 1
    weights = points.new_full((count, samples), 1 / samples)
    return OrbitPoints(points, weights, draw, (Group(1, population, independent),) * num_groups)


def check_samples(num_samples: int, num_groups: int) -> None:
    """Raise a ValueError unless the draws can be split into equal groups that allow unbiased estimates."""
    if num_groups < 1 or num_samples < 1 or num_samples % num_groups:
        raise ValueError(
            f"num_samples={num_samples} cannot be split into num_groups={num_groups} equal groups; "
            "choose a multiple."
        )
    if num_samples < 2:
        raise ValueError("An unbiased estimate needs at least two draws: choose num_samples of 2 or more.")


@final
class FrozenOrbit(Orbit):
    """A drawn orbit with fixed nodes ε (and weights), shared by all rows and scaled by the orbit's bounds.

    `nodes` may also be quadrature nodes with their weights.
    """

    nodes: Tensor
    weights: Tensor

    def __init__(
        self, source: DrawnOrbit, nodes: Float[Tensor, "s q"], weights: Float[Tensor, " s"] | None = None
    ) -> None:
        super().__init__()
        if nodes.dim() != 2 or len(nodes) < 1:
            raise ValueError(
                f"A frozen orbit needs nodes [s, q], at least one, not shape {tuple(nodes.shape)}."
            )
        if weights is None:
            weights = torch.full_like(nodes[:, 0], 1 / len(nodes))
        if weights.shape != nodes.shape[:1]:
            raise ValueError(
                f"{len(nodes)} nodes need {len(nodes)} weights, not shape {tuple(weights.shape)}."
            )
        if not bool(nodes.isfinite().all() and weights.isfinite().all()):
            raise ValueError("Nodes and weights must be finite.")
        if nodes.shape[1] != source.num_noise:
            raise ValueError(f"Nodes have {nodes.shape[1]} entries, but the noise has {source.num_noise}.")
        self.source = source
        self.size = len(nodes)
        self.register_buffer("nodes", nodes)
        self.register_buffer("weights", weights)

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_rows(x, type(self).__name__)
        nodes = self.nodes.to(x).expand(len(x), -1, -1)
        moved, factors = self.source.move_and_weigh(x, nodes)
        # nodes are the same for all rows, and so are their factors
        return exact_points(moved, self.weights if factors is None else self.weights.to(x) * factors[0])

    def learned(self) -> dict[str, Interval]:
        """The learned ranges of the orbit that was frozen."""
        return self.source.learned()

    def units(self) -> Mapping[str, Unit]:
        return self.source.units()

    def __repr__(self) -> str:
        parts = [type(self.source).__name__, self.describe(), f"num_nodes={self.size}"]
        return f"FrozenOrbit({', '.join(part for part in parts if part)})"


def freeze(
    orbit: DrawnOrbit,
    num_nodes: int,
    generator: torch.Generator | None = None,
    like: Tensor | None = None,
    rule: Rule = "random",
) -> FrozenOrbit:
    """The orbit with `num_nodes` nodes in place of its noise; see `DrawnOrbit.freeze`."""
    like = torch.zeros(()) if like is None else like.detach()
    nodes = nodes_for(orbit.randomness, orbit.active, num_nodes, rule, generator, like)
    return FrozenOrbit(orbit, *orbit.complete(nodes))
