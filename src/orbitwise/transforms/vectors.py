"""Transforms of vectors and of point clouds written as vectors: translation, scaling, rotation, linear."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from orbitwise.transforms.transform import Transform, element_numbers


@final
class Translation(Transform):
    """x + α. With `num_dimensions` below the width of x, every point of the cloud moves by the same α.

    Parameters
    ----------
    num_dimensions : int
        The number of entries of α. The width of a row must be a multiple of it.
    """

    def __init__(self, num_dimensions: int) -> None:
        super().__init__()
        self.num_dimensions = _positive(num_dimensions, "num_dimensions")
        self.parameter_names = tuple(f"shift_{axis}" for axis in range(num_dimensions))

    def check(self, x: Tensor) -> None:
        super().check(x)
        _check_divisible(self, x, self.num_dimensions)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        return x[:, None, :] + alpha.repeat(1, 1, x.shape[-1] // self.num_dimensions)


@final
class Scaling(Transform):
    """x·exp(α): one log-scale for all coordinates, or one for each of `num_dimensions` axes of a cloud.

    Parameters
    ----------
    num_dimensions : int, default=None
        The axes that have a scale of their own; None scales all coordinates alike.
    """

    def __init__(self, num_dimensions: int | None = None) -> None:
        super().__init__()
        self.num_dimensions = num_dimensions
        self.parameter_names = ("log_scale",)
        if num_dimensions is not None:
            _positive(num_dimensions, "num_dimensions")
            self.parameter_names = tuple(f"log_scale_{axis}" for axis in range(num_dimensions))

    def check(self, x: Tensor) -> None:
        super().check(x)
        if self.num_dimensions is not None:
            _check_divisible(self, x, self.num_dimensions)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        factor = alpha.exp()
        if self.num_dimensions is not None:
            factor = factor.repeat(1, 1, x.shape[-1] // self.num_dimensions)
        return x[:, None, :] * factor


@final
class Rotation(Transform):
    """Rotation about the origin of R² (one angle, counter-clockwise) or R³ (a rotation vector).

    A row of width d is read as a cloud of d/2 or d/3 points, which all turn together. The rotation of R³ is
    exp([α]ₓ): by the angle |α| about the axis α/|α|.
    """

    isometric = True

    def __init__(self, num_dimensions: int = 2) -> None:
        super().__init__()
        if num_dimensions not in (2, 3):
            raise ValueError(f"Rotation acts in 2 or 3 dimensions, not {num_dimensions}.")
        self.num_dimensions = num_dimensions
        self.parameter_names = ("angle",) if num_dimensions == 2 else ("angle_x", "angle_y", "angle_z")

    def check(self, x: Tensor) -> None:
        super().check(x)
        _check_divisible(self, x, self.num_dimensions)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        matrix = _rotation_2d(alpha[..., 0]) if self.num_dimensions == 2 else _rotation_3d(alpha)
        cloud = x.reshape(len(x), 1, -1, self.num_dimensions)
        # x_i ↦ R x_i for every point i of the cloud
        return (cloud @ matrix.transpose(-1, -2)).reshape(*alpha.shape[:2], x.shape[-1])


@final
class LinearMaps(Transform):
    """A finite list of linear maps x ↦ A_e x; element 0 is the identity.

    Parameters
    ----------
    matrices : Tensor of shape (e, d, d)
        The A_e, in floating-point numbers.
    is_group : bool, default=False
        Whether the maps are closed under composition. It is not checked.
    """

    parameter_names = ("element",)
    matrices: Tensor

    def __init__(self, matrices: Float[Tensor, "e d d"], is_group: bool = False) -> None:
        super().__init__()
        if matrices.dim() != 3 or matrices.shape[1] != matrices.shape[2] or matrices.numel() == 0:
            raise ValueError(
                f"LinearMaps takes square matrices [e, d, d], not shape {tuple(matrices.shape)}."
            )
        if not matrices.is_floating_point() or not bool(matrices.isfinite().all()):
            raise ValueError("LinearMaps takes finite floating-point matrices.")
        identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        if not torch.allclose(matrices[0], identity):
            raise ValueError("The first matrix of LinearMaps must be the identity.")
        self.size = len(matrices)
        self.is_group = is_group
        products = matrices @ matrices.transpose(-1, -2)
        self.isometric = bool((products - identity).abs().max() < 1e-6)
        self.register_buffer("matrices", matrices)

    def check(self, x: Tensor) -> None:
        super().check(x)
        _check_width(self, x, self.matrices.shape[-1])

    def forward(self, x: Float[Tensor, "n d"], alpha: Shaped[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        return torch.einsum("nsij,nj->nsi", self.matrices.to(x)[element_numbers(self, alpha)], x)

    def all_elements(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e d"]:
        self.check(x)
        return torch.einsum("eij,nj->nei", self.matrices.to(x), x)


def turns(num_turns: int) -> LinearMaps:
    """The rotations of the plane by multiples of 2π/num_turns."""
    angles = 2 * torch.pi * torch.arange(_positive(num_turns, "num_turns"), dtype=torch.float64) / num_turns
    return LinearMaps(_rotation_2d(angles), is_group=True)


def _rotation_2d(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)


def _rotation_3d(vector: Tensor) -> Tensor:
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    rows = [torch.stack(row, -1) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))]
    return torch.linalg.matrix_exp(torch.stack(rows, -2))


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}.")
    return value


def _check_width(transform: Transform, x: Tensor, width: int) -> None:
    if x.shape[-1] != width:
        raise ValueError(
            f"{type(transform).__name__} was made for inputs of width {width}, but got width {x.shape[-1]}."
        )


def _check_divisible(transform: Transform, x: Tensor, num_dimensions: int) -> None:
    if x.shape[-1] % num_dimensions:
        raise ValueError(
            f"{type(transform).__name__} reads a row as points of {num_dimensions} dimensions, but width "
            f"{x.shape[-1]} is not a multiple of {num_dimensions}."
        )
