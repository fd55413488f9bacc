"""The file: safetensors whose metadata hold the JSON structure, a format version and a checksum.

Before any array is read, the header must account for every byte of the file, and the memory that it asks for
must be within a budget. Then the checksum of all bytes must be right. A checksum finds accidents but not
malice, because whoever edits a file can compute it again; therefore everything is checked again when a model
is built. The structure of an earlier format is converted to the present one first, so that the same checks
apply.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard, final

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.inference.optimise.cost import machine_memory

FORMAT = "orbitwise"
FORMAT_VERSION = 2
"""Files of version 1 stored the form of inputs and the model in several attributes; they are read, too."""
FORMER_ARGUMENTS = {"Process": {"mean_module": "mean"}, "Totals": {"count": "num_rows"}}
"""For each class, the earlier names of arguments and the present ones."""
NO_CHECKSUM = "0" * 64
CHECKSUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
DTYPES = {
    "BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
}  # fmt: skip
"""The names of number types in the header and in NumPy."""
MOST_HEADER = 2**23
"""The longest header in bytes: parsed JSON takes about thirty times the memory of its text."""
MOST_BYTES = 2**34
MEMORY_PER_BYTE = 2
"""The bytes of the file and the tensors made from them are in memory at the same time."""
TENSOR_DTYPES = {
    torch.bool, torch.float16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
}  # fmt: skip
WIDEST_SHARED = 4096
"""Any number of rows may share their numbers, but a row that repeats one number is no wider than this."""


@final
class StorageError(ValueError):
    """A model cannot be stored, or a file cannot be loaded; the message gives the reason and what to do."""


def damaged(what: str) -> StorageError:
    """The error for a file whose structure cannot have been written by `save`."""
    return StorageError(f"The file is damaged or hostile: {what}.")


@final
class Place(NamedTuple):
    """The type and shape of an array, and the byte after the header at which it starts."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int


def pack(structure: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """The bytes of a file."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "sha256": NO_CHECKSUM,
        "structure": json.dumps(structure, allow_nan=False, separators=(",", ":")),
    }
    contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
    data = safetensors.numpy.save(contiguous, metadata)
    # The library does not write metadata in a fixed order, but equal models must have equal files.
    whole = {**json.loads(_header(data)), "__metadata__": metadata}
    header = json.dumps(whole, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return with_checksum(len(header).to_bytes(8, "little") + header + data[8 + len(_header(data)) :])


def with_checksum(data: bytes) -> bytes:
    """The same file with the checksum that it should have."""
    start, end = _place_of_checksum(data)
    return data[:start] + _checksum(data, start, end).encode() + data[end:]


def default_budget() -> int:
    """Half of the memory of this machine or container, and at most 16 GiB."""
    memory = machine_memory()
    return MOST_BYTES if memory is None else min(MOST_BYTES, int(memory) // 2)


def read(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """The bytes of a regular file whose header accounts for all of them, or a StorageError.

    A file that asks for more than `max_bytes` of memory is refused before more than its header is read.
    """
    budget = default_budget() if max_bytes is None else max_bytes
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 1:
        raise ValueError(f"max_bytes must be a whole number of bytes of at least 1, or None, not {budget!r}.")
    name = os.fspath(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise StorageError(f"{name} is not a regular file; give the file of a saved model.")
            _check_budget(file.read(8), about.st_size, int(budget))
            file.seek(0)
            start = file.read(8 + MOST_HEADER)
            _places(_parsed(start), about.st_size - 8 - len(_header(start)))
            file.seek(0)
            return file.read(about.st_size)
    except IsADirectoryError:
        message = f"{name} is a folder; give the file of a saved model."
    except FileNotFoundError:
        message = f"There is no file {name}; give the file of a saved model."
    except MemoryError:
        message = f"{name} does not fit into memory."
    except StorageError as error:
        message = str(error) if name in str(error) else f"{name}: {error}"
    except (OSError, ValueError) as error:
        message = f"{name} cannot be read: {error}."
    raise StorageError(message)


def unpack(data: bytes) -> tuple[dict[str, object], dict[str, NDArray[np.generic]]]:
    """Structure and arrays of a file whose format, version and checksum are right, or a StorageError.

    The arrays are views of the bytes, not copies.
    """
    header = _parsed(data)
    metadata = header["__metadata__"]
    assert isinstance(metadata, dict)
    version = metadata.get("format_version")
    if not isinstance(version, str) or not re.fullmatch("[1-9][0-9]{0,8}", version):
        raise StorageError("The file is damaged: its format version is not a number.")
    if int(version) > FORMAT_VERSION:
        raise StorageError(
            f"The file has format version {version}, and this Orbitwise reads versions up to "
            f"{FORMAT_VERSION}: upgrade Orbitwise."
        )
    start, end = _place_of_checksum(data)
    if data[start:end].decode() != _checksum(data, start, end):
        raise StorageError("The file is damaged or truncated: its checksum is wrong. Use another copy of it.")
    body = 8 + len(_header(data))
    arrays = {
        name: np.frombuffer(data, each.dtype, math.prod(each.shape), body + each.start).reshape(each.shape)
        for name, each in _places(header, len(data) - body).items()
    }
    try:
        structure = json.loads(metadata["structure"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"The file is damaged: its contents cannot be read ({brief(error)}).") from error
    if not isinstance(structure, dict):
        raise StorageError("The file is damaged: its structure is unknown.")
    return structure, arrays


def upgraded(structure: Mapping[str, object]) -> dict[str, object]:
    """The structure of a file in the present format.

    Files of version 1 stored the form of inputs, the scale of targets and the functional of a model in
    several attributes, and some classes and arguments had other names.
    """
    nodes, fitted = structure.get("objects"), structure.get("fitted")
    if not isinstance(nodes, list) or not isinstance(fitted, dict):
        return dict(structure)
    objects, fitted = [_renamed(node) for node in nodes], dict(fitted)

    def added(node: Mapping[str, object]) -> dict[str, int]:
        objects.append(node)
        return {"object": len(objects) - 1}

    if "form_" not in fitted:
        image, own = (fitted.pop(name, None) for name in ("_image_shape", "_input_shape"))
        # version 1 always had channels first
        sides = image.get("tuple") if isinstance(image, dict) else image
        first = "first" if isinstance(sides, list) and len(sides) == 3 else None
        form = {"image_shape": image, "channels": fitted.pop("channels_", first), "input_shape": own}
        fitted["form_"] = added(_node("InputForm", {**form, "background": fitted.pop("_background", 0.0)}))
    if "_shift" in fitted:
        parts = {name: fitted.pop(f"_{name}", None) for name in ("shift", "scale", "is_vector")}
        fitted["target_scale_"] = added(_node("TargetScale", parts))
    elif "_scale" in fitted:
        fitted["scale_"] = fitted.pop("_scale")
    for name in ("_model", "_problem_"):
        if name in fitted:
            fitted["model_"] = fitted.pop(name)
    if "_functional" in fitted:
        functional, reference = fitted.pop("_functional"), fitted.get("model_")
        place = reference.get("object") if isinstance(reference, dict) else None
        model = objects[place] if isinstance(place, int) and 0 <= place < len(nodes) else None
        if isinstance(model, dict) and isinstance(model.get("arguments"), dict):
            arguments = {**model["arguments"], "functional": functional}
            fitted["model_"] = added({**model, "arguments": arguments})
    parameters = structure.get("parameters")
    if isinstance(parameters, dict) and "time_limit" in parameters:
        parameters = dict(parameters)
        parameters["max_seconds"] = parameters.pop("time_limit")
    return {**structure, "objects": objects, "fitted": fitted, "parameters": parameters}


def _node(kind: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """The entry of an object that has no tensors itself."""
    return {"type": kind, "arguments": arguments, "attributes": {}, "state": {}, "learned": []}


def _renamed(node: object) -> object:
    """The entry of an object under its present names."""
    if not isinstance(node, dict):
        return node
    kind, arguments = node.get("type"), node.get("arguments")
    names = FORMER_ARGUMENTS.get(kind, {}) if isinstance(kind, str) else {}
    if isinstance(arguments, dict):
        arguments = {names.get(name, name): each for name, each in arguments.items()}
    return {**node, "type": "RegressionModel" if kind == "Problem" else kind, "arguments": arguments}


def _check_budget(start: bytes, size: int, budget: int) -> None:
    """Raise a StorageError if a file asks for too much memory or cannot be a saved model."""
    length, needed = int.from_bytes(start, "little"), MEMORY_PER_BYTE * size
    if len(start) < 8 or length > size - 8:
        what = "is empty" if not size else "is not a model saved by orbitwise.save, or is truncated"
        raise StorageError(f"The file {what}.")
    if length > MOST_HEADER:
        raise StorageError(
            f"The file is not a model saved by orbitwise.save, or is damaged: its header of "
            f"{length:,} bytes is longer than {MOST_HEADER:,}."
        )
    if needed > budget:
        raise StorageError(
            f"The file asks for {needed / 1e9:.3g} GB of memory, more than the {budget / 1e9:.3g} GB that "
            "are allowed; if you trust it, pass a greater max_bytes in Python: "
            f"orbitwise.load(path, max_bytes={needed})."
        )


def _places(header: Mapping[str, object], size: int) -> dict[str, Place]:
    """Type, shape and start of each array; the arrays must fill `size` bytes exactly, without gaps."""
    entries: list[tuple[list[int], str, str, list[int]]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        fields = entry if isinstance(entry, dict) and len(entry) == 3 else {}
        code, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(code, str) or code not in DTYPES or not is_counts(shape) or len(shape) > 8:
            raise StorageError("The file is damaged: the type or the shape of an array is unknown.")
        if not is_counts(offsets):
            raise StorageError("The file is damaged: its arrays are not where they should be.")
        entries.append((offsets, name, code, shape))
    found: dict[str, Place] = {}
    end = 0
    for offsets, name, code, shape in sorted(entries):
        dtype = np.dtype(DTYPES[code])
        whole = dtype.itemsize * math.prod(shape)
        # An empty array could claim any length in its other dimensions.
        is_short = dtype.itemsize * math.prod(max(1, length) for length in shape) <= max(size, MOST_HEADER)
        if not is_short or offsets != [end, end + whole] or end + whole > size:
            raise StorageError("The file is damaged: its arrays are not where they should be.")
        found[name] = Place(dtype, tuple(shape), end)
        end += whole
    if end != size:
        raise StorageError(
            f"The file is damaged or truncated: its arrays take {end:,} bytes, but it has {size:,} for them."
        )
    return found


def is_counts(value: object) -> TypeGuard[list[int]]:
    """Whether a value of a file is a list of whole numbers of 0 or more."""
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe would block until somebody writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _header(data: bytes) -> bytes:
    _check_budget(data[:8], len(data), MEMORY_PER_BYTE * len(data))
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def _parsed(data: bytes) -> dict[str, object]:
    """The header of a saved model, with its dictionary `__metadata__`."""
    text = _header(data)
    with contextlib.suppress(ValueError, RecursionError):
        header = json.loads(text)
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        if isinstance(metadata, dict) and metadata.get("format") == FORMAT:
            return header
    raise StorageError("The file is not a model saved by orbitwise.save, or is damaged.")


def _place_of_checksum(data: bytes) -> tuple[int, int]:
    found = list(CHECKSUM.finditer(_header(data)))
    if len(found) != 1:
        raise StorageError("The file is damaged: it has no checksum.")
    return 8 + found[0].start(1), 8 + found[0].end(1)


def _checksum(data: bytes, start: int, end: int) -> str:
    """SHA-256 of all bytes, with the checksum itself replaced by zeros."""
    digest, view = hashlib.sha256(), memoryview(data)
    for part in (view[:start], NO_CHECKSUM.encode(), view[end:]):
        digest.update(part)
    return digest.hexdigest()


def layout_of(tensor: Tensor) -> tuple[NDArray[np.generic], dict[str, object]]:
    """The numbers of a tensor in memory order, each once, and the layout that restores the tensor.

    Products and solves round differently for row-major and column-major matrices, and covariances take a
    shortcut if all rows share their weights in memory. Therefore the order of the dimensions in memory, and
    which of them are shared (stride 0), are stored with the numbers: predictions are then equal bit for bit.
    """
    if tensor.dtype not in TENSOR_DTYPES or tensor.layout != torch.strided:
        raise StorageError(f"A tensor of {tensor.dtype} cannot be stored; convert it to float64.")
    tensor, dims = tensor.detach(), range(tensor.dim())
    shared = [place for place, stride in enumerate(tensor.stride()) if stride == 0]
    order = sorted(dims, key=lambda place: -tensor.stride(place))
    once = tensor[tuple(slice(0, 1) if place in shared else slice(None) for place in dims)]
    layout: dict[str, object] = {"shape": list(tensor.shape), "order": order, "shared": shared}
    if tensor.device.type != "cpu":
        layout["on_device"] = True
    return np.array(once.permute(order).cpu().numpy(), order="C"), layout


def tensor_of(
    array: NDArray[np.generic], layout: Mapping[str, object], largest: int, device: torch.device
) -> Tensor:
    """The tensor of an array and its layout, of at most `largest` entries, or a StorageError."""
    shape, order, shared = (layout.get(name) for name in ("shape", "order", "shared"))
    if (
        not (is_counts(shape) and is_counts(order) and is_counts(shared))
        or sorted(order) != list(range(len(shape)))
        or not set(shared) <= set(order)
        or math.prod(shape) > largest
        or (len(shape) - 1 in shared and shape[-1] > WIDEST_SHARED)
        or array.shape != tuple(1 if place in shared else shape[place] for place in order)
    ):
        raise StorageError(f"A tensor of shape {brief(shape)} does not fit its {array.shape} numbers.")
    # a copy, because the bytes of a file are not aligned in memory as those of other tensors are
    tensor = torch.tensor(array).permute([order.index(place) for place in range(len(shape))])
    if layout.get("on_device") is True:
        tensor = tensor.to(device)
    sizes = [max(2, size) if place in shared else size for place, size in enumerate(shape)]
    # a shared dimension of one entry also keeps its stride of 0
    return tensor.expand(sizes)[tuple(slice(0, size) for size in shape)]


def brief(text: object) -> str:
    """The beginning of a message, or of text in a file, as one line that a terminal can print."""
    line = printable(" ".join(str(text)[:10_000].split()) or type(text).__name__)
    return line if len(line) <= 200 else line[:200] + "…"


def printable(text: str) -> str:
    """The text with "?" in place of control characters, which a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in text)
