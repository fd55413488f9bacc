"""JSON and arrays turned back into values and objects of classes known by name; nothing is trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.declarations import Field
from orbitwise.storage.agreement import check_part
from orbitwise.storage.container import StorageError, brief, tensor_of
from orbitwise.storage.foreign import EARLIER_NAMES, known_classes, recipe_of
from orbitwise.storage.recipes import Recipe, has_kind, in_range, is_plain_numbers, size_of

MOST_OBJECTS = 5_000
MOST_PARTS = 10_000
DEEPEST = 60
SMALLEST_LIMIT = 2**20
"""Sizes up to this, or up to the size of the file where that is more, are not absurd."""
SMALLEST_BUDGET = 2**28
MEMORY_PER_BYTE = 4
SMALLEST_WORK = 2**28
WORK_PER_BYTE = 64
"""How often all numbers of a file may be given to objects, which look at each."""
MEMORY_PER_SIZE = 256
"""What an object may take for each entry of a size that it is told: numbers, and a name for each."""


@final
class Reader:
    """Turns JSON back into values, and trusts none of it."""

    def __init__(
        self,
        objects: Any = (),
        arrays: Mapping[str, NDArray[Any]] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.classes = known_classes() | EARLIER_NAMES
        self.arrays = {} if arrays is None else arrays
        self.device = torch.device("cpu") if device is None else device
        whole = sum(array.nbytes for array in self.arrays.values())
        self.largest = max(SMALLEST_LIMIT, whole)
        self._left = SMALLEST_BUDGET + MEMORY_PER_BYTE * whole
        self._work_left = SMALLEST_WORK + WORK_PER_BYTE * whole
        self._recipes: dict[str, Recipe] = {}
        self._built: list[Any] = []
        self._parts: list[tuple[int, int]] = []
        self._met: list[tuple[int, int]] = []
        self._tensors: dict[str, tuple[dict[str, Any], Tensor]] = {}
        self._copies: dict[str, NDArray[Any]] = {}
        if not isinstance(objects, list | tuple) or len(objects) > MOST_OBJECTS:
            raise StorageError("The file is damaged or hostile: its objects are no list, or too many.")
        for place, node in enumerate(objects):
            self._build(place, node)

    def value(self, given: Any, depth: int = 0) -> Any:
        """The value that JSON stands for, or a StorageError."""
        if depth > DEEPEST:
            raise StorageError("The file is damaged or hostile: its structure is nested too deeply.")
        if given is None or isinstance(given, bool | str | int):
            return given
        if isinstance(given, float) and math.isfinite(given):
            return given
        if isinstance(given, list):
            return [self.value(each, depth + 1) for each in given]
        if isinstance(given, dict) and len(given) == 1:
            ((kind, content),) = given.items()
            if kind == "tuple" and isinstance(content, list):
                return tuple(self.value(each, depth + 1) for each in content)
            if kind == "mapping" and isinstance(content, dict):
                return {key: self.value(each, depth + 1) for key, each in content.items()}
            if kind == "pairs" and isinstance(content, list):
                return self._dictionary([self.value(each, depth + 1) for each in content])
            if kind == "float" and content in ("nan", "inf", "-inf"):
                return float(content)
            if kind == "object" and type(content) is int and 0 <= content < len(self._built):
                self._met.append(self._parts[content])
                return self._built[content]
            if kind == "tensor" and isinstance(content, dict):
                return self._tensor(content)
            if kind == "array" and isinstance(content, dict):
                return self._array(content)
        raise StorageError(f"The file is damaged or hostile: {brief(given)} stands for nothing.")

    def arguments(
        self, given: Any, fields: Mapping[str, Field], what: str, required: Iterable[str]
    ) -> dict[str, Any]:
        """The values of a mapping of these fields, of their types, and in it all that are required."""
        if not isinstance(given, dict) or not set(required) <= set(given) <= set(fields):
            raise StorageError(
                f"The file is damaged or hostile: {what} needs {', '.join(fields) or 'nothing'}."
            )
        values = {name: self.value(each) for name, each in given.items()}
        for name, value in values.items():
            self._count_work(value)
            if not has_kind(value, fields[name]):
                raise StorageError(f"The file is damaged or hostile: {name} of {what} is {brief(value)}.")
            if not in_range(value, fields[name], self.largest):
                raise StorageError(
                    f"The file is damaged or hostile: {name} of {what} has numbers out of range."
                )
        return values

    def _count_work(self, value: Any) -> None:
        """Count the numbers that are looked at, however often they are named."""
        self._work_left -= value.nbytes if isinstance(value, Tensor | np.ndarray) else 0
        if self._work_left < 0:
            raise StorageError("The file is damaged or hostile: it uses its numbers far too often.")

    def _spend(self, num_bytes: int) -> None:
        """Take memory from the one budget of the file, before it is used."""
        self._left -= num_bytes
        if self._left < 0:
            raise StorageError(
                "The file is damaged or hostile: what it describes takes far more memory than what it holds."
            )

    def _build(self, place: int, node: Any) -> None:
        if not isinstance(node, dict) or set(node) != {"type", "arguments", "attributes", "state", "learned"}:
            raise StorageError(f"The file is damaged or hostile: object {place} is incomplete.")
        recipe = self._recipe(node["type"])
        self._met = []
        given = node["arguments"]
        if isinstance(given, dict):
            given = {recipe.declared.earlier.get(name, name): each for name, each in given.items()}
        arguments = self.arguments(given, recipe.arguments, node["type"], recipe.required)
        attributes = self.arguments(node["attributes"], recipe.declared.attributes, node["type"], ())
        count, depth = sum(each for each, _ in self._met), max((each for _, each in self._met), default=0)
        if count > MOST_PARTS or depth > DEEPEST:
            raise StorageError("The file is damaged or hostile: its objects are nested too deeply.")
        size = math.prod(size_of(name, value, recipe.arguments[name]) for name, value in arguments.items())
        if size > self.largest:
            raise StorageError(f"The file is damaged or hostile: sizes of {node['type']} are out of range.")
        cost = 0 if recipe.declared.cost is None else recipe.declared.cost(arguments)
        self._spend(MEMORY_PER_SIZE * size + cost)
        try:
            built = recipe.make(arguments)
            self._restore(recipe, built, node["state"], node["learned"])
            for name, value in attributes.items():
                *path, last = name.split(".")
                setattr(attrgetter(".".join(path))(built) if path else built, last, value)
            check_part(built)
        except StorageError:
            raise
        except Exception as error:
            what = f"no {node['type']} can be built of what it holds ({brief(error)})"
            raise StorageError(f"The file is damaged or hostile: {what}.") from error
        self._built.append(built)
        self._parts.append((count + 1, depth + 1))

    def _recipe(self, name: Any) -> Recipe:
        kind = self.classes.get(name) if isinstance(name, str) else None
        if kind is not None and name not in self._recipes and (recipe := recipe_of(kind)) is not None:
            self._recipes[name] = recipe
        if kind is None or self._recipes[name].declared.never:
            raise StorageError(
                f"The file names an unknown class {brief(name)}; it is hostile, or needs another version of "
                "Orbitwise."
            )
        return self._recipes[name]

    def _restore(self, recipe: Recipe, built: Any, state: Any, learned: Any) -> None:
        own = dict(recipe.own_tensors(built))
        if not isinstance(state, dict) or set(state) != set(own) or not isinstance(learned, list):
            raise StorageError(
                f"The file is damaged or hostile: {recipe.kind.__name__} has other tensors "
                "than those that it is made with."
            )
        for name, old in own.items():
            new = self.value(state[name])
            self._count_work(new)
            fits = isinstance(new, Tensor) and (
                new.dtype == old.dtype or (new.is_floating_point() and old.is_floating_point())
            )
            fits = fits and is_plain_numbers(new, infinite=name in recipe.declared.infinite)
            if not fits or (new.shape != old.shape and not recipe.any_shape):
                raise StorageError(
                    f"The file is damaged or hostile: {name} of {recipe.kind.__name__} is wrong."
                )
            *path, last = name.split(".")
            module = built.get_submodule(".".join(path))
            if isinstance(old, nn.Parameter):
                old.data = new
                old.requires_grad_(name in learned)
            else:
                setattr(module, last, new)

    def _dictionary(self, pairs: list[Any]) -> dict[Any, Any]:
        if not all(
            isinstance(each, list) and len(each) == 2 and isinstance(each[0], str | bool | int | float)
            for each in pairs
        ):
            raise StorageError("The file is damaged or hostile: a dictionary in it makes no sense.")
        return dict(pairs)

    def _tensor(self, content: dict[str, Any]) -> Tensor:
        name = content.get("name")
        if not isinstance(name, str) or name not in self.arrays:
            raise StorageError("The file is damaged or hostile: it refers to a tensor that it does not hold.")
        if name not in self._tensors:
            tensor = tensor_of(self.arrays[name], content, self.largest, self.device)
            self._spend(tensor.numel() * tensor.element_size())
            self._tensors[name] = content, tensor
        layout, tensor = self._tensors[name]
        if layout != content:
            raise StorageError("The file is damaged or hostile: it gives one tensor two layouts.")
        return tensor

    def _array(self, content: dict[str, Any]) -> NDArray[Any]:
        name, values, width = (content.get(key) for key in ("name", "values", "width"))
        if isinstance(name, str) and name in self.arrays:
            if name not in self._copies:
                self._spend(self.arrays[name].nbytes)
                self._copies[name] = self.arrays[name].copy()
            return self._copies[name]
        if isinstance(values, list):
            entries = [self.value(each) for each in values]
            if width is None and all(isinstance(each, str | int | float | None) for each in entries):
                array = np.empty(len(entries), dtype=object)
                array[:] = entries
                return array
            size = width if isinstance(width, int) and width >= 0 else self.largest + 1
            fits = all(isinstance(each, str) and len(each) <= size for each in entries)
            if fits and size * max(1, len(entries)) <= self.largest:
                self._spend(4 * size * len(entries))
                return np.array(entries, dtype=f"<U{max(1, size)}")
        raise StorageError("The file is damaged or hostile: an array in it makes no sense.")
