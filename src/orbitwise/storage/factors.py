"""Cholesky factors of a file: triangular, with a positive diagonal, and true to what was solved with them.

A factor can be finite and still be one that no solve survives: growth in a triangular solve is exponential in
the size. So a few vectors are solved for, in time quadratic in the size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orbitwise.inference.linear_algebra import solve_lower
from orbitwise.storage.recipes import LARGEST, SMALLEST, is_plain_numbers, require

ROWS_AT_ONCE = 1024
TOLERANCE = 1e-6
"""The residual of a solve in parts of what it is made of: far more than rounding, far less than damage."""


def check_factor(lower: Tensor) -> None:
    """Raise a ValueError unless this is a lower Cholesky factor [*c, n, n] that can be solved with."""
    size = lower.shape[-1]
    require(lower.dim() in (2, 3) and lower.shape[-2] == size > 0, "a factor that is not square")
    require(is_plain_numbers(lower.diagonal(dim1=-2, dim2=-1), SMALLEST), "a diagonal that is not positive")
    for start in range(0, size, ROWS_AT_ONCE):
        above = lower[..., start : start + ROWS_AT_ONCE, start:].triu(1)
        require(not bool(above.any()), "a factor that is not triangular")
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(size, 2, generator=generator, dtype=lower.dtype)
    probes = torch.cat([torch.ones(size, 1, dtype=lower.dtype), probes], -1).to(lower)
    solved = solve_lower(lower, probes.expand(*lower.shape[:-2], -1, -1))
    require(is_plain_numbers(solved, -LARGEST, LARGEST), "a factor that cannot be solved with")


def check_solution(lower: Tensor, solution: Tensor, right: Tensor) -> None:
    """Raise a ValueError unless L Lᵀ x = b, up to rounding: |L Lᵀ x - b| ≤ ε (|L| |L|ᵀ |x| + max |b|).

    Each row is compared with its own terms, since a large entry elsewhere says nothing of it. What solves a
    system has terms about as large as b, so that sums which overflow are never those of a solution.
    """
    residual = lower @ (lower.mT @ solution) - right
    half = torch.zeros_like(residual)
    for rows in _bands(lower):
        half += lower[..., rows, :].abs().mT @ solution[..., rows, :].abs()
    whole = torch.cat([lower[..., rows, :].abs() @ half for rows in _bands(lower)], dim=-2)
    whole = whole + right.abs().amax(-2, keepdim=True)
    # false for NaN
    is_solved = (residual.abs() <= TOLERANCE * whole) & whole.isfinite()
    require(bool(is_solved.all()), "numbers that do not solve what they should")


def _bands(lower: Tensor) -> list[slice]:
    """The rows of a factor, some at a time, so that it is not held twice."""
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, lower.shape[-1], ROWS_AT_ONCE)]
