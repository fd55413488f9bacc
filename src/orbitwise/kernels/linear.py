"""Straight lines about a learned centre: GPyTorch's linear kernel knows only lines through the origin.

With inputs such as years the origin is two thousand years away, and a line through it is a constant.
"""

from __future__ import annotations

from typing import Any, final

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from orbitwise.kernels.constraints import log_positive


@final
class CentredLinearKernel(Kernel):
    """variance · (x - centre)ᵀ(x′ - centre): lines that pass through zero at a centre that is learned.

    `centre` has `ard_num_dims` entries, or one that serves all columns; times a periodic kernel it is the
    time at which a growing cycle had no size.
    """

    has_lengthscale = False
    centre: nn.Parameter
    raw_variance: nn.Parameter
    raw_variance_constraint: Any

    def __init__(
        self, ard_num_dims: int | None = None, variance_constraint: Interval | None = None, **kwargs: Any
    ) -> None:
        super().__init__(ard_num_dims=ard_num_dims, **kwargs)
        shape = (*self.batch_shape, 1)
        self.register_parameter("raw_variance", nn.Parameter(torch.zeros(*shape, 1)))
        self.register_parameter("centre", nn.Parameter(torch.zeros(*shape, ard_num_dims or 1)))
        self.register_constraint("raw_variance", variance_constraint or log_positive())

    @property
    def is_stationary(self) -> bool:
        return False

    @property
    def variance(self) -> Tensor:
        """The variance of the slope."""
        return self.raw_variance_constraint.transform(self.raw_variance)

    @variance.setter
    def variance(self, value: Tensor | float) -> None:
        value = torch.as_tensor(value, dtype=torch.float64).to(self.raw_variance)
        self.initialize(raw_variance=self.raw_variance_constraint.inverse_transform(value))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        left, right = x1 - self.centre.to(x1), x2 - self.centre.to(x2)
        variance = self.variance.to(x1)
        if diag:
            return variance[..., 0] * (left * right).sum(-1)
        # σ² (x - c)ᵀ(x′ - c)
        return variance * (left @ right.mT)
