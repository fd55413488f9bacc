"""The table of base kernels that a spelling may name, their constraints, and lines about a learned centre."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import (
    ArcKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    SpectralMixtureKernel,
)
from torch import Tensor, nn


def log_positive(initial_value: float | None = None) -> Positive:
    """A positivity constraint by exponentials, so that parameters of any scale are learned equally fast."""
    exp: Any = torch.exp
    return Positive(transform=exp, inv_transform=torch.log, initial_value=initial_value)


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


@final
@dataclass(frozen=True)
class Base:
    """A base kernel.

    `positive` names its hyperparameters, which get constraints by exponentials, and `free` those that may
    have any sign. `settings` are arguments that the name fixes, `option` is one whole number in brackets,
    with its default. `amplitude` names the hyperparameter that scales the kernel, where it has one of its
    own. `takes_ard` says whether it can have one lengthscale a column, `needs_width` that it must be told
    the number of columns.
    """

    kind: type[Kernel]
    about: str
    positive: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    option: tuple[str, int, tuple[int, int]] | None = None
    amplitude: str | None = None
    takes_ard: bool = True
    needs_width: bool = False
    build: Callable[..., Kernel] | None = None

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """All that may be given a value in brackets."""
        return (*self.positive, *self.free)

    def make(self, num_columns: int | None, is_ard: bool, option: int | None, columns: Any) -> Kernel:
        """The kernel for a number of columns, with constraints by exponentials."""
        arguments = dict(self.settings)
        if self.option is not None:
            arguments[self.option[0]] = self.option[1] if option is None else option
        arguments |= {f"{name}_constraint": log_positive() for name in self.positive}
        if columns is not None:
            arguments["active_dims"] = columns
        if self.needs_width or (is_ard and self.takes_ard):
            arguments["ard_num_dims"] = num_columns
        return (self.kind if self.build is None else self.build)(**arguments)


def _arc(
    lengthscale_constraint: Any, ard_num_dims: int | None = None, active_dims: tuple[int, ...] | None = None
) -> Kernel:
    kernel = ArcKernel(MaternKernel(nu=2.5), ard_num_dims=ard_num_dims, active_dims=active_dims)
    kernel.register_constraint("raw_lengthscale", lengthscale_constraint)
    return kernel


LENGTH = ("lengthscale",)
MIXTURE = ("mixture_scales", "mixture_means", "mixture_weights")

BASES: dict[str, Base] = {
    "arc": Base(
        ArcKernel, "points on an arc, for columns between 0 and 1", LENGTH, build=_arc, needs_width=True
    ),
    "constant": Base(ConstantKernel, "a constant", ("constant",), amplitude="constant", takes_ard=False),
    "cosine": Base(CosineKernel, "one pure wave", ("period_length",), takes_ard=False),
    "dot": Base(
        LinearKernel, "lines through the origin", ("variance",), amplitude="variance", takes_ard=False
    ),
    "linear": Base(
        CentredLinearKernel,
        "lines about a learned centre",
        ("variance",),
        ("centre",),
        amplitude="variance",
        needs_width=True,
    ),
    "matern12": Base(MaternKernel, "rough", LENGTH, settings={"nu": 0.5}),
    "matern32": Base(MaternKernel, "once differentiable", LENGTH, settings={"nu": 1.5}),
    "matern52": Base(MaternKernel, "twice differentiable", LENGTH, settings={"nu": 2.5}),
    "periodic": Base(PeriodicKernel, "repeats itself exactly", (*LENGTH, "period_length")),
    "piecewise": Base(
        PiecewisePolynomialKernel, "smooth of compact support", LENGTH, option=("q", 2, (0, 3))
    ),
    "polynomial": Base(
        PolynomialKernel, "a polynomial", ("offset",), option=("power", 2, (1, 20)), takes_ard=False
    ),
    "rbf": Base(RBFKernel, "smooth", LENGTH),
    "rq": Base(RQKernel, "smooth at many scales", (*LENGTH, "alpha")),
    "sm": Base(
        SpectralMixtureKernel,
        "a spectral mixture",
        MIXTURE,
        option=("num_mixtures", 4, (1, 100)),
        amplitude="mixture_weights",
        needs_width=True,
    ),
}
ALIASES = {
    "const": "constant",
    "cos": "cosine",
    "exponential": "matern12",
    "lin": "linear",
    "ou": "matern12",
    "per": "periodic",
    "poly": "polynomial",
    "rational_quadratic": "rq",
    "se": "rbf",
    "spectral_mixture": "sm",
    "squared_exponential": "rbf",
}


def name_of(kernel: Kernel) -> tuple[str, int | None]:
    """The name and the option of a base kernel; a ValueError where the table has none."""
    for name, base in BASES.items():
        settings_fit = all(getattr(kernel, key, None) == value for key, value in base.settings.items())
        if type(kernel) is base.kind and settings_fit:
            return name, None if base.option is None else int(getattr(kernel, base.option[0]))
    raise ValueError(
        f"{type(kernel).__name__} has no spelling; known are {', '.join(BASES)}, their sums and products."
    )
