"""Errors name all columns that hold words or gaps at once."""

import numpy as np
import pandas as pd
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.estimators.cells import explained

WORDS = [["red", 1.0, "u"], ["blue", 2.0, "v"]] * 5


@pytest.mark.parametrize("estimator", [InvariantGPRegressor(), InvariantGPClassifier()])
def test_all_columns_of_words_and_gaps_are_named(estimator):
    frame = pd.DataFrame(WORDS, columns=["colour", "size", "kind"]).assign(age=[np.nan, *range(9)], one=1.0)
    with pytest.raises(ValueError, match="words in columns 'colour', 'kind' and missing values in column"):
        estimator.fit(frame, [0, 1] * 5)


def test_columns_without_names_are_numbered():
    with pytest.raises(ValueError, match="words in columns 0, 2: put a ColumnTransformer"):
        InvariantGPRegressor().fit(WORDS, range(10))
    holes = np.ones((10, 3))
    holes[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"Input X contains NaN\. X has missing values in column 1"):
        InvariantGPRegressor().fit(holes, range(10))


def test_new_rows_are_explained_as_well():
    model = InvariantGPRegressor(max_iterations=0).fit(np.eye(3), [0, 1, 2])
    with pytest.raises(ValueError, match="missing values in column 2"):
        model.predict([[1.0, 2.0, np.nan]])


def test_many_columns_are_counted():
    text = str(explained(enumerate(np.full((2, 20), "a").T), ValueError("could not convert")))
    assert "columns 0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in text


def test_other_errors_stay_as_they_are():
    error = ValueError("Expected numeric data")
    assert explained(enumerate(np.ones((2, 2)).T), error) is error
