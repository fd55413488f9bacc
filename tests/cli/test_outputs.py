"""Tables that are written in batches, in full or not at all."""

import os
import sys

import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import table_writer


def test_batches_make_one_table(tmp_path):
    with table_writer(tmp_path / "a.csv") as write:
        write({"a": [1, 2], "b": ["x", "y,z"]})
        write({"a": [3], "b": ["w"]})
        assert not (tmp_path / "a.csv").exists()
    assert (tmp_path / "a.csv").read_text() == 'a,b\n1,x\n2,"y,z"\n3,w\n'
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_of_what_failed(tmp_path):
    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(RuntimeError), table_writer(tmp_path / "a.csv") as write:  # noqa: PT012
        write({"a": [1]})
        raise RuntimeError
    assert (tmp_path / "a.csv").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the disk is full"), table_writer(tmp_path / "a.csv") as write:
        write({"a": [1]})
    assert not list(tmp_path.iterdir())


def test_other_endings_and_missing_libraries_are_told(tmp_path, monkeypatch):
    with (
        pytest.raises(CommandError, match=r"must end in \.csv or \.parquet"),
        table_writer(tmp_path / "a.txt"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CommandError, match=r"orbitwise\[tables\]"), table_writer(tmp_path / "a.parquet"):
        pass


def test_parquet_is_written(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with table_writer(tmp_path / "a.parquet") as write:
        write({"a": [1, 2], "b": [0.5, 0.25]})
        write({"a": [3], "b": [0.125]})
    assert parquet.read_table(tmp_path / "a.parquet").to_pydict() == {"a": [1, 2, 3], "b": [0.5, 0.25, 0.125]}
