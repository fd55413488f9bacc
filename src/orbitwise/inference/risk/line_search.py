"""How far to go along a direction: the risk on a line is convex, so its slope, which only rises, tells."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.risk.problem import Problem

SEARCHES = 40
FLATNESS = 0.1
"""A line is searched until its slope has fallen to this part of what it was."""


def slope_at(
    problem: Problem, values: Tensor, to_values: Tensor, linear: Tensor, square: Tensor, size: Tensor
) -> Float[Tensor, "*batch"]:
    """The slope of ½|f + s d|² + losses, where ⟨f, d⟩ = linear and |d|² = square."""
    slopes = problem.slope(values + size[..., None] * to_values)
    return linear + size * square + (slopes * to_values).sum(-1)


def search(
    problem: Problem,
    values: Float[Tensor, "*batch m"],
    to_values: Float[Tensor, "*batch m"],
    linear: Float[Tensor, "*batch"],
    square: Float[Tensor, "*batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The step of nearly the least risk, and the slope at the start. Only O(m) a trial: no kernel product."""
    first = slope_at(problem, values, to_values, linear, square, torch.zeros_like(linear))
    low, high = torch.zeros_like(linear), torch.full_like(linear, torch.inf)
    size = torch.ones_like(linear)
    is_flat = torch.zeros_like(linear, dtype=torch.bool)
    for _ in range(SEARCHES):
        there = slope_at(problem, values, to_values, linear, square, size)
        is_flat = there.abs() <= FLATNESS * first.abs()
        if bool(is_flat.all()):
            break
        low, high = torch.where(there < 0, size, low), torch.where(there < 0, high, size)
        inside = torch.where(low > 0, (low + high) / 2, high / 8)
        size = torch.where(is_flat, size, torch.where(high.isinf(), 4 * low, inside))
    # where the slope turns too abruptly to be found flat, the risk has still fallen all the way to `low`
    return torch.where(is_flat, size, low), first
