"""Tables from files: separators, headers, cells that are missing, and what is wrong with a file."""

import sys

import numpy as np
import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import Rows, is_missing, table_batches, target_column


def test_rows_come_in_batches_whatever_the_separator(tmp_path):
    for separator in (",", ";", "\t"):
        text = "\ufeffa,b c\n1,x\n2,y\n\n3,z\n".replace(",", separator)
        (tmp_path / "t.csv").write_text(text, encoding="utf-8")
        first, second = table_batches(tmp_path / "t.csv", 2)
        assert list(first.columns) == ["a", "b c"]
        assert list(first.columns["a"]) == ["1", "2"]
        assert list(second.columns["b c"]) == ["z"]
        assert second.labels == ["row 3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("1,2\n3,4\n", "header line with the names of columns"),
        ("a,a\n1,2\n", "several columns called 'a'"),
        ("a,b\n1,2\n3\n", "line 3 of .* has 1 cells"),
        ('a,b\n1,"2\n', "is not a CSV file"),
    ],
)
def test_files_that_are_wrong_say_how(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(CommandError, match=says):
        list(table_batches(tmp_path / "t.csv", 10))


def test_bytes_that_are_no_text_are_told(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises(CommandError, match="UTF-8"):
        list(table_batches(tmp_path / "t.csv", 10))


def test_cells_are_numbers_missing_or_an_error():
    rows = Rows({"a": ("1", " NA ", "2e3"), "b": ("1", "red", "2"), "c": (1, None, 2.5)}, ["x", "y", "z"])
    np.testing.assert_array_equal(rows.numbers("a"), [1, np.nan, 2000])
    np.testing.assert_array_equal(rows.numbers("c"), [1, np.nan, 2.5])
    with pytest.raises(CommandError, match="column 'b' holds 'red' in y"):
        rows.numbers("b")
    assert is_missing(float("nan"))
    assert not is_missing("0")


def test_the_target_is_found_by_a_usual_name(tmp_path):
    assert target_column(None, ["a", "Label"], tmp_path) == "Label"
    assert target_column("a", ["a", "label"], tmp_path) == "a"
    for names in (["a", "b"], ["y", "label"]):
        with pytest.raises(CommandError, match="--target NAME"):
            target_column(None, names, tmp_path)


def test_parquet_needs_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CommandError, match=r"orbitwise\[tables\]"):
        list(table_batches(tmp_path / "t.parquet", 10))


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1.0, None], "b": ["x", "y"]}), tmp_path / "t.parquet")
    (rows,) = table_batches(tmp_path / "t.parquet", 10)
    np.testing.assert_array_equal(rows.numbers("a"), [1, np.nan])
    (tmp_path / "t.parquet").write_bytes(b"rubbish")
    with pytest.raises(CommandError, match="not a parquet file"):
        list(table_batches(tmp_path / "t.parquet", 10))
