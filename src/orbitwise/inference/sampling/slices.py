"""Slice sampling of one coordinate after the other (Neal 2003): no step size that could be badly wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

MAX_STEPS_OUT = 16
MAX_SHRINKS = 100

Density = Callable[[Tensor], tuple[float, Any]]
"""The log density at a point, and what was computed on the way and will be wanted again."""


def slice_coordinates(
    log_density: Density,
    point: Float[Tensor, " p"],
    found: tuple[float, Any],
    width: float,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, " p"], tuple[float, Any], int]:
    """One update of every coordinate: the point, what `log_density` found there, and its evaluations.

    Intervals of `width` step out from the point until both ends are below a drawn level, and shrink towards
    the point until a uniform draw is above it. The number of steps out is shared between the ends at random,
    without which a limit would spoil the balance.
    """
    count = 0

    def trial_at(point: Tensor, i: int, place: float) -> tuple[Tensor, tuple[float, Any]]:
        nonlocal count
        count += 1
        moved = point.clone()
        moved[i] = place
        return moved, log_density(moved)

    for i in range(len(point)):
        level = found[0] + math.log(_uniform(generator) or 1e-300)
        origin = point[i].item()

        low = origin - width * _uniform(generator)
        high = low + width
        left = int(MAX_STEPS_OUT * _uniform(generator))
        right = MAX_STEPS_OUT - 1 - left
        while left > 0 and trial_at(point, i, low)[1][0] > level:
            low, left = low - width, left - 1
        while right > 0 and trial_at(point, i, high)[1][0] > level:
            high, right = high + width, right - 1
        for _ in range(MAX_SHRINKS):
            place = low + (high - low) * _uniform(generator)
            moved, trial = trial_at(point, i, place)
            if trial[0] > level:
                point, found = moved, trial
                break
            low, high = (place, high) if place < origin else (low, place)
    return point, found, count


def _uniform(generator: torch.Generator | None) -> float:
    place = None if generator is None else generator.device
    return torch.rand((), generator=generator, device=place, dtype=torch.float64).item()
