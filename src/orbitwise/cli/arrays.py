"""Inputs and targets among the arrays of an .npz file, found by their names."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError, nearest

INPUTS = ("x", "X", "images", "inputs", "data")
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    NotImplementedError,
)
"""What reading a file raises that is damaged, or of another kind."""
TARGETS = ("y", "target", "targets", "label", "labels")


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file; nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except DAMAGE as error:
        raise not_plain(path, error) from error


def inputs_and_targets(
    arrays: Mapping[str, NDArray[Any]], target: str | None, part: str, path: str, with_target: bool
) -> tuple[NDArray[Any], NDArray[Any] | None, str]:
    """The inputs, the targets and their name: `x` and `y`, or `x_train` and `y_train`, or as asked for."""
    x_name = inputs_name(arrays, part, path)
    x = arrays[x_name]
    suffix = next(each for each in ("_test", "_train", "") if x_name.endswith(each))
    check_inputs(x_name, x.shape, x.dtype, path)
    if not with_target:
        return x, None, ""
    base = TARGETS if target is None else (target.removesuffix("_train").removesuffix("_test"),)
    y_name = _found(arrays, base, (suffix,)) if target is None or target not in arrays else target
    if target is not None and target in arrays and suffix == "_test":
        y_name = _found(arrays, base, ("_test", "")) or target
    if y_name is None:
        asked = "--target NAME" if target is None else repr(target)
        raise CommandError(f"{path} has no array {asked} of targets; {nearest(target or '', arrays)}")
    y = arrays[y_name]
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise CommandError(
            f"{y_name} of {path} must have a target for each of the {len(x)} rows of {x_name}, not shape "
            f"{y.shape}"
        )
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return x, y, y_name.removesuffix("_train").removesuffix("_test")


def inputs_name(names: Collection[str], part: str, path: str) -> str:
    """Which of the arrays holds the inputs."""
    found = _found(names, INPUTS, ("_test", "", "_train") if part == "test" else ("", "_train"))
    if found is None:
        raise CommandError(f"{path} has no array of inputs called x, X or x_train; {nearest('x_', names)}")
    return found


def check_inputs(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> None:
    """Raise a CommandError where an array cannot be inputs."""
    if len(shape) < 2 or dtype.kind not in "buif":
        raise CommandError(
            f"{name} of {path} must be numbers with a row for every input, not {dtype} of shape {shape}"
        )


def not_plain(path: Path, error: Exception) -> CommandError:
    """What is said of a file that is none of plain arrays."""
    return CommandError(
        f"{path} is no .npz file of plain arrays ({' '.join(str(error).split())}); write one with "
        "numpy.savez(path, x=…, y=…)"
    )


def _found(arrays: Collection[str], names: tuple[str, ...], suffixes: tuple[str, ...]) -> str | None:
    known = (name + suffix for suffix in suffixes for name in names)
    return next((name for name in known if name in arrays), None)
