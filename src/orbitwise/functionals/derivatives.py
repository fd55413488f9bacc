"""Derivatives: along directions, along transformations, all partial ones at once, and by finite differences.

Each is a functional of whatever function it is composed with: `DirectionalDerivative(v) @ OrbitAverage(orbit)` is the
slope of the invariant f. Derivatives of order two are finite differences, of values or of first derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms, exact_atoms
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.transforms.transform import Transform


@final
class DirectionalDerivative(Functional):
    """∂_v g(x), for one direction v [d] or one for every row [n, d]."""

    def __init__(self, direction: Float[Tensor, "*n d"]) -> None:
        super().__init__()
        self.register_buffer("direction", direction)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        tangents = _directions(self.direction, x)[:, None, :]
        return exact_atoms(x[:, None, :], torch.ones_like(x[:, :1]), tangents)


@final
class Gradient(Functional):
    """All partial derivatives ∂g/∂x_k, or those of the chosen `coordinates`: k rows for every input, in one block."""

    def __init__(self, coordinates: Sequence[int] | None = None) -> None:
        super().__init__()
        self.coordinates = None if coordinates is None else list(coordinates)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Gradients:
        basis = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        if self.coordinates is not None:
            if not self.coordinates or not all(-x.shape[-1] <= i < x.shape[-1] for i in self.coordinates):
                raise ValueError(f"coordinates={self.coordinates} must name columns of inputs of width {x.shape[-1]}.")
            basis = basis[self.coordinates]
        return Gradients(x[:, None, :], torch.ones_like(x[:, :1]), basis.expand(len(x), 1, -1, -1))


@final
class TransformationDerivative(Functional):
    """d/dα g(t_α x) at the identity, for one parameter of the transform (by number or name) or for all of them."""

    def __init__(self, transform: Transform, parameter: int | str | None = None) -> None:
        super().__init__()
        names = transform.parameter_names
        if isinstance(parameter, str) and parameter not in names:
            raise ValueError(f"{type(transform).__name__} has the parameters {', '.join(names)}, not {parameter!r}.")
        if isinstance(parameter, int) and not -len(names) <= parameter < len(names):
            raise ValueError(f"{type(transform).__name__} has {len(names)} parameters; there is no number {parameter}.")
        self.transform = transform
        self.parameter = names.index(parameter) if isinstance(parameter, str) else parameter

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Block:
        tangents = self.transform.tangent(x)
        ones = torch.ones_like(x[:, :1])
        if self.parameter is None:
            return Gradients(x[:, None, :], ones, tangents[:, None])
        return exact_atoms(x[:, None, :], ones, tangents[:, self.parameter, None])


@final
class FiniteDifference(Functional):
    """Central differences along v: (g(x+hv) - g(x-hv))/2h, or (g(x+hv) - 2g(x) + g(x-hv))/h² for order 2.

    It serves kernels whose derivatives are not known in closed form, and second derivatives with any kernel.
    """

    def __init__(self, direction: Float[Tensor, "*n d"], step: float = 1e-3, order: int = 1) -> None:
        super().__init__()
        if order not in (1, 2):
            raise ValueError(f"FiniteDifference has order 1 or 2, not {order}; compose two of them for higher orders.")
        if not step > 0:
            raise ValueError(f"step must be positive, not {step}.")
        self.register_buffer("direction", direction)
        self.step = step
        self.order = order

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        move = self.step * _directions(self.direction, x)
        if self.order == 1:
            points, weights = [x + move, x - move], [0.5 / self.step, -0.5 / self.step]
        else:
            points, weights = [x + move, x, x - move], [self.step**-2, -2 * self.step**-2, self.step**-2]
        return exact_atoms(torch.stack(points, 1), x.new_tensor(weights).expand(len(x), -1))


def _directions(direction: Tensor, x: Tensor) -> Tensor:
    if direction.shape[-1] != x.shape[-1] or direction.dim() > 2 or (direction.dim() == 2 and len(direction) != len(x)):
        raise ValueError(
            f"A direction must have shape [{x.shape[-1]}] or [{len(x)}, {x.shape[-1]}] for inputs of shape "
            f"{tuple(x.shape)}, not {tuple(direction.shape)}."
        )
    return direction.to(x).expand_as(x)
