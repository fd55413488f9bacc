"""Values and objects as JSON, with their arrays beside it.

A file lists its objects; each refers only to those before it, so that there are no cycles and nothing is
nested deeply. What is shared between objects stays shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.storage.container import StorageError, layout_of
from orbitwise.storage.foreign import recipe_of
from orbitwise.storage.recipes import Recipe, refusal

KEYS = (str, bool, int, float, np.generic)
"""What may be a key of a dictionary."""


@final
class Writer:
    """Turns values into JSON; `objects` and `arrays` collect what they refer to."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = []
        self.arrays: dict[str, NDArray[Any]] = {}
        # Values are kept beside what stands for them, so that no other gets their identity meanwhile.
        self._known: dict[int, tuple[Any, dict[str, Any]]] = {}

    def value(self, value: Any, path: str) -> Any:
        """JSON that stands for a value; `path` says where it was found, for errors."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.generic):
            return self.value(value.item(), path)
        if isinstance(value, int | float):
            is_plain = isinstance(value, int) or math.isfinite(value)
            return value if is_plain else {"float": str(float(value))}
        if type(value) in (list, tuple, torch.Size):
            entries = [self.value(each, f"{path}[{i}]") for i, each in enumerate(value)]
            return entries if isinstance(value, list) else {"tuple": entries}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"mapping": {key: self.value(each, f"{path}.{key}") for key, each in value.items()}}
        if type(value) is dict and all(isinstance(key, KEYS) for key in value):
            pairs = [[self.value(key, path), self.value(each, path)] for key, each in value.items()]
            return {"pairs": pairs}
        if id(value) not in self._known:
            self._known[id(value)] = value, self._referred(value, path)
        return self._known[id(value)][1]

    def _referred(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, Tensor):
            try:
                array, layout = layout_of(value)
            except StorageError as error:
                raise StorageError(f"{path}: {error}") from error
            return {"tensor": {"name": self._keep(array), **layout}}
        if isinstance(value, np.ndarray):
            return {"array": self._array(value, path)}
        recipe = recipe_of(type(value))
        if recipe is None:
            raise StorageError(
                f"{path} is a {type(value).__name__}, which cannot be stored: a file holds data and classes "
                "of Orbitwise and GPyTorch that it knows by name, and no code. Use one of those instead."
            )
        if reason := refusal(recipe, value):
            raise StorageError(f"{path}: {reason}")
        arguments, attributes = self._told(recipe, value, path)
        own = dict(recipe.own_tensors(value))
        node = {
            "type": type(value).__name__,
            "arguments": {name: self.value(each, f"{path}.{name}") for name, each in arguments.items()},
            "attributes": {name: self.value(each, f"{path}.{name}") for name, each in attributes.items()},
            "state": {name: self.value(each, f"{path}.{name}") for name, each in own.items()},
            "learned": [name for name, each in own.items() if each.requires_grad],
        }
        self.objects.append(node)
        return {"object": len(self.objects) - 1}

    def _told(self, recipe: Recipe, value: Any, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments that make an object again, and the attributes that it then takes."""
        kind = recipe.kind.__name__
        try:
            arguments = {name: recipe.tell(value, name, each) for name, each in recipe.arguments.items()}
        except AttributeError as error:
            raise StorageError(
                f"{path}: a {kind} cannot be stored, because it has no attribute for each argument of its "
                f"constructor ({error}); give it one, or say in its `stored` how the argument is read."
            ) from error
        found = {name: attribute_at(value, name) for name in recipe.declared.attributes}
        # what is None is so by default
        return (
            {name: each for name, each in arguments.items() if each is not None or name in recipe.required},
            {name: each for name, each in found.items() if each is not None},
        )

    def _array(self, array: NDArray[Any], path: str) -> dict[str, Any]:
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            return {"name": self._keep(array.astype(array.dtype.newbyteorder("=")))}
        if array.dtype.kind in "UO" and array.ndim == 1:
            width = array.dtype.itemsize // 4 if array.dtype.kind == "U" else None
            return {"width": width, "values": self.value(array.tolist(), path)}
        raise StorageError(
            f"{path} is an array of {array.dtype}, which cannot be stored; use numbers or text."
        )

    def _keep(self, array: NDArray[Any]) -> str:
        name = f"tensor_{len(self.arrays)}"
        self.arrays[name] = array
        return name


def attribute_at(value: Any, path: str) -> Any:
    """An attribute of an object or, dotted, of a part; None where there is no such part."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
