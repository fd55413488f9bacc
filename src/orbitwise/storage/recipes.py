"""Recipes: which classes a file may name, and how objects of each are taken apart and built again.

An object is rebuilt by the constructor that its recipe names, from arguments whose types are checked, and
then takes its tensors. No name is ever imported, and no code is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn

Kinds = type | tuple[type, ...]


@final
@dataclass(frozen=True)
class Field:
    """An argument of a constructor: its types, those of its entries, and how an object tells it.

    Without `read` the object has an attribute of the same name. An argument that `is_size` may make the
    constructor allocate memory, or name things one by one.
    """

    kinds: Kinds
    read: Callable[[Any], Any] | None = None
    each: Kinds | None = None
    is_size: bool = False


@final
@dataclass(frozen=True)
class Recipe:
    """How objects of one class are stored and rebuilt.

    `build` stands in for the constructor. Parameters and buffers of a module, and of its parts named in
    `inner`, are stored and restored as they are, with the shapes the constructor gave them unless
    `any_shape`. `attributes` are set after building. `check` raises an error where an object makes no sense,
    and `refuse` says why an object cannot be stored; `never` says it of the whole class.
    """

    kind: type
    fields: Mapping[str, Field] = field(default_factory=dict)
    build: Callable[..., Any] | None = None
    inner: tuple[str, ...] = ()
    any_shape: bool = False
    has_state: bool = True
    attributes: Mapping[str, Field] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    refuse: Callable[[Any], str | None] | None = None
    never: str = ""


Table = Mapping[str, Recipe]


def table_of(*recipes: Recipe) -> dict[str, Recipe]:
    """Recipes by the names of their classes."""
    return {recipe.kind.__name__: recipe for recipe in recipes}


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
    return getattr(value, name) if each.read is None else each.read(value)


def has_kind(value: Any, each: Field) -> bool:
    """Whether a value of a file has one of the types of a field; no truth value counts as a number."""
    kinds = each.kinds if isinstance(each.kinds, tuple) else (each.kinds,)
    if isinstance(value, bool):
        return bool in kinds
    is_whole = isinstance(value, list | tuple)
    entries = value if is_whole and each.each is not None else ()
    if each.is_size and not all(
        type(size) is int and size > 0 for size in (value if is_whole else [value or 1])
    ):
        return False
    return isinstance(value, kinds) and all(has_kind(entry, Field(each.each or object)) for entry in entries)
