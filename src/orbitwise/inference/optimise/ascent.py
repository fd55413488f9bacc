"""Ascent in a box: quasi-Newton steps inside a trust region, in coordinates that are easy to climb.

Coordinates are squares of widths and logarithms of positive parameters. Hessians come from finite differences
of gradients, here and for the whole library.
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
from scipy.optimize import lsq_linear, minimize
from torch import Tensor, nn

from orbitwise.inference.optimise.checkpoints import Evaluation
from orbitwise.inference.optimise.training import evaluate, gained_little
from orbitwise.orbits.orbit import ZERO, LearnedCentres, LearnedWidths

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]
"""The gradient at a point; not finite where it cannot be computed."""

FLATTEST = 1e-3
"""Smaller curvatures are raised to this, in nats for a step of one: it is beyond the trust region anyway."""

STEEPEST = 1e12
"""No two curvatures differ by a larger factor: rounding would make the smaller one negative."""


def finite_difference_hessian(
    gradient: Gradient,
    point: Vector,
    steps: Vector | float,
    at_point: Vector | None = None,
    central: bool = False,
) -> NDArray[np.float64]:
    """The symmetric Hessian at `point`, by differences of `gradient` over `steps`, one per coordinate.

    `at_point` is the gradient at the point where it is known already. A coordinate whose step is 0, or where
    a gradient is not finite, has a row and a column of zeros but for what the others say of it.
    """
    point = np.asarray(point, dtype=np.float64)
    steps = np.broadcast_to(np.asarray(steps, dtype=np.float64), point.shape)
    rows = np.zeros((len(point), len(point)))
    if not central and at_point is None:
        at_point = gradient(point)
    for j in np.flatnonzero(steps):
        ahead, behind = point.copy(), point.copy()
        ahead[j] += steps[j]
        behind[j] -= steps[j] if central else 0.0
        first = gradient(ahead)
        other = at_point if at_point is not None and not central else gradient(behind)
        difference = (first - other) / (ahead[j] - behind[j])
        if np.isfinite(difference).all():
            rows[j] = difference
    return (rows + rows.T) / 2


def made_positive(curvature: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix with the moduli of its eigenvalues: steps then lead away from saddles."""
    values, vectors = np.linalg.eigh(curvature)
    least = max(FLATTEST, float(np.max(np.abs(values), initial=0.0)) / STEEPEST)
    return (vectors * np.maximum(np.abs(values), least)) @ vectors.T


def standard_errors(curvature: NDArray[np.float64]) -> Vector:
    """√diag(C⁻¹) of the Hessian C of minus a log density, infinite along directions that are flat or rise.

    Such a direction matters only to coordinates that take part in it.
    """
    values, vectors = np.linalg.eigh(curvature)
    variance = np.where(values > 1e-9, 1 / np.maximum(values, 1e-9), np.inf)
    weights = np.square(vectors)
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.where(weights < 1e-8, 0.0, weights * variance).sum(-1))


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


Objective = Callable[[Vector], tuple[float, Vector]]
"""What is maximised, with its gradient; minus infinity where it cannot be computed."""

DIFFERENCE = 0.03
"""The step of differences of gradients, in units of each coordinate."""

LARGEST_RADIUS, SMALLEST_RADIUS = 4.0, 1e-3


@final
@dataclass(frozen=True)
class Box:
    """The least and the greatest value of every coordinate, and what a unit step of it is, which may grow."""

    lower: Vector
    upper: Vector

    def clip(self, point: Vector) -> Vector:
        """The nearest point of the box."""
        return np.clip(point, self.lower, self.upper)

    def held(self, point: Vector, gradient: Vector) -> NDArray[np.bool_]:
        """Which coordinates the gradient holds at a bound."""
        at_low, at_high = point <= self.lower + 1e-9, point >= self.upper - 1e-9
        return (at_low & (gradient < 0)) | (at_high & (gradient > 0))

    def unit(self, point: Vector) -> Vector:
        """A unit step: one, or the coordinate itself where that is larger."""
        return np.maximum(1.0, np.abs(point)) * (self.upper > self.lower)


@final
@dataclass(frozen=True)
class Summit:
    """Where an ascent ended, and whether the quadratic model expected next to nothing more there."""

    point: Vector
    value: float
    gradient: Vector
    curvature: NDArray[np.float64]
    has_settled: bool


def curvature_at(
    objective: Objective, point: Vector, box: Box, gradient: Vector | None = None
) -> NDArray[np.float64]:
    """The Hessian of minus the objective, by differences of gradients, one evaluation per coordinate."""
    steps = DIFFERENCE * box.unit(point)
    steps = np.where(point + steps > box.upper, -steps, steps)
    steps = box.clip(point + steps) - point

    def fall(at: Vector) -> Vector:
        value, slope = objective(box.clip(at))
        return -slope if np.isfinite(value) else np.full_like(slope, np.nan)

    return finite_difference_hessian(fall, point, steps, None if gradient is None else -gradient)


def climb(
    objective: Objective,
    start: Vector,
    box: Box,
    curvature: NDArray[np.float64],
    max_evaluations: int,
    tolerance: float,
    begin: tuple[float, Vector] | None = None,
) -> Summit:
    """Maximise from `start` until the model promises less than `tolerance`, or evaluations are used up.

    `curvature` is the Hessian of minus the objective, or a guess at it; `begin` the value and gradient at the
    start where they are known.
    """
    point = box.clip(start)
    value, gradient = objective(point) if begin is None else begin
    if not np.isfinite(value):
        return Summit(point, value, gradient, curvature, False)
    curvature = made_positive(curvature)
    radius, promise, used = 1.0, np.inf, 0
    while True:
        step, promise = best_step(point, gradient, curvature, box, 1.0)
        if promise < tolerance or used >= max_evaluations or radius < SMALLEST_RADIUS:
            break
        if radius != 1.0:
            step, hoped = best_step(point, gradient, curvature, box, radius)
        else:
            hoped = promise
        other = box.clip(point + step)
        found, slope = objective(other)
        used += 1
        gain = found - value
        length = float(np.max(np.abs(step) / np.maximum(box.unit(point), 1e-300)))
        if np.isfinite(found):
            curvature = _updated(curvature, other - point, gradient - slope)
            ratio = gain / hoped
            if ratio < 0.25:
                radius = max(0.25, min(0.5, ratio)) * length if ratio > 0 else 0.25 * length
            elif ratio > 0.75 and length > 0.9 * radius:
                radius = min(2 * radius, LARGEST_RADIUS)
        else:
            radius = 0.25 * length
        if gain > 0:
            point, value, gradient = other, found, slope
    return Summit(point, value, gradient, curvature, promise < tolerance)


def climb_many(
    objective: Objective,
    start: Vector,
    box: Box,
    max_evaluations: int,
    tolerance: float,
    begin: tuple[float, Vector] | None = None,
) -> Summit:
    """As `climb`, by L-BFGS-B, for so many coordinates that a matrix of curvatures would be too large."""
    point = box.clip(start)
    value, gradient = objective(point) if begin is None else begin
    none = np.zeros((0, 0))
    if not np.isfinite(value):
        return Summit(point, value, gradient, none, False)
    known: tuple[float, Vector] | None = (value, gradient)
    best, history = (point, value, gradient), [value]

    def negative(at: Vector) -> tuple[float, Vector]:
        nonlocal best, known
        found, slope = objective(at) if known is None else known
        known = None
        if not np.isfinite(found):
            # higher than all before, so that the line search turns back
            return 1.0 + 2 * abs(best[1]) - best[1], np.zeros_like(at)
        best = (at.copy(), found, slope) if found > best[1] else best
        return -found, -slope

    result = minimize(
        negative,
        point,
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([box.lower, box.upper], axis=1),
        callback=lambda _: history.append(best[1]),
        options={"maxfun": max_evaluations, "ftol": 0.1 * tolerance / max(1.0, abs(value)), "gtol": 0.0},
    )
    return Summit(*best, none, bool(result.success) or gained_little(history, tolerance))


def best_step(
    point: Vector, gradient: Vector, curvature: NDArray[np.float64], box: Box, radius: float
) -> tuple[Vector, float]:
    """The step that maximises gᵀd - ½dᵀCd within the box and the trust region, and what it would gain."""
    reach = radius * box.unit(point)
    low, high = np.maximum(box.lower - point, -reach), np.minimum(box.upper - point, reach)
    free = high - low > 0
    step = np.zeros_like(point)
    if not free.any():
        return step, 0.0
    within = curvature[np.ix_(free, free)]
    # ½|Lᵀd - L⁻¹g|² with C = LLᵀ
    try:
        factor = np.linalg.cholesky(within)
    except np.linalg.LinAlgError:  # rounding took its toll of the updates
        factor = np.linalg.cholesky(made_positive(within))
    aim = np.linalg.solve(factor, gradient[free])
    step[free] = lsq_linear(factor.T, aim, (low[free], high[free]), method="bvls").x
    return step, float(gradient @ step - 0.5 * step @ curvature @ step)


def _updated(curvature: NDArray[np.float64], step: Vector, fall: Vector) -> NDArray[np.float64]:
    """BFGS with Powell's damping: the matrix stays positive; `fall` is how much the gradient fell."""
    image = curvature @ step
    model, seen = float(step @ image), float(step @ fall)
    if model <= 0:
        return curvature
    share = 1.0 if seen >= 0.2 * model else 0.8 * model / (model - seen)
    fall = share * fall + (1 - share) * image
    return curvature - np.outer(image, image) / model + np.outer(fall, fall) / float(step @ fall)
