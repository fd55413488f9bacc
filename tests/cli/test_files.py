"""The files that the command reads and writes: arrays, tables and images."""

import csv
import io
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import (
    Rows,
    class_folders,
    escaped,
    images_in,
    inputs_and_targets,
    inputs_member,
    is_missing,
    load_images,
    npz_arrays,
    table_batches,
    table_writer,
    target_column,
    unescaped,
)
from tests.cli.conftest import QUICK

X, Y = np.zeros((4, 2)), np.arange(4)


@pytest.mark.parametrize(
    ("names", "target", "part", "found"),
    [
        (("x", "y"), None, "train", "y"),
        (("x", "y"), "y", "test", "y"),
        (("X", "labels"), None, "train", "labels"),
        (("x_train", "y_train"), "y", "train", "y"),
        (("x_train", "y_train"), "y_train", "train", "y"),
        (("x", "energy"), "energy", "train", "energy"),
    ],
)
def test_the_usual_names_are_found(names, target, part, found):
    arrays = dict(zip(names, (X, Y), strict=True))
    x, y, name = inputs_and_targets(arrays, target, part, "a.npz")
    assert x is X
    assert y is Y
    assert name == found


def test_a_test_part_is_taken_where_there_is_one():
    arrays = {"x_train": X, "y_train": Y, "x_test": X + 1, "y_test": Y + 1}
    for target in (None, "y", "y_train"):
        x, y, _ = inputs_and_targets(arrays, target, "test", "a.npz")
        assert x is arrays["x_test"]
        assert y is arrays["y_test"]


@pytest.mark.parametrize(
    ("arrays", "target", "says"),
    [
        ({"a": X}, None, "no array of inputs"),
        ({"x": X}, None, "--target NAME"),
        ({"x": X, "energy": Y}, "enery", "did you mean 'energy'"),
        ({"x": X, "y": Y[:3]}, None, "one target per row of x, which has 4"),
        ({"x": X[:, 0], "y": Y}, None, "one row per input"),
        ({"x": X.astype(str), "y": Y}, None, "must hold numbers"),
    ],
)
def test_errors_name_the_array(arrays, target, says):
    with pytest.raises(CommandError, match=says):
        inputs_and_targets(arrays, target, "train", "a.npz")


def test_code_and_rubbish_are_refused(tmp_path):
    np.savez(tmp_path / "code.npz", x=np.array([{}], dtype=object))
    (tmp_path / "rubbish.npz").write_bytes(b"rubbish")
    for name in ("code.npz", "rubbish.npz"):
        with pytest.raises(CommandError, match="plain arrays"):
            npz_arrays(tmp_path / name)


RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(23, 2, 3))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i2", "|u1", "|b1"])
@pytest.mark.parametrize("size", [1, 7, 23, 100])
def test_rows_are_those_of_the_whole_array(tmp_path, save, dtype, size):
    x = (10 * ROWS).clip(0, 100).astype(dtype)
    save(tmp_path / "a.npz", x=x, y=np.zeros(23))
    parts = list(inputs_member(tmp_path / "a.npz", "test").batches(size))
    assert [len(part) for part in parts] == [min(size, 23 - start) for start in range(0, 23, size)]
    np.testing.assert_array_equal(np.concatenate(parts), x)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_more_bytes_are_held_than_a_batch_has(tmp_path, monkeypatch, save):
    save(tmp_path / "a.npz", x=np.tile(ROWS, (400, 1, 1)))
    asked: list[int] = []
    read = zipfile.ZipExtFile.read

    def counted(self, n=-1):
        asked.append(n)
        return read(self, n)

    def whole(*_: object) -> None:
        raise AssertionError("the array was read whole")

    member = inputs_member(tmp_path / "a.npz", "test")
    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    monkeypatch.setattr("orbitwise.cli.files.npz_arrays", whole)
    assert sum(len(part) for part in member.batches(50)) == 23 * 400
    assert max(asked) == 50 * 6 * 8
    assert min(asked) >= 0  # -1 would be all


def test_columns_that_follow_each_other_are_read_whole(tmp_path):
    x = np.asfortranarray(ROWS[:, 0])
    np.savez(tmp_path / "a.npz", x=x)
    member = inputs_member(tmp_path / "a.npz", "train")
    assert member.is_transposed
    np.testing.assert_array_equal(np.concatenate(list(member.batches(4))), x)


def test_the_part_is_found_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=ROWS, x_test=ROWS[:3])
    assert inputs_member(tmp_path / "a.npz", "test").shape == (3, 2, 3)
    assert inputs_member(tmp_path / "a.npz", "train").shape == (23, 2, 3)
    np.savez(tmp_path / "b.npz", picture=ROWS)
    with pytest.raises(CommandError, match="no array of inputs"):
        inputs_member(tmp_path / "b.npz", "train")
    np.savez(tmp_path / "c.npz", x=np.zeros(4))
    with pytest.raises(CommandError, match="one row per input"):
        inputs_member(tmp_path / "c.npz", "train")


def test_an_array_without_rows_has_no_batches(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS[:0])
    assert not list(inputs_member(tmp_path / "a.npz", "train").batches(4))


def test_code_rubbish_and_arrays_cut_short_are_refused(tmp_path):
    np.savez(tmp_path / "code.npz", x=np.array([[{}]], dtype=object))
    (tmp_path / "rubbish.npz").write_bytes(b"rubbish")
    buffer = io.BytesIO()
    np.save(buffer, ROWS)
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as file:
        file.writestr("x.npy", buffer.getvalue()[:-50])
    with zipfile.ZipFile(tmp_path / "words.npz", "w") as file:
        file.writestr("x.npy", b"words")
    for name in ("code", "rubbish", "short", "words"):
        with pytest.raises(CommandError, match="plain arrays"):
            list(inputs_member(tmp_path / f"{name}.npz", "train").batches(5))


def test_damage_in_the_middle_is_found(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=ROWS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(CommandError, match="plain arrays"):
        list(inputs_member(tmp_path / "a.npz", "train").batches(5))


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
    plain = ("--invariance", "none", *QUICK)
    assert orbitwise("learn", "a.npz", "--out", "r", *plain).status == 0
    assert orbitwise("predict", "r", "a.npz", "-o", "p.csv").status == 0
    text = Path("p.csv").read_text()
    assert ",=" not in text
    assert "'=HYPERLINK(0)" in text
    assert ",-minus" not in text
    ran = orbitwise("learn", "p.csv", "--target", "prediction", "--ignore", "row", "--out", "s", *plain)
    assert ran.status == 0, ran.error
    assert "=HYPERLINK(0)" in orbitwise("show", "s").out


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


GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    grey = Image.fromarray(GREY)
    images = {
        "grey": grey,
        "deep": Image.fromarray(GREY.astype(np.uint16) * 257),
        "colour": Image.merge("RGB", [grey, grey, grey]),
        "clear": Image.merge("RGBA", [grey, grey, grey, grey]),
    }
    for name, image in images.items():
        image.save(tmp_path / f"{name}.png")
    return {name: tmp_path / f"{name}.png" for name in images}


@pytest.mark.parametrize("name", ["grey", "deep", "colour", "clear"])
def test_values_are_between_0_and_1(files, name):
    pixels = load_images([files[name]]).pixels[0]
    shown = pixels if pixels.ndim == 2 else pixels.mean(0)
    np.testing.assert_allclose(shown, GREY / 255, atol=1e-12)


def test_one_image_in_colour_makes_all_coloured(files):
    assert load_images([files["grey"], files["colour"]]).pixels.shape == (2, 3, 3, 4)
    assert load_images([files["grey"], files["colour"]], (3, 4)).pixels.shape == (2, 3, 4)
    assert load_images([files["grey"]], (3, 3, 4)).pixels.shape == (1, 3, 3, 4)
    assert load_images([files["grey"]], (1, 3, 4)).pixels.shape == (1, 1, 3, 4)


def test_unreadable_files_are_named(files, tmp_path):
    (tmp_path / "torn.png").write_bytes(files["grey"].read_bytes()[:40])
    found = load_images([tmp_path / "torn.png", files["grey"], tmp_path / "gone.png"])
    assert found.kept == [1]
    assert set(found.failures) == {tmp_path / "torn.png", tmp_path / "gone.png"}


def test_sizes_must_agree_or_are_changed(files, tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "big.png")
    both = [files["grey"], files["grey"], tmp_path / "big.png"]
    with pytest.raises(CommandError, match=r"big.png has 9x9 .* other images have 3x4; .*--resize 3x4"):
        load_images(both)
    with pytest.raises(CommandError, match="the model takes 9x9"):
        load_images([files["grey"]], (9, 9))
    assert load_images(both, None, (3, 4)).pixels.shape == (3, 3, 4)


def test_folders_are_classes(files, tmp_path):
    with pytest.raises(CommandError, match="name of the class"):
        class_folders(tmp_path)
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
        Image.fromarray(GREY).save(tmp_path / name / "1.PNG")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    found, labels = class_folders(tmp_path)
    assert labels == ["a", "b"]
    assert len(found) == 2
    assert files["grey"] in images_in(tmp_path)
