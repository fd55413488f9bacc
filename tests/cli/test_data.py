"""Data from paths: what is read, in batches or at once, what is left out, and what the targets are."""

import numpy as np
import pytest

from orbitwise.cli.data import (
    Data,
    Expected,
    Source,
    batches,
    checked_targets,
    held_out_source,
    infer_task,
    read,
)
from orbitwise.cli.errors import CommandError
from orbitwise.estimators.validation import InputForm
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
    with pytest.raises(
        CommandError,
        match=r"3 rows have cells .*\(2 in 'b', 1 in 'y'\).* first in column 'b' of row 2; .* skip",
    ):
        read(Source("holes.csv", "y"))
    data = read(Source("holes.csv", "y", skips=True))
    np.testing.assert_array_equal(data.X, [[1, 2], [5, 6]])
    assert data.labels == ["row 1", "row 5"]
    assert "left out 3 rows" in data.notes[0]


def test_columns_are_ignored_and_text_is_named(folder):
    write_csv(folder / "t.csv", "name,a,y", [["x", 1, 2], ["w", 3, 4]])
    with pytest.raises(CommandError, match=r"column 'name' holds 2 different words in 2 rows.*--ignore name"):
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


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["a", "b"], "classification"),
        ([True, False], "classification"),
        ([0, 1], "classification"),
        (["0", "1", "1"], "classification"),
        (np.tile(np.arange(10), 4), "classification"),
        (np.arange(40), "regression"),
        ([0.5, 1.0], "regression"),
        (["0.5", "1"], "regression"),
        (np.tile(np.arange(60), 4), "regression"),
        ([[1, 2], [2, 3]], "regression"),
    ],
)
def test_the_task_is_told_from_the_targets(y, task):
    assert infer_task(np.array(y)) == task
    if np.ndim(y) == 1:
        assert infer_task(np.array(y, dtype=object)) == task


def test_targets_become_what_estimators_take():
    assert checked_targets(np.array(["1", "2"], dtype=object), "classification", "y").dtype == np.int64
    assert list(checked_targets(np.array([0.5, 1.0]), "classification", "y")) == ["0.5", "1.0"]
    assert list(checked_targets(np.array([True, False]), "classification", "y")) == ["True", "False"]
    assert checked_targets(np.array(["1", "2.5"], dtype=object), "regression", "y").dtype == np.float64


@pytest.mark.parametrize(
    ("y", "task", "says"),
    [
        (["a", "1"], "regression", "holds 'a'"),
        ([1, 1], "regression", "1 in every row"),
        ([1, 1], "classification", "one class only, '1'"),
        ([[1, 2], [2, 3]], "classification", "2 columns"),
    ],
)
def test_targets_that_do_not_serve_say_why(y, task, says):
    with pytest.raises(CommandError, match=says):
        checked_targets(np.array(y), task, "y")


def test_rows_become_images():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert data.as_images((4, 6)).shape == (4, 6)
    assert data.as_images((2, 4)).shape == (3, 2, 4)
    with pytest.raises(CommandError, match="25 pixels, but inputs have 24"):
        data.as_images((5, 5))


def test_arrays_have_their_channels_where_the_shape_or_the_option_says():
    def data(*shape):
        return Data(np.zeros((2, int(np.prod(shape)))), np.zeros(2), ["1", "2"], None, shape)

    found = data(6, 5, 3).as_images(None)
    assert (found.channels, found.is_image, found.form.image_shape) == ("last", True, (3, 6, 5))
    assert "6x5 pixels, 3 channels last (use --channels first" in found.channels_text
    assert data(3, 6, 3).as_images((6, 3)).channels == "first"
    assert data(3, 6, 3).as_images(None, "last").channels == "last"
    with pytest.raises(ValueError, match="--channels first or --channels last"):
        data(3, 6, 3).as_images(None)
    plain = data(12, 2).as_images(None)
    assert not plain.is_image
    assert plain.channels_text == ""
    with pytest.raises(CommandError, match="the inputs have shape 12x2"):
        data(12, 2).as_images((6, 4))
    with pytest.raises(CommandError, match="have no channels"):
        data(12, 2).as_images((12, 2), "last")


def test_rows_of_several_channels_have_whole_pictures_one_after_the_other():
    data = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"])
    assert data.as_images((2, 4)).channels == "first"
    assert data.as_images((2, 4), "last").shape == (2, 4, 3)
    files = Data(np.zeros((2, 24)), np.zeros(2), ["1", "2"], None, (3, 2, 4), True, channels="first")
    assert files.as_images(None) is files
    with pytest.raises(CommandError, match="image files know their channels"):
        files.as_images(None, "last")


def test_test_arrays_of_a_file_are_found(folder):
    x, y = np.arange(24.0).reshape(8, 3), np.arange(8.0)
    np.savez(folder / "both.npz", x=x[:6], y=y[:6], x_test=x[6:], y_test=y[6:])
    np.savez(folder / "inputs.npz", x=x[:6], y=y[:6], x_test=x[6:])
    np.savez(folder / "named.npz", x_train=x[:6], mass_train=y[:6], x_test=x[6:], mass_test=y[6:])
    found = held_out_source(Source("both.npz"), None)
    assert found is not None
    np.testing.assert_array_equal(read(found).X, x[6:])
    assert held_out_source(Source("inputs.npz"), None) is None
    assert held_out_source(Source("named.npz"), None) is None
    assert held_out_source(Source("named.npz", "mass"), None) is not None
    other = held_out_source(Source("both.npz"), "other.npz")
    assert other is not None
    assert (other.path, other.part) == ("other.npz", "test")
