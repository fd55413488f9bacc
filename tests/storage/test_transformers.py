"""Pipelines with scikit-learn's transformers of columns come back from a file as they were."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

import orbitwise
from orbitwise import InvariantGPRegressor
from orbitwise.estimators import DecimalYears
from orbitwise.storage import StorageError, describe
from orbitwise.storage.container import unpack
from orbitwise.storage.models import packed, put_together
from orbitwise.storage.objects import check_same, estimator_in


def table(count=30):
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "colour": random.choice(["red", "blue", "green"], count),
            "size": np.where(random.random(count) < 0.2, np.nan, random.normal(size=count)),
            "grade": random.choice(["good", "bad"], count),
            "kind": random.integers(0, 3, count),
            "built": pd.date_range("2020-01-01", periods=count, freq="17D"),
            "weight": random.normal(size=count),
        }
    )


def fitted(*steps):
    model = InvariantGPRegressor(max_iterations=0, invariance="none")
    return make_pipeline(*steps, model).fit(table(), table()["weight"])


def all_columns(remainder="passthrough"):
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False))
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    return ColumnTransformer(
        [
            ("words", words, ["colour"]),
            ("numbers", numbers, ["size"]),
            ("grades", OrdinalEncoder(), ["grade"]),
            ("kinds", OneHotEncoder(drop="first"), ["kind"]),
            ("dates", DecimalYears(), ["built"]),
            ("none", StandardScaler(), []),
        ],
        remainder=remainder,
        verbose_feature_names_out=False,
    )


@pytest.mark.parametrize("remainder", ["passthrough", "drop", MinMaxScaler(feature_range=(-1, 1))])
def test_a_pipeline_predicts_the_same(tmp_path, remainder):
    model, file = fitted(all_columns(remainder), MinMaxScaler()), tmp_path / "model.orbitwise"
    orbitwise.save(model, file)
    again, new = orbitwise.load(file), table(60)[30:]
    assert isinstance(again, Pipeline)
    assert np.array_equal(again.predict(new), model.predict(new))
    assert list(again[:-1].get_feature_names_out()) == list(model[:-1].get_feature_names_out())
    # columns are found by their names
    assert np.array_equal(again.predict(new[new.columns[::-1]].assign(other=1)), model.predict(new))
    assert describe(file)["estimator"] == "InvariantGPRegressor"
    assert packed(again) == packed(model)


def test_unknown_categories_are_treated_as_before(tmp_path):
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    model = fitted(ColumnTransformer([("words", encoder, ["colour", "grade"])]))
    orbitwise.save(model, tmp_path / "model.orbitwise")
    again, new = orbitwise.load(tmp_path / "model.orbitwise"), table().assign(colour="pink")
    assert np.array_equal(again.predict(new), model.predict(new))


def test_ordinal_codes_of_unknown_and_missing_categories(tmp_path):
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-2, encoded_missing_value=-1, categories="auto"
    )
    rows = table().assign(colour=table()["colour"].where(table()["colour"] != "red"))
    transformer = ColumnTransformer([("words", encoder, ["colour", "grade"])])
    model = make_pipeline(transformer, InvariantGPRegressor(max_iterations=0)).fit(rows, rows["weight"])
    orbitwise.save(model, tmp_path / "model.orbitwise")
    again, new = orbitwise.load(tmp_path / "model.orbitwise"), table().assign(grade="fair")
    assert np.array_equal(again[:-1].transform(new), model[:-1].transform(new))
    assert np.array_equal(again[:-1].transform(rows), model[:-1].transform(rows))


@pytest.mark.parametrize("width", [1, 2])
def test_scalers_of_arrays(tmp_path, width):
    rows = table()[["weight", "kind"]].to_numpy()[:, :width]
    model = make_pipeline(StandardScaler(with_mean=False), InvariantGPRegressor(max_iterations=0))
    model.fit(rows, table()["weight"])
    orbitwise.save(model, tmp_path / "model.orbitwise")
    assert np.array_equal(orbitwise.load(tmp_path / "model.orbitwise").predict(rows), model.predict(rows))


def test_columns_without_any_value_are_dropped_again(tmp_path):
    rows = table()[["size", "weight"]].assign(empty=np.nan)
    imputer = SimpleImputer(strategy="mean", add_indicator=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping features without any observed values")
        model = make_pipeline(imputer, InvariantGPRegressor(max_iterations=0)).fit(rows, rows["weight"])
        orbitwise.save(model, tmp_path / "model.orbitwise")
        again = orbitwise.load(tmp_path / "model.orbitwise")
        assert np.array_equal(again[:-1].transform(rows), model[:-1].transform(rows))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (PolynomialFeatures(), "PolynomialFeatures, which cannot be stored"),
        (OneHotEncoder(min_frequency=3, sparse_output=False), "groups rare categories"),
        (ColumnTransformer([("one", OrdinalEncoder(), ["kind"])], transformer_weights={"one": 2}), "weights"),
    ],
)
def test_other_steps_are_refused(tmp_path, step, message):
    rows = table()[["kind"]]
    model = make_pipeline(step, InvariantGPRegressor(max_iterations=0)).fit(rows, rows["kind"])
    with pytest.raises(StorageError, match=message):
        orbitwise.save(model, tmp_path / "model.orbitwise")


def test_frames_stay_frames(tmp_path):
    steps = make_pipeline(DecimalYears(), StandardScaler()).set_output(transform="pandas")
    model = make_pipeline(steps, InvariantGPRegressor(max_iterations=0))
    rows = table()[["built"]]
    orbitwise.save(model.fit(rows, table()["weight"]), tmp_path / "model.orbitwise")
    again = orbitwise.load(tmp_path / "model.orbitwise")
    for place in range(2):
        assert isinstance(again[0][: place + 1].transform(rows), pd.DataFrame)
    assert np.array_equal(again.predict(rows), model.predict(rows))


def test_a_file_whose_transformers_make_other_rows_is_refused():
    structure, arrays = unpack(packed(fitted(all_columns())))
    node = next(each for each in structure["objects"] if each["type"] == "ColumnTransformer")
    node["arguments"]["places"][0] = [0, 0]
    with pytest.raises(StorageError, match="damaged or hostile"):
        put_together(structure, arrays)


def test_what_was_read_back_must_be_the_same():
    model, other = fitted(all_columns()), fitted(all_columns("drop"))
    assert estimator_in(model) is model[-1]
    check_same(model, model)
    with pytest.raises(StorageError, match="a part of the transformers before the estimator would be lost"):
        check_same(Pipeline([*model.steps[:-1], other.steps[-1]]), other)


def test_a_file_whose_steps_are_no_transformers_is_refused():
    structure, arrays = unpack(packed(fitted(all_columns())))
    structure["steps"] = [{"tuple": ["one", 3]}, {"tuple": ["model", None]}]
    with pytest.raises(StorageError, match="its pipeline is malformed"):
        put_together(structure, arrays)
