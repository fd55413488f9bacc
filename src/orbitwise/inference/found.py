"""What a search for the ranges of an orbit found: where, how good, and what other nodes say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from orbitwise.inference.coordinates import Coordinates
from orbitwise.inference.curvature import Vector

PER_ROW = 0.1
"""Nats a row by which the evidence may differ on other nodes where the answer counts as converged."""

HALF_AS_MANY = 0.5
"""The variance that the choice of nodes leaves, in parts of that of half as many: at worst the law of plain
draws."""


@final
@dataclass(frozen=True)
class Stage:
    """What was tried on one number of nodes: the best of every start, and what it cost."""

    num_nodes: int
    values: tuple[float, ...]
    evaluations: int
    seconds: float


@final
@dataclass
class Found:
    """The answer of a search: where, how good, and what other nodes say of it."""

    point: Vector
    num_nodes: int
    value: float
    message: str
    stages: list[Stage]
    history: list[float]
    has_settled: bool
    gradient: Vector
    curvature: NDArray[np.float64] | None = None
    """The Hessian of minus the objective, made positive."""
    centre: Vector | None = None
    """Where the curvature was taken: the point with ranges that are zero a little wider."""
    slope: Vector | None = None
    """The gradient there."""
    others: list[float] = field(default_factory=list)
    """The objective on other sets of as many nodes."""
    shifts: list[Vector] = field(default_factory=list)
    """How far learning again on other nodes, half as many, moved the coordinates."""
    gain: float = math.inf
    """What the last doubling of the nodes gained."""

    def is_converged(self, num_rows: int) -> bool:
        """Whether the ascent settled, and the evidence at its end is about the same on other nodes."""
        return self.has_settled and bool(self.others) and self.spread <= PER_ROW * num_rows

    @property
    def spread(self) -> float:
        """The root mean square of how far the objective on other nodes is away, 0 without any."""
        return math.sqrt(np.mean(np.square(np.subtract(self.others, self.value)))) if self.others else 0.0

    @property
    def node_variance(self) -> Vector:
        """The variance of the coordinates that the choice of nodes leaves."""
        if not self.shifts:
            return np.zeros_like(self.point)
        return HALF_AS_MANY * np.mean(np.square(self.shifts), axis=0)

    @property
    def node_error(self) -> float:
        """How far the objective on any other nodes may be away: the spread over sets, and the last gain."""
        doubling = self.gain if math.isfinite(self.gain) else 0.0
        return math.hypot(self.spread, doubling)


def covariance_of(found: Found, coordinates: Coordinates) -> NDArray[np.float64]:
    """The covariance of the coordinates by curvature; what is held at a bound does not vary."""
    if found.curvature is None:
        raise ValueError("There is no curvature: too many coordinates, or the search was cut short.")
    free = ~coordinates.box.held(found.point, found.gradient)
    covariance = np.zeros_like(found.curvature)
    covariance[np.ix_(free, free)] = np.linalg.inv(found.curvature[np.ix_(free, free)])
    return covariance
