"""Error bars of learned bounds from the curvature of the evidence at its maximum (Laplace).

Where ranges were searched for, the curvature is known already, and what other nodes would change is added to
it; a range at one of its bounds gets a one-sided interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from orbitwise.inference.ascent import Box
from orbitwise.inference.coordinates import Coordinates
from orbitwise.inference.curvature import Vector, finite_difference_hessian, standard_errors
from orbitwise.inference.found import Found, covariance_of
from orbitwise.inference.training import assign_flat, evaluate, flat_values
from orbitwise.orbits.ranges import Interval

STEP = 0.02
LARGEST = 3.0
"""An error above this, in the raw parameter's units, says that the data do not determine it: cut off here."""

NORMAL = 1.96
"""Standard errors on both sides that hold 95 %."""
ONE_ERROR, TWO_ERRORS = 0.5, 0.5 * NORMAL**2
"""Nats that the evidence falls within one standard error, and within those."""

Ranges = Mapping[str, Interval]


def searched_errors(
    learned: Callable[[], Ranges], coordinates: Coordinates, found: Found
) -> tuple[dict[str, float], dict[str, Interval]]:
    """The standard error of each learned range's upper end, and the interval that holds it with 95 %.

    Both cover the data (curvature) and the choice of nodes (how far other nodes would move the range).
    """
    if found.curvature is None:
        return {}, {}
    coordinates.assign(found.point)
    covariance = np.diag(covariance_of(found, coordinates))
    shifts = found.node_variance
    box, here = coordinates.box, learned()
    held = box.held(found.point, found.gradient)
    falls = _slopes_away(found, box)
    squares, ends, touched = dict.fromkeys(here, 0.0), {}, dict.fromkeys(here, 0)
    for i, at in enumerate(found.point):
        spread = math.sqrt(covariance[i] + shifts[i])
        reaches = [spread, NORMAL * spread]
        if held[i]:
            # the others follow: C_ii - C_if C_ff⁻¹ C_fi
            free = np.append(np.flatnonzero(~held), i)
            curvature = 1 / np.linalg.inv(found.curvature[np.ix_(free, free)])[-1, -1]
            one, two = (_distance(falls[i], curvature, drop) for drop in (ONE_ERROR, TWO_ERRORS))
            moved = math.sqrt(shifts[i])
            reaches = [math.hypot(one, moved), math.hypot(two, NORMAL * moved)]
        readings = []
        for reach in reaches:
            for sign in (-1, 1):
                other = found.point.copy()
                other[i] = at + sign * reach
                coordinates.assign(box.clip(other))
                readings.append(learned())
        for name in here:
            low, high, lowest, highest = (each[name][1] for each in readings)
            if (lowest, highest) != (here[name][1], here[name][1]):
                touched[name] += 1
                squares[name] += (max(high - low, 0.0) / (1 if held[i] else 2)) ** 2
                ends[name] = min(lowest, highest), max(lowest, highest)
    coordinates.assign(found.point)
    errors = {name: value**0.5 for name, value in squares.items()}
    for name, (_, high) in here.items():
        if touched[name] > 1:
            ends[name] = high - NORMAL * errors[name], high + NORMAL * errors[name]
    return errors, {name: ends.get(name, (high, high)) for name, (_, high) in here.items()}


def _slopes_away(found: Found, box: Box) -> Vector:
    """How steeply the quadratic model falls away from the nearer bound of each coordinate, 0 if it rises."""
    if found.curvature is None or found.slope is None or found.centre is None:
        return np.abs(found.gradient)
    # the model's gradient at the point: g(centre) + C (centre - point)
    gradient = found.slope + found.curvature @ (found.centre - found.point)
    is_low = found.point - box.lower < box.upper - found.point
    return np.maximum(np.where(is_low, -gradient, gradient), 0.0)


def _distance(slope: float, curvature: float, drop: float) -> float:
    """How far a hill that falls by slope·d + ½ curvature·d² has fallen by `drop`."""
    return 2 * drop / (slope + math.sqrt(slope**2 + 2 * curvature * drop))


def parameter_errors(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    """The standard deviation of every entry of the parameters: √diag(H⁻¹), H the Hessian of -objective.

    The Hessian is a difference of gradients. A direction in which the evidence is flat or still rising gets
    an infinite error.
    """
    here = evaluate(objective, parameters)
    if here.failure:
        raise ValueError(here.failure)
    start = [parameter.detach().clone() for parameter in parameters]

    def fall(point: Vector) -> Vector:
        assign_flat(parameters, point)
        found = evaluate(objective, parameters)
        return np.full_like(point, np.nan) if found.failure else -found.gradient

    try:
        hessian = finite_difference_hessian(fall, flat_values(parameters), STEP, -here.gradient)
    finally:
        with torch.no_grad():
            for parameter, kept in zip(parameters, start, strict=True):
                parameter.copy_(kept)
    parts = torch.from_numpy(standard_errors(hessian)).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def expected_seconds(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> float:
    """How long `parameter_errors` will take: a gradient per entry, each about three times the objective."""
    start = time.perf_counter()
    with torch.no_grad():
        objective()
    count = sum(parameter.numel() for parameter in parameters)
    return 3 * (count + 1) * (time.perf_counter() - start)


def learned_errors(
    learned: Callable[[], Ranges],
    parameters: list[nn.Parameter],
    errors: list[Tensor],
) -> dict[str, float]:
    """The error of each learned range's upper end: each parameter moves one deviation to both sides."""
    squares = dict.fromkeys(learned(), 0.0)
    for parameter, error in zip(parameters, errors, strict=True):
        flat, spread = parameter.data.view(-1), error.reshape(-1).clamp_max(LARGEST)
        for i in range(flat.numel()):
            old = flat[i].clone()
            ends = []
            for sign in (1, -1):
                flat[i] = old + sign * spread[i].to(old)
                ends.append(learned())
            flat[i] = old
            for name in squares:
                squares[name] += ((ends[0][name][1] - ends[1][name][1]) / 2) ** 2
    return {name: value**0.5 for name, value in squares.items()}
