"""Learnable positive numbers: how strong a deformation is, how smooth, how wide a jitter.

They are learned as logarithms. A width that starts at zero switches its move off and stays fixed, since
nothing would pull it away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.bounds import Interval, LearnedWidths

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
