"""The interface of transforms: t_α moves inputs, deterministically and without state.

A transform defines *how* inputs move; `orbitwise.orbits` defines which moves happen and how far.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from orbitwise.declarations import Stored


class Transform(nn.Module, ABC):
    """A family of moves t_α of inputs, with t_0 the identity.

    `parameter_names` names the entries of α. `size` is the number of elements of a discrete family, whose
    only parameter is then the number of the element (0 is the identity), and None for a continuous one.
    `isometric` means that every move preserves distances *and* norms, so that any kernel of distances and
    inner products is unchanged if both arguments are moved. `is_group` means that the elements of a discrete
    family are closed under composition.
    """

    parameter_names: tuple[str, ...] = ()
    size: int | None = None
    isometric: bool = False
    is_group: bool = False

    stored = Stored()

    @property
    def num_parameters(self) -> int:
        """The number p of entries of α."""
        return len(self.parameter_names)

    @abstractmethod
    def forward(self, x: Float[Tensor, "n d"], alpha: Shaped[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        """Move row i of x by each of its s parameter vectors; inputs have been checked."""

    def __call__(self, x: Tensor, alpha: Tensor) -> Tensor:
        """t_α(x), after checking x and α; continuous parameters are converted to the precision of x."""
        self.check(x)
        if alpha.dim() != 3 or len(alpha) != len(x) or alpha.shape[-1] != self.num_parameters:
            raise ValueError(
                f"{type(self).__name__} takes parameters [{len(x)}, s, {self.num_parameters}] "
                f"({', '.join(self.parameter_names)}) for {len(x)} inputs, not shape {tuple(alpha.shape)}."
            )
        return super().__call__(x, alpha.to(x.dtype) if self.size is None else alpha)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError that explains what is accepted if the rows of `x` do not suit this transform."""
        check_rows(x, type(self).__name__)

    def all_elements(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e d"]:
        """Row i moved by every element of a discrete family."""
        if self.size is None:
            raise ValueError(f"{type(self).__name__} is a continuous family: its elements cannot be listed.")
        self.check(x)
        return self(x, torch.arange(self.size, device=x.device)[:, None].expand(len(x), -1, -1))

    def tangent(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p d"]:
        """The directions d/dα t_α(x) at the identity, one for each parameter."""
        if self.size is not None:
            raise ValueError(
                f"{type(self).__name__} is a discrete family and has no tangent; "
                "use a difference of two inputs instead."
            )
        self.check(x)
        zero = x.new_zeros(len(x), 1, self.num_parameters)
        columns = [
            torch.func.jvp(lambda alpha: self(x, alpha), (zero,), (_unit(zero, j),))[1]
            for j in range(self.num_parameters)
        ]
        return torch.cat(columns, dim=1)


def central_differences(transform: Transform, x: Float[Tensor, "n d"], step: float) -> Float[Tensor, "n p d"]:
    """(t_α(x) - t_{-α}(x))/2h for steps α of size h along every parameter: tangents across a kink."""
    steps = step * torch.eye(transform.num_parameters, dtype=x.dtype, device=x.device)
    steps = steps.expand(len(x), -1, -1)
    return (transform(x, steps) - transform(x, -steps)) / (2 * step)


def check_rows(x: object, name: str) -> int:
    """The width of a non-empty floating-point matrix x, or a ValueError that begins with `name`."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"{name} takes a floating-point tensor [n, d], not {kind}: use torch.as_tensor(x).double()."
        )
    if x.dim() != 2 or x.numel() == 0:
        raise ValueError(f"{name} takes a non-empty matrix of inputs [n, d], not shape {tuple(x.shape)}.")
    return x.shape[1]


def element_numbers(transform: Transform, alpha: Shaped[Tensor, "n s 1"]) -> Int[Tensor, "n s"]:
    """The element numbers in α, or a ValueError if a discrete family has no such element."""
    element, size = alpha[..., 0].long(), transform.size or 0
    if bool(((element < 0) | (element >= size)).any()):
        raise ValueError(f"{type(transform).__name__} has the elements 0, …, {size - 1}.")
    return element


def _unit(like: Tensor, position: int) -> Tensor:
    unit = torch.zeros_like(like)
    unit[..., position] = 1
    return unit
