"""Coordinates in which the evidence is easy to climb: squares of widths, logarithms of positive parameters.

The evidence is even in the half-width a of a range, so its slope in a vanishes at zero, while its slope in a²
does not (METHOD 11): in v = (a / natural)² a range can become zero, and leave it again. Modules keep their
raw parameters; only a search sees these coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.inference.ascent import Box
from orbitwise.inference.curvature import Vector
from orbitwise.inference.journal import Evaluation
from orbitwise.inference.training import evaluate
from orbitwise.orbits.ranges import ZERO, LearnedCentres, LearnedWidths

LEAST, NOTHING = 1e-6, 1e-5
"""The least v, where a slope can still be had, and below which a range is set to zero: a third of a per cent
of its natural width moves nothing."""

FARTHEST = 14.0
"""How far the logarithm of a positive parameter may move: to its 1,200,000th part or as many times it."""

RETRIED = 0.05
"""Where a range that is zero is tried again: about a fifth of its natural width."""


@final
@dataclass(frozen=True)
class _Entries:
    """Some entries of one parameter, and how they are seen."""

    parameter: nn.Parameter
    places: Tensor
    widths: LearnedWidths | None = None
    centres: LearnedCentres | None = None
    constraint: GreaterThan | None = None

    def from_raw(self, raw: Tensor) -> Tensor:
        if self.widths is not None:
            width = self.widths.width(raw)
            return (width / self.widths.natural).square() if self.widths.can_vanish else width.log()
        if self.centres is not None:
            return raw / self.centres.natural
        return raw if self.constraint is None else self._constrained(raw, self.constraint.transform).log()

    def to_raw(self, z: Tensor) -> Tensor:
        if self.widths is not None:
            return self.widths.raw(self.widths.natural * z.sqrt() if self.widths.can_vanish else z.exp())
        if self.centres is not None:
            return z * self.centres.natural
        return z if self.constraint is None else self._constrained(z.exp(), self.constraint.inverse_transform)

    def _constrained(self, values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """What a constraint makes of the values, where its bounds live and in the shape they belong to."""
        shaped = values.reshape(self.parameter.shape).to(self.parameter.device)
        return change(shaped).double().cpu().reshape(-1)

    def ends(self, z: Tensor, least: float | None) -> tuple[Tensor, Tensor]:
        """The least and the greatest coordinates."""
        everywhere = torch.full_like(z, torch.inf)
        if self.widths is not None and self.widths.can_vanish:
            most = (self.widths.largest / self.widths.natural).square()
            return torch.full_like(z, LEAST), torch.maximum(most, z)
        if self.widths is not None:
            return z - FARTHEST / 8, z + FARTHEST / 8
        if self.constraint is not None:
            floor = self.constraint.lower_bound.detach().double().cpu()
            floor = (torch.zeros(self.parameter.shape, dtype=torch.float64) + floor).reshape(-1)
            low = torch.where(floor > 0, floor.log() + 1e-6, -torch.inf)
            return torch.minimum(torch.maximum(z - FARTHEST, low), z), z + FARTHEST
        return (-everywhere if least is None else torch.full_like(z, least)), everywhere


@final
class Coordinates:
    """All that is learned as one vector, with its bounds; `floors` are least values of raw parameters."""

    def __init__(
        self, modules: Sequence[nn.Module], floors: Mapping[nn.Parameter, float] | None = None
    ) -> None:
        self._entries = list(_entries_of(modules))
        self._floors = {id(parameter): least for parameter, least in (floors or {}).items()}
        point = self.point()
        ends = [
            each.ends(z, self._floors.get(id(each.parameter)))
            for each, z in zip(self._entries, self._split(point), strict=True)
        ]
        lower, upper = (_joined([pair[side] for pair in ends]) for side in (0, 1))
        self.box = Box(lower, upper)

    def __len__(self) -> int:
        return sum(len(each.places) for each in self._entries)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters, each once."""
        return list(dict.fromkeys(each.parameter for each in self._entries))

    @property
    def is_width(self) -> NDArray[np.bool_]:
        """Which coordinates are squares of widths that may vanish."""
        return np.concatenate(
            [
                np.full(len(each.places), each.widths is not None and each.widths.can_vanish)
                for each in self._entries
            ]
            or [np.zeros(0, dtype=bool)]
        )

    def point(self) -> Vector:
        """The vector at the present parameters."""
        return _joined([each.from_raw(_raw(each)) for each in self._entries])

    def assign(self, point: Vector) -> None:
        """Put the parameters where the vector says; a width that is next to nothing is exactly zero."""
        self._write(point, is_zero_kept=True)

    @torch.no_grad()
    def _write(self, point: Vector, is_zero_kept: bool) -> None:
        for each, z in zip(self._entries, self._split(point), strict=True):
            raw = each.to_raw(z)
            if is_zero_kept and each.widths is not None and each.widths.can_vanish:
                raw = torch.where(z < NOTHING, ZERO, raw)
            each.parameter.view(-1)[each.places.to(each.parameter.device)] = raw.to(each.parameter)

    def put(self, point: Vector) -> None:
        """As `assign`, but widths at their least stay just above zero, where they have a slope."""
        self._write(point, is_zero_kept=False)

    def gradient(self, slopes: Mapping[nn.Parameter, Tensor | None], point: Vector) -> Vector:
        """The gradient by the coordinates, from that by the raw parameters."""
        parts = []
        for each, z in zip(self._entries, self._split(point), strict=True):
            slope = slopes[each.parameter]
            if slope is None:
                parts.append(torch.zeros_like(z))
                continue
            free = _raw(each).requires_grad_()
            with torch.enable_grad():
                (seen,) = torch.autograd.grad(each.from_raw(free).sum(), free)
            taken = slope.detach().double().cpu().reshape(-1)[each.places]
            parts.append(torch.where(taken == 0, 0.0, taken / seen))
        return _joined(parts)

    def evaluate(self, objective: Callable[[], Tensor], point: Vector, sloped: bool = True) -> Evaluation:
        """An objective of the modules at a point, with its gradient by the coordinates if it is `sloped`."""
        self.put(point)
        parameters = self.parameters
        found = evaluate(objective, parameters, sloped)
        if found.failure:
            return found
        slopes = torch.from_numpy(found.gradient).split([each.numel() for each in parameters])
        gradient = self.gradient(dict(zip(parameters, slopes, strict=True)), point)
        if not np.isfinite(gradient).all():
            return Evaluation(
                math.nan, np.zeros(0), "its gradient is not finite. Scale inputs and targets to 1."
            )
        return Evaluation(found.value, gradient)

    def _split(self, point: Vector) -> Sequence[Tensor]:
        vector = torch.from_numpy(np.array(point, dtype=np.float64))
        return vector.split([len(each.places) for each in self._entries])


def _raw(entries: _Entries) -> Tensor:
    return entries.parameter.detach().double().cpu().reshape(-1)[entries.places]


def _joined(parts: Sequence[Tensor]) -> Vector:
    return torch.cat([*parts, torch.zeros(0, dtype=torch.float64)]).numpy()


def _entries_of(modules: Sequence[nn.Module]) -> Iterable[_Entries]:
    """Every parameter that is learned, once, with what its module knows of it."""
    known: dict[int, list[_Entries]] = {}
    for module in dict.fromkeys(each for root in modules for each in root.modules()):
        for widths in getattr(module, "learned_widths", list)():
            known.setdefault(id(widths.parameter), []).append(
                _Entries(widths.parameter, widths.places, widths=widths)
            )
        for centres in getattr(module, "learned_centres", list)():
            known.setdefault(id(centres.parameter), []).append(
                _Entries(centres.parameter, centres.places, centres=centres)
            )
        if isinstance(module, Module):
            for name, parameter in module._parameters.items():
                constraint = module.constraint_for_parameter_name(name)
                if parameter is not None and isinstance(constraint, GreaterThan) and constraint.enforced:
                    every = torch.arange(parameter.numel())
                    known.setdefault(id(parameter), [_Entries(parameter, every, constraint=constraint)])
    for parameter in dict.fromkeys(each for root in modules for each in root.parameters()):
        if parameter.requires_grad:
            yield from known.get(id(parameter), [_Entries(parameter, torch.arange(parameter.numel()))])
