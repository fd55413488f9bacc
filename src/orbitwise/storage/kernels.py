"""Recipes of kernels, their constraints and priors, and of mean functions."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import Any

import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.constraints.constraints import softplus
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.priors import (
    GammaPrior,
    HalfCauchyPrior,
    HalfNormalPrior,
    LogNormalPrior,
    NormalPrior,
    Prior,
    UniformPrior,
)
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from torch import Tensor, nn

from orbitwise.functionals.functional import Functional
from orbitwise.inference.defaults import LinearTrend
from orbitwise.kernels.bases import CentredLinearKernel
from orbitwise.kernels.basis import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.kernels.wide_networks import WideConvolutionKernel, WideNetworkKernel
from orbitwise.process.functional_kernel import FunctionalKernel
from orbitwise.storage.recipes import LARGEST, SMALLEST, Field, Recipe, is_plain_numbers, require, table_of

DIVISORS = ("lengthscale", "period_length", "alpha", "ratio")
"""Parameters of kernels that something is divided by."""
DEEPEST = 1000
FUNCTIONS = {
    "exp": torch.exp,
    "inverse_sigmoid": inv_sigmoid,
    "inverse_softplus": inv_softplus,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
}


def name_of(function: Any) -> str | None:
    """The name of a constraint's function, None for none; "?" is none that a file knows."""
    if function is None:
        return None
    if isinstance(function, nn.Softplus) and (function.beta, function.threshold) == (1.0, 20.0):
        return "softplus"  # copies of kernels have copies of it
    return next((name for name, known in FUNCTIONS.items() if known is function), "?")


def _constraint(kind: type[Interval], *bounds: float) -> Recipe:
    """A constraint made with any bounds, which then takes its own."""

    def build(transform: str | None, inverse: str | None) -> Interval:
        functions: list[Any] = [None if name is None else FUNCTIONS[name] for name in (transform, inverse)]
        return kind(*bounds, *functions)  # pyright: ignore

    def check(constraint: Any) -> None:
        lower, upper = constraint.lower_bound, constraint.upper_bound
        require(lower.shape == upper.shape, "bounds of different shapes")
        require(bool((lower < upper).all()), "the lower bound is not below the upper one")

    def refuse(constraint: Any) -> str | None:
        if "?" not in (name_of(constraint._transform), name_of(constraint._inv_transform)):
            return None
        return f"a constraint with a transform of its own cannot be stored; use {', '.join(FUNCTIONS)}."

    fields = {
        "transform": Field((str, NoneType), lambda constraint: name_of(constraint._transform)),
        "inverse": Field((str, NoneType), lambda constraint: name_of(constraint._inv_transform)),
    }
    infinite = ("lower_bound", "upper_bound")
    return Recipe(kind, fields, build, any_shape=True, infinite=infinite, check=check, refuse=refuse)


def _prior(kind: type[Prior], fields: dict[str, str]) -> Recipe:
    """A prior, whose constructor's arguments are attributes of these names."""

    def refuse(prior: Any) -> str | None:
        return None if prior._transform is None else "a prior with a transform of its own cannot be stored."

    reads = {name: Field(Tensor, _attribute(attribute)) for name, attribute in fields.items()}
    return Recipe(kind, reads, has_state=False, refuse=refuse)


def _attribute(name: str) -> Any:
    return lambda value: torch.as_tensor(getattr(value, name))


def _kernel(
    kind: type[Kernel], constrained: tuple[str, ...], priors: tuple[str, ...] = (), **fields: Field
) -> Recipe:
    """A kernel with a constraint, and some of them a prior, for each of its parameters."""
    known = {f"{name}_prior": name for name in priors}

    def build(**arguments: Any) -> Kernel:
        # Constructors read "not given" where they would not read None.
        return kind(**{name: value for name, value in arguments.items() if value is not None})

    def refuse(kernel: Any) -> str | None:
        if len(kernel.batch_shape):
            return (
                f"a kernel of batch shape {tuple(kernel.batch_shape)} cannot be stored; store kernels singly."
            )
        other = [name for name in kernel._priors if name not in known]
        return f"the prior {other[0]} cannot be stored; give priors to the constructor." if other else None

    def check(kernel: Any) -> None:
        for name in constrained:
            if hasattr(kernel, f"raw_{name}"):
                least = SMALLEST if name in DIVISORS else -LARGEST
                with torch.no_grad():
                    value = getattr(kernel, name)
                require(value.shape == getattr(kernel, f"raw_{name}").shape, f"a {name} of another shape")
                require(is_plain_numbers(value, least), f"a {name} out of range")

    def constraint(name: str) -> Field:
        return Field((Interval, NoneType), lambda kernel: getattr(kernel, f"raw_{name}_constraint", None))

    def prior(name: str) -> Field:
        return Field((Prior, NoneType), lambda kernel: kernel._priors.get(name, (None,))[0])

    all_fields = {f"{name}_constraint": constraint(name) for name in constrained}
    all_fields |= {name: prior(name) for name in known}
    all_fields["active_dims"] = Field((tuple, NoneType), _active_dims, each=int, least=0)
    return Recipe(kind, all_fields | fields, build, check=check, refuse=refuse)


def _active_dims(kernel: Any) -> tuple[int, ...] | None:
    return None if kernel.active_dims is None else tuple(kernel.active_dims.tolist())


def _several(kind: Any) -> Recipe:
    def build(kernels: list[Kernel]) -> Kernel:
        return kind(*kernels)

    return Recipe(kind, {"kernels": Field(list, lambda kernel: list(kernel.kernels), each=Kernel)}, build)


def _basis_kernel() -> Recipe:
    """A linear model in one of our bases; a basis of the user's own is code, which no file holds."""
    named = (PolynomialBasis, FourierBasis, BumpBasis)
    fields = {
        "basis": Field(named),
        "weights": Field(str),
        "num_features": Field((int, NoneType), is_size=True),
    }
    recipe = _kernel(BasisKernel, ("variance", "ratio"), ("variance", "ratio"), **fields)

    def refuse(kernel: Any) -> str | None:
        if not isinstance(kernel.basis, named):
            names = ", ".join(kind.__name__ for kind in named)
            return f"a basis of your own is code and cannot be stored; use {names}."
        return None if recipe.refuse is None else recipe.refuse(kernel)

    return replace(recipe, refuse=refuse)


def _linear_trend(centre: Tensor) -> LinearTrend:
    return LinearTrend(centre.reshape(1, -1))


def _plain_mean(mean: Any) -> str | None:
    is_plain = not mean._priors and not mean._constraints and not len(mean.batch_shape)
    return None if is_plain else "a mean with priors, constraints or batches cannot be stored."


ARD = Field((int, NoneType), is_size=True)
LENGTH = ("lengthscale",)
PERIOD = ("period_length",)
MIXTURE = ("mixture_scales", "mixture_means", "mixture_weights")
WIDE = ("weight_variance", "bias_variance")
NETWORK = {
    "depth": Field(int, least=1, most=DEEPEST),
    "activation": Field(str),
    "residual": Field(bool),
    # Constructors ask for values within the constraints, and 0 for a network without biases.
    "weight_variance": Field(float, lambda kernel: kernel.weight_variance.item()),
    "bias_variance": Field(float, lambda kernel: kernel.bias_variance.item()),
}

KERNELS = table_of(
    _kernel(RBFKernel, LENGTH, LENGTH, ard_num_dims=ARD),
    _kernel(MaternKernel, LENGTH, LENGTH, ard_num_dims=ARD, nu=Field(float)),
    _kernel(PiecewisePolynomialKernel, LENGTH, LENGTH, ard_num_dims=ARD, q=Field(int)),
    _kernel(RQKernel, (*LENGTH, "alpha"), LENGTH, ard_num_dims=ARD),
    _kernel(PeriodicKernel, LENGTH + PERIOD, LENGTH + PERIOD, ard_num_dims=ARD),
    _kernel(CosineKernel, PERIOD, PERIOD, ard_num_dims=ARD),
    _kernel(LinearKernel, ("variance",), ("variance",), ard_num_dims=ARD),
    _kernel(CentredLinearKernel, ("variance",), ard_num_dims=ARD),
    _basis_kernel(),
    Recipe(PolynomialBasis, {"order": Field(int, least=0, most=DEEPEST)}),
    Recipe(
        FourierBasis, {"order": Field(int, least=0, most=DEEPEST), "period": Field(float, least=SMALLEST)}
    ),
    Recipe(BumpBasis, {"centres": Field(Tensor), "width": Field(float, least=SMALLEST)}),
    _kernel(
        PolynomialKernel,
        ("offset",),
        ("offset",),
        ard_num_dims=ARD,
        power=Field((int, float), least=0, most=100),
    ),
    _kernel(ConstantKernel, ("constant",), ("constant",)),
    _kernel(SpectralMixtureKernel, MIXTURE, ard_num_dims=ARD, num_mixtures=Field(int, is_size=True)),
    _kernel(WideNetworkKernel, WIDE, WIDE, **NETWORK),
    _kernel(
        WideConvolutionKernel,
        WIDE,
        WIDE,
        image_shape=Field(tuple, each=int, is_size=True),
        filter_size=Field(int, is_size=True),
        padding=Field(str),
        pooling=Field(bool),
        **NETWORK,
    ),
    _kernel(ScaleKernel, ("outputscale",), ("outputscale",), base_kernel=Field(Kernel)),
    _several(AdditiveKernel),
    _several(ProductKernel),
    _kernel(
        FunctionalKernel,
        (),
        base_kernel=Field(Kernel),
        functional=Field(Functional),
        normalize=Field(bool),
        one_sided=Field((bool, str)),
    ),
    _constraint(Interval, 0.0, 1.0),
    _constraint(GreaterThan, 0.0),
    _constraint(LessThan, 1.0),
    _constraint(Positive),
    _prior(GammaPrior, {"concentration": "concentration", "rate": "rate"}),
    _prior(HalfCauchyPrior, {"scale": "scale"}),
    _prior(HalfNormalPrior, {"scale": "scale"}),
    _prior(LogNormalPrior, {"loc": "loc", "scale": "scale"}),
    _prior(NormalPrior, {"loc": "loc", "scale": "scale"}),
    _prior(UniformPrior, {"a": "low", "b": "high"}),
    Recipe(ZeroMean, refuse=_plain_mean),
    Recipe(ConstantMean, refuse=_plain_mean),
    Recipe(
        LinearTrend,
        {"centre": Field(Tensor)},
        _linear_trend,
        check=lambda mean: require(is_plain_numbers(mean.spread, SMALLEST), "a spread that is not positive"),
    ),
)
