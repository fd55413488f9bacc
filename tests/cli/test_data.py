"""Data from paths: what is read, in batches or at once, and what is left out."""

import numpy as np
import pytest

from orbitwise.cli.data import Data, Expected, Source, batches, read
from orbitwise.cli.errors import CommandError
from orbitwise.estimators.forms import InputForm
from tests.cli.conftest import symmetric, write_csv


def test_batches_are_the_whole(table):
    whole = read(Source(str(table), "strength"))
    parts = list(batches(Source(str(table)), whole.expected, 7))
    assert [len(part) for part in parts] == [7, 7, 7, 3]
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), whole.X)
    assert [label for part in parts for label in part.labels] == whole.labels
    np.testing.assert_array_equal(whole.X, symmetric(24)[0])


def test_images_come_in_batches(pictures):
    whole = read(Source(str(pictures)))
    assert whole.shape == (6, 6)
    assert set(whole.targets) == {"lying", "upright"}
    parts = list(batches(Source(str(pictures)), Expected(36, None, InputForm((6, 6))), 5))
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), whole.X)
    assert parts[0].labels[0].startswith("lying")


def test_arrays_come_in_batches(folder):
    x = np.arange(24.0).reshape(4, 3, 2)
    np.savez(folder / "a.npz", x=x, y=np.arange(4), z=np.array([1, 1, 8]))
    whole = read(Source("a.npz"))
    assert whole.shape == (3, 2)
    assert whole.kinds is not None
    parts = list(batches(Source("a.npz"), Expected(6), 3))
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts]), x.reshape(4, 6))


def test_rows_with_holes_are_named_or_left_out(folder):
    write_csv(folder / "holes.csv", "a,b,y", [[1, 2, 3], [4, "NA", 6], [7, 8, ""], [1, "inf", 2], [5, 6, 7]])
    with pytest.raises(CommandError, match=r"3 rows have cells .* first in column 'b' of row 2; .* skip"):
        read(Source("holes.csv", "y"))
    data = read(Source("holes.csv", "y", skips=True))
    np.testing.assert_array_equal(data.X, [[1, 2], [5, 6]])
    assert data.labels == ["row 1", "row 5"]
    assert "left out 3 rows" in data.notes[0]


def test_columns_are_ignored_and_text_is_named(folder):
    write_csv(folder / "t.csv", "name,a,y", [["x", 1, 2], ["w", 3, 4]])
    with pytest.raises(CommandError, match=r"column 'name' holds 'x' in row 1.*--ignore name"):
        read(Source("t.csv", "y"))
    assert read(Source("t.csv", "y", ("name",))).columns == ("a",)
    with pytest.raises(CommandError, match="did you mean 'name'"):
        read(Source("t.csv", "y", ("nam",)))


def test_test_data_must_be_like_the_others(table, folder):
    like = read(Source(str(table), "strength"))
    write_csv(folder / "other.csv", "c,strength,b", [[1, 2, 3]])
    with pytest.raises(CommandError, match="no column 'a'"):
        read(Source("other.csv", "strength"), like.expected)
    np.savez(folder / "a.npz", x=np.zeros((2, 5)), y=np.zeros(2))
    with pytest.raises(CommandError, match="inputs of 5 numbers, but the model takes 3"):
        read(Source("a.npz"), like.expected)


def test_some_rows_are_taken_at_random_but_in_order():
    data = Data(np.arange(20.0)[:, None], np.arange(20), [str(i) for i in range(20)])
    some = data.take(5, 1)
    assert len(some) == 5
    assert list(some.targets) == sorted(some.targets)
    assert [int(label) for label in some.labels] == list(some.targets)
    assert data.take(None) is data
    assert list(data.take(5, 2).targets) != list(some.targets)


def test_a_set_without_network_says_what_to_do(folder, monkeypatch):
    def no_network(**_: object) -> None:
        raise OSError("unreachable")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", no_network)
    with pytest.raises(ConnectionError, match=r"could not be reached.*ORBITWISE_DATA"):
        read(Source("usps"))


def test_arrays_have_the_shape_of_the_model(folder):
    np.savez(folder / "a.npz", x=np.zeros((4, 3, 5, 6)), y=np.arange(4))
    like = Expected(90, None, InputForm((3, 5, 6), "last"))
    with pytest.raises(
        CommandError, match=r"\(3, 5, 6\), but the model takes inputs of shape \(5, 6, 3\), ch"
    ):
        read(Source("a.npz"), like)
    with pytest.raises(CommandError, match=r"\(3, 5, 6\), but the model"):
        list(batches(Source("a.npz"), like, 3))
    np.savez(folder / "b.npz", x=np.zeros((4, 5, 6, 3)), y=np.arange(4))
    assert read(Source("b.npz"), like).channels == "last"
    np.savez(folder / "c.npz", x=np.zeros((4, 90)), y=np.arange(4))
    assert len(list(batches(Source("c.npz"), like, 3))) == 2


def test_files_follow_the_layout_of_the_model(pictures):
    first = read(Source(str(pictures)), Expected(108, None, InputForm((3, 6, 6), "first")))
    last = read(Source(str(pictures)), Expected(108, None, InputForm((3, 6, 6), "last")))
    assert (first.shape, last.shape) == ((3, 6, 6), (6, 6, 3))
    np.testing.assert_array_equal(last.form.inward(last.X), first.X)
