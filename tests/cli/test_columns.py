"""Tables with words, dates and gaps, from the file to the model file and back."""

import csv
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orbitwise.cli.columns import kinds_of, texts_of
from orbitwise.cli.data import Source, batches, read
from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import Rows
from orbitwise.storage import load
from tests.cli.conftest import write_csv

HEADER = "colour,built,size,price"
QUICK = ("--max-iterations", "3", "--no-report")


def rows(count=24, gaps=()):
    random = np.random.default_rng(0)
    found = [
        [["red", "blue"][i % 2], f"20{10 + i % 7}-0{1 + i % 9}-15", round(random.normal(), 3), 3.5 * i]
        for i in range(count)
    ]
    for row, column in gaps:
        found[row][column] = ""
    return found


def test_words_become_codes_and_dates_become_years(folder):
    write_csv(folder / "t.csv", HEADER, rows())
    data = read(Source("t.csv", "price"))
    assert data.columns == ("colour_blue", "colour_red", "built", "size") or set(data.columns) == {
        "colour_blue",
        "colour_red",
        "built",
        "size",
    }
    column = dict(zip(data.columns, data.X.T, strict=True))
    np.testing.assert_array_equal(column["colour_red"], np.arange(24) % 2 == 0)
    assert column["built"][0] == pytest.approx(2010.04, abs=0.01)
    assert column["size"].tolist() == [row[2] for row in rows()]


def test_new_rows_are_read_as_those_of_the_fit_in_any_order_of_columns(folder):
    write_csv(folder / "t.csv", HEADER, rows())
    data = read(Source("t.csv", "price"))
    swapped = [[row[2], row[0], row[1]] for row in rows()]
    write_csv(folder / "new.csv", "size,colour,built", swapped)
    parts = list(batches(Source("new.csv"), data.expected, 7))
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), data.X)


def test_gaps_are_counted_by_column_skipped_or_filled(folder):
    write_csv(folder / "t.csv", HEADER, rows(gaps=[(1, 0), (2, 1), (3, 2), (4, 2)]))
    with pytest.raises(
        CommandError, match=r"4 rows .*\(1 in 'colour', 1 in 'built', 2 in 'size'\).*--bad-rows fill"
    ):
        read(Source("t.csv", "price"))
    assert len(read(Source("t.csv", "price", skips=True))) == 20
    data = read(Source("t.csv", "price", fills=True))
    assert len(data) == 24
    column = dict(zip(data.columns, data.X.T, strict=True))
    assert column["colour_missing"].tolist() == [float(i == 1) for i in range(24)]
    assert column["missingindicator_size"].tolist() == [float(i in (3, 4)) for i in range(24)]
    assert column["size"][3] == pytest.approx(np.median([row[2] for row in rows()[:3] + rows()[5:]]))
    # gaps that are new are filled as well
    write_csv(folder / "new.csv", HEADER, rows(gaps=[(0, 0), (0, 2)]))
    (part,) = batches(Source("new.csv"), data.expected, 100)
    assert np.isfinite(part.X).all()


def test_all_columns_that_cannot_be_used_are_named_at_once():
    columns = {
        "name": [f"n{i}" for i in range(10)],
        "age": ["12", "13", "old", *["14"] * 7],
        "nothing": [""] * 10,
        "fine": ["a", "b"] * 5,
    }
    table = Rows(columns, [f"row {i + 1}" for i in range(10)])
    with pytest.raises(CommandError) as caught:
        kinds_of(table, list(columns), "t.csv")
    text = str(caught.value)
    assert "column 'name' holds 10 different words in 10 rows" in text
    assert "column 'age' holds 'old' in row 3 among numbers" in text
    assert "column 'nothing' is empty" in text
    assert text.endswith("--ignore name --ignore age --ignore nothing")


def test_a_model_of_words_and_dates_is_one_file(orbitwise, folder):
    write_csv(folder / "t.csv", HEADER, rows(gaps=[(3, 2), (5, 0)]))
    ran = orbitwise("learn", "t.csv", "--target", "price", "--bad-rows", "fill", "--out", "r", *QUICK)
    assert ran.status == 0, ran.error
    write_csv(folder / "new.csv", HEADER, [*rows(gaps=[(0, 2)]), ["green", "2011-01-01", 0.5, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ran = orbitwise("predict", "r", "new.csv", "-o", "p.csv")
    assert ran.status == 0, ran.error
    assert "warning: column 'colour' holds 'green' not among the rows that the model learned" in ran.error
    with open("p.csv", newline="") as file:
        predicted = np.array([float(row["mean"]) for row in csv.DictReader(file)])
    # the same in Python, from a data frame with the columns in another order
    model = load(Path("r") / "model.orbitwise")
    assert texts_of(model[:-1]) == {"colour", "built"}
    frame = pd.read_csv("new.csv")[["price", "size", "built", "colour"]]
    np.testing.assert_allclose(model.predict(frame), predicted)
    assert orbitwise("show", "r").status == 0
    assert orbitwise("report", "r").status == 0
