"""Dates as numbers: decimal years, for estimators that take dates and for columns of tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data


def decimal_years(dates: object) -> NDArray[np.float64]:
    """Dates of any resolution as years and fractions of the year."""
    moments = np.asarray(dates, dtype="datetime64[us]")
    if np.isnat(moments).any():
        raise ValueError("Dates contain NaT (a missing date): drop these rows, or fill the dates in.")
    years = moments.astype("datetime64[Y]")
    start, end = years.astype("datetime64[us]"), (years + np.timedelta64(1, "Y")).astype("datetime64[us]")
    fraction = (moments - start).astype(np.float64) / (end - start).astype(np.float64)
    return years.astype(np.int64) + 1970.0 + fraction


@final
class DecimalYears(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A scikit-learn transformer of columns of dates to decimal years; missing dates become NaN.

    Dates are `datetime` objects, `datetime64` values, or text in ISO form such as "2024-05-31" and
    "2024-05-31T12:00".

    Attributes
    ----------
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if they had any at the fit.

    Examples
    --------
    >>> from orbitwise import DecimalYears
    >>> DecimalYears().fit_transform([["2024-07-02"], [None]])
    array([[2024.5],
           [   nan]])
    """

    n_features_in_: int

    def fit(self, X: ArrayLike, y: object = None) -> DecimalYears:
        """Remember the number of columns, and their names.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Dates.
        y : object, default=None
            Ignored.

        Returns
        -------
        DecimalYears
            The transformer.
        """
        _matrix(X)
        validate_data(self, cast(Any, X), skip_check_array=True)
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Years and fractions of the year.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_columns)
            Dates.

        Returns
        -------
        ndarray of shape (n_samples, n_columns)
            Numbers, NaN where a date is missing.
        """
        check_is_fitted(self)
        cells = _matrix(X)
        validate_data(self, cast(Any, X), reset=False, skip_check_array=True)
        return np.stack([_years(column) for column in cells.T], axis=1)


def _matrix(X: object) -> NDArray[np.object_]:
    """The cells of a table of dates."""
    cells = np.asarray(X, dtype=object)
    if cells.ndim != 2:
        raise ValueError(f"Columns of dates are [n_samples, n_columns], but their shape is {cells.shape}.")
    return cells


def _years(column: NDArray[np.object_]) -> NDArray[np.float64]:
    found = np.full(len(column), np.nan)
    moments = np.array([moment_in(cell) for cell in column], dtype="datetime64[us]")
    known = ~np.isnat(moments)
    found[known] = decimal_years(moments[known])
    return found


def moment_in(cell: object) -> np.datetime64:
    """The moment of one cell, in universal time, and NaT for a missing one; a ValueError if it is no date."""
    if cell is None or str(cell).strip() in ("", "NaT", "nan", "<NA>"):
        return np.datetime64("NaT", "us")
    try:
        if isinstance(cell, str):
            cell = datetime.fromisoformat(cell.strip())
        if isinstance(cell, datetime) and cell.tzinfo is not None:
            cell = cell.astimezone(UTC).replace(tzinfo=None)
        if isinstance(cell, date | np.datetime64):
            return np.array([cell], dtype="datetime64[us]")[0]
    except ValueError:
        pass
    raise ValueError(f"{str(cell)!r} is not a date such as 2024-05-31, or 2024-05-31T12:00 with a time.")
