"""A fuzzer of model files whose checksums are right: every mutant is refused, or is a model that works.

Run by hand: `python -m tests.hostile.model_files --count 2000 --seed 0`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orbitwise.cli.showing import model_table
from orbitwise.storage import StorageError, describe, load
from orbitwise.storage.container import unpack, with_checksum
from tests.hostile.model_zoo import saved_models

LIMIT_BYTES = 2**30
LIMIT_SECONDS = 20
DTYPES = {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"}
DTYPES |= {
    f"{sign}int{bits}": f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class File(NamedTuple):
    """What a file holds, free to be changed: the structure, the arrays, and edits of the header itself."""

    structure: Any
    arrays: dict[str, np.ndarray]
    header: dict[str, Any]


class Outcome(NamedTuple):
    """What became of a mutant: "refused", "works", or a finding that says what is wrong."""

    verdict: str
    is_finding: bool
    peak_bytes: int


class TooLong(BaseException):
    """The processor time of one mutant is used up."""


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
    0.0, -0.5, 0.5, 1e-320, 1e-30, 1e30, 1e154, 1e308, -1e308, float("nan"), float("inf"), {"float": "nan"},
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


def replace_value(file: File, chance: random.Random, others: list[File]) -> None:
    """An odd value in place of any."""
    parent, key = chosen(file, chance)
    value = parent[key]
    nearby: list[Any] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        nearby = [-value, value + 1, value - 1, 2 * value, value / 3, value * 1000, str(value), float(value)]
    parent[key] = copy.deepcopy(chance.choice(nearby if nearby and chance.random() < 0.5 else ODD))


def replace_leaf(file: File, chance: random.Random, others: list[File]) -> None:
    """Another leaf of the same kind in place of a leaf: a name for a name, a number for a number."""
    leaves: dict[type, list[tuple[Any, ...]]] = collections.defaultdict(list)
    for way in places(file.structure):
        leaves[type(at(file.structure, way))].append(way)
    kind = chance.choice([each for each in (str, int, float, bool) if leaves[each]])
    one, other = chance.choice(leaves[kind]), chance.choice(leaves[kind])
    at(file.structure, one[:-1])[one[-1]] = at(file.structure, other)


def rearrange(file: File, chance: random.Random, others: list[File]) -> None:
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


def transplant_part(file: File, chance: random.Random, others: list[File]) -> None:
    """A value of the same name from somewhere else in this file, or from a file of another kind."""
    source = file if chance.random() < 0.5 else chance.choice(others)
    parent, key = chosen(file, chance)
    ways = [way for way in places(source.structure) if way[-1] == key]
    if ways:
        parent[key] = copy.deepcopy(at(source.structure, chance.choice(ways)))


def transplant_model(file: File, chance: random.Random, others: list[File]) -> None:
    """A whole part of another file, with its objects and arrays: estimator, parameters or fitted values."""
    source = chance.choice(others)
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


def redirect(file: File, chance: random.Random, others: list[File]) -> None:
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


def spoil_numbers(file: File, chance: random.Random, others: list[File]) -> None:
    """Other numbers in an array: NaN, infinite, zero, negative, huge, tiny, in another order."""
    name = chance.choice(list(file.arrays))
    array = file.arrays[name].copy()
    where: Any = ... if chance.random() < 0.4 or not array.size else chance.randrange(array.size)
    flat = array.reshape(-1)
    is_float = array.dtype.kind == "f"
    values: list[Any] = [0, 1, -1, 100, "negative", "reverse", "constant"]
    values += (
        [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-310, 1e200, 1e308, 1e5, -1e5] if is_float else [-128, 127]
    )
    value = chance.choice(values)
    with np.errstate(all="ignore"):
        if value == "negative":
            flat[where] = -flat[where] if array.dtype.kind != "b" else ~flat[where]
        elif value == "reverse":
            flat[:] = flat[::-1].copy()
        elif value == "constant":
            flat[:] = flat[:1]
        else:
            flat[where] = np.asarray(value).astype(array.dtype)
    file.arrays[name] = array


def reshape(file: File, chance: random.Random, others: list[File]) -> None:
    """Another shape or type of an array, told to the layout or not."""
    name = chance.choice(list(file.arrays))
    array = file.arrays[name]
    kind = chance.randrange(6)
    if kind == 0:
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


def edit_header(file: File, chance: random.Random, others: list[File]) -> None:
    """A header that says another type, shape or place of an array than the file has."""
    name = chance.choice([*file.arrays, "extra"])
    size = chance.choice([0, 1, 8, 10**6, 2**31, 2**62, -8])
    file.header[name] = chance.choice([
        {"dtype": chance.choice(["F64", "F32", "BF16", "I64", "U8", "BOOL", "C64", "", None])},
        {"shape": [size]}, {"shape": [2**32, 2**32]}, {"shape": "x"}, {"shape": [1] * 100},
        {"data_offsets": [0, size]}, {"data_offsets": [size, 0]}, {"data_offsets": [0]}, None, 3,
        {"dtype": "F64", "shape": [size], "data_offsets": [0, 8 * size]},
    ])  # fmt: skip


MUTATIONS: dict[Callable[[File, random.Random, list[File]], None], int] = {
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
    file, others = opened(models[name]), [opened(data) for data in models.values()]
    kinds = chance.choices(list(MUTATIONS), list(MUTATIONS.values()), k=chance.choice([1, 1, 1, 2, 3]))
    for kind in kinds:
        try:
            kind(file, chance, others)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError):
            continue  # an earlier mutation took away what this one wanted to change
    return f"{seed}: {name}: {', '.join(kind.__name__ for kind in kinds)}", sealed(file)


def outcome(data: bytes, folder: Path) -> Outcome:
    """What a file does when it is shown, loaded and asked for predictions."""
    path = folder / "mutant.orbitwise"
    path.write_bytes(data)
    _start_peak()
    verdict, is_finding = "works", False
    try:
        for look in (describe, model_table):
            try:
                look(path)
            except StorageError:
                verdict = "refused"
        try:
            model = load(path)
        except StorageError as error:
            verdict = "refused"
            if "memory" in str(error):
                verdict, is_finding = f"wants memory: {error}", True
        else:
            verdict = "works"
            if found := faults(model):
                verdict, is_finding = found, True
    except (Exception, TooLong) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:150]}"
        verdict, is_finding = text, True
    peak = _peak()
    if peak > LIMIT_BYTES:
        verdict, is_finding = f"{peak / 1e9:.2f} GB ({verdict})", True
    return Outcome(verdict, is_finding, peak)


def faults(model: Any) -> str:
    """What is wrong with the answers of a loaded model, "" where nothing is."""
    if not isinstance(model.n_features_in_, int) or not 0 < model.n_features_in_ <= 10**4:
        return f"{model.n_features_in_} features"
    x = np.random.default_rng(0).normal(size=(3, model.n_features_in_))
    names = getattr(model, "feature_names_in_", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if names is not None else "error")
        labels = model.predict(x)
        if len(labels) != 3:
            return f"{len(labels)} predictions for 3 rows"
        if hasattr(model, "classes_"):
            if not set(labels.tolist()) <= set(model.classes_.tolist()):
                return "labels that are no classes"
            if not all(model.classes_[i] < model.classes_[i + 1] for i in range(len(model.classes_) - 1)):
                return "classes out of order"
            answers = [model.predict_proba(x)] if hasattr(model, "predict_proba") else []
            answers += [model.decision_function(x)] if hasattr(model, "decision_function") else []
            if answers and hasattr(model, "predict_proba") and answers[0].shape != (3, len(model.classes_)):
                return f"probabilities of shape {answers[0].shape}"
        else:
            answers = [labels]
            if "return_std" in type(model).predict.__code__.co_varnames:
                answers += model.predict(x, return_std=True)
        if not all(np.isfinite(each).all() for each in answers):
            return "predictions that are not finite"
    return ""


def _start_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5") if Path("/proc/self/clear_refs").exists() else None


def _peak() -> int:
    """The most memory that the process held since the start, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)


def main() -> int:
    """Try many mutants, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the mutants that were found wanting")
    options = parser.parse_args()

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    models = saved_models()
    verdicts: collections.Counter[str] = collections.Counter()
    findings, most = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.count):
            what, data = mutant(models, seed)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
            found = outcome(data, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0)
            most = max(most, found.peak_bytes)
            verdicts["finding" if found.is_finding else found.verdict] += 1
            if found.is_finding:
                findings += 1
                print(f"{what}: {found.verdict}")
                if options.keep is not None:
                    (options.keep / f"{seed}.orbitwise").write_bytes(data)
    print(f"{dict(verdicts)}; the most memory at once was {most / 1e9:.2f} GB")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
