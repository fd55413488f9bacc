"""Recipes: how objects of a class are taken apart and rebuilt, derived from the constructor of the class.

A file may name the final classes of Orbitwise that declare `stored` (see `orbitwise.declarations`) or are
kernels or means, and the classes of GPyTorch and scikit-learn that are listed here. No name in a file is ever
imported. Numbers that are not finite, or so large or small that the product of two overflows, are refused.

Kernels are stored by the arguments of their constructors: each parameter `raw_x` has a constraint
`x_constraint` and may have a prior `x_prior`. An SVC is stored as its support vectors, which are rows of the
training data, and their coefficients (see `rebuild`).
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import NoneType, UnionType
from typing import Literal, Protocol, Union, final, get_args, get_origin, get_type_hints, runtime_checkable

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.constraints.constraints import softplus
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from gpytorch.priors import Prior
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from jaxtyping import jaxtyped
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.svm import SVC
from torch import Tensor, nn

from orbitwise.declarations import (
    COUNT,
    LARGEST,
    OMITTED,
    POSITIVE,
    SMALLEST,
    Field,
    Stored,
    is_plain_numbers,
    require,
)
from orbitwise.storage.transformers import TRANSFORMERS

PACKAGES = (
    *("transforms", "orbits", "functionals", "kernels", "process", "likelihoods", "losses"),
    *("inference", "estimators", "selection"),
)
"""The packages of Orbitwise whose classes a file may name."""
MOST_RECORDED = 2**1000
"""The largest whole number that is shown but not computed with: it can be written as a float."""
KERNELS = {
    getattr(gpytorch.kernels, f"{name}Kernel")
    for name in (
        *("Additive", "Constant", "Cosine", "Linear", "Matern", "Periodic", "PiecewisePolynomial"),
        *("Polynomial", "Product", "RBF", "RQ", "Scale", "SpectralMixture"),
    )
}
DIVISORS = ("lengthscale", "period_length", "alpha", "ratio")
"""Parameters of kernels that appear as divisors."""
CONSTRAINTS: dict[type[Interval], tuple[float, ...]] = {
    Interval: (0.0, 1.0), GreaterThan: (0.0,), LessThan: (1.0,), Positive: (),
}  # fmt: skip
"""Constraints, and bounds to build each with before its stored bounds are restored."""
CONSTRAINT_FUNCTIONS = {
    "exp": torch.exp,
    "inverse_sigmoid": inv_sigmoid,
    "inverse_softplus": inv_softplus,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
}
"""Functions that map the parameter of a constraint to its range and back."""


@runtime_checkable
class Checked(Protocol):
    """An object that can check whether its parts fit together."""

    def check_parts(self) -> None:
        """Raise a ValueError if they do not."""
        ...


@final
@dataclass(frozen=True)
class Recipe:
    """How objects of one class are stored and rebuilt; see `Stored` for what a class may declare.

    `shapes` are the annotations of tensors; a dimension of one name has one size in all of them. `variadic`
    is the argument that takes any number of values. Parameters and buffers of a module, and of its parts that
    are not arguments, are stored and restored unchanged, with the shapes that the constructor gives them.
    """

    kind: type
    declared: Stored
    build: Callable[..., object]
    arguments: Mapping[str, Field]
    required: frozenset[str]
    fixed: Mapping[str, object]
    shapes: Mapping[str, tuple[type, ...]]
    variadic: str = ""

    def refusal(self, value: object) -> str | None:
        """The reason why an object cannot be stored; None if it can."""
        refuse = self.declared.refuse
        return self.declared.never or (None if refuse is None else refuse(value))

    def argument_of(self, value: object, name: str) -> object:
        """The value of an argument of the constructor, read from an object."""
        each = self.arguments[name]
        found = each.read(value) if callable(each.read) else attrgetter(each.read or name)(value)
        if isinstance(found, nn.ModuleList):
            return list(found)
        if isinstance(found, Tensor) and not isinstance(found, each.kinds):
            return tuple(found.tolist()) if tuple in each.kinds else found.item()
        return found

    def make(self, arguments: Mapping[str, object]) -> object:
        """Build an object from these arguments; those that are None take their defaults."""
        with jaxtyped("context"):
            # all arguments in one context, in which a named dimension has one size
            wrong = [name for name, value in arguments.items() if not self._has_shape(name, value)]
        require(not wrong, f"{' and '.join(wrong)} of other shapes than its other arguments")
        given = {name: each for name, each in arguments.items() if each is not None or name in self.required}
        variadic = given.pop(self.variadic, [])
        assert isinstance(variadic, list | tuple)
        built = self.build(*variadic, **self.fixed, **given)
        if self.variadic:
            kept = self.argument_of(built, self.variadic)
            require(
                isinstance(kept, list | tuple) and len(kept) == len(variadic),
                f"{self.variadic} that it would not keep",
            )
        return built

    def _has_shape(self, name: str, value: object) -> bool:
        shapes = self.shapes.get(name, ())
        return not (shapes and isinstance(value, Tensor)) or any(isinstance(value, each) for each in shapes)

    def own_tensors(self, value: object) -> Iterable[tuple[str, Tensor]]:
        """Parameters and buffers of a module and of its parts that are not arguments, by name."""
        if not isinstance(value, nn.Module) or isinstance(value, Prior):
            return
        reads = (each.read for each in self.arguments.values())
        parts = {*self.arguments, *(each.partition(".")[0] for each in reads if isinstance(each, str))}
        inner = [] if isinstance(value, Kernel) else [n for n, _ in value.named_children() if n not in parts]
        for part in ("", *inner):
            module, prefix = value.get_submodule(part), f"{part}." if part else ""
            for named in (module.named_parameters, module.named_buffers):
                yield from ((prefix + name, tensor) for name, tensor in named(recurse=False))

    def accepts(self, name: str, old: Tensor, new: Tensor) -> bool:
        """Whether a tensor of a file may replace one that the constructor made."""
        most = math.inf if name in self.declared.infinite else LARGEST
        has_shape = new.shape == old.shape or issubclass(self.kind, Interval)
        is_kind = new.dtype == old.dtype or (new.is_floating_point() and old.is_floating_point())
        return has_shape and is_kind and is_plain_numbers(new, -most, most)


def recipe_of(kind: type) -> Recipe | None:
    """The recipe of a class that can be stored; None for any other class."""
    if kind in EXTERNAL_CLASSES:
        return derived(kind, EXTERNAL_CLASSES[kind])
    if kind in KERNELS or (is_own(kind) and issubclass(kind, Kernel)):
        return derived(kind, _kernel_declaration(kind))
    return derived(kind, declaration_of(kind)) if is_own(kind) else None


def known_classes() -> dict[str, type]:
    """All classes that the objects of a file may name."""
    own = {name: kind for name, kind in own_classes().items() if not issubclass(kind, BaseEstimator)}
    return {**own, **{kind.__name__: kind for kind in (*KERNELS, *EXTERNAL_CLASSES)}}


def own_classes() -> dict[str, type]:
    """The classes in `PACKAGES` that a file may name."""
    for room in PACKAGES:
        package = import_module(f"orbitwise.{room}")
        for name in getattr(package, "__all__", ()):
            getattr(package, name)  # some packages import a class when it is first used
    found: dict[str, type] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("orbitwise.") and name.split(".")[1] in PACKAGES:
            classes = [each for each in vars(module).values() if isinstance(each, type)]
            found |= {each.__name__: each for each in classes if each.__module__ == name and is_own(each)}
    return found


def is_own(kind: type) -> bool:
    """Whether a class is a final class of Orbitwise that can be stored."""
    is_ours = kind.__module__.partition(".")[0] == "orbitwise" and "__final__" in vars(kind)
    return is_ours and (isinstance(getattr(kind, "stored", None), Stored) or issubclass(kind, Kernel | Mean))


def declaration_of(kind: type) -> Stored:
    """The declarations of a class and its bases; those of the class take precedence."""
    whole = Stored()
    for base in reversed(kind.__mro__):
        if isinstance(own := vars(base).get("stored"), Stored):
            whole = Stored(
                {**whole.arguments, **own.arguments},
                {**whole.attributes, **own.attributes},
                {**whole.fitted, **own.fitted},
                {**whole.sometimes, **own.sometimes},
                own.build or whole.build,
                own.infinite or whole.infinite,
                own.cost or whole.cost,
                own.refuse or whole.refuse,
                own.never or whole.never,
            )
    return whole


def derived(kind: type, declared: Stored) -> Recipe:
    """The recipe that follows from the constructor of a class and what the class declares."""
    build = declared.build or kind
    if isinstance(build, str):
        build = getattr(kind, build)
    arguments: dict[str, Field] = {}
    shapes: dict[str, tuple[type, ...]] = {}
    fixed: dict[str, object] = {}
    required, variadic = set[str](), ""
    for name, parameter, annotation in parameters_of(build):
        each = merged(field_of(annotation), declared.arguments.get(name, Field()))
        if each.is_omitted:
            if each.fixed is not None or parameter.default is inspect.Parameter.empty:
                fixed[name] = each.fixed
            continue
        if shape := shapes_of(annotation):
            shapes[name] = shape
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic, each = name, Field((list, tuple), each=each)
        elif parameter.default is inspect.Parameter.empty:
            required.add(name)
        arguments[name] = each if issubclass(kind, nn.Module) else _in_double_precision(each)
    return Recipe(kind, declared, build, arguments, frozenset(required), fixed, shapes, variadic)


def parameters_of(build: Callable[..., object]) -> Iterable[tuple[str, inspect.Parameter, object]]:
    """The parameters of a constructor with their annotations, including those behind **arguments."""
    if not isinstance(build, type) or issubclass(build, tuple):
        functions, hidden = [build], 0
    else:
        functions, hidden = [vars(each)["__init__"] for each in build.__mro__ if "__init__" in vars(each)], 1
    known: set[str] = set()
    for function in functions:
        if function in (object.__init__, nn.Module.__init__):
            return
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.items())[hidden:]
        for name, each in parameters:
            if name not in known and each.kind is not inspect.Parameter.VAR_KEYWORD:
                known.add(name)
                yield name, each, hints.get(name, object)
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for _, each in parameters):
            return


def field_of(annotation: object) -> Field:
    """The types of values and of their entries that an annotation allows."""
    origin, inside = get_origin(annotation), [each for each in get_args(annotation) if each is not ...]
    if origin in (Union, UnionType):
        return _either([field_of(each) for each in inside])
    if origin is Literal:
        return Field(tuple({type(each) for each in inside}))
    if origin is np.ndarray:
        return Field((np.ndarray,))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Field((dict,), each=field_of(inside[-1]))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return Field((tuple, list), each=_either([field_of(each) for each in inside]))
    if (array := getattr(annotation, "array_type", None)) is not None:
        dtypes = getattr(annotation, "dtypes", ())
        return Field((array,), dtypes=dtypes if isinstance(dtypes, tuple) else ())
    if annotation is float:
        return Field((int, float))
    if annotation is None:
        return Field((NoneType,))
    return Field((annotation if isinstance(annotation, type) and origin is None else object,))


def shapes_of(annotation: object) -> tuple[type, ...]:
    """The annotated shapes that a tensor may have; none if any tensor is accepted."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    shaped = [each for each in members if isinstance(each, type) and hasattr(each, "array_type")]
    return () if Tensor in members else tuple(shaped)


def _either(options: list[Field]) -> Field:
    each = [option.each for option in options if option.each is not None]
    return Field(
        tuple(dict.fromkeys(kind for option in options for kind in option.kinds)),
        each=_either(each) if each else None,
        dtypes=tuple(dict.fromkeys(dtype for option in options for dtype in option.dtypes)),
    )


def merged(annotated: Field, declared: Field) -> Field:
    """The declaration of an argument, completed by its annotation."""
    return replace(
        declared,
        kinds=declared.kinds or annotated.kinds,
        each=declared.each or annotated.each,
        dtypes=declared.dtypes or annotated.dtypes,
    )


def _in_double_precision(each: Field) -> Field:
    """The same field with tensors in double precision only, for objects that are not modules."""
    is_float = Tensor in each.kinds and (not each.dtypes or "float64" in each.dtypes)
    inside = None if each.each is None else _in_double_precision(each.each)
    return replace(each, each=inside, dtypes=("float64",) if is_float else each.dtypes)


def has_kind(value: object, each: Field) -> bool:
    """Whether a value of a file has one of the types of a field; True and False are not numbers."""
    if isinstance(value, bool):
        return bool in each.kinds or object in each.kinds
    if not isinstance(value, each.kinds):
        return False
    if each.dtypes and isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.") in each.dtypes
    return each.each is None or all(has_kind(entry, each.each) for entry in _entries_of(value))


def _entries_of(value: object) -> Iterable[object]:
    """The entries of a list or tuple, or the values of a dictionary; none for anything else."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def in_range(value: object, each: Field, largest: float) -> bool:
    """Whether all numbers of a value lie within the bounds of a field; `largest` bounds sizes."""
    if isinstance(value, bool) or (each.is_record and isinstance(value, float | Tensor | np.ndarray)):
        return True
    if each.is_record and isinstance(value, int):
        return abs(value) <= MOST_RECORDED
    if isinstance(value, int | float):
        most = each.most if each.most is not None else largest if isinstance(value, int) else LARGEST
        # false for NaN
        return max(each.least, -most) <= value <= most
    if isinstance(value, Tensor | np.ndarray):
        return is_plain_numbers(value, each.least, LARGEST if each.most is None else each.most)
    return all(in_range(entry, each, largest) for entry in _entries_of(value))


def size_of(name: str, value: object, each: Field) -> int:
    """How many entries an argument may allocate: a whole number, or the product of a shape."""
    if each.most is not None or each.is_record or isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return max(1, abs(value))
    if name.endswith("shape") and isinstance(value, list | tuple):
        return math.prod(size_of(name, size, each) for size in value)
    return 1


def check_built(built: object) -> None:
    """Raise a ValueError if an object that was built is not valid."""
    if isinstance(built, Checked):
        built.check_parts()
    elif isinstance(built, Kernel):
        _check_kernel(built)
    elif isinstance(built, Interval):
        lower, upper = built.lower_bound, built.upper_bound
        require(lower.shape == upper.shape, "bounds of different shapes")
        require(bool((lower < upper).all()), "the lower bound is not below the upper one")


def _check_kernel(kernel: Kernel) -> None:
    for raw_name, raw in kernel.named_parameters(recurse=False):
        name = raw_name.removeprefix("raw_")
        # an irrelevant column may have any lengthscale, because quotients by it are then zero
        most = sys.float_info.max if name == "lengthscale" else LARGEST
        with torch.no_grad():
            value = getattr(kernel, name)
        require(value.shape == raw.shape, f"a {name} of another shape")
        least = SMALLEST if name in DIVISORS else -LARGEST
        require(is_plain_numbers(value, least, most), f"a {name} out of range")


def _kernel_declaration(kind: type[Kernel]) -> Stored:
    """The declaration of a kernel class, including where it keeps its constraints and priors."""
    declared = declaration_of(kind)
    arguments = {"power": Field(least=0, most=100)}
    for name, _, _ in parameters_of(kind):
        is_idle = name.startswith("lengthscale_") and not kind.has_lengthscale
        if name in ("batch_shape", "eps") or is_idle:
            arguments[name] = OMITTED
        elif name.endswith("_constraint"):
            arguments[name] = Field((Interval, NoneType), read=partial(_part_of, f"raw_{name}"))
        elif name.endswith("_prior"):
            arguments[name] = Field((Prior, NoneType), read=partial(_part_of, name))

    def refuse(kernel: Kernel) -> str | None:
        if len(kernel.batch_shape):
            shape = tuple(kernel.batch_shape)
            return f"a kernel of batch shape {shape} cannot be stored; use one without batches."
        priors = [name for name, part in kernel.named_children() if isinstance(part, Prior)]
        other = [name for name in priors if name not in arguments]
        if other:
            return f"the prior {other[0]} cannot be stored; give priors to the constructor."
        return None if declared.refuse is None else declared.refuse(kernel)

    return replace(declared, arguments={**arguments, **declared.arguments}, refuse=refuse)


def _part_of(name: str, module: nn.Module) -> object:
    """A constraint or a prior of a module; None if it has none of this name."""
    return getattr(module, name, None)


def name_of(function: object) -> str | None:
    """The name of a constraint's function; None if it has none, and "?" if files have no name for it."""
    if function is None:
        return None
    if isinstance(function, nn.Softplus) and (function.beta, function.threshold) == (1.0, 20.0):
        return "softplus"  # a copied kernel has a copy of this module
    return next((name for name, known in CONSTRAINT_FUNCTIONS.items() if known is function), "?")


def _constraint(kind: type[Interval]) -> Stored:
    """How a constraint is stored: by the names of its functions; its bounds are stored as tensors."""

    def build(transform: str | None, inverse: str | None) -> Interval:
        functions = [None if name is None else CONSTRAINT_FUNCTIONS[name] for name in (transform, inverse)]
        return kind(*CONSTRAINTS[kind], *functions)  # pyright: ignore[reportArgumentType]

    def refuse(constraint: Interval) -> str | None:
        if "?" not in (name_of(constraint._transform), name_of(constraint._inv_transform)):
            return None
        return (
            f"a constraint with a custom transform cannot be stored; use {', '.join(CONSTRAINT_FUNCTIONS)}."
        )

    return Stored(
        {
            "transform": Field(read=lambda constraint: name_of(constraint._transform)),
            "inverse": Field(read=lambda constraint: name_of(constraint._inv_transform)),
        },
        build=build,
        infinite=("lower_bound", "upper_bound"),
        refuse=refuse,
    )


def _prior(**attributes: str) -> Stored:
    """How a prior is stored: its arguments, by the attributes from which they are read."""
    arguments = {name: Field((Tensor,), read=attribute) for name, attribute in attributes.items()}
    return Stored({"validate_args": OMITTED, "transform": OMITTED, **arguments}, refuse=_refuse_prior)


def _refuse_prior(prior: nn.Module) -> str | None:
    return (
        None
        if prior._transform is None
        else "a prior with a custom transform cannot be stored; use one without."
    )


def _refuse_mean(mean: Mean) -> str | None:
    parts = [*mean.children(), *getattr(mean, "batch_shape", ())]
    return "a mean with priors, constraints or batches cannot be stored; use one without." if parts else None


def rebuild(
    C: float,
    gamma: float,
    class_weight: dict[object, float] | str | None,
    classes: NDArray[np.generic],
    class_weights: NDArray[np.number],
    support: NDArray[np.number],
    support_vectors: NDArray[np.number],
    num_support: NDArray[np.number],
    dual_coefficients: NDArray[np.number],
    intercept: NDArray[np.number],
    num_iterations: NDArray[np.number],
    num_samples: int,
) -> SVC:
    """The SVC of these arrays, with the radial kernel exp(-gamma |x-x′|²).

    The installed version of scikit-learn fits a small SVC, whose arrays are then replaced. So all attributes
    of this version are present, and libsvm sees nothing of a file that was not checked.
    """
    require(classes.ndim == 1 and len(classes) >= 2, "classes that are not a list of at least two")
    require(np.array_equal(np.unique(classes), classes), "classes out of order")
    require(
        support_vectors.ndim == 2 and min(support_vectors.shape) > 0, "support vectors that are not a matrix"
    )
    many, count = len(classes), len(support_vectors)
    for array, shape, kind in (
        (support, (count,), "iu"),
        (num_support, (many,), "iu"),
        (dual_coefficients, (many - 1, count), "f"),
        (intercept, (many * (many - 1) // 2,), "f"),
        (class_weights, (many,), "f"),
        (num_iterations, intercept.shape, "iu"),
        (support_vectors, support_vectors.shape, "f"),
    ):
        require(array.shape == shape and array.dtype.kind in kind, f"an array of shape {array.shape}")
        require(bool(np.isfinite(array).all()), "numbers that are not finite")
    # libsvm uses these counts to walk through the support vectors
    require(
        bool((num_support >= 0).all()) and int(num_support.sum()) == count,
        "counts that do not add up to the number of support vectors",
    )
    corners = np.zeros((many, support_vectors.shape[1]))
    corners[:, 0] = np.arange(many)
    # fitted with harmless numbers, because with others libsvm might not terminate
    built = SVC(C=1.0, gamma="scale").fit(corners, classes)
    dual, offsets = dual_coefficients.astype(np.float64, order="C"), intercept.astype(np.float64)
    # for two classes, libsvm keeps the opposite signs
    inner = (-dual, -offsets) if many == 2 else (dual, offsets.copy())
    vars(built).update(
        C=C, gamma=gamma, _gamma=float(gamma), class_weight=class_weight, class_weight_=class_weights,
        support_=support.astype(np.int32), support_vectors_=support_vectors.astype(np.float64, order="C"),
        _n_support=num_support.astype(np.int32), dual_coef_=dual, _dual_coef_=inner[0], intercept_=offsets,
        _intercept_=inner[1], n_iter_=num_iterations.astype(np.int32),
        _num_iter=num_iterations.astype(np.int32), shape_fit_=(num_samples, support_vectors.shape[1]),
    )  # fmt: skip
    return built


def _refuse_svc(machine: SVC) -> str | None:
    is_radial = machine.kernel == "rbf" and not isinstance(machine.gamma, str)
    return None if is_radial else "only an SVC with the radial kernel and a gamma in numbers can be stored."


EXTERNAL_CLASSES: dict[type, Stored] = {
    **{kind: _constraint(kind) for kind in CONSTRAINTS},
    gpytorch.priors.GammaPrior: _prior(concentration="concentration", rate="rate"),
    gpytorch.priors.HalfCauchyPrior: _prior(scale="scale"),
    gpytorch.priors.HalfNormalPrior: _prior(scale="scale"),
    gpytorch.priors.LogNormalPrior: _prior(loc="loc", scale="scale"),
    gpytorch.priors.NormalPrior: _prior(loc="loc", scale="scale"),
    gpytorch.priors.UniformPrior: _prior(a="low", b="high"),
    ZeroMean: Stored({"batch_shape": OMITTED}, refuse=_refuse_mean),
    ConstantMean: Stored(
        dict.fromkeys(("constant_prior", "constant_constraint", "batch_shape"), OMITTED), refuse=_refuse_mean
    ),
    SVC: Stored(
        {
            "C": POSITIVE,
            "gamma": POSITIVE,
            "classes": Field(read="classes_"),
            "class_weights": Field(read="class_weight_"),
            "support": Field(read="support_"),
            "support_vectors": Field(read="support_vectors_"),
            "num_support": Field(read="n_support_"),
            "dual_coefficients": Field(read="dual_coef_"),
            "intercept": Field(read="intercept_"),
            "num_iterations": Field(read="n_iter_"),
            "num_samples": replace(COUNT, least=1, read=lambda machine: machine.shape_fit_[0]),
        },
        build=rebuild,
        refuse=_refuse_svc,
    ),
    **TRANSFORMERS,
}
"""Classes of other packages that a file may name, in addition to the kernels."""
