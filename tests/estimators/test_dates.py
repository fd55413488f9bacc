"""Dates are no numbers, wherever they hide."""

from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest

from orbitwise import InvariantGPRegressor, InvariantKernelRidge, InvariantSVC
from orbitwise.estimators.validation import refuse_dates

DAYS = pd.date_range("2020-01-01", periods=4)
COLUMNS = {
    "datetime64": DAYS,
    "zone": DAYS.tz_localize("UTC"),
    "timedelta64": DAYS - DAYS[0],
    "period": DAYS.to_period("D"),
    "category": pd.Categorical(DAYS),
    "Timestamp": DAYS.astype(object),
    "date": [each.date() for each in DAYS],
}
OTHERS = {
    "array": DAYS.to_numpy(),
    "series": pd.Series(DAYS),
    "lists": [[np.datetime64("2020-01-01"), 1.0]],
    "lists of dates": [[date(2020, 1, 1)], [date(2020, 1, 2)]],
    "durations": [timedelta(1), timedelta(2)],
    "periods": np.array(list(DAYS.to_period("D")), dtype=object),
    "a later entry": np.array([[1.0], [date(2020, 1, 1)]], dtype=object),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_column_of_dates_is_named(column):
    frame = pd.DataFrame({"a": np.arange(4.0), "t": column})
    with pytest.raises(TypeError, match=r"X holds dates or durations \(.* in column 't'\)"):
        refuse_dates(frame, "X")
    with pytest.raises(TypeError, match=r"X holds dates or durations \(.* in column 1\)"):
        refuse_dates(frame.set_axis(["a", "a"], axis=1), "X")


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_dates_are_found_in_every_container(values):
    with pytest.raises(TypeError, match="y holds dates or durations"):
        refuse_dates(values, "y")


@pytest.mark.parametrize(
    "values",
    [
        np.ones((2, 2)),
        [[1.0, 2.0], [3.0]],
        np.array([[1, None], ["a", 2.0]], dtype=object),
        pd.DataFrame({"a": [1, 2], "b": pd.Categorical([3, 4]), "c": pd.array([1, None], dtype="Int64")}),
        pd.Series(["x", "y"], dtype="category"),
        np.zeros((0, 3)),
        None,
        3.0,
    ],
    ids=str,
)
def test_what_is_no_date_is_left_to_others(values):
    refuse_dates(values, "X")


@pytest.mark.parametrize("model", [InvariantGPRegressor(), InvariantKernelRidge(), InvariantSVC()], ids=str)
def test_fit_and_predict_refuse_frames_of_dates(model):
    frame = pd.DataFrame({"t": pd.date_range("2020-01-01", periods=12), "a": np.arange(12.0)})
    y = np.arange(12) % 2
    for X, targets in ((frame[["t"]], y), (frame, y), (frame[["a"]], frame[["t"]])):
        with pytest.raises(TypeError, match=r"holds dates or durations .* in column 't'"):
            model.fit(X, targets)
    model.fit(frame[["a"]], y)
    with pytest.raises(TypeError, match="X holds dates or durations"):
        model.predict(frame[["t"]])
