"""Dates as inputs: columns of dates become decimal years, so that a yearly cycle has the period 1."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray


def decimal_years(dates: Any) -> NDArray[np.float64]:
    """Year plus the fraction of that year which has passed, for dates of any resolution."""
    moments = np.asarray(dates, dtype="datetime64[us]")
    if np.isnat(moments).any():
        raise ValueError("Dates contain NaT (a missing date): drop those rows, or fill them in.")
    years = moments.astype("datetime64[Y]")
    start, end = years.astype("datetime64[us]"), (years + np.timedelta64(1, "Y")).astype("datetime64[us]")
    fraction = (moments - start).astype(np.float64) / (end - start).astype(np.float64)
    return years.astype(np.int64) + 1970.0 + fraction


def without_dates(X: Any) -> tuple[Any, bool]:
    """X with columns of dates as decimal years, and whether there were any; anything else stays as it is."""
    if hasattr(X, "columns") and hasattr(X, "assign"):  # a data frame, whatever library it is of
        dated = {name: decimal_years(X[name]) for name in X.columns if _is_dated(X[name])}
        return (X.assign(**dated) if dated else X), bool(dated)
    if isinstance(X, np.ndarray) and X.dtype.kind == "M":
        return decimal_years(X), True
    if isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object):
        array = np.asarray(X, dtype=object)
        if (
            array.ndim == 2
            and array.size
            and any(isinstance(each, date | np.datetime64) for each in array[0])
        ):
            columns = [decimal_years(each) if _is_dated(each) else each for each in array.T]
            return np.stack([np.asarray(each, dtype=np.float64) for each in columns], 1), True
    return X, False


def _is_dated(column: Any) -> bool:
    """Whether a column holds dates, by its type or by its first entry."""
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind == "M":
        return True
    values = np.asarray(column)
    return values.dtype.kind == "M" or (
        values.dtype == object and len(values) > 0 and isinstance(values[0], date | np.datetime64)
    )
