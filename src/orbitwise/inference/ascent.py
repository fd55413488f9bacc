"""Ascent in a box: quasi-Newton steps inside a trust region, for few coordinates and costly evaluations.

The curvature is a dense matrix, at first a difference of gradients, then kept up by BFGS. Each step maximises
the quadratic model within the bounds and the trust region, so that a coordinate may end exactly on a bound
and leave it again. Where an evaluation costs seconds, this takes a tenth of the evaluations of L-BFGS, which
serves where there are too many coordinates for a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear, minimize

from orbitwise.inference.curvature import Vector, finite_difference_hessian, made_positive

Objective = Callable[[Vector], tuple[float, Vector]]
"""What is maximised, with its gradient; minus infinity where it cannot be computed."""

DIFFERENCE = 0.03
"""The step of differences of gradients, in units of a coordinate."""

LARGEST_RADIUS, SMALLEST_RADIUS = 4.0, 1e-3

SETTLED = 5
"""So many iterations of L-BFGS that gained less than the tolerance in all have settled."""


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
    """Where an ascent ended, and whether the quadratic model promised next to nothing more there."""

    point: Vector
    value: float
    gradient: Vector
    curvature: NDArray[np.float64]
    has_settled: bool
    history: tuple[float, ...]


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
        return Summit(point, value, gradient, curvature, False, ())
    curvature = made_positive(curvature)
    radius, history, promise, used = 1.0, [value], np.inf, 0
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
        history.append(value)
    return Summit(point, value, gradient, curvature, promise < tolerance, tuple(history))


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
        return Summit(point, value, gradient, none, False, ())
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
    last = history[-1 - SETTLED :]
    settled = bool(result.success) or (len(last) > SETTLED and last[-1] - last[0] < tolerance)
    return Summit(*best, none, settled, tuple(history))


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
