"""What kernels of infinitely wide networks share: activation, depth, and the variances of their weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from orbitwise.kernels.activations import ACTIVATIONS, Activation
from orbitwise.kernels.constraints import log_positive


class WideKernel(Kernel, ABC):
    """The prior covariance of a network with infinitely many units or channels in every hidden layer.

    `weight_variance` and `bias_variance` are those of all layers, weights scaled by one over the number of
    their inputs. They are learned on a logarithmic scale; a bias variance of 0 says that there are no biases.
    Each may be given a `gpytorch.priors.Prior` and another constraint.
    """

    has_lengthscale = False
    activation: Activation
    raw_weight_variance: nn.Parameter
    raw_bias_variance: nn.Parameter
    raw_weight_variance_constraint: Interval
    raw_bias_variance_constraint: Interval

    def __init__(
        self,
        depth: int,
        activation: str,
        weight_variance: float,
        bias_variance: float,
        residual: bool,
        weight_variance_prior: Any = None,
        bias_variance_prior: Any = None,
        weight_variance_constraint: Interval | None = None,
        bias_variance_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        _check(depth, activation, weight_variance, bias_variance, residual)
        super().__init__(**kwargs)
        self.depth = depth
        self.activation = cast(Activation, activation)
        self.residual = residual
        self._register("weight_variance", weight_variance, weight_variance_constraint, weight_variance_prior)
        if bias_variance > 0:
            self._register("bias_variance", bias_variance, bias_variance_constraint, bias_variance_prior)
        elif bias_variance_prior is not None or bias_variance_constraint is not None:
            raise ValueError(
                "bias_variance=0 has nothing to learn: give it neither a prior nor a constraint."
            )

    def _register(self, name: str, value: float, constraint: Interval | None, prior: Any) -> None:
        raw = nn.Parameter(torch.zeros(*self.batch_shape, 1, 1))
        self.register_parameter(f"raw_{name}", raw)
        self.register_constraint(f"raw_{name}", log_positive() if constraint is None else constraint)
        self._set(name, value)
        if prior is not None:
            self.register_prior(
                f"{name}_prior", prior, lambda m: getattr(m, name), lambda m, v: m._set(name, v)
            )

    @property
    def has_bias(self) -> bool:
        """Whether the network has biases."""
        return hasattr(self, "raw_bias_variance")

    @property
    def weight_variance(self) -> Tensor:
        """The variance of weights, times the number of inputs of a unit."""
        return self.raw_weight_variance_constraint.transform(self.raw_weight_variance)

    @weight_variance.setter
    def weight_variance(self, value: Tensor | float) -> None:
        self._set("weight_variance", value)

    @property
    def bias_variance(self) -> Tensor:
        """The variance of biases."""
        if not self.has_bias:
            return torch.zeros_like(self.raw_weight_variance)
        return self.raw_bias_variance_constraint.transform(self.raw_bias_variance)

    @bias_variance.setter
    def bias_variance(self, value: Tensor | float) -> None:
        if not self.has_bias:
            raise ValueError(
                "This network has no biases; make one with bias_variance > 0 to have some to learn."
            )
        self._set("bias_variance", value)

    def _set(self, name: str, value: Tensor | float) -> None:
        raw = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device).reshape(-1, 1, 1)
        value = value.expand(math.prod(self.batch_shape), 1, 1)
        constraint = getattr(self, f"raw_{name}_constraint")
        self.initialize(**{f"raw_{name}": constraint.inverse_transform(value.reshape(raw.shape))})

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if params.get("last_dim_is_batch"):
            raise ValueError(
                f"{type(self).__name__} sees whole inputs: last_dim_is_batch=True has no meaning for it. Use "
                "active_dims for networks of some columns, and sums of them."
            )
        # Variances follow the points, so that single precision stays single.
        weight, bias = self.weight_variance.to(x1), self.bias_variance.to(x1)
        return self._paired(x1, x2, weight, bias) if diag else self._covariance(x1, x2, weight, bias)

    @abstractmethod
    def _covariance(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """k(x_i, x′_j) for all pairs, [*batch, n, m]."""

    @abstractmethod
    def _paired(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """k(x_i, x′_i), [*batch, n]."""


def affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """weight · values + bias; overwrites the values, which must be one's own, unless it needs gradients."""
    tracked = values.requires_grad or weight.requires_grad or bias.requires_grad
    if torch.is_grad_enabled() and tracked:
        return values * weight + bias
    if torch.broadcast_shapes(values.shape, weight.shape) != values.shape:
        return (values * weight).add_(bias)
    return values.mul_(weight).add_(bias)


def _check(depth: Any, activation: Any, weight_variance: Any, bias_variance: Any, residual: Any) -> None:
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth counts hidden layers, a whole number of at least 1, not {depth!r}.")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, not {activation!r}."
        )
    if residual and depth < 2:
        raise ValueError(
            "A residual network has a first layer and at least one block: give depth 2 or more, or "
            "residual=False."
        )
    if not 0 < weight_variance < math.inf:
        raise ValueError(f"weight_variance must be positive and finite, not {weight_variance!r}.")
    if not 0 <= bias_variance < math.inf:
        raise ValueError(f"bias_variance must be finite and not negative, not {bias_variance!r}.")
