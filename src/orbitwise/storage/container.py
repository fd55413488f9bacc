"""The file: safetensors whose metadata hold the JSON structure, a format version and a checksum.

Nothing of a file is believed before the checksum of all its bytes is right. That finds accidents, not malice:
whoever edits a file can compute it again, so what it covers is checked as well when a model is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

FORMAT = "orbitwise"
FORMAT_VERSION = 1
NO_CHECKSUM = "0" * 64
CHECKSUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
DTYPES = {
    "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip


@final
class StorageError(ValueError):
    """A model cannot be stored, or a file cannot be loaded; the message says which, why, and what to do."""


def pack(structure: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "sha256": NO_CHECKSUM,
        "structure": json.dumps(structure, allow_nan=False, separators=(",", ":")),
    }
    contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
    data = safetensors.numpy.save(contiguous, metadata)
    # The library writes metadata in an order that changes from time to time; equal models have equal files.
    header = json.dumps(
        {**json.loads(_header(data)), "__metadata__": metadata}, separators=(",", ":")
    ).encode()
    header += b" " * (-len(header) % 8)
    return with_checksum(len(header).to_bytes(8, "little") + header + data[8 + len(_header(data)) :])


def with_checksum(data: bytes) -> bytes:
    """The same file with the checksum that it should have."""
    start, end = _place_of_checksum(data)
    return data[:start] + _checksum(data, start, end).encode() + data[end:]


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file, or a StorageError."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StorageError(
                    f"{os.fspath(path)} is not a regular file; give the file of a saved model."
                )
            return file.read()
    except IsADirectoryError:
        message = f"{os.fspath(path)} is a folder; give the file of a saved model."
    except FileNotFoundError:
        message = f"There is no file {os.fspath(path)}; give the file of a saved model."
    except (OSError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        message = f"{os.fspath(path)} cannot be read: {error}."
    raise StorageError(message)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Structure and arrays of a file whose format, version and checksum are right, or a StorageError."""
    metadata = _metadata(data)
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
    try:
        structure = json.loads(metadata["structure"])
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"The file is damaged: its contents cannot be read ({brief(error)}).") from error
    if not isinstance(structure, dict) or any(each.dtype.name not in DTYPES for each in arrays.values()):
        raise StorageError("The file is damaged: its structure, or the type of an array, is unknown.")
    return structure, arrays


def _open_without_waiting(path: str, flags: int) -> int:
    """Opening a pipe must not wait for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _header(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        what = "is empty" if not data else "is not a model saved by orbitwise.save, or is truncated"
        raise StorageError(f"The file {what}.")
    return data[8 : 8 + length]


def _metadata(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(_header(data))
        metadata = header["__metadata__"]
        is_ours = metadata["format"] == FORMAT
    except StorageError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        metadata, is_ours = {}, False
    if not is_ours:
        raise StorageError("The file is not a model saved by orbitwise.save, or is damaged.")
    return metadata


def _place_of_checksum(data: bytes) -> tuple[int, int]:
    found = list(CHECKSUM.finditer(_header(data)))
    if len(found) != 1:
        raise StorageError("The file is damaged: its checksum is not there.")
    return 8 + found[0].start(1), 8 + found[0].end(1)


def _checksum(data: bytes, start: int, end: int) -> str:
    """SHA-256 of all bytes, with zeros in place of the checksum itself."""
    digest, view = hashlib.sha256(), memoryview(data)
    for part in (view[:start], NO_CHECKSUM.encode(), view[end:]):
        digest.update(part)
    return digest.hexdigest()


def brief(said: object) -> str:
    """The beginning of a message, or of what a file says: one line that a terminal can print."""
    words = " ".join(str(said).split()) or type(said).__name__
    text = "".join(each if each.isprintable() else "?" for each in words)
    return text if len(text) <= 200 else text[:200] + "…"
