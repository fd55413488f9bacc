"""Conversion of values and objects to JSON and arrays, and back; nothing that is read is trusted.

A file lists its objects, and each refers only to earlier ones, so that there are no cycles and the nesting
stays shallow. Parts that objects share are shared again after reading. A pipeline is the list of its steps
around its estimator. `check_same` compares what was written with what is read back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from orbitwise.declarations import Field
from orbitwise.storage.container import StorageError, brief, damaged, layout_of, tensor_of
from orbitwise.storage.recipes import (
    Recipe,
    check_built,
    has_kind,
    in_range,
    known_classes,
    recipe_of,
    size_of,
)
from orbitwise.storage.transformers import check_width, pipeline

KEYS = (str, bool, int, float, np.generic)
"""Types of keys of dictionaries."""
MOST_OBJECTS = 5_000
MOST_PARTS = 10_000
DEEPEST = 60
SMALLEST_LIMIT = 2**20
"""Sizes up to this, or up to that of the file if it is larger, are accepted."""
SMALLEST_BUDGET = 2**28
MEMORY_PER_BYTE = 4
SMALLEST_WORK = 2**28
WORK_PER_BYTE = 64
"""How often all numbers of a file may be used by objects, each of which checks them."""
MEMORY_PER_SIZE = 256
"""The bytes that an object may allocate for each entry of a size: numbers, and a name for each."""


@final
class Writer:
    """Turns values into JSON; `objects` and `arrays` collect what they refer to."""

    def __init__(self) -> None:
        self.objects: list[dict[str, object]] = []
        self.arrays: dict[str, NDArray[np.generic]] = {}
        # Keeping the values prevents Python from giving their identity to another object meanwhile.
        self._known: dict[int, tuple[object, dict[str, object]]] = {}

    def value(self, value: object, path: str) -> object:
        """A value as JSON; error messages name the `path` at which it was found."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.generic):
            return self.value(value.item(), path)
        if isinstance(value, int | float):
            is_plain = isinstance(value, int) or math.isfinite(value)
            return value if is_plain else {"float": str(float(value))}
        if isinstance(value, list | tuple) and type(value) in (list, tuple, torch.Size):
            entries = [self.value(each, f"{path}[{i}]") for i, each in enumerate(value)]
            return entries if isinstance(value, list) else {"tuple": entries}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"mapping": self.values(value, path)}
        if type(value) is dict and all(isinstance(key, KEYS) for key in value):
            return {"pairs": [[self.value(key, path), self.value(each, path)] for key, each in value.items()]}
        if id(value) not in self._known:
            self._known[id(value)] = value, self._referred(value, path)
        return self._known[id(value)][1]

    def values(self, values: Mapping[str, object], path: str) -> dict[str, object]:
        """Each of these values as JSON."""
        return {name: self.value(each, f"{path}.{name}") for name, each in values.items()}

    def _referred(self, value: object, path: str) -> dict[str, object]:
        """Keep a tensor, an array or an object, and return the reference to it."""
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
                "of Orbitwise, GPyTorch and scikit-learn that it knows by name, and no code. Use one of "
                "those instead."
            )
        if reason := recipe.refusal(value):
            raise StorageError(f"{path}: {reason}")
        try:
            arguments = {name: recipe.argument_of(value, name) for name in recipe.arguments}
        except AttributeError as error:
            raise StorageError(
                f"{path}: a {type(value).__name__} cannot be stored, because it has no attribute for each "
                f"argument of its constructor ({error}); add the attribute, or declare in its `stored` "
                "how the argument is read."
            ) from error
        attributes = {name: _attribute(value, name) for name in recipe.declared.attributes}
        own = dict(recipe.own_tensors(value))
        # None is always the default
        stored = {
            name: each for name, each in arguments.items() if each is not None or name in recipe.required
        }
        node: dict[str, object] = {
            "type": type(value).__name__,
            "arguments": self.values(stored, path),
            "attributes": self.values({n: each for n, each in attributes.items() if each is not None}, path),
            "state": self.values(own, path),
            "learned": [name for name, each in own.items() if each.requires_grad],
        }
        self.objects.append(node)
        return {"object": len(self.objects) - 1}

    def _array(self, array: NDArray[np.generic], path: str) -> dict[str, object]:
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            return {"name": self._keep(array.astype(array.dtype.newbyteorder("=")))}
        if array.dtype.kind in "UO" and array.ndim == 1:
            width = array.dtype.itemsize // 4 if array.dtype.kind == "U" else None
            return {"width": width, "values": self.value(array.tolist(), path)}
        raise StorageError(
            f"{path} is an array of {array.dtype}, which cannot be stored; use numbers or text."
        )

    def _keep(self, array: NDArray[np.generic]) -> str:
        name = f"tensor_{len(self.arrays)}"
        self.arrays[name] = array
        return name


def _attribute(value: object, path: str) -> object:
    """An attribute of an object or, with dots, of a part of it; None if there is no such part."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


@final
class Reader:
    """Turns JSON back into values, whose classes must be known by name, and trusts none of it."""

    def __init__(
        self,
        objects: object = (),
        arrays: Mapping[str, NDArray[np.generic]] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.classes = known_classes()
        self.arrays = {} if arrays is None else arrays
        self.device = torch.device("cpu") if device is None else device
        whole = sum(array.nbytes for array in self.arrays.values())
        self.largest = max(SMALLEST_LIMIT, whole)
        self._left = SMALLEST_BUDGET + MEMORY_PER_BYTE * whole
        self._work_left = SMALLEST_WORK + WORK_PER_BYTE * whole
        self._recipes: dict[str, Recipe] = {}
        self._built: list[object] = []
        self._parts: list[tuple[int, int]] = []
        self._met: list[tuple[int, int]] = []
        self._tensors: dict[str, tuple[Mapping[str, object], Tensor]] = {}
        self._copies: dict[str, NDArray[np.generic]] = {}
        if not isinstance(objects, list | tuple) or len(objects) > MOST_OBJECTS:
            raise damaged("it needs a list of objects, not too many")
        for place, node in enumerate(objects):
            if not isinstance(node, dict) or set(node) != {
                *("type", "arguments", "attributes", "state", "learned")
            }:
                raise damaged(f"object {place} is incomplete")
            self._build(node)

    def value(self, given: object, depth: int = 0) -> object:
        """The value that was written as this JSON, or a StorageError."""
        if depth > DEEPEST:
            raise damaged("its structure is nested too deeply")
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
                return _dictionary([self.value(each, depth + 1) for each in content])
            if kind == "float" and content in ("nan", "inf", "-inf"):
                return float(content)
            if kind == "object" and type(content) is int and 0 <= content < len(self._built):
                self._met.append(self._parts[content])
                return self._built[content]
            if kind == "tensor" and isinstance(content, dict):
                return self._tensor(content)
            if kind == "array" and isinstance(content, dict):
                return self._array(content)
        raise damaged(f"{brief(given)} is not a value that Orbitwise writes")

    def arguments(
        self, given: object, fields: Mapping[str, Field], what: str, required: Iterable[str]
    ) -> dict[str, object]:
        """The values of a mapping: all of the types of their fields, and none of those `required` missing."""
        if not isinstance(given, dict) or not set(required) <= set(given) <= set(fields):
            raise damaged(f"{what} needs {', '.join(fields) or 'no entries'}")
        values = {name: self.value(each) for name, each in given.items()}
        for name, value in values.items():
            self._count_work(value)
            if not has_kind(value, fields[name]):
                raise damaged(f"{name} of {what} cannot be {brief(value)}")
            if not in_range(value, fields[name], self.largest):
                raise damaged(f"{name} of {what} has numbers out of range")
        return values

    def _count_work(self, value: object) -> None:
        """Count the numbers that are checked; a tensor that is used twice counts twice."""
        self._work_left -= value.nbytes if isinstance(value, Tensor | np.ndarray) else 0
        if self._work_left < 0:
            raise damaged("it refers to the same numbers far too often")

    def _spend(self, num_bytes: int) -> None:
        """Subtract memory from the budget of the file before it is allocated."""
        self._left -= num_bytes
        if self._left < 0:
            raise damaged("what it describes takes far more memory than what it holds")

    def _build(self, node: Mapping[str, object]) -> None:
        recipe = self._recipe(node["type"])
        name, declared = recipe.kind.__name__, recipe.declared
        self._met = []
        arguments = self.arguments(node["arguments"], recipe.arguments, name, recipe.required)
        attributes = self.arguments(node["attributes"], declared.attributes, name, ())
        count, depth = sum(each for each, _ in self._met), max((each for _, each in self._met), default=0)
        if count > MOST_PARTS or depth > DEEPEST:
            raise damaged("its objects are nested too deeply")
        size = math.prod(size_of(each, value, recipe.arguments[each]) for each, value in arguments.items())
        if size > self.largest:
            raise damaged(f"sizes of {name} are out of range")
        self._spend(MEMORY_PER_SIZE * size + (0 if declared.cost is None else declared.cost(arguments)))
        try:
            built = recipe.make(arguments)
            self._restore(recipe, built, node["state"], node["learned"])
            for path, value in attributes.items():
                part, _, last = path.rpartition(".")
                setattr(attrgetter(part)(built) if part else built, last, value)
            check_built(built)
        except StorageError:
            raise
        except Exception as error:
            raise damaged(f"no {name} can be built from what it holds ({brief(error)})") from error
        self._built.append(built)
        self._parts.append((count + 1, depth + 1))

    def _recipe(self, name: object) -> Recipe:
        kind = self.classes.get(name) if isinstance(name, str) else None
        if kind is not None and name not in self._recipes and (recipe := recipe_of(kind)) is not None:
            self._recipes[str(name)] = recipe
        if kind is None or self._recipes[str(name)].declared.never:
            raise StorageError(
                f"The file names an unknown class {brief(name)}; it is hostile, or needs another version of "
                "Orbitwise."
            )
        return self._recipes[str(name)]

    def _restore(self, recipe: Recipe, built: object, state: object, learned: object) -> None:
        """Restore the stored tensors of a module."""
        own = dict(recipe.own_tensors(built))
        if not isinstance(state, dict) or set(state) != set(own) or not isinstance(learned, list):
            raise damaged(f"{recipe.kind.__name__} has other tensors than its class creates")
        for name, old in own.items():
            new = self.value(state[name])
            self._count_work(new)
            if not isinstance(new, Tensor) or not recipe.accepts(name, old, new):
                raise damaged(f"{name} of {recipe.kind.__name__} is wrong")
            if isinstance(old, nn.Parameter):
                old.data = new
                old.requires_grad_(name in learned)
            else:
                part, _, last = name.rpartition(".")
                setattr(attrgetter(part)(built) if part else built, last, new)

    def _tensor(self, content: Mapping[str, object]) -> Tensor:
        name = content.get("name")
        if not isinstance(name, str) or name not in self.arrays:
            raise damaged("it refers to a tensor that it does not hold")
        if name not in self._tensors:
            tensor = tensor_of(self.arrays[name], content, self.largest, self.device)
            self._spend(tensor.numel() * tensor.element_size())
            self._tensors[name] = content, tensor
        layout, tensor = self._tensors[name]
        if layout != content:
            raise damaged("it gives one tensor two layouts")
        return tensor

    def _array(self, content: Mapping[str, object]) -> NDArray[np.generic]:
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
        raise damaged("an array in it is malformed")


def _dictionary(pairs: list[object]) -> dict[object, object]:
    found: dict[object, object] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str | bool | int | float):
            raise damaged("a dictionary in it is malformed")
        found[pair[0]] = pair[1]
    return found


def estimator_in(model: object) -> Any:
    """The last step of a pipeline, or the model itself if it is none."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def steps_of(model: object, writer: Writer) -> object:
    """The steps of a pipeline, of the estimator only its name; None for what is no pipeline."""
    if not isinstance(model, Pipeline):
        return None
    return writer.value([*model.steps[:-1], (model.steps[-1][0], None)], "model.steps")


def pipeline_of(steps: object, model: BaseEstimator) -> Pipeline:
    """The pipeline of a file around its estimator."""
    is_list = isinstance(steps, list) and all(isinstance(each, tuple) and len(each) == 2 for each in steps)
    if not is_list or not isinstance(steps, list) or not all(isinstance(name, str) for name, _ in steps):
        raise damaged("its pipeline is malformed")
    *before, (name, _) = steps
    try:
        if before:
            check_width(pipeline(before), int(vars(model)["n_features_in_"]))
        return Pipeline([*before, (name, model)])
    except ValueError as error:
        raise damaged(f"its pipeline is malformed ({brief(error)})") from error


def check_same(model: object, copy: object) -> None:
    """Raise a StorageError unless a copy holds all that an estimator, or a pipeline with one, holds."""
    _check_equal(estimator_in(model), estimator_in(copy))
    _check_steps(model, copy)


def _check_equal(model: object, copy: object) -> None:
    """Raise a StorageError unless the copy has every parameter and buffer of the model, bit for bit."""
    for one, other in zip(_modules(model), _modules(copy), strict=True):
        left, right = one.state_dict(), other.state_dict()
        if list(left) != list(right) or any(_bytes_of(left[name]) != _bytes_of(right[name]) for name in left):
            raise StorageError(f"a part of {type(one).__name__} would be lost.")


def _modules(model: Any) -> list[nn.Module]:
    if hasattr(model, "machine_"):
        return [model.machine_.process]
    if hasattr(model, "svc_"):
        return []
    return [model.functional_, model.posterior_.process]


def _bytes_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.cpu().numpy().tobytes()


def _check_steps(model: object, copy: object) -> None:
    """Raise a StorageError unless the transformers of two pipelines hold the same."""
    one, other = Writer(), Writer()
    is_same = steps_of(model, one) == steps_of(copy, other) and one.objects == other.objects
    arrays = [
        [(each.dtype, each.shape, each.tobytes()) for each in writer.arrays.values()]
        for writer in (one, other)
    ]
    if not is_same or arrays[0] != arrays[1]:
        raise StorageError("a part of the transformers before the estimator would be lost.")
