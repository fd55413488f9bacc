"""Dates become decimal years."""

from datetime import date, datetime

import numpy as np
import pytest

from orbitwise.estimators.dates import decimal_years
from orbitwise.selection.search.auto import without_dates


def test_decimal_years():
    dates = np.array(["2000-01-01", "2000-07-02", "2001-01-01", "1969-07-02T12"], dtype="datetime64[h]")
    assert decimal_years(dates) == pytest.approx([2000.0, 2000.5, 2001.0, 1969.5])
    with pytest.raises(ValueError, match="NaT"):
        decimal_years(np.array(["2000-01-01", "NaT"], dtype="datetime64[D]"))


@pytest.mark.parametrize(
    "x",
    [
        np.array([["2000-01-01"], ["2001-01-01"]], dtype="datetime64[D]"),
        [[datetime(2000, 1, 1)], [datetime(2001, 1, 1)]],
        np.array([[date(2000, 1, 1)], [date(2001, 1, 1)]], dtype=object),
        [[np.datetime64("2000-01-01")], [np.datetime64("2001-01-01")]],
    ],
)
def test_dates_of_many_kinds(x):
    numbers, found = without_dates(x)
    assert found
    assert np.asarray(numbers, dtype=float).tolist() == [[2000.0], [2001.0]]


def test_columns_beside_dates_stay():
    numbers, found = without_dates([[datetime(2000, 1, 1), 3.0], [datetime(2001, 1, 1), 4.0]])
    assert found
    assert numbers.tolist() == [[2000.0, 3.0], [2001.0, 4.0]]


def test_anything_else_stays_as_it_is():
    for x in (np.zeros((2, 1)), [[1.0], [2.0]], "text", np.array([["a"]], dtype=object), []):
        assert without_dates(x) == (x, False) if not isinstance(x, np.ndarray) else without_dates(x)[0] is x


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"when": pandas.to_datetime(["2000-01-01", "2000-07-02"]), "height": [1.0, 2.0]})
    numbers, found = without_dates(frame)
    assert found
    assert numbers["when"].tolist() == [2000.0, 2000.5]
    assert list(numbers.columns) == ["when", "height"]
    assert without_dates(frame[["height"]])[1] is False
    assert frame["when"].dtype.kind == "M", "the frame itself is not changed"
