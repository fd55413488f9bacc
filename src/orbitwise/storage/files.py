"""Save a fitted estimator to one file, load it, or look at what a file holds."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orbitwise.storage.atomic import write_atomically
from orbitwise.storage.container import FORMAT_VERSION, StorageError, brief, pack, printable, read, unpack
from orbitwise.storage.estimators import put_together, take_apart, told

ACCUSATION = re.compile(r"^The file is [^:]*\b(damaged|hostile)\b[^:]*: ")


def save(model: Any, path: str | os.PathLike[str], error_seconds: float = 0.0) -> None:
    """Write a fitted estimator to `path`, in full or not at all; `.orbitwise` is the usual ending.

    The file needs no training data beside it and holds no code. What is code (a `callback`) and settings of
    this machine (`checkpoint`, `n_jobs`) are left out, and a model that cannot do without its code (a
    `FeatureMap`, an orbit or kernel of your own) is refused with a StorageError. Exact posteriors and kernel
    machines include the inputs of their training rows. Nothing expensive is computed: error bars
    of learned ranges are stored if they are known, and a note says so if they are not. Ask the model for
    `orbit_errors_` before saving, or give `error_seconds` to have them computed if that takes no longer.
    Every model is read back before it is written. Where `path` is a symbolic link, the file it leads to is
    replaced.
    """
    write_atomically(os.path.realpath(path), packed(model, error_seconds))


def packed(model: Any, error_seconds: float = 0.0) -> bytes:
    """The content of the file of a fitted estimator."""
    structure, writer = take_apart(model, error_seconds)
    data = pack({**structure, "versions": _versions()}, writer.arrays)
    try:
        _check_equal(model, put_together(*unpack(data)))
    except StorageError as error:
        # what is told of a file is told of the model that it would hold
        reason = ACCUSATION.sub("", str(error))
        raise StorageError(f"This model cannot be saved: {reason}") from error
    return data


def load(path: str | os.PathLike[str], device: str | None = None, max_bytes: int | None = None) -> Any:
    """The estimator that was saved to `path`; its predictions are equal bit for bit.

    It computes on `device`, by default where it was fitted if there is such a device here, else on the CPU.
    A file that is damaged, of a newer format, or not a saved model raises a StorageError; nothing in a file
    is ever executed. So does one that asks for more than `max_bytes` of memory, about twice its size: by
    default half of this machine's memory, and 16 GiB at most. Settings of a machine (`callback`,
    `checkpoint`, `n_jobs`) are never taken from a file. `fit` with `warm_start=True` resumes from a loaded
    model.
    """
    structure, arrays = _unpacked(path, max_bytes)
    try:
        return put_together(structure, arrays, device)
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error
    except Exception as error:
        raise StorageError(f"{os.fspath(path)}: The file is damaged or hostile ({brief(error)}).") from error


def describe(path: str | os.PathLike[str], max_bytes: int | None = None) -> dict[str, Any]:
    """What a file holds, without building the model: estimator, evidence, learned ranges, versions, notes.

    It is as careful as `load`, and a terminal can print all text in it.
    """
    structure, arrays = _unpacked(path, max_bytes)
    try:
        about = _printable(told(structure))
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error
    num_bytes = sum(array.nbytes for array in arrays.values())
    return {**about, "format_version": FORMAT_VERSION, "num_bytes": num_bytes}


def _unpacked(
    path: str | os.PathLike[str], max_bytes: int | None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    data = read(path, max_bytes)
    try:
        return unpack(data)
    except StorageError as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from error


def _versions() -> dict[str, str]:
    # At import, the package that holds the version is not complete yet.
    from orbitwise import __version__

    return {
        "orbitwise": __version__,
        "torch": str(torch.__version__),
        "gpytorch": gpytorch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _check_equal(model: Any, copy: Any) -> None:
    """Raise a StorageError unless the copy has every parameter and buffer of the model, bit for bit."""
    for one, other in zip(_modules(model), _modules(copy), strict=True):
        left, right = one.state_dict(), other.state_dict()
        if list(left) != list(right) or any(_bits(left[name]) != _bits(right[name]) for name in left):
            raise StorageError(f"a part of {type(one).__name__} would be lost.")


def _modules(model: Any) -> list[nn.Module]:
    if hasattr(model, "machine_"):
        return [model.machine_.process]
    if hasattr(model, "svc_"):
        return []
    return [model.functional_, model.posterior_.process]


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.cpu().numpy().tobytes()


def _printable(value: Any) -> Any:
    """The same with text that a terminal can print, whatever a file says."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(str(key)): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_printable(each) for each in value)
    return value
