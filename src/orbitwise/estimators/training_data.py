"""Training data of Gaussian processes: small ones in memory, large ones where they are.

Large data are looked at once, in blocks, with the checks and messages of small ones, and nothing of them is
kept but what engines ask for later. Targets, labels and weights are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_y, check_array, check_consistent_length

from orbitwise.estimators.cells import explained
from orbitwise.estimators.sources import blocks_of, is_large_array, open_data
from orbitwise.estimators.validation import (
    VALIDATE,
    as_array,
    check_data,
    check_largest,
    check_settings,
    check_sizes,
    check_targets,
    check_weights,
    flatten_images,
    training_rows,
)
from orbitwise.inference.stored_rows import StoredRows, give_back_pages

Rows = NDArray[np.float64] | StoredRows


class TrainingData(NamedTuple):
    """Validated inputs, targets [n, c] and weights, and whether the targets were given as a vector."""

    x: Rows
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    is_vector: bool


def check_training(
    estimator: BaseEstimator, X: object, y: object, sample_weight: object, reset: bool = True
) -> TrainingData:
    """Validated settings, inputs, numbers as targets, and weights.

    It sets `n_features_in_` and `form_`, unless they are to be met (`reset=False`), when all is in memory.
    """
    check_settings(estimator)
    wanted = {"multi_output": True, "y_numeric": True, "ensure_min_samples": 1}
    if reset:
        x, targets = _training_rows(estimator, X, y, **wanted)
    else:
        flat, form = flatten_images(estimator, cast(Any, X), reset)
        x, targets = check_data(estimator, flat, y, reset=False, **wanted)
        x = form.inward(x)
    targets = np.asarray(targets, dtype=np.float64)
    weight = check_weights(sample_weight, np.broadcast_to(0.0, (len(x), 1)))
    return TrainingData(x, targets.reshape(len(x), -1), weight, targets.ndim == 1)


def training_parts(
    estimator: BaseEstimator, X: object, y: object, sample_weight: object
) -> Iterator[TrainingData]:
    """Rows for a fitted estimator, as those of `check_training`; large data some at a time."""
    opened = open_data(X, y)
    values = as_array(opened.x)
    if not is_large_array(values):
        yield check_training(estimator, values, opened.y, sample_weight, reset=False)
        return
    targets = check_targets(opened.y)
    check_consistent_length(values, targets)
    targets = np.asarray(targets)
    weight = check_weights(sample_weight, np.broadcast_to(0.0, (len(values), 1)))
    for part in blocks_of(values):
        yield check_training(estimator, values[part], targets[part], weight[part], reset=False)
        give_back_pages(values)


def check_labelled(estimator: BaseEstimator, X: object, y: object) -> tuple[Rows, NDArray[Any]]:
    """Validated settings, inputs and labels; it sets `n_features_in_` and `form_`."""
    check_settings(estimator)
    return _training_rows(estimator, X, y, ensure_min_samples=1)


def _training_rows(
    estimator: BaseEstimator, X: object, y: object, **settings: bool | int
) -> tuple[Rows, NDArray[Any]]:
    opened = open_data(X, y)
    values = as_array(opened.x)
    names = None if opened.names is None else np.array(opened.names, dtype=object)
    # features may learn from the rows, and remember those of all
    if is_large_array(values) and getattr(estimator, "features", None) is None:
        rows, targets = _stored_rows(estimator, values, opened.y, settings, names)
        return rows, targets
    if names is not None:
        import pandas

        values = pandas.DataFrame(values, columns=pandas.Index(names))
    return training_rows(estimator, values, opened.y, **settings)


def _stored_rows(
    estimator: BaseEstimator,
    values: NDArray[Any],
    y: object,
    settings: dict[str, bool | int],
    names: NDArray[np.object_] | None,
) -> tuple[StoredRows, NDArray[Any]]:
    """Rows of a large array, after one look at all of them, and targets."""
    first, form = flatten_images(estimator, values[:ROWS_OF_FORM])
    head: object = np.asarray(first)[:1]
    if names is not None:
        import pandas

        head = pandas.DataFrame(np.asarray(head), columns=pandas.Index(names))
    numbers = {"dtype": np.float64, "order": "C"}
    # sets the number and names of features; without y it says what is missing
    checks = {name: value for name, value in settings.items() if name == "ensure_min_samples"}
    VALIDATE(estimator, head, *([None] if y is None else []), **checks, **numbers)
    width, name = np.shape(head)[1], blake2b(f"{values.dtype} {values.shape}".encode(), digest_size=12)
    least, largest, place = np.inf, 0.0, (0, 0)
    for part in blocks_of(values):
        block = np.ascontiguousarray(values[part])
        name.update(block.data)
        try:
            rows = cast(Callable[..., Any], check_array)(
                block.reshape(len(block), width), **numbers, estimator=estimator, input_name="X"
            )
        except ValueError as error:
            if values.ndim != 2 or not str(error).startswith("Input X contains NaN"):
                raise
            has_gap = np.any([np.isnan(values[each]).any(0) for each in blocks_of(values)], axis=0)
            cells = [
                (n if names is None else names[n], [np.nan if gap else 0.0]) for n, gap in enumerate(has_gap)
            ]
            raise explained(cells, error) from error
        give_back_pages(values)
        sizes = np.abs(rows)
        here = np.unravel_index(int(sizes.argmax()), sizes.shape)
        least = min(least, float(rows.min()))
        if sizes[here] > abs(largest):
            largest, place = float(rows[here]), (part.start + int(here[0]), int(here[1]))
    targets = check_targets(y)
    is_numeric = bool(settings.get("y_numeric", False))
    is_multiple = bool(settings.get("multi_output", False))
    targets = _check_y(targets, multi_output=is_multiple, y_numeric=is_numeric, estimator=estimator)
    check_consistent_length(values, targets)
    check_largest(largest, place, "X")
    if is_numeric:
        check_sizes(np.zeros((1, 1)), np.asarray(targets, dtype=np.float64))
    vars(estimator)["form_"] = form
    layout = form.inward if form.channels == "last" else None
    rows = StoredRows(values, len(values), width, layout, name=name.hexdigest(), least=least)
    return rows, targets


ROWS_OF_FORM = 1_000
"""Rows by which the form of large data is known, as many as pixels are looked at of."""
