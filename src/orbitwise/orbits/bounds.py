"""Learnable bounds of a transform's parameters: α = centre + half-width·ε, with ε between -1 and 1.

Half-widths stay positive, and below a limit where there is one (an angle beyond π adds nothing). A zero
half-width has a flat gradient, so learnable ones start slightly off the identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

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
