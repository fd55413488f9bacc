"""A library's transform as data: made where the library is installed, or written down as Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, final


@final
@dataclass(frozen=True)
class Constant:
    """A name that the library's module, or another `module`, gives a value to."""

    name: str
    module: str | None = None


@final
@dataclass(frozen=True)
class Call:
    """A class of the library and the arguments it is called with: numbers, text, calls, lists of these."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def make(value: Any, module: Any) -> Any:
    """What a call makes of the classes of a module."""
    if isinstance(value, Call):
        given = [make(each, module) for each in value.arguments]
        return getattr(module, value.name)(*given, **make(dict(value.options), module))
    if isinstance(value, Constant):
        source = module if value.module is None else importlib.import_module(value.module)
        return attrgetter(value.name)(source)
    if isinstance(value, dict):
        return {name: make(each, module) for name, each in value.items()}
    return type(value)(make(each, module) for each in value) if isinstance(value, list | tuple) else value


def code(value: Any, module: str) -> str:
    """The Python expression that makes the same, with the library's module under this name."""
    if isinstance(value, Call):
        given = [code(each, module) for each in value.arguments]
        given += [f"{name}={code(each, module)}" for name, each in value.options.items()]
        return f"{module}.{value.name}({', '.join(given)})"
    if isinstance(value, Constant):
        return f"{value.module or module}.{value.name}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {code(each, module)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(code(each, module) for each in value) + "]"
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return "(" + ", ".join(code(each, module) for each in value) + comma + ")"
    return repr(value)


def modules_of(value: Any) -> set[str]:
    """Modules beside the library's that a call needs."""
    if isinstance(value, Constant):
        return set() if value.module is None else {value.module}
    parts: list[Any] = []
    if isinstance(value, Call):
        parts = [*value.arguments, *value.options.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    return set().union(*(modules_of(each) for each in parts))
