"""Recipes: which classes a file may name, and how objects of each are taken apart and built again.

An object is rebuilt by the constructor that its recipe names, from arguments whose types are checked, and
then takes its tensors. No name is ever imported, and no code is ever stored. Fields say which numbers make
sense: those that are not finite, or so large or small that the product of two overflows, never do by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

Kinds = type | tuple[type, ...]
LARGEST = 1e150
"""Numbers of a model are no greater, so that the product of any two is finite; that of three may not be."""
MOST_RECORDED = 2**1000
"""A whole number that is only told can be written as a float."""
SMALLEST = 1e-150
"""Numbers that are divided by are no smaller."""


@final
@dataclass(frozen=True)
class Field:
    """An argument of a constructor: its types, those of its entries, and how an object tells it.

    Without `read` the object has an attribute of the same name. An argument that `is_size` may make the
    constructor allocate memory, or name things one by one. Numbers, alone or as entries, lie between `least`
    and `most`; a whole number without a bound of its own is at most as large as the file. `is_record` marks
    numbers that are told and never computed with, which may be NaN or infinite. A tensor has the `dtype`, if
    one is named. What `is_new` is missing in files of earlier versions, and is not written where it is None.
    """

    kinds: Kinds
    read: Callable[[Any], Any] | None = None
    each: Kinds | None = None
    is_size: bool = False
    least: float = -LARGEST
    most: float | None = None
    is_record: bool = False
    dtype: torch.dtype | None = None
    is_new: bool = False


RECORD = Field((int, float), is_record=True)
"""A number that is told, and never computed with."""


@final
@dataclass(frozen=True)
class Recipe:
    """How objects of one class are stored and rebuilt.

    `build` stands in for the constructor. Parameters and buffers of a module, and of its parts named in
    `inner`, are stored and restored as they are, with the shapes the constructor gave them unless
    `any_shape`; those named in `infinite` may have infinite entries. `attributes`, also those of
    parts, are set after building. `cost` is what building takes beyond the sizes, in bytes. `check` raises an
    error where an object makes no sense, and `refuse` says why an object cannot be stored; `never` says it of
    the whole class.
    """

    kind: type
    fields: Mapping[str, Field] = field(default_factory=dict)
    build: Callable[..., Any] | None = None
    inner: tuple[str, ...] = ()
    any_shape: bool = False
    infinite: tuple[str, ...] = ()
    has_state: bool = True
    attributes: Mapping[str, Field] = field(default_factory=dict)
    cost: Callable[[Mapping[str, Any]], int] | None = None
    check: Callable[[Any], None] | None = None
    refuse: Callable[[Any], str | None] | None = None
    never: str = ""


Table = Mapping[str, Recipe]


def table_of(*recipes: Recipe) -> dict[str, Recipe]:
    """Recipes by the names of their classes."""
    return {recipe.kind.__name__: recipe for recipe in recipes}


def require(holds: bool, what: str) -> None:
    """Raise a ValueError that says what a file holds where something does not hold."""
    if not holds:
        raise ValueError(what)


def own_tensors(recipe: Recipe, value: Any) -> Iterable[tuple[str, Tensor]]:
    """Parameters and buffers of a module itself and of its inner parts, by name."""
    if not (recipe.has_state and isinstance(value, nn.Module)):
        return
    for part in ("", *recipe.inner):
        module, prefix = value.get_submodule(part), f"{part}." if part else ""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield prefix + name, tensor


def read_field(value: Any, name: str, each: Field) -> Any:
    """What an object says of a field."""
    return attrgetter(name)(value) if each.read is None else each.read(value)


def has_kind(value: Any, each: Field) -> bool:
    """Whether a value of a file has one of the types of a field; no truth value counts as a number."""
    kinds = each.kinds if isinstance(each.kinds, tuple) else (each.kinds,)
    if isinstance(value, bool):
        return bool in kinds
    is_whole = isinstance(value, list | tuple)
    entries = entries_of(value) if each.each is not None else ()
    if each.is_size and not all(
        type(size) is int and size > 0 for size in (value if is_whole else [value or 1])
    ):
        return False
    if each.dtype is not None and isinstance(value, Tensor) and value.dtype != each.dtype:
        return False
    return isinstance(value, kinds) and all(has_kind(entry, Field(each.each or object)) for entry in entries)


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
        most = LARGEST if each.most is None else each.most
        return is_plain_numbers(value, each.least, most)
    return each.each is None or all(in_range(entry, each, largest) for entry in entries_of(value))


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
