"""Inputs and targets among the arrays of an .npz file, found by their names."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError, nearest

INPUTS = ("x", "X", "images", "inputs", "data")
TARGETS = ("y", "target", "targets", "label", "labels")


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file; nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError, TypeError) as error:
        raise CommandError(
            f"{path} is no .npz file of plain arrays ({' '.join(str(error).split())}); write one with "
            "numpy.savez(path, x=…, y=…)"
        ) from error


def inputs_and_targets(
    arrays: Mapping[str, NDArray[Any]], target: str | None, part: str, path: str, with_target: bool
) -> tuple[NDArray[Any], NDArray[Any] | None, str]:
    """The inputs, the targets and their name: `x` and `y`, or `x_train` and `y_train`, or as asked for."""
    suffixes = ("_test", "", "_train") if part == "test" else ("", "_train")
    x_name = _found(arrays, INPUTS, suffixes)
    if x_name is None:
        raise CommandError(f"{path} has no array of inputs called x, X or x_train; {nearest('x_', arrays)}")
    x = arrays[x_name]
    suffix = next(each for each in ("_test", "_train", "") if x_name.endswith(each))
    if x.ndim < 2 or x.dtype.kind not in "buif":
        raise CommandError(
            f"{x_name} of {path} must be numbers with a row for every input, not {x.dtype} of shape {x.shape}"
        )
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


def _found(
    arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...], suffixes: tuple[str, ...]
) -> str | None:
    known = (name + suffix for suffix in suffixes for name in names)
    return next((name for name in known if name in arrays), None)
