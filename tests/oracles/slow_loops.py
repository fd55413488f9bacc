"""Functionals once more, written out by hand as lists of terms, and covariances as double loops over them.

A term is (weight, point, tangent), the tangent None for a value of g. Kernels are called for one pair of
points at a time.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from orbitwise.functionals import (
    Difference,
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    FiniteDifference,
    Functional,
    Gradient,
    OrbitAverage,
    OrbitSum,
    TransformationDerivative,
    average_minus_value,
)
from orbitwise.orbits import FiniteOrbit, FrozenOrbit, SampledOrbit
from orbitwise.transforms import Scaling, coordinate_permutations, sign_changes

Point = np.ndarray
Term = tuple[float, Point, Point | None]
Row = list[Term]

DIRECTION = np.array([0.3, -1.1, 0.7])
STEP = 0.3  # wide, so that float32 can be asked too
NODES, NODE_WEIGHTS = [-0.9, 0.1, 0.8], [0.2, 0.5, 0.3]
SHUFFLES = [list(order) for order in itertools.permutations(range(3))]
PARITY = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0]


class Kind(NamedTuple):
    """A functional, and its rows for one input written out."""

    functional: Functional
    rows: Callable[[Point], list[Row]]
    is_pair: bool = False


class RadialBasis(NamedTuple):
    """scale·exp(-½ Σ_i (x_i - y_i)²/ℓ_i²), and its derivatives along v in x and w in y."""

    scale: float
    lengthscale: Point

    def __call__(self, x: Point, y: Point, v: Point | None, w: Point | None) -> float:
        apart = (x - y) / self.lengthscale**2
        value = self.scale * math.exp(-0.5 * float(apart @ (x - y)))
        if v is None and w is None:
            return value
        if w is None:
            return -float(apart @ v) * value
        if v is None:
            return float(apart @ w) * value
        return (float(v @ (w / self.lengthscale**2)) - float(apart @ v) * float(apart @ w)) * value


def covariance(kernel: RadialBasis, left: list[Row], right: list[Row]) -> torch.Tensor:
    """Σ_s Σ_t w_s w_t k(p_s, p_t), one entry and one pair of terms at a time."""
    entries = [
        [sum(a * b * kernel(p, q, v, w) for a, p, v in row for b, q, w in column) for column in right]
        for row in left
    ]
    return torch.tensor(entries, dtype=torch.float64)


def features(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[..., 0].sin(), x[..., 0] * x[..., 1], x[..., 2].square()], dim=-1)


def features_by_hand(x: Point) -> Point:
    return np.array([math.sin(x[0]), x[0] * x[1], x[2] ** 2])


def features_along(x: Point, v: Point) -> Point:
    return np.array([math.cos(x[0]) * v[0], v[0] * x[1] + x[0] * v[1], 2 * x[2] * v[2]])


def shuffled(x: Point, weights: list[float]) -> Row:
    return [(weight / 6, x[order], None) for weight, order in zip(weights, SHUFFLES, strict=True)]


def slope_of_shuffled(x: Point, v: Point) -> Row:
    return [(1 / 6, x[order], v[order]) for order in SHUFFLES]


def scaled_minus_value(x: Point) -> Row:
    moved = [
        (weight, math.exp(0.5 * node) * x, None) for weight, node in zip(NODE_WEIGHTS, NODES, strict=True)
    ]
    return [*moved, (-1.0, x, None)]


def second_difference(x: Point) -> Row:
    far = STEP * DIRECTION
    return [(STEP**-2, x + far, None), (-2 * STEP**-2, x, None), (STEP**-2, x - far, None)]


@functools.cache
def kinds(dtype: torch.dtype = torch.float64) -> dict[str, Kind]:
    """Every kind of functional of inputs in R³."""
    v = torch.tensor(DIRECTION, dtype=dtype)
    permutations = FiniteOrbit(coordinate_permutations(3))
    odd = FiniteOrbit(coordinate_permutations(3), weights=torch.tensor(PARITY, dtype=dtype))
    nodes = torch.tensor(NODES, dtype=dtype)[:, None]
    frozen = FrozenOrbit(SampledOrbit(Scaling(), -0.5, 0.5), nodes, torch.tensor(NODE_WEIGHTS, dtype=dtype))
    return {
        "evaluation": Kind(Evaluation(), lambda x: [[(1.0, x, None)]]),
        "difference": Kind(Difference(), lambda x: [[(1.0, x[0], None), (-1.0, x[1], None)]], is_pair=True),
        "orbit average": Kind(OrbitAverage(permutations), lambda x: [shuffled(x, [1.0] * 6)]),
        "orbit sum": Kind(
            OrbitSum(FiniteOrbit(sign_changes(3))),
            lambda x: [[(1.0, x * signs, None) for signs in itertools.product([1, -1], repeat=3)]],
        ),
        "anti-symmetric average": Kind(OrbitAverage(odd), lambda x: [shuffled(x, PARITY)]),
        "average minus value": Kind(average_minus_value(frozen), lambda x: [scaled_minus_value(x)]),
        "directional derivative": Kind(DirectionalDerivative(v), lambda x: [[(1.0, x, DIRECTION)]]),
        "transformation derivative": Kind(
            # d/dα g(e^α x) = ∂_x g(x)
            TransformationDerivative(Scaling(), "log_scale"),
            lambda x: [[(1.0, x, x)]],
        ),
        "gradient block": Kind(Gradient(), lambda x: [[(1.0, x, unit)] for unit in np.eye(3)]),
        "gradient of average": Kind(
            Gradient() @ OrbitAverage(permutations),
            lambda x: [slope_of_shuffled(x, unit) for unit in np.eye(3)],
        ),
        "finite difference": Kind(
            FiniteDifference(v, STEP),
            lambda x: [[(0.5 / STEP, x + STEP * DIRECTION, None), (-0.5 / STEP, x - STEP * DIRECTION, None)]],
        ),
        "second difference": Kind(FiniteDifference(v, STEP, order=2), lambda x: [second_difference(x)]),
        "value minus slope": Kind(
            0.5 * Evaluation() - DirectionalDerivative(v), lambda x: [[(0.5, x, None), (-1.0, x, DIRECTION)]]
        ),
        "features": Kind(FeatureMap(features), lambda x: [[(1.0, features_by_hand(x), None)]]),
        "derivative of average of features": Kind(
            DirectionalDerivative(v) @ OrbitAverage(permutations) @ FeatureMap(features),
            lambda x: [
                [
                    (weight, features_by_hand(point), features_along(point, along))
                    for weight, point, along in slope_of_shuffled(x, DIRECTION)
                ]
            ],
        ),
    }
