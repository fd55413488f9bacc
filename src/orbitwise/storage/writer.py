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

from orbitwise.storage.container import StorageError
from orbitwise.storage.layouts import layout_of
from orbitwise.storage.recipes import Table, own_tensors, read_field

KEYS = (str, bool, int, float, np.generic)
"""What may be a key of a dictionary."""


@final
class Writer:
    """Turns values into JSON; `objects` and `arrays` collect what they refer to."""

    def __init__(self, table: Table) -> None:
        self.table = table
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
        recipe = self.table.get(type(value).__name__)
        if recipe is None or type(value) is not recipe.kind:
            raise StorageError(
                f"{path} is a {type(value).__name__}, which cannot be stored: a file holds data and classes "
                "of Orbitwise and GPyTorch that it knows by name, and no code. Use one of those instead."
            )
        if reason := recipe.never or (recipe.refuse(value) if recipe.refuse is not None else None):
            raise StorageError(f"{path}: {reason}")
        node: dict[str, Any] = {"type": type(value).__name__}
        for part, fields in (("arguments", recipe.fields), ("attributes", recipe.attributes)):
            read = {name: read_field(value, name, each) for name, each in fields.items()}
            read = {name: each for name, each in read.items() if each is not None or not fields[name].is_new}
            node[part] = {name: self.value(each, f"{path}.{name}") for name, each in read.items()}
        own = dict(own_tensors(recipe, value))
        node["state"] = {name: self.value(each, f"{path}.{name}") for name, each in own.items()}
        node["learned"] = [name for name, each in own.items() if each.requires_grad]
        self.objects.append(node)
        return {"object": len(self.objects) - 1}

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
