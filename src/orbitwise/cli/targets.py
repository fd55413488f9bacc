"""What is learned: classes or numbers, told from the targets unless it is said."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError

Task = Literal["classification", "regression"]
MOST_CLASSES = 50


def infer_task(y: NDArray[Any]) -> Task:
    """Words are classes, fractions are numbers; whole numbers are classes where few of them repeat often."""
    values = _numbers(y)
    if values is None:
        return "classification"
    if y.ndim == 2 or not bool((values == np.rint(values)).all()):
        return "regression"
    count = len(np.unique(values))
    return (
        "classification"
        if count <= 2 or (count <= MOST_CLASSES and len(values) >= 3 * count)
        else "regression"
    )


def checked_targets(y: NDArray[Any], task: Task, name: str) -> NDArray[Any]:
    """Targets as an estimator takes them, or an error that says why they do not serve."""
    values = _numbers(y)
    if task == "regression":
        if values is None:
            word = next(cell for cell in y.ravel() if not _is_number(cell))
            raise CommandError(
                f"target {name!r} holds {str(word)!r}, which is no number; use --task classification, or "
                "another --target"
            )
        if len(np.unique(values)) < 2:
            raise CommandError(
                f"target {name!r} is {values.flat[0]:g} in every row: there is nothing to learn"
            )
        return values
    if y.ndim == 2:
        raise CommandError(f"target {name!r} has {y.shape[1]} columns; classes are one column")
    if values is not None and bool((values == np.rint(values)).all()):
        labels = values.astype(np.int64)
    else:
        labels = np.array([str(each) for each in y])
    classes = np.unique(labels)
    if len(classes) < 2:
        raise CommandError(
            f"target {name!r} is of one class only, {str(classes[0])!r}, in all {len(y)} rows; "
            "classification needs two classes or more"
        )
    return labels


def _numbers(y: NDArray[Any]) -> NDArray[np.float64] | None:
    if y.dtype.kind == "b":
        return None
    try:
        return y.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
