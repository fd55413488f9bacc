"""Recipes: how objects of a class are taken apart and built again, derived from the constructor of the class.

A file may name the final classes of Orbitwise that say `stored` (see `orbitwise.declarations`) or are kernels
or means, and the classes of other packages that `orbitwise.storage.foreign` lists. No name of a file is ever
imported. Numbers that are not finite, or so large or small that the product of two overflows, are refused.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, Union, final, get_args, get_origin, get_type_hints

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from jaxtyping import jaxtyped
from torch import Tensor, nn

from orbitwise.declarations import LARGEST, Field, Stored

START = 0.01
"""What a learnable range is made with, before it takes the tensors that it had."""
MOST_RECORDED = 2**1000
"""A whole number that is only told can be written as a float."""


def attribute_of(value: Any, name: str, each: Field) -> Any:
    """What an object says of an argument of its constructor."""
    if each.is_earlier:
        return None
    if each.switch:
        return START if attrgetter(each.switch)(value) else 0.0
    told = attrgetter(each.read or name)(value)
    if isinstance(told, nn.ModuleList):
        return list(told)
    if isinstance(told, Tensor) and Tensor not in each.kinds and float in each.kinds:
        return told.tolist() if list in each.kinds else told.item()
    return told


@final
@dataclass(frozen=True)
class Recipe:
    """How objects of one class are stored and rebuilt; see `Stored` for what a class may declare.

    `shapes` are annotations of tensors, which agree on the size of each dimension that they name. `several`
    is the argument that takes any number of values. Parameters and buffers of a module, and of its parts that
    are no arguments, are stored and restored as they are, with the shapes that the constructor gave them
    unless they may have `any_shape`.
    """

    kind: type
    arguments: Mapping[str, Field] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    several: str = ""
    build: Callable[..., Any] | None = None
    tell: Callable[[Any, str, Field], Any] = attribute_of
    has_state: bool = True
    any_shape: bool = False
    declared: Stored = field(default_factory=Stored)

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """An object of these arguments."""
        with jaxtyped("context"):
            # all of them at once, so that a dimension has one size
            wrong = [name for name, value in arguments.items() if not self._has_shape(name, value)]
        require(not wrong, f"{' and '.join(wrong)} of other shapes than its other arguments")
        given = {**self.fixed, **arguments}
        several = given.pop(self.several, [])
        built = (self.build or self.kind)(*several, **given)
        require(
            not self.several or len(several) == len(self.tell(built, self.several, Field())),
            f"{self.several} that it would not keep",
        )
        return built

    def _has_shape(self, name: str, value: Any) -> bool:
        shapes = self.shapes.get(name, ())
        return not (shapes and isinstance(value, Tensor)) or any(isinstance(value, each) for each in shapes)

    def own_tensors(self, value: Any) -> Iterable[tuple[str, Tensor]]:
        """Parameters and buffers of a module itself and of its own parts, by name."""
        if not (self.has_state and isinstance(value, nn.Module)):
            return
        parts = {*self.arguments, *(each.read.partition(".")[0] for each in self.arguments.values())}
        inner = [] if isinstance(value, Kernel) else [n for n, _ in value.named_children() if n not in parts]
        for part in ("", *inner):
            module, prefix = value.get_submodule(part), f"{part}." if part else ""
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    yield prefix + name, tensor


def derived(kind: type, declared: Stored, build: Callable[..., Any] | None = None) -> Recipe:
    """The recipe that follows from the constructor of a class and what the class declares."""
    build = build or (getattr(kind, declared.build) if declared.build else kind)
    arguments: dict[str, Field] = {}
    shapes: dict[str, tuple[type, ...]] = {}
    required, fixed, several = set(), {}, ""
    for name, parameter, annotation in parameters_of(build):
        each = merged(field_of(annotation), declared.arguments.get(name, Field()))
        if each.is_omitted:
            if each.fixed is not None or parameter.default is inspect.Parameter.empty:
                fixed[name] = each.fixed
            continue
        if shape := shapes_of(annotation):
            shapes[name] = shape
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            several, each = name, Field((list, tuple), each=each)
        elif parameter.default is inspect.Parameter.empty:
            required.add(name)
        arguments[name] = each if issubclass(kind, nn.Module) else _in_double_precision(each)
    return Recipe(kind, arguments, frozenset(required), fixed, shapes, several, build, declared=declared)


def declaration_of(kind: type) -> Stored:
    """What a class and its bases declare, the class before its bases."""
    whole = Stored()
    for base in reversed(kind.__mro__):
        if isinstance(own := vars(base).get("stored"), Stored):
            whole = replace(
                own,
                arguments={**whole.arguments, **own.arguments},
                attributes={**whole.attributes, **own.attributes},
                fitted={**whole.fitted, **own.fitted},
                sometimes={**whole.sometimes, **own.sometimes},
                infinite=own.infinite or whole.infinite,
            )
    return whole


def parameters_of(build: Any) -> Iterable[tuple[str, inspect.Parameter, Any]]:
    """The parameters of a constructor, and of those that its **arguments go to, with their annotations."""
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
                yield name, each, hints.get(name, Any)
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for _, each in parameters):
            return


def field_of(annotation: Any) -> Field:
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
    if hasattr(annotation, "array_type"):
        dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple) else ()
        return Field((annotation.array_type,), dtypes=dtypes)
    if annotation is float:
        return Field((int, float))
    if annotation is None:
        return Field((NoneType,))
    return Field((annotation if isinstance(annotation, type) and origin is None else object,))


def shapes_of(annotation: Any) -> tuple[type, ...]:
    """The annotations of tensors of known shapes that a value may have; none where any tensor will do."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return () if Tensor in members else tuple(each for each in members if hasattr(each, "array_type"))


def _either(fields: list[Field]) -> Field:
    each = [field.each for field in fields if field.each is not None]
    return Field(
        tuple(dict.fromkeys(kind for field in fields for kind in field.kinds)),
        each=_either(each) if each else None,
        dtypes=tuple(dict.fromkeys(dtype for field in fields for dtype in field.dtypes)),
    )


def merged(annotated: Field, declared: Field) -> Field:
    """What a class declares of an argument, and for the rest what its annotation says."""
    return replace(
        declared,
        kinds=declared.kinds or annotated.kinds,
        each=declared.each or annotated.each,
        dtypes=declared.dtypes or annotated.dtypes,
    )


def _in_double_precision(each: Field) -> Field:
    """The field of an object that is no module, and so has no precision of its own."""
    is_float = Tensor in each.kinds and (not each.dtypes or "float64" in each.dtypes)
    inside = None if each.each is None else _in_double_precision(each.each)
    return replace(each, each=inside, dtypes=("float64",) if is_float else each.dtypes)


def own_classes() -> dict[str, type]:
    """The classes of Orbitwise that a file may name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "orbitwise":
            classes = [each for each in vars(module).values() if isinstance(each, type)]
            found |= {each.__name__: each for each in classes if each.__module__ == name and is_own(each)}
    return found


def is_own(kind: type) -> bool:
    """Whether a class is a final one of Orbitwise that is stored."""
    is_ours = kind.__module__.partition(".")[0] == "orbitwise" and "__final__" in vars(kind)
    return is_ours and (isinstance(getattr(kind, "stored", None), Stored) or issubclass(kind, Kernel | Mean))


def require(holds: bool, what: str) -> None:
    """Raise a ValueError that says what a file holds where something does not hold."""
    if not holds:
        raise ValueError(what)


def has_kind(value: Any, each: Field) -> bool:
    """Whether a value of a file has one of the types of a field; no truth value counts as a number."""
    if isinstance(value, bool):
        return bool in each.kinds or object in each.kinds
    if not isinstance(value, each.kinds):
        return False
    if each.dtypes and isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.") in each.dtypes
    return each.each is None or all(has_kind(entry, each.each) for entry in entries_of(value))


def entries_of(value: Any) -> Iterable[Any]:
    """The entries of a list or tuple, the values of a dictionary, none of anything else."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def in_range(value: Any, each: Field, largest: float) -> bool:
    """Whether the numbers of a value lie within a field's bounds; whole ones by default within `largest`."""
    if isinstance(value, bool) or (each.is_record and isinstance(value, float | Tensor | np.ndarray)):
        return True
    if each.is_record and isinstance(value, int):
        return abs(value) <= MOST_RECORDED
    if isinstance(value, int | float):
        most = each.most if each.most is not None else largest if isinstance(value, int) else LARGEST
        least = max(each.least, -most)
        # false for NaN
        return bool(least <= value <= most)
    if isinstance(value, Tensor | np.ndarray):
        return is_plain_numbers(value, each.least, LARGEST if each.most is None else each.most)
    return all(in_range(entry, each, largest) for entry in entries_of(value))


def size_of(name: str, value: Any, each: Field) -> int:
    """How much an argument may make a constructor allocate: whole numbers, and products of shapes."""
    if each.most is not None or each.is_record or isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return max(1, abs(value))
    is_shape = name.endswith("shape") and isinstance(value, list | tuple)
    return math.prod(size_of(name, size, each) for size in value) if is_shape else 1


def is_plain_numbers(
    value: Any, least: float = -LARGEST, most: float = LARGEST, infinite: bool = False
) -> bool:
    """Whether all entries of floating-point numbers lie within bounds; NaN never does."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or not value.size:
            return True
        return bool(least <= float(value.min())) and bool(float(value.max()) <= most)
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype not in (torch.float32, torch.float64):
        return False
    # as floats of Python, because single precision knows neither bound
    low, high = (end.item() for end in torch.aminmax(value.detach()))
    return low <= high if infinite else least <= low and high <= most


def refusal(recipe: Recipe, value: Any) -> str | None:
    """Why an object cannot be stored, None where it can."""
    declared = recipe.declared
    return declared.never or (declared.refuse(value) if declared.refuse is not None else None)
