"""What every transform promises: t_α moves inputs, deterministically and without state.

A transform knows *how* to move; which moves happen, and how far, is the business of `orbitwise.orbits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn


class Transform(nn.Module, ABC):
    """A family of moves t_α of inputs, with t_0 the identity.

    `parameter_names` names the entries of α. `size` is the number of elements of a discrete family, whose
    only parameter is then the number of the element (0 is the identity), and None for a continuous one.
    `isometric` says that every move preserves distances *and* norms, so that any kernel of distances and
    inner products is left unchanged by moving both arguments. `is_group` says that the elements of a discrete
    family are closed under composition.
    """

    parameter_names: tuple[str, ...] = ()
    size: int | None = None
    isometric: bool = False
    is_group: bool = False

    @property
    def num_parameters(self) -> int:
        """The number p of entries of α."""
        return len(self.parameter_names)

    @abstractmethod
    def forward(self, x: Float[Tensor, "n d"], alpha: Shaped[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        """Move row i of x by each of its s parameter vectors."""

    def check(self, x: Tensor) -> None:
        """Raise a ValueError that says what is accepted when the rows of `x` do not fit this transform."""
        if x.dim() != 2:
            raise ValueError(f"{type(self).__name__} moves rows of a matrix [n, d], but got shape {tuple(x.shape)}.")

    def tangent(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p d"]:
        """The directions d/dα t_α(x) at the identity, one for each parameter."""
        if self.size is not None:
            raise ValueError(
                f"{type(self).__name__} is a discrete family and has no tangent; use a difference of two inputs instead."
            )
        zero = x.new_zeros(len(x), 1, self.num_parameters)
        columns = [
            torch.func.jvp(lambda alpha: self(x, alpha), (zero,), (_unit(zero, j),))[1]
            for j in range(self.num_parameters)
        ]
        return torch.cat(columns, dim=1)


def _unit(like: Tensor, position: int) -> Tensor:
    unit = torch.zeros_like(like)
    unit[..., position] = 1
    return unit
