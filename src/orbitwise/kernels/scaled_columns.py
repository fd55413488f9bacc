"""k(x/u, x′/u): a kernel that sees each column in a unit of its own, which is given and not learned."""

from __future__ import annotations

from typing import final

from gpytorch.kernels import Kernel
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor

from orbitwise.declarations import SMALLEST, Field, Stored


@final
class ScaledColumnsKernel(Kernel):
    """k(x/u, x′/u), so that one lengthscale of k serves columns of different scales.

    Parameters
    ----------
    base_kernel : gpytorch.kernels.Kernel
        k, a kernel of all columns.
    units : Tensor of shape (d,)
        u, the unit of each column.
    """

    has_lengthscale = False
    base_kernel: Kernel
    units: Tensor

    stored = Stored({"units": Field(least=SMALLEST)})

    def __init__(self, base_kernel: Kernel, units: Float[Tensor, " d"]) -> None:
        if base_kernel.active_dims is not None:
            raise ValueError("The kernel of scaled columns sees all of them: leave out active_dims.")
        # as kernels with a lengthscale per column say it
        super().__init__(ard_num_dims=len(units))
        self.base_kernel = base_kernel
        self.register_buffer("units", units.detach().clone())

    @property
    def is_stationary(self) -> bool:
        return self.base_kernel.is_stationary

    @property
    def lengthscale(self) -> Tensor:
        """The lengthscale of every column in the units of the inputs, where the base kernel has any."""
        return self.base_kernel.lengthscale * self.units

    @lengthscale.setter
    def lengthscale(self, value: Tensor) -> None:
        raise AttributeError("Set the lengthscale of base_kernel, which is in units of the columns.")

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor | LinearOperator:
        if last_dim_is_batch:
            raise ValueError("ScaledColumnsKernel does not take last_dim_is_batch.")
        return self.base_kernel.forward(x1 / self.units, x2 / self.units, diag=diag)
