"""Derivatives: along directions, along transformations, all partial ones at once, and by finite differences.

Each is a functional of any function it is composed with: `DirectionalDerivative(v) @ OrbitAverage(orbit)`
is the slope of the invariant f. Derivatives of order two are finite differences, of values or of slopes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import POSITIVE, Stored
from orbitwise.functionals.functional import Atoms, Block, Functional, Gradients, check_matrix, exact_atoms
from orbitwise.transforms.transform import Transform


@final
class DirectionalDerivative(Functional):
    """∂_v g(x), for one direction v [d] or one for every row [n, d]."""

    direction: Tensor

    def __init__(self, direction: Float[Tensor, "*n d"]) -> None:
        super().__init__()
        _check_direction(direction)
        self.register_buffer("direction", direction)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        tangents = _directions(self.direction, x)[:, None, :]
        return exact_atoms(x[:, None, :], torch.ones_like(x[:, :1]), tangents)


@final
class DirectionalDerivatives(Functional):
    """∂_v g(x) along k directions, [k, d] for all rows or [n, k, d] for each: a block of k rows per input.

    Parameters
    ----------
    directions : Tensor of shape (k, d) or (n, k, d)
        The v, for all rows or for each.
    """

    directions: Tensor

    def __init__(self, directions: Float[Tensor, "*n k d"]) -> None:
        super().__init__()
        if not directions.is_floating_point() or directions.dim() not in (2, 3) or directions.numel() == 0:
            raise ValueError(
                "Directions must be a floating-point tensor [k, d] or [n, k, d], not "
                f"{directions.dtype} of shape {tuple(directions.shape)}."
            )
        self.register_buffer("directions", directions)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Gradients:
        check_matrix(x, self)
        fits = self.directions.shape[-1] == x.shape[-1] and self.directions.shape[:-2] in ((), (len(x),))
        if not fits:
            raise ValueError(
                f"Directions must have shape [k, {x.shape[-1]}] or [{len(x)}, k, {x.shape[-1]}] for inputs "
                f"of shape {tuple(x.shape)}, not {tuple(self.directions.shape)}."
            )
        directions = self.directions.to(x).expand(len(x), -1, -1)
        return Gradients(x[:, None, :], torch.ones_like(x[:, :1]), directions[:, None])


@final
class Gradient(Functional):
    """All partial derivatives ∂g/∂x_k, or those of the `coordinates`: k rows per input, in one block.

    Parameters
    ----------
    coordinates : sequence of int, default=None
        The columns of x to differentiate by; None takes all.
    """

    def __init__(self, coordinates: Sequence[int] | None = None) -> None:
        super().__init__()
        self.coordinates = None if coordinates is None else list(coordinates)
        if self.coordinates == []:
            raise ValueError("Gradient needs at least one coordinate; leave coordinates out for all of them.")

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Gradients:
        check_matrix(x, self)
        width = x.shape[-1]
        basis = torch.eye(width, dtype=x.dtype, device=x.device)
        if self.coordinates is not None:
            if not all(-width <= i < width for i in self.coordinates):
                raise ValueError(
                    f"coordinates={self.coordinates} must name columns of inputs of width {width}."
                )
            basis = basis[self.coordinates]
        return Gradients(x[:, None, :], torch.ones_like(x[:, :1]), basis.expand(len(x), 1, -1, -1))


@final
class TransformationDerivative(Functional):
    """d/dα g(t_α x) at the identity, for one parameter of the transform (by number or name) or for all.

    Parameters
    ----------
    transform : Transform
        A continuous family.
    parameter : int or str, default=None
        The entry of α; None makes a block of the derivatives by all of them.
    """

    def __init__(self, transform: Transform, parameter: int | str | None = None) -> None:
        super().__init__()
        kind, names = type(transform).__name__, transform.parameter_names
        if transform.size is not None:
            raise ValueError(f"{kind} is a discrete family and has no derivative; use Difference instead.")
        if isinstance(parameter, str) and parameter not in names:
            raise ValueError(f"{kind} has the parameters {', '.join(names)}, not {parameter!r}.")
        if isinstance(parameter, int) and not -len(names) <= parameter < len(names):
            raise ValueError(f"{kind} has {len(names)} parameters; there is no number {parameter}.")
        self.transform = transform
        self.parameter = names.index(parameter) if isinstance(parameter, str) else parameter

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        self.transform.check(x)
        tangents = self.transform.tangent(x)
        ones = torch.ones_like(x[:, :1])
        if self.parameter is None:
            return Gradients(x[:, None, :], ones, tangents[:, None])
        return exact_atoms(x[:, None, :], ones, tangents[:, self.parameter, None])


@final
class FiniteDifference(Functional):
    """Central differences along v: (g(x+hv) - g(x-hv))/2h, or (g(x+hv) - 2g(x) + g(x-hv))/h² for order 2.

    It is for kernels without derivatives in closed form, and for second derivatives of any kernel.

    Parameters
    ----------
    direction : Tensor of shape (d,) or (n, d)
        v, for all rows or for each.
    step : float, default=1e-3
        h, in units of |v|.
    order : int, default=1
        1 for the first derivative along v, 2 for the second.
    """

    direction: Tensor

    stored = Stored({"step": POSITIVE})

    def __init__(self, direction: Float[Tensor, "*n d"], step: float = 1e-3, order: int = 1) -> None:
        super().__init__()
        if order not in (1, 2):
            raise ValueError(
                f"FiniteDifference has order 1 or 2, not {order}; compose two of them for higher orders."
            )
        if not 0 < step < float("inf"):
            raise ValueError(f"step must be positive and finite, not {step}.")
        _check_direction(direction)
        self.register_buffer("direction", direction)
        self.step = step
        self.order = order

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        move = self.step * _directions(self.direction, x)
        if self.order == 1:
            points, weights = [x + move, x - move], [0.5 / self.step, -0.5 / self.step]
        else:
            scale = self.step**-2
            points, weights = [x + move, x, x - move], [scale, -2 * scale, scale]
        return exact_atoms(torch.stack(points, 1), x.new_tensor(weights).expand(len(x), -1))


class TotalVariation(NamedTuple):
    """Slopes at nodes of an interval and their weights: Σ_q w_q |f′(x_q)| ≈ ∫ |f′(x)| dx (RKHS 7)."""

    slope: DirectionalDerivative
    points: Float[Tensor, "q 1"]
    weights: Float[Tensor, " q"]


def total_variation(
    lower: float, upper: float, num_nodes: int = 100, dtype: torch.dtype = torch.float64
) -> TotalVariation:
    """The total variation on [lower, upper] of a function of one input, at Gauss–Legendre nodes.

    It is penalised by the rows `slope.atoms(points)` with a weighted absolute loss.

    Parameters
    ----------
    lower, upper : float
        The ends of the interval.
    num_nodes : int, default=100
        Nodes of the quadrature; |f′| has kinks, so the error falls slowly with their number.
    dtype : torch.dtype, default=torch.float64
        The precision of points and weights.
    """
    if not -math.inf < lower < upper < math.inf:
        raise ValueError(f"Total variation needs a finite interval, not [{lower}, {upper}].")
    if num_nodes < 1:
        raise ValueError(f"num_nodes must be at least 1, not {num_nodes}.")
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(num_nodes))
    half = (upper - lower) / 2
    points = (lower + half * (1 + nodes))[:, None]
    one = DirectionalDerivative(torch.ones(1, dtype=dtype))
    return TotalVariation(one, points.to(dtype), (half * weights).to(dtype))


def _check_direction(direction: Tensor) -> None:
    if not direction.is_floating_point() or direction.dim() not in (1, 2) or direction.numel() == 0:
        raise ValueError(
            f"A direction must be a floating-point tensor [d] or [n, d], not {direction.dtype} of shape "
            f"{tuple(direction.shape)}."
        )


def _directions(direction: Tensor, x: Tensor) -> Tensor:
    if direction.shape not in (x.shape, x.shape[-1:]):
        raise ValueError(
            f"A direction must have shape [{x.shape[-1]}] or [{len(x)}, {x.shape[-1]}] for inputs of shape "
            f"{tuple(x.shape)}, not {tuple(direction.shape)}."
        )
    return direction.to(x).expand_as(x)
