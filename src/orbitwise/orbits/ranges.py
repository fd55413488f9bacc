"""Learnable ranges: the bounds of a transform's parameters, positive widths, and what width is natural.

α = centre + half-width·ε with ε between -1 and 1. Natural widths, by kind of move, are where a search starts
and the unit of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from orbitwise.transforms.images import AffineWarp, check_image_shape
from orbitwise.transforms.signals import TimeShift
from orbitwise.transforms.transform import Transform
from orbitwise.transforms.vectors import Rotation, Scaling

Interval = tuple[float, float]
MARGIN = 1e-3
ZERO = -1000.0
"""The raw value of a width that is exactly zero: exponentials and logistic functions of it are."""


@final
@dataclass(frozen=True)
class LearnedWidths:
    """Entries of a raw parameter that are widths: how wide they ordinarily are, and at most.

    They are learned as logarithms, or where there is a limit as logits of their share of it.
    """

    parameter: nn.Parameter
    places: Tensor
    natural: Tensor
    limit: Tensor
    can_vanish: bool = True

    @property
    def largest(self) -> Tensor:
        """The widest that is looked at: just below the limit, or a thousand natural widths."""
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
    """Entries of a parameter that are centres of ranges, and how wide these ordinarily are."""

    parameter: nn.Parameter
    places: Tensor
    natural: Tensor


@final
class Bounds(nn.Module):
    """Lower and upper bounds of named parameters.

    `start` gives (lower, upper) or a symmetric bound for each name; a name left out stays at the identity.
    `learnable` names the bounds that move (all given ones by default), `two_sided` those whose centre moves
    too. `natural` says how wide half a range of ordinary size is, where it is not as wide as at the start.
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
        """The present bounds of every parameter that is not fixed at the identity."""
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


SMALLEST = 1e-6
LENGTHS = ("smoothness",)
"""Names of lengths, over which something varies: they are positive, and no moves of their own."""


@final
class Widths(nn.Module):
    """Named widths; `learnable` names those that move (all that are not zero by default).

    `natural` says how wide a width of ordinary size is, where it is not as wide as at the start.
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
        self.raw = nn.Parameter(value.clamp_min(SMALLEST).log(), requires_grad=bool(moves.any()))
        self.natural = tuple((natural or {}).get(name, size or 1.0) for name, size in start.items())

    def learned_widths(self) -> list[LearnedWidths]:
        """The widths that are learned, lengths apart from the others."""
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

    def is_on(self, name: str) -> bool:
        """Whether a width is not fixed at zero."""
        place = self.names.index(name)
        return bool(self.moves[place] or self.fixed[place] > 0)

    def intervals(self) -> dict[str, Interval]:
        """From zero to the present width, for every one that is not zero."""
        on = (self.moves | (self.fixed > 0)).tolist()
        values = zip(self.names, self.values.tolist(), on, strict=True)
        return {name: (0.0, value) for name, value, is_on in values if is_on}

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {high:.3g}" for name, (_, high) in self.intervals().items())


def divide(learnable: Sequence[str] | None, *families: Mapping[str, object]) -> list[list[str] | None]:
    """Which names of each family are to be learned; None, for all that move, is None for every family."""
    if learnable is None:
        return [None for _ in families]
    known = [name for family in families for name in family]
    for name in learnable:
        if name not in known:
            raise ValueError(f"{name!r} cannot be learned here; there are {', '.join(known)}.")
    return [[name for name in learnable if name in family] for family in families]


ANGLE = math.radians(15)
LOG_SCALE = 0.15
SHEAR = 0.15
AMPLITUDE = 0.5
"""Pixels that a smooth deformation moves by."""
THICKNESS = 0.25
"""Pixels that strokes grow or shrink by."""


def image_widths(image_shape: Sequence[int]) -> dict[str, float]:
    """Of moves of images: 15 degrees, 15 per cent, a shear of 0.15, one pixel."""
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
    """Of moves of signals: a sixteenth of the length, 15 per cent, and a 32nd for a delay that varies."""
    return {"shift": length / 16, "log_scale": LOG_SCALE, "warp": length / 32}


def widths_of(transform: Transform) -> dict[str, float]:
    """Of the parameters of a transform, where it is one whose parameters have an ordinary size."""
    if isinstance(transform, AffineWarp):
        return image_widths(transform.image_shape)
    if isinstance(transform, TimeShift):
        return signal_widths(transform.signal_shape[1])
    if isinstance(transform, Rotation):
        return dict.fromkeys(transform.parameter_names, ANGLE)
    if isinstance(transform, Scaling):
        return dict.fromkeys(transform.parameter_names, LOG_SCALE)
    return {}
