"""Recipes of other packages' classes: GPyTorch's kernels, constraints, priors and means, scikit-learn's SVC.

Kernels, also those of Orbitwise, are stored by the arguments of their constructors: each parameter `raw_x`
has a constraint `x_constraint` and may have a prior `x_prior`. An SVC is its support vectors, which are rows
of the training data, and numbers beside them. The installed scikit-learn makes a small one of its own, which
then takes these: whatever else that version keeps of a fit is there, and nothing of a file reaches libsvm
that was not checked.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import NoneType
from typing import Any

import numpy as np
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
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.svm import SVC
from torch import Tensor, nn

from orbitwise.declarations import COUNT, POSITIVE, Field, Stored
from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.storage.recipes import (
    Recipe,
    attribute_of,
    declaration_of,
    derived,
    field_of,
    is_own,
    merged,
    own_classes,
    parameters_of,
    require,
)

KERNELS = (
    *(AdditiveKernel, ConstantKernel, CosineKernel, LinearKernel, MaternKernel, PeriodicKernel),
    *(PiecewisePolynomialKernel, PolynomialKernel, ProductKernel, RBFKernel, RQKernel, ScaleKernel),
    SpectralMixtureKernel,
)
BOUNDED = {"power": Field(least=0, most=100)}
"""Arguments of kernels that are no sizes."""
CONSTRAINTS: dict[type[Interval], tuple[float, ...]] = {
    Interval: (0.0, 1.0), GreaterThan: (0.0,), LessThan: (1.0,), Positive: (),
}  # fmt: skip
"""Constraints, and bounds to make one with; it then takes its own."""
PRIORS: dict[type[Prior], dict[str, str]] = {
    GammaPrior: {"concentration": "concentration", "rate": "rate"},
    HalfCauchyPrior: {"scale": "scale"},
    HalfNormalPrior: {"scale": "scale"},
    LogNormalPrior: {"loc": "loc", "scale": "scale"},
    NormalPrior: {"loc": "loc", "scale": "scale"},
    UniformPrior: {"a": "low", "b": "high"},
}
"""Priors, the arguments that they are made with, and the attributes that tell these."""
EARLIER_NAMES = {"Problem": RegressionModel}
"""Names of classes in files of earlier versions."""
FUNCTIONS = {
    "exp": torch.exp,
    "inverse_sigmoid": inv_sigmoid,
    "inverse_softplus": inv_softplus,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
}


def recipe_of(kind: type) -> Recipe | None:
    """The recipe of a class that is stored, None for any other."""
    if kind in KERNELS or (is_own(kind) and issubclass(kind, Kernel)):
        return _kernel(kind)
    if kind in CONSTRAINTS:
        return _constraint(kind)
    if kind in PRIORS:
        return _prior(kind)
    if kind in (ZeroMean, ConstantMean):
        return Recipe(kind, declared=Stored(refuse=_refuse_mean))
    if kind is SVC:
        return replace(derived(SVC, Stored(SVC_BOUNDS, refuse=_refuse_svc), rebuild), tell=_tell_svc)
    return derived(kind, declaration_of(kind)) if is_own(kind) else None


def known_classes() -> dict[str, type]:
    """All classes that a file may name."""
    others = (*KERNELS, *CONSTRAINTS, *PRIORS, ZeroMean, ConstantMean, SVC)
    own = {name: kind for name, kind in own_classes().items() if not issubclass(kind, BaseEstimator)}
    return {**own, **{kind.__name__: kind for kind in others}}


def name_of(function: Any) -> str | None:
    """The name of a constraint's function, None for none; "?" is none that a file knows."""
    if function is None:
        return None
    if isinstance(function, nn.Softplus) and (function.beta, function.threshold) == (1.0, 20.0):
        return "softplus"  # copies of kernels have copies of it
    return next((name for name, known in FUNCTIONS.items() if known is function), "?")


def _kernel(kind: type[Kernel]) -> Recipe:
    declared = declaration_of(kind)
    hidden = {"batch_shape", "eps"} | (
        set() if kind.has_lengthscale else {"lengthscale_prior", "lengthscale_constraint"}
    )
    arguments: dict[str, Field] = {}
    required, several = set(), ""
    for name, parameter, annotation in parameters_of(kind):
        if name in hidden:
            continue
        if name.endswith("_constraint"):
            each = Field((Interval, NoneType))
        elif name.endswith("_prior"):
            each = Field((Prior, NoneType))
        else:
            each = merged(field_of(annotation), declared.arguments.get(name, BOUNDED.get(name, Field())))
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            several, each = name, Field((list,), each=each)
        elif parameter.default is inspect.Parameter.empty:
            required.add(name)
        arguments[name] = each

    def build(*values: Any, **given: Any) -> Kernel:
        # Constructors read "not given" where they would not read None.
        return kind(*values, **{name: value for name, value in given.items() if value is not None})

    def refuse(kernel: Any) -> str | None:
        if len(kernel.batch_shape):
            return (
                f"a kernel of batch shape {tuple(kernel.batch_shape)} cannot be stored; store kernels singly."
            )
        other = [name for name in kernel._priors if name not in arguments]
        if other:
            return f"the prior {other[0]} cannot be stored; give priors to the constructor."
        return None if declared.refuse is None else declared.refuse(kernel)

    return Recipe(
        kind, arguments, frozenset(required), several=several, build=build, tell=_tell_kernel,
        declared=replace(declared, refuse=refuse),
    )  # fmt: skip


def _tell_kernel(kernel: Any, name: str, each: Field) -> Any:
    if name.endswith("_constraint"):
        return getattr(kernel, f"raw_{name}", None)
    if name.endswith("_prior"):
        return kernel._priors.get(name, (None,))[0]
    if name == "active_dims":
        return None if kernel.active_dims is None else tuple(kernel.active_dims.tolist())
    return attribute_of(kernel, name, each)


def _constraint(kind: type[Interval]) -> Recipe:
    def build(transform: str | None, inverse: str | None) -> Interval:
        functions: list[Any] = [None if name is None else FUNCTIONS[name] for name in (transform, inverse)]
        bounds: Any = CONSTRAINTS[kind]
        return kind(*bounds, *functions)

    def refuse(constraint: Any) -> str | None:
        if "?" not in (name_of(constraint._transform), name_of(constraint._inv_transform)):
            return None
        return f"a constraint with a transform of its own cannot be stored; use {', '.join(FUNCTIONS)}."

    def tell(constraint: Any, name: str, each: Field) -> str | None:
        return name_of(constraint._transform if name == "transform" else constraint._inv_transform)

    arguments: dict[str, Field] = {name: Field((str, NoneType)) for name in ("transform", "inverse")}
    declared = Stored(infinite=("lower_bound", "upper_bound"), refuse=refuse)
    return Recipe(
        kind, arguments, frozenset(arguments), build=build, tell=tell, any_shape=True, declared=declared
    )


def _prior(kind: type[Prior]) -> Recipe:
    def refuse(prior: Any) -> str | None:
        return None if prior._transform is None else "a prior with a transform of its own cannot be stored."

    def tell(prior: Any, name: str, each: Field) -> Tensor:
        return torch.as_tensor(getattr(prior, PRIORS[kind][name]))

    arguments = dict.fromkeys(PRIORS[kind], Field((Tensor,)))
    return Recipe(
        kind, arguments, frozenset(arguments), tell=tell, has_state=False, declared=Stored(refuse=refuse)
    )


def _refuse_mean(mean: Any) -> str | None:
    is_plain = not mean._priors and not mean._constraints and not len(mean.batch_shape)
    return None if is_plain else "a mean with priors, constraints or batches cannot be stored."


SVC_ATTRIBUTES = {
    "classes": "classes_",
    "class_weights": "class_weight_",
    "support": "support_",
    "support_vectors": "support_vectors_",
    "num_support": "n_support_",
    "dual_coefficients": "dual_coef_",
    "intercept": "intercept_",
    "num_iterations": "n_iter_",
}
"""Arguments of `rebuild` that are attributes of other names."""
SVC_BOUNDS = {"C": POSITIVE, "gamma": POSITIVE, "num_samples": replace(COUNT, least=1)}


def _tell_svc(machine: Any, name: str, each: Field) -> Any:
    return (
        machine.shape_fit_[0] if name == "num_samples" else getattr(machine, SVC_ATTRIBUTES.get(name, name))
    )


def rebuild(
    C: float,
    gamma: float,
    class_weight: dict[Any, float] | str | None,
    classes: NDArray[Any],
    class_weights: NDArray[Any],
    support: NDArray[Any],
    support_vectors: NDArray[Any],
    num_support: NDArray[Any],
    dual_coefficients: NDArray[Any],
    intercept: NDArray[Any],
    num_iterations: NDArray[Any],
    num_samples: int,
) -> SVC:
    """The SVC of these arrays, with the radial kernel exp(-gamma |x-x′|²)."""
    require(classes.ndim == 1 and len(classes) >= 2, "no list of classes")
    require(np.array_equal(np.unique(classes), classes), "classes out of order")
    require(
        support_vectors.ndim == 2 and min(support_vectors.shape) > 0, "support vectors that are no matrix"
    )
    many, count = len(classes), len(support_vectors)
    shapes = [
        (support, (count,), "iu"),
        (num_support, (many,), "iu"),
        (dual_coefficients, (many - 1, count), "f"),
        (intercept, (many * (many - 1) // 2,), "f"),
        (class_weights, (many,), "f"),
        (num_iterations, intercept.shape, "iu"),
        (support_vectors, support_vectors.shape, "f"),
    ]
    for array, shape, kind in shapes:
        require(array.shape == shape and array.dtype.kind in kind, f"an array of shape {array.shape}")
        require(bool(np.isfinite(array).all()), "numbers that are not finite")
    # libsvm walks through the support vectors by these counts
    require(bool((num_support >= 0).all()) and int(num_support.sum()) == count, "counts of other vectors")
    corners = np.zeros((many, support_vectors.shape[1]))
    corners[:, 0] = np.arange(many)
    # of numbers that are harmless, since libsvm may not end with others
    built: Any = SVC(C=1.0, gamma="scale").fit(corners, classes)
    built.C, built.gamma, built._gamma = C, gamma, float(gamma)
    built.class_weight = class_weight
    built.class_weight_ = class_weights
    built.support_ = support.astype(np.int32)
    built.support_vectors_ = np.ascontiguousarray(support_vectors, dtype=np.float64)
    built._n_support = num_support.astype(np.int32)
    built.dual_coef_ = built._dual_coef_ = np.ascontiguousarray(dual_coefficients, dtype=np.float64)
    built.intercept_ = intercept.astype(np.float64)
    # libsvm holds the two classes of a single machine the other way around
    built._intercept_ = built.intercept_.copy()
    if many == 2:
        built._intercept_, built._dual_coef_ = -built.intercept_, -built.dual_coef_
    built.n_iter_ = built._num_iter = num_iterations.astype(np.int32)
    built.shape_fit_ = (num_samples, support_vectors.shape[1])
    return built


def _refuse_svc(machine: SVC) -> str | None:
    given: Any = machine.gamma
    is_radial = machine.kernel == "rbf" and not isinstance(given, str)
    return None if is_radial else "only an SVC with the radial kernel and a gamma in numbers can be stored."
