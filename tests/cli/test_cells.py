"""Text in CSV files that a spreadsheet must not run."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitwise.cli.files import escaped, table_batches, table_writer, unescaped
from tests.cli.conftest import QUICK

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "=", "'=1", "--1", "-1e"]
HARMLESS = ["", "a", "a=1", "'a", "it's", "-1", "+1.5", "-1e-3", "-.5", "-inf", "nan", " x"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_like_a_formula_is_marked(text):
    assert escaped(text) == "'" + text
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("cell", [*HARMLESS, -1.5, -3, float("-inf"), True, np.float64(-2.0)])
def test_other_text_and_numbers_stay(cell):
    assert escaped(cell) is cell


@given(st.text(st.sampled_from("'=+-@\t\r\n1.e a"), max_size=6))
def test_what_is_written_is_read_again(text):
    assert unescaped(escaped(text)) == text
    assert escaped(text) in (text, "'" + text)


def test_files_hold_no_formula_and_come_back(tmp_path: Path):
    path = tmp_path / "table.csv"
    with table_writer(path) as write:
        write({"=name": FORMULAS, "value": [-1.5] * len(FORMULAS)})
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["'=name", "value"]
    assert all(row[0].startswith("'") for row in rows)
    assert {row[1] for row in rows[1:]} == {"-1.5"}
    (back,) = table_batches(path, 100)
    assert list(back.columns["=name"]) == FORMULAS


def test_predictions_of_such_classes_can_be_learned_from(orbitwise, folder):
    rng = np.random.default_rng(0)
    names = np.array(["=HYPERLINK(0)", "-minus"])
    x = rng.normal(size=(12, 2))
    np.savez(folder / "a.npz", x=x, y=names[(x[:, 0] > 0).astype(int)])
    assert orbitwise("learn", "a.npz", "--out", "r", *QUICK).status == 0
    assert orbitwise("predict", "r", "a.npz", "-o", "p.csv").status == 0
    text = Path("p.csv").read_text()
    assert ",=" not in text
    assert "'=HYPERLINK(0)" in text
    assert ",-minus" not in text
    ran = orbitwise("learn", "p.csv", "--target", "prediction", "--ignore", "row", "--out", "s", *QUICK)
    assert ran.status == 0, ran.error
    assert "=HYPERLINK(0)" in orbitwise("show", "s").out
