"""Files of models, opened, changed in every way that keeps them files, and sealed again."""

from __future__ import annotations

import collections
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from orbitwise.storage.container import unpack, with_checksum

DTYPES = {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"}
DTYPES |= {
    f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class File(NamedTuple):
    """What a file holds, free to be changed: the structure, the arrays, and edits of the header itself."""

    structure: Any
    arrays: dict[str, np.ndarray]
    header: dict[str, Any]


Others = Callable[[], File]
"""A file of a model, of any kind."""


def sealed(file: File) -> bytes:
    """The bytes of a file with the right lengths and the right checksum, whatever it holds."""
    entries: dict[str, Any] = {}
    body = bytearray()
    for name, array in file.arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        offsets = [len(body), len(body) + len(data)]
        entries[name] = {
            "dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets
        }  # fmt: skip
        body += data
    metadata = {"format": "orbitwise", "format_version": "1", "sha256": "0" * 64}
    metadata["structure"] = json.dumps(file.structure, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": metadata, **entries}
    for name, change in file.header.items():
        header[name] = {**header.get(name, {}), **change} if isinstance(change, dict) else change
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return with_checksum(len(text).to_bytes(8, "little") + text + bytes(body))


def opened(data: bytes) -> File:
    """The contents of a file that is right, free to be changed."""
    structure, arrays = unpack(data)
    return File(copy.deepcopy(structure), {name: array.copy() for name, array in arrays.items()}, {})


# What stands in place of any value of the JSON.
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 255, 10**5, 2**20, 2**31, 2**63, 10**18, -(10**18), 10**400,
    0.0, -0.5, 0.5, 1e-320, 1e-30, 1e30, 1e101, -1e149, 1e154, 1e308, -1e308, float("nan"), float("inf"),
    {"float": "nan"},
    {"float": "inf"}, {"float": "-inf"}, "", "x", "x" * 100_000, "é" * 50, "\ud800", "\x1b[31mred\x07",
    "[bold]",
    "../../../../elsewhere", "cuda:7", "exp", "softmax", "wrap", [], {}, [[]], {"tuple": []},
    {"tuple": [0, -1]},
    {"tuple": [2, 2]}, {"tuple": [10**4, 10**4]}, {"mapping": {}}, {"mapping": {"a": 1}}, {"pairs": []},
    {"pairs": [[0, 1]]}, {"object": 0}, {"object": 10**9}, {"object": -1}, [0] * 1000, [1.0, -1.0],
    ["a", "b"],
    {"array": {"width": None, "values": [1, "a", None]}}, {"array": {"width": 2**40, "values": ["a"]}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a structure."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in entries:
        yield (*path, key)
        yield from places(each, (*path, key))


def at(value: Any, way: tuple[Any, ...]) -> Any:
    """The value at the end of a way."""
    for key in way:
        value = value[key]
    return value


def chosen(file: File, chance: random.Random, part: str | None = None) -> tuple[Any, Any]:
    """A container of the structure and a key in it; the summary is chosen more rarely than it is long."""
    if part is None:
        part = chance.choices(
            ["objects", "fitted", "parameters", "summary", "notes", "versions", "estimator"],
            [50, 25, 10, 8, 1, 2, 1],
        )[0]
    ways = [(part, *way) for way in places(file.structure.get(part))] or [(part,)]
    *way, last = chance.choice(ways)
    return at(file.structure, tuple(way)), last


def replace_value(file: File, chance: random.Random, others: Others) -> None:
    """An odd value in place of any."""
    parent, key = chosen(file, chance)
    value = parent[key]
    nearby: list[Any] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        nearby = [-value, value + 1, value - 1, 2 * value, value / 3, value * 1000, str(value), float(value)]
    parent[key] = copy.deepcopy(chance.choice(nearby if nearby and chance.random() < 0.5 else ODD))


def replace_leaf(file: File, chance: random.Random, others: Others) -> None:
    """Another leaf of the same kind in place of a leaf: a name for a name, a number for a number."""
    leaves: dict[type, list[tuple[Any, ...]]] = collections.defaultdict(list)
    for way in places(file.structure):
        leaves[type(at(file.structure, way))].append(way)
    kind = chance.choice([each for each in (str, int, float, bool) if leaves[each]])
    one, other = chance.choice(leaves[kind]), chance.choice(leaves[kind])
    at(file.structure, one[:-1])[one[-1]] = at(file.structure, other)


def rearrange(file: File, chance: random.Random, others: Others) -> None:
    """A key or an entry deleted, doubled, swapped with another, or all entries in another order."""
    parent, key = chosen(file, chance)
    kind = chance.randrange(4)
    if kind == 0 or len(parent) < 2:
        del parent[key]
    elif isinstance(parent, list):
        if kind == 1:
            parent.insert(key, copy.deepcopy(parent[key]))
        elif kind == 2:
            chance.shuffle(parent)
        else:
            other = chance.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
    else:
        other = chance.choice(list(parent))
        if kind == 1:
            parent[key + "_"] = parent[key]
        else:
            parent[key], parent[other] = parent[other], parent[key]


def transplant_part(file: File, chance: random.Random, others: Others) -> None:
    """A value of the same name from somewhere else in this file, or from a file of another kind."""
    source = file if chance.random() < 0.5 else others()
    parent, key = chosen(file, chance)
    ways = [way for way in places(source.structure) if way[-1] == key]
    if ways:
        parent[key] = copy.deepcopy(at(source.structure, chance.choice(ways)))


def transplant_model(file: File, chance: random.Random, others: Others) -> None:
    """A whole part of another file, with its objects and arrays: estimator, parameters or fitted values."""
    source = others()
    shift, prefix = len(file.structure["objects"]), "other_"

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"object"} and isinstance(value["object"], int):
                return {"object": value["object"] + shift}
            if "name" in value and isinstance(value["name"], str) and value["name"].startswith("tensor_"):
                return {**value, "name": prefix + value["name"]}
            return {key: moved(each) for key, each in value.items()}
        return [moved(each) for each in value] if isinstance(value, list) else value

    file.structure["objects"] += moved(source.structure["objects"])
    file.arrays.update({prefix + name: array.copy() for name, array in source.arrays.items()})
    shared = [key for key in file.structure["fitted"] if key in source.structure["fitted"]]
    for key in chance.sample(shared, min(len(shared), chance.choice([1, 1, 2, len(shared)]))):
        file.structure["fitted"][key] = moved(source.structure["fitted"][key])
    if chance.random() < 0.2:
        file.structure["estimator"] = source.structure["estimator"]


def redirect(file: File, chance: random.Random, others: Others) -> None:
    """A reference to another object or tensor: an earlier one, itself, a later one, or none."""
    ways = [way for way in places(file.structure) if way[-1] in ("object", "name")]
    way = chance.choice(ways)
    if way[-1] == "object":
        target: Any = chance.randrange(-1, len(file.structure["objects"]) + 1)
    else:
        other = [each for each in ways if each[-1] == "name"]
        # a tensor with its layout, so that only its meaning is wrong
        target = copy.deepcopy(at(file.structure, chance.choice(other)[:-1]))
        at(file.structure, way[:-2])[way[-2]] = target
        return
    at(file.structure, way[:-1])[way[-1]] = target


LARGE = [1e100, -1e120, 1e140, 1e149, 1e-149]
"""Numbers that a model may have, though not together with others of this kind."""


def spoil_numbers(file: File, chance: random.Random, others: Others) -> None:
    """Other numbers in an array: NaN, infinite, zero, negative, huge, tiny, in another order."""
    name = chance.choice(list(file.arrays))
    array = file.arrays[name].copy()
    where: Any = ... if chance.random() < 0.4 or not array.size else chance.randrange(array.size)
    flat = array.reshape(-1)
    is_float = array.dtype.kind == "f"
    values: list[Any] = [0, 1, -1, 100, "negative", "reverse", "constant", "large", "huge", "small"]
    values += (
        [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-310, 1e200, 1e308, 1e5, -1e5, 1e45, 1e-45, *LARGE]
        if is_float
        else [-128, 127]
    )
    value = chance.choice(values)
    with np.errstate(all="ignore"):
        if value == "negative":
            flat[where] = -flat[where] if array.dtype.kind != "b" else ~flat[where]
        elif value in ("large", "huge", "small"):
            factor = {"large": 1e20, "huge": 1e130, "small": 1e-20}[value]
            flat[:] = (flat * factor).astype(array.dtype)
        elif value == "reverse":
            flat[:] = flat[::-1].copy()
        elif value == "constant":
            flat[:] = flat[:1]
        else:
            flat[where] = np.asarray(value).astype(array.dtype)
    file.arrays[name] = array


def reshape(file: File, chance: random.Random, others: Others) -> None:
    """Another shape or type of an array, told to the layout or not."""
    name = chance.choice(list(file.arrays))
    array = file.arrays[name]
    kind = chance.randrange(6)
    if kind == 0:
        with np.errstate(all="ignore"):
            array = array.astype(chance.choice(list(DTYPES)))
    elif kind == 1 and array.ndim and len(array) > 1:
        array = array[: chance.randrange(len(array))]
    elif kind == 2 and array.ndim:
        array = np.concatenate([array, array], axis=chance.randrange(array.ndim))
    elif kind == 3:
        array = array.reshape(-1) if array.ndim != 1 else array[None]
    elif kind == 4:
        array = array.T
    else:
        array = np.zeros((0, *array.shape[1:]), dtype=array.dtype)
    file.arrays[name] = array
    for way in list(places(file.structure)):
        layout = at(file.structure, way[:-1]) if way[-1] == "name" else None
        if layout is None or layout.get("name") != name or "shape" not in layout or chance.random() < 0.2:
            continue
        layout.update(shape=list(array.shape), order=list(range(array.ndim)), shared=[])
        if chance.random() < 0.3 and array.ndim and 1 in array.shape:
            shared = array.shape.index(1)
            layout["shape"][shared], layout["shared"] = chance.choice([3, 1000, 2**19, 10**12]), [shared]


def edit_header(file: File, chance: random.Random, others: Others) -> None:
    """A header that says another type, shape or place of an array than the file has."""
    name = chance.choice([*file.arrays, "extra"])
    size = chance.choice([0, 1, 8, 10**6, 2**31, 2**62, -8])
    file.header[name] = chance.choice([
        {"dtype": chance.choice(["F64", "F32", "BF16", "I64", "U8", "BOOL", "C64", "", None])},
        {"shape": [size]}, {"shape": [2**32, 2**32]}, {"shape": "x"}, {"shape": [1] * 100},
        {"data_offsets": [0, size]}, {"data_offsets": [size, 0]}, {"data_offsets": [0]}, None, 3,
        {"dtype": "F64", "shape": [size], "data_offsets": [0, 8 * size]},
    ])  # fmt: skip


MUTATIONS: dict[Callable[[File, random.Random, Others], None], int] = {
    replace_value: 30, replace_leaf: 10, rearrange: 10, transplant_part: 10, transplant_model: 8,
    redirect: 10,
    spoil_numbers: 20, reshape: 12, edit_header: 3,
}  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes with an accident, and no new checksum."""
    start = chance.randrange(len(data))
    if chance.random() < 0.5:
        return data[:start]
    return data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :]


def mutant(models: dict[str, bytes], seed: int) -> tuple[str, bytes]:
    """What was done to which model, and the bytes of it; the same for a seed."""
    chance = random.Random(seed)
    name = chance.choice(list(models))
    if chance.random() < 0.03:
        return f"{seed}: {name}: damaged", damaged(models[name], chance)
    file = opened(models[name])
    kinds = chance.choices(list(MUTATIONS), list(MUTATIONS.values()), k=chance.choice([1, 1, 1, 2, 3]))
    for kind in kinds:
        try:
            kind(file, chance, lambda: opened(models[chance.choice(list(models))]))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError):
            continue  # an earlier mutation took away what this one wanted to change
    return f"{seed}: {name}: {', '.join(kind.__name__ for kind in kinds)}", sealed(file)
