"""What the cells of a table hold that are no numbers: dates, words and gaps, told column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, time, timedelta
from typing import Any, cast

import numpy as np

MOST_NAMED = 8
"""Columns that a message names."""
MOMENTS = (date, time, timedelta, np.datetime64, np.timedelta64)


def refuse_dates(values: object, name: str) -> None:
    """Raise a TypeError that names the column where values are dates, times, durations or periods.

    NumPy would turn many of them into raw integers without a word.
    """
    for column, part in _columns(values):
        if (found := _dates_in(part)) is not None:
            where = "" if column is None else f" in column {column!r}"
            raise TypeError(
                f"{name} holds dates or durations ({found}{where}), but numbers are required: turn them into "
                "numbers, say decimal years. AutoGPRegressor does so itself with dates in X."
            )


def _columns(values: object) -> Iterator[tuple[object, object]]:
    """The columns of a frame, or of an array of objects, with their names; else the values as a whole."""
    if hasattr(values, "columns") and hasattr(values, "dtypes"):  # a data frame, whatever library it is of
        frame = cast(Any, values)
        if len(set(frame.columns)) == len(frame.columns):
            yield from ((column, frame[column]) for column in frame.columns)
            return
        values = np.asarray(frame, dtype=object)
    if isinstance(values, list | tuple):
        try:
            values = np.asarray(values)
        except (TypeError, ValueError):
            return  # ragged, and refused as such
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 2:
        yield from enumerate(values.T)
        return
    yield None, values


def _dates_in(values: object) -> str | None:
    """What kind of dates a column holds, by its type or by its entries; a category counts by its values."""
    dtype = getattr(values, "dtype", None)
    if (categories := getattr(dtype, "categories", None)) is not None and hasattr(categories, "dtype"):
        return _dates_in(categories)
    is_temporal = getattr(dtype, "is_temporal", bool)  # as polars says it
    is_period = getattr(getattr(dtype, "type", None), "__name__", "") == "Period"
    if getattr(dtype, "kind", "") in ("M", "m") or is_period or is_temporal():
        return str(dtype)
    if getattr(dtype, "kind", "") != "O":
        return None
    kinds = dict.fromkeys(type(entry) for entry in np.asarray(values, dtype=object).ravel())
    return next((kind.__name__ for kind in kinds if issubclass(kind, MOMENTS) or _is_period(kind)), None)


def _is_period(kind: type) -> bool:
    return kind.__name__ == "Period" and hasattr(kind, "to_timestamp")


def explained(X: object, error: ValueError) -> ValueError:
    """The error with the names of all columns that hold words or gaps, where there are any."""
    words, gaps = list[str](), list[str]()
    columns = _columns(X) if hasattr(X, "columns") else enumerate(np.asarray(X, dtype=object).T)
    for name, column in columns:
        cells = np.asarray(column, dtype=object).ravel()
        if any(isinstance(cell, str) for cell in cells):
            words.append(repr(name))
        elif any(cell is None or cell != cell for cell in cells):
            gaps.append(repr(name))
    told = [f"words in {_some(words)}"] if words else []
    told += [f"missing values in {_some(gaps)}"] if gaps else []
    if not told:
        return error
    return ValueError(
        f"{str(error).splitlines()[0].rstrip('.')}. X has {' and '.join(told)}: put a ColumnTransformer with "
        "OneHotEncoder or SimpleImputer before the estimator in a pipeline, which orbitwise.save keeps whole."
    )


def _some(names: Sequence[str]) -> str:
    """A few names of columns, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names[:MOST_NAMED])}{more}"
