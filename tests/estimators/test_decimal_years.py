"""Columns of dates as decimal years."""

from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from orbitwise.estimators import DecimalYears


@pytest.mark.parametrize(
    "cell",
    [
        "2001-07-02T12:00",
        " 2001-07-02 12:00:00 ",
        datetime(2001, 7, 2, 12),
        datetime(2001, 7, 2, 12, tzinfo=UTC),
        datetime(2001, 7, 2, 14, tzinfo=timezone(timedelta(hours=2))),
        np.datetime64("2001-07-02T12", "h"),
    ],
)
def test_dates_of_many_kinds(cell):
    found = DecimalYears().fit_transform([[cell, date(2000, 1, 1)]])
    assert found == pytest.approx(np.array([[2001.5, 2000.0]]))


@pytest.mark.parametrize("cell", [None, "", "NaT", np.datetime64("NaT"), float("nan")])
def test_missing_dates_are_nan(cell):
    assert np.isnan(DecimalYears().fit_transform([[cell]])).all()


def test_what_is_no_date_is_named():
    with pytest.raises(ValueError, match="'soon' is not a date such as 2024-05-31"):
        DecimalYears().fit_transform([["soon"]])


def test_other_widths_are_refused():
    fitted = DecimalYears().fit([["2001-01-01"]])
    with pytest.raises(ValueError, match="X has 2 features, but DecimalYears is expecting 1"):
        fitted.transform([["2001-01-01", "2002-01-01"]])


def test_columns_have_the_names_of_the_last_fit():
    frame = pd.DataFrame({"built": ["2001-01-01"]})
    dates = DecimalYears().fit(frame)
    assert dates.get_feature_names_out().tolist() == ["built"]
    with pytest.raises(ValueError, match="feature names should match"):
        dates.transform(frame.rename(columns={"built": "sold"}))
    for nameless in (frame.to_numpy(), frame.set_axis([0], axis=1)):
        assert not hasattr(dates.fit(frame).fit(nameless), "feature_names_in_")
