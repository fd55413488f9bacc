"""Arrays of an .npz file in batches: the same rows, never more of them than asked for, and clear errors."""

import io
import zipfile

import numpy as np
import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.files import inputs_member

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
