"""Hessians by finite differences of gradients, and what follows from them: one place for the whole library.

Column j of the Hessian is [g(z + h e_j) - g(z)] / h, or with central differences
[g(z + h e_j) - g(z - h e_j)] / 2h, made symmetric. With p coordinates it costs p or 2p gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]
"""The gradient at a point; not finite where it cannot be computed."""

FLATTEST = 1e-3
"""No curvature counts for less, in nats for a step of one: beyond the trust region anyway."""

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
