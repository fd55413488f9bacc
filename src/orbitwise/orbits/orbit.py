"""The interface of orbits, and their learnable ranges.

An orbit chooses the parameters of a transform: all elements of a finite family, fresh draws between learnable
bounds α = centre + half-width·ε, or frozen nodes. It returns the points A(x) that an input is moved to, their
weights, and how they were drawn (`draw`, `groups`), so that `orbitwise.process` can avoid every bias (METHOD
4). A frozen orbit is a drawn one whose noise ε is fixed: an ordinary finite sum whose nodes still move with
the learnable bounds. Exact, collapsed and risk engines take such rows, and refuse drawn ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
from orbitwise.orbits.certainty import Interval, Unit, describe
from orbitwise.orbits.nodes import Draws, Nodes, Noise, Part, Rule, nodes_for
from orbitwise.transforms.images import AffineWarp, check_image_shape
from orbitwise.transforms.signals import TimeShift
from orbitwise.transforms.transform import Transform, check_rows
from orbitwise.transforms.vectors import Rotation, Scaling

MARGIN = 1e-3
ZERO = -1000.0
"""The raw value of a width of exactly zero: its exponential and logistic function are zero."""


@final
@dataclass(frozen=True)
class LearnedWidths:
    """Entries of a raw parameter that are widths, with their natural and largest values.

    Without a limit they are learned as logarithms, otherwise as logits of their ratio to the limit.

    The raw value is log(width), or logit(width/limit) with a limit.
    """

    parameter: nn.Parameter
    places: Tensor
    natural: Tensor
    limit: Tensor
    can_vanish: bool = True

    @property
    def largest(self) -> Tensor:
        """The largest width that is tried: just below the limit, or a thousand natural widths."""
        return torch.where(self.limit.isinf(), 1000 * self.natural, (1 - MARGIN) * self.limit)

    def width(self, raw: Tensor) -> Tensor:
        """The widths of raw values."""
        limited = torch.where(self.limit.isinf(), 0.0, self.limit) * torch.sigmoid(raw)
        return torch.where(self.limit.isinf(), raw.exp(), limited)

    def raw(self, width: Tensor) -> Tensor:
        """The raw values of widths."""
        return torch.where(self.limit.isinf(), width.log(), torch.logit(width / self.limit))


def vanishing_widths(module: nn.Module) -> Iterator[LearnedWidths]:
    """The learned widths of a module and all its parts that may become zero."""
    for part in module.modules():
        yield from (each for each in getattr(part, "learned_widths", list)() if each.can_vanish)


@final
@dataclass(frozen=True)
class LearnedCentres:
    """Entries of a parameter that are centres of ranges, and the natural widths of the ranges."""

    parameter: nn.Parameter
    places: Tensor
    natural: Tensor


@final
class Bounds(nn.Module):
    """Lower and upper bounds of named parameters.

    `start` gives (lower, upper) or a symmetric bound for each name; a name left out is fixed at the identity.
    `learnable` names the bounds that are learned (by default all given ones), and `two_sided` those whose
    centre is learned too. `natural` are half-widths of ordinary size; the default is the initial half-width.

    Parameters
    ----------
    names : sequence of str
        The parameters of the transform, in its order.
    start : mapping from name to float or (lower, upper)
        The initial bounds; a single number b means (-b, b).
    learnable : sequence of str, default=None
        The ranges whose width is learned, all of `start` where None.
    two_sided : sequence of str, default=()
        The ranges whose centre is learned too.
    limits : mapping from name to float, default=None
        The largest half-width, such as π for an angle; a name left out has no limit.
    natural : mapping from name to float, default=None
        Half-widths of ordinary size, the unit of the search for ranges.
    """

    limit: Tensor
    moves: Tensor
    shifts: Tensor
    fixed_half: Tensor
    fixed_centre: Tensor

    def __init__(
        self,
        names: Sequence[str],
        start: Mapping[str, float | Interval],
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        limits: Mapping[str, float] | None = None,
        natural: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(names)
        # sets, because there may be a name for each of many coordinates
        known, shifting = set(names), set(two_sided)
        moving = set(start) if learnable is None else set(learnable)
        for name in (*start, *(learnable or ()), *two_sided, *(limits or {})):
            if name not in known:
                raise ValueError(f"There is no parameter {name!r}; there are {', '.join(self.names)}.")
        limit = torch.tensor(
            [(limits or {}).get(name, torch.inf) for name in self.names], dtype=torch.float64
        )
        pairs = [_interval(start.get(name, 0.0)) for name in self.names]
        half = torch.tensor([(high - low) / 2 for low, high in pairs], dtype=torch.float64)
        centre = torch.tensor([(high + low) / 2 for low, high in pairs], dtype=torch.float64)
        moves = torch.tensor([name in moving for name in self.names])
        columns = (self.names, half.tolist(), moves.tolist(), limit.tolist())
        for name, width, is_learned, most in zip(*columns, strict=True):
            if is_learned and width <= 0:
                raise ValueError(
                    f"{name} starts at zero width, where its gradient is flat; start slightly off, say 0.05."
                )
            if width > most:
                raise ValueError(f"{name} starts at {width:.3g}, above its limit {most:.3g}.")
        # Where a range starts at its limit, a margin beyond it keeps the start exact and its gradient alive.
        limit = torch.where(moves, torch.maximum(limit, half / (1 - MARGIN)), limit)
        self.register_buffer("limit", limit)
        self.register_buffer("moves", moves)
        self.register_buffer("fixed_half", torch.where(moves, 0.0, half))
        self.register_buffer("shifts", torch.tensor([name in shifting for name in self.names]))
        self.raw_half = nn.Parameter(self._inverse(half.clamp_min(1e-6)), requires_grad=bool(moves.any()))
        self.register_buffer("fixed_centre", centre.clone())
        self.centre = nn.Parameter(centre, requires_grad=bool(self.shifts.any()))
        sizes = zip(self.names, half.tolist(), strict=True)
        self.natural = tuple((natural or {}).get(name, size or 1.0) for name, size in sizes)

    def learned_widths(self) -> list[LearnedWidths]:
        """The half-widths that are learned."""
        places = self.moves.cpu().nonzero()[:, 0]
        natural = torch.tensor(self.natural, dtype=torch.float64)[places]
        return [LearnedWidths(self.raw_half, places, natural, self.limit.detach().double().cpu()[places])]

    def learned_centres(self) -> list[LearnedCentres]:
        """The centres that are learned."""
        places = self.shifts.cpu().nonzero()[:, 0]
        return [LearnedCentres(self.centre, places, torch.tensor(self.natural, dtype=torch.float64)[places])]

    def _inverse(self, half: Tensor) -> Tensor:
        bounded = (half / self.limit).clamp(1e-6, 1 - MARGIN)
        return torch.where(self.limit.isinf(), half.log(), torch.logit(bounded))

    @property
    def half_width(self) -> Float[Tensor, " p"]:
        """(upper - lower)/2."""
        limited = torch.where(self.limit.isinf(), 0.0, self.limit) * torch.sigmoid(self.raw_half)
        learned = torch.where(self.limit.isinf(), self.raw_half.exp(), limited)
        return torch.where(self.moves, learned, self.fixed_half)

    @property
    def middle(self) -> Float[Tensor, " p"]:
        """(upper + lower)/2."""
        return torch.where(self.shifts, self.centre, self.fixed_centre)

    @property
    def active(self) -> Bool[Tensor, " p"]:
        """Which parameters have a width, learned or fixed."""
        return self.moves | (self.fixed_half > 0)

    def place(self, noise: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """α = centre + half-width·ε, in the precision of ε."""
        return self.middle.to(noise) + self.half_width.to(noise) * noise

    def intervals(self) -> dict[str, Interval]:
        """The present bounds of all parameters that are not fixed at the identity."""
        low, high = (self.middle - self.half_width).tolist(), (self.middle + self.half_width).tolist()
        moves = self.moves.tolist()
        pairs = zip(self.names, zip(low, high, strict=True), moves, strict=True)
        return {name: pair for name, pair, is_learned in pairs if is_learned or pair != (0.0, 0.0)}

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {low:+.3f}…{high:+.3f}" for name, (low, high) in self.intervals().items())


def _interval(value: float | Interval) -> Interval:
    low, high = value if isinstance(value, tuple | list) else (-value, value)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"Bounds must be finite, not {value}.")
    if low > high:
        raise ValueError(
            f"A lower bound must not exceed its upper one, nor a symmetric bound be negative: {value}."
        )
    return float(low), float(high)


SMALLEST_WIDTH = 1e-6
LENGTHS = ("smoothness",)
"""Names of lengths over which something varies; they are positive, and not moves themselves."""


@final
class Widths(nn.Module):
    """Named widths; `learnable` names those that are learned (by default all that are not zero).

    `natural` are widths of ordinary size; the default is the initial width.

    Parameters
    ----------
    start : mapping from name to float
        The initial widths; 0 is off.
    learnable : sequence of str, default=None
        The widths that are learned, all that are on where None.
    natural : mapping from name to float, default=None
        Widths of ordinary size, the unit of the search for ranges.
    """

    moves: Tensor
    fixed: Tensor

    def __init__(
        self,
        start: Mapping[str, float],
        learnable: Sequence[str] | None = None,
        natural: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(start)
        for name, value in start.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and must not be negative, not {value}.")
        moving = [name for name, value in start.items() if value > 0] if learnable is None else learnable
        for name in moving:
            if name not in start:
                raise ValueError(f"There is no width {name!r}; there are {', '.join(start)}.")
            if start[name] == 0:
                raise ValueError(f"{name} is zero, where it cannot be learned; start slightly off, say 0.05.")
        value = torch.tensor(list(start.values()), dtype=torch.float64)
        named = set(moving)
        moves = torch.tensor([name in named for name in start], dtype=torch.bool)
        self.register_buffer("moves", moves)
        self.register_buffer("fixed", torch.where(moves, 0.0, value))
        self.raw = nn.Parameter(value.clamp_min(SMALLEST_WIDTH).log(), requires_grad=bool(moves.any()))
        self.natural = tuple((natural or {}).get(name, size or 1.0) for name, size in start.items())

    def learned_widths(self) -> list[LearnedWidths]:
        """The learned widths, lengths in a separate group."""
        found = []
        for is_length in (False, True):
            places = [
                place
                for place, name in enumerate(self.names)
                if bool(self.moves[place]) and (name in LENGTHS) == is_length
            ]
            if places:
                natural = torch.tensor([self.natural[place] for place in places], dtype=torch.float64)
                limit = torch.full_like(natural, torch.inf)
                found.append(LearnedWidths(self.raw, torch.tensor(places), natural, limit, not is_length))
        return found

    @property
    def values(self) -> Float[Tensor, " k"]:
        """The present widths."""
        return torch.where(self.moves, self.raw.exp(), self.fixed)

    def __getitem__(self, name: str) -> Float[Tensor, ""]:
        return self.values[self.names.index(name)]

    def intervals(self) -> dict[str, Interval]:
        """(0, present width) for every width that is not zero."""
        on = (self.moves | (self.fixed > 0)).tolist()
        values = zip(self.names, self.values.tolist(), on, strict=True)
        return {name: (0.0, value) for name, value, is_on in values if is_on}

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {high:.3g}" for name, (_, high) in self.intervals().items())


ANGLE = math.radians(15)
LOG_SCALE = 0.15
SHEAR = 0.15
AMPLITUDE = 0.5
"""Pixels that a smooth deformation moves by."""
THICKNESS = 0.25
"""Pixels that strokes grow or shrink by."""


def image_widths(image_shape: Sequence[int]) -> dict[str, float]:
    """Ordinary sizes of moves of images: 15 degrees, 15 per cent, a shear of 0.15, one pixel."""
    _, height, width = check_image_shape(image_shape)
    return {
        "angle": ANGLE,
        "log_scale_x": LOG_SCALE,
        "log_scale_y": LOG_SCALE,
        "shear": SHEAR,
        "shift_x": min(0.5, 2 / width),
        "shift_y": min(0.5, 2 / height),
        "log_zoom": LOG_SCALE,
        "amplitude": AMPLITUDE,
        "thickness": THICKNESS,
    }


def signal_widths(length: int) -> dict[str, float]:
    """Ordinary sizes of moves of signals: 1/16 of the length, 15 per cent, and 1/32 for a varying delay."""
    return {"shift": length / 16, "log_scale": LOG_SCALE, "warp": length / 32}


def widths_of(transform: Transform) -> dict[str, float]:
    """Ordinary sizes of the parameters of a transform, if they are known."""
    if isinstance(transform, AffineWarp):
        return image_widths(transform.image_shape)
    if isinstance(transform, TimeShift):
        return signal_widths(transform.signal_shape[1])
    if isinstance(transform, Rotation):
        return dict.fromkeys(transform.parameter_names, ANGLE)
    if isinstance(transform, Scaling):
        return dict.fromkeys(transform.parameter_names, LOG_SCALE)
    return {}


@dataclass(frozen=True)
class Group:
    """A set of points drawn together. Groups of one `family` are independent replicates of each other.

    `population` is the size of the finite orbit that the group was drawn from without replacement, or None
    for draws from a density. Draws are `independent` of each other unless they form a Sobol set, for which
    only pairs of different groups may be used.
    """

    family: int
    population: int | None = None
    independent: bool = True


@final
@dataclass(frozen=True)
class Symmetry:
    """Marks atoms in runs of `size`: each run is the whole orbit of a group, with the identity first.

    `token` identifies the group (by object identity). `isometric` means that the group acts on the points by
    maps that preserve distances and norms. If the base kernel is invariant to the group, one side of a double
    sum suffices.
    """

    token: object
    size: int
    isometric: bool

    stored = Stored({"size": Field(least=1, most=MOST_COUNTED)})

    def check_parts(self) -> None:
        """Raise a ValueError unless the token is an orbit of this size."""
        require(getattr(self.token, "size", None) == self.size, "a symmetry of another orbit")


@dataclass(frozen=True)
class OrbitPoints:
    """The orbit points of rows; the weighted sum of g over them is, or estimates, the orbit average."""

    points: Float[Tensor, "n s d"]
    weights: Float[Tensor, "n s"]
    draw: Int[Tensor, " s"]
    groups: tuple[Group, ...] = ()
    symmetry: Symmetry | None = None


MOST_SAMPLES = 4096
"""The most draws per row in a model file, because all pairs of the points are compared."""
LONGEST = 1e12
"""The largest range in a model file, in any unit."""
NATURAL = Field((tuple,), Field((int, float)), least=SMALLEST, most=LONGEST)
"""Ordinary sizes of ranges, which earlier versions did not store."""


class Orbit(nn.Module, ABC):
    """The set, or the density, of points to which an input may be moved."""

    is_drawn: bool = False
    """Whether `points` are drawn at random, so that engines need unbiased estimates."""

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

    @property
    def size(self) -> int | None:
        """The number of elements of a finite orbit, None for a density."""
        return None

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
        """The units of ranges whose names do not imply them."""
        return {}

    def describe(self) -> str:
        """The learned ranges in natural units: degrees, per cent, pixels."""
        return describe(self.learned(), self.units())


class DrawnOrbit(Orbit):
    """An orbit whose points are drawn afresh: noise ε moves x to t(x, ε), so gradients reach the bounds.

    Draws come in `num_groups` independent groups (two halves by default), so that quadratic terms can be
    estimated without bias. `draws` are "random", or "sobol": a scrambled Sobol set for every group and row.

    Parameters
    ----------
    num_samples : int, default=32
        Points drawn per row and call, in all groups together; a multiple of `num_groups`.
    num_groups : int, default=2
        Independent groups; pairs of points of different groups give unbiased estimates of quadratic terms.
    draws : "random" or "sobol", default="random"
        Independent draws, or one scrambled Sobol set per group and row, which has far less variance.
    """

    is_drawn = True
    is_smooth: bool = False
    """Whether points depend smoothly on the noise, so that Gauss nodes are accurate."""
    part: Part | None = None
    """Of which batch the rows are a part, where others have the rest of it."""

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

    def _learn_ranges(
        self,
        names: Sequence[str],
        ranges: Mapping[str, float | Interval],
        widths: Mapping[str, float],
        learnable: Sequence[str] | None,
        two_sided: Sequence[str],
        limits: Mapping[str, float] | None = None,
        natural: Mapping[str, float] | None = None,
    ) -> None:
        """Set `bounds` and `widths`; `learnable` names what is learned of both, None means everything."""
        known = (*ranges, *widths)
        for name in learnable or ():
            if name not in known:
                raise ValueError(f"{name!r} cannot be learned here; there are {', '.join(known)}.")
        chosen = known if learnable is None else learnable
        moving = [name for name in ranges if name in chosen]
        self.bounds = Bounds(names, ranges, moving, two_sided, limits, natural)
        self.widths = Widths(widths, [name for name in widths if name in chosen], natural)

    def check_parts(self) -> None:
        """Raise a ValueError if a range is invalid."""
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
        """The distribution of the q entries of the noise."""

    @abstractmethod
    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s e"]:
        """Row i of x moved by each of its s draws of noise."""

    @property
    def takes_parts(self) -> bool:
        """Whether it draws noise for all rows of a batch, so that some may be moved alone; see `part`."""
        return type(self).points is DrawnOrbit.points

    @property
    def num_noise(self) -> int:
        """q, the number of entries of noise per draw."""
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
        """Standard noise ε [*shape, q], drawn on the device of the generator and converted like `like`."""
        return self.randomness.draw(shape, generator, like)

    def move_and_weigh(
        self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]
    ) -> tuple[Float[Tensor, "n s e"], Float[Tensor, "n s"] | None]:
        """The moved rows, and factors for their weights, if any."""
        return self.move(x, noise), None

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_rows(x, type(self).__name__)
        num_rows, mine = (len(x), slice(None)) if self.part is None else self.part.among(len(x))
        if self.draws == "sobol":
            count = self.num_samples // self.num_groups
            noise = self.randomness.sobol(num_rows, self.num_groups, count, generator, x, mine)
        else:
            noise = self.noise((num_rows, self.num_samples), generator, x)[mine]
        moved, factors = self.move_and_weigh(x, noise)
        drawn = drawn_points(moved, self.num_groups, independent=self.draws == "random")
        return drawn if factors is None else replace(drawn, weights=drawn.weights * factors)

    def complete(self, nodes: Nodes) -> Nodes:
        """The nodes of a frozen orbit from nodes of its noise, combined with everything that is not drawn."""
        return nodes

    def freeze(
        self, num_nodes: int, generator: torch.Generator | None = None, rule: Rule = "random"
    ) -> FrozenOrbit:
        """The same orbit with fixed nodes, shared by all rows, that still move with the bounds.

        `rule` selects the nodes: draws ("random"), one scrambled Sobol set ("sobol"), or Gauss's nodes with
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
    """Points without randomness, with the same weights for every row."""
    count, samples, _ = points.shape
    draw = torch.zeros(samples, dtype=torch.long, device=points.device)
    return OrbitPoints(points, weights.to(points).expand(count, samples), draw, (), symmetry)


def drawn_points(
    points: Float[Tensor, "n s d"], num_groups: int, population: int | None = None, independent: bool = True
) -> OrbitPoints:
    """Points drawn in `num_groups` equal independent groups, each point with weight 1/s.

    `population` is the size of the finite orbit that each group was drawn from without replacement. Groups
    whose points are not `independent`, such as Sobol sets, are only paired with other groups.
    """
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

    Parameters
    ----------
    source : DrawnOrbit
        The orbit whose `move` is used, and whose ranges stay learnable.
    nodes : Tensor of shape (s, q)
        The fixed noise.
    weights : Tensor of shape (s,), default=None
        The weight of each node, 1/s where None.
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
        self.register_buffer("nodes", nodes)
        self.register_buffer("weights", weights)

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

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
    """The orbit with its noise replaced by `num_nodes` nodes; see `DrawnOrbit.freeze`."""
    like = torch.zeros(()) if like is None else like.detach()
    nodes = nodes_for(orbit.randomness, orbit.active, num_nodes, rule, generator, like)
    return FrozenOrbit(orbit, *orbit.complete(nodes))
