"""Bayesian linear models in any basis as Gaussian processes (Lecture 2.1, 2.3, 2.5).

f(x) = wᵀφ(x) with w ~ N(0, Σ) has the covariance φ(x)ᵀ Σ φ(x′). Weights are integrated out; evidence and
predictions are those of the linear model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack, final

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from orbitwise.declarations import POSITIVE, Field, Stored
from orbitwise.kernels.bases import KernelArguments, LogScale


@final
class PolynomialBasis(nn.Module):
    """1, x_i, x_i², …, x_i^order for every column i; columns do not mix, and the constant comes once.

    Parameters
    ----------
    order : int
        The highest power, 0 for a constant alone.
    """

    stored = Stored({"order": Field(least=0, most=1000)})

    def __init__(self, order: int) -> None:
        super().__init__()
        if order < 0:
            raise ValueError(f"order must not be negative, but it is {order}.")
        self.order = order

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n features"]:
        powers = [x**power for power in range(1, self.order + 1)]
        return torch.cat([torch.ones_like(x[..., :1]), *powers], dim=-1)

    def degrees(self, width: int) -> Tensor:
        """The power that each feature of `width` columns is of."""
        return torch.cat([torch.zeros(1), torch.arange(1, self.order + 1).repeat_interleave(width)])


@final
class FourierBasis(nn.Module):
    """1, cos(2πjx_i/period), sin(2πjx_i/period), j = 1 … order, for every column i.

    Parameters
    ----------
    order : int
        The highest number of waves per period.
    period : float, default=1.0
        The period, in the units of x.
    """

    stored = Stored({"order": Field(least=0, most=1000), "period": POSITIVE})

    def __init__(self, order: int, period: float = 1.0) -> None:
        super().__init__()
        if order < 0 or not period > 0:
            raise ValueError(f"order={order} must not be negative, and period={period} must be positive.")
        self.order, self.period = order, float(period)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n features"]:
        waves = [2 * torch.pi * j / self.period * x for j in range(1, self.order + 1)]
        pairs = [part for wave in waves for part in (wave.cos(), wave.sin())]
        return torch.cat([torch.ones_like(x[..., :1]), *pairs], dim=-1)

    def degrees(self, width: int) -> Tensor:
        """The frequency that each feature of `width` columns is of."""
        return torch.cat([torch.zeros(1), torch.arange(1, self.order + 1).repeat_interleave(2 * width)])


@final
class BumpBasis(nn.Module):
    """exp(-|x - c_j|²/2l²) around every centre c_j; dense bumps of width l make an RBF kernel of √2·l.

    Parameters
    ----------
    centres : Tensor of shape (j, d)
        The c_j; they are not learned.
    width : float, default=1.0
        l, in the units of x.
    """

    centres: Tensor

    stored = Stored({"width": POSITIVE})

    def __init__(self, centres: Float[Tensor, "j d"], width: float = 1.0) -> None:
        super().__init__()
        if not width > 0:
            raise ValueError(f"width must be positive, but it is {width}.")
        self.register_buffer("centres", centres.clone())
        self.width = float(width)

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n features"]:
        squares = (x[..., :, None, :] - self.centres.to(x)).square().sum(-1)
        return torch.exp(-0.5 * squares / self.width**2)


Basis = Callable[[Tensor], Tensor]


def _refuse_code(kernel: BasisKernel) -> str | None:
    if isinstance(kernel.basis, PolynomialBasis | FourierBasis | BumpBasis):
        return None
    return "a basis of your own is code and cannot be stored; use PolynomialBasis, FourierBasis or BumpBasis."


@final
class BasisKernel(Kernel):
    """k(x, x′) = φ(x)ᵀ Σ φ(x′) with a diagonal Σ.

    `basis` is one of the bases here, or any function or module that makes features [*batch, n, J] of inputs
    [*batch, n, d]; a module's parameters are learned with the kernel's. `weights` is the form of Σ:
    "isotropic", variance·I; "separate", a variance for each of `num_features` features; "geometric",
    variance·γ^-degree, where the degree of a feature is the basis's own (a power, a frequency), or its
    number.

    Parameters
    ----------
    basis : callable
        φ, one of the bases of this module or one of your own.
    weights : "isotropic", "separate" or "geometric", default="isotropic"
        The form of Σ.
    num_features : int, default=None
        J, for weights="separate" only.
    variance_prior, ratio_prior : gpytorch.priors.Prior, default=None
        Priors of the variance(s), and of γ.
    variance_constraint, ratio_constraint : gpytorch.constraints.Interval, default=None
        Constraints other than positivity by exponentials.
    **arguments
        `batch_shape`, `active_dims` and `eps` of a GPyTorch kernel.
    """

    has_lengthscale = False
    raw_variance: nn.Parameter
    raw_ratio: nn.Parameter
    variance: LogScale = LogScale("variance")
    """The prior variance of the weights."""
    ratio: LogScale = LogScale("ratio")
    """γ of weights="geometric": how much smaller the variance is from one degree to the next."""

    stored = Stored({"basis": Field((PolynomialBasis, FourierBasis, BumpBasis))}, refuse=_refuse_code)

    def __init__(
        self,
        basis: Basis,
        weights: str = "isotropic",
        num_features: int | None = None,
        variance_prior: Distribution | None = None,
        variance_constraint: Interval | None = None,
        ratio_prior: Distribution | None = None,
        ratio_constraint: Interval | None = None,
        **arguments: Unpack[KernelArguments],
    ) -> None:
        super().__init__(**arguments)
        if not callable(basis):
            raise ValueError(f"basis must be a function or a module, not {type(basis).__name__}.")
        if weights not in ("isotropic", "separate", "geometric"):
            raise ValueError(f"weights must be 'isotropic', 'separate' or 'geometric', not {weights!r}.")
        if (weights == "separate") != (num_features is not None):
            raise ValueError("weights='separate' needs num_features, and other weights do not take it.")
        self.basis, self.weights, self.num_features = basis, weights, num_features
        BasisKernel.variance.register(self, [num_features or 1], variance_constraint, variance_prior)
        if weights == "geometric":
            BasisKernel.ratio.register(self, [1], ratio_constraint, ratio_prior)
            self.ratio = 2.0
        elif ratio_prior is not None or ratio_constraint is not None:
            raise ValueError("Only weights='geometric' takes a ratio.")
        self.variance = 1.0

    def scaled_features(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n features"]:
        """Σ^½ φ(x)."""
        features = self.basis(x)
        if features.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"The basis made features of shape {tuple(features.shape)} of inputs {tuple(x.shape)}; it "
                "must keep all dimensions but the last."
            )
        return features * self._deviation(x.shape[-1], features)

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        if last_dim_is_batch:
            raise ValueError("BasisKernel does not take last_dim_is_batch.")
        left = self.scaled_features(x1)
        right = left if x1 is x2 else self.scaled_features(x2)
        return (left * right).sum(-1) if diag else left @ right.mT

    def _deviation(self, width: int, features: Tensor) -> Tensor:
        deviation = self.variance.to(features).sqrt()
        if self.num_features is not None and features.shape[-1] != self.num_features:
            raise ValueError(f"num_features={self.num_features}, but the basis made {features.shape[-1]}.")
        if self.weights != "geometric":
            return deviation
        own = getattr(self.basis, "degrees", None)
        degrees = torch.arange(features.shape[-1]) if own is None else own(width)
        # √(variance γ^-i)
        return deviation * torch.exp(-0.5 * self.ratio.to(features).log() * degrees.to(features))
