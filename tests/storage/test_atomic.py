"""Atomic writing: all or nothing, and sentences that say why nothing."""

import errno
import os
import stat
from pathlib import Path

import pytest

from orbitwise.inference.disk import replacing, sweep
from orbitwise.storage import write_atomically


def test_bytes_and_text_are_written(tmp_path: Path):
    write_atomically(tmp_path / "a", b"\x00\xff")
    write_atomically(str(tmp_path / "b"), "σ²\n")
    assert (tmp_path / "a").read_bytes() == b"\x00\xff"
    assert (tmp_path / "b").read_text(encoding="utf-8") == "σ²\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
):
    path = tmp_path / "model"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"Cannot write .*model: the disk is full") as caught:
        write_atomically(tmp_path / "model", b"new")
    assert caught.value.errno == errno.ENOSPC


def test_folders_that_cannot_be_written_to_are_named(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IsADirectoryError, match="it is a folder; give a file name"):
        write_atomically(tmp_path, b"")
    with pytest.raises(FileNotFoundError, match="does not exist; make it first"):
        write_atomically(tmp_path / "none" / "model", b"")
    with pytest.raises(NotADirectoryError, match="is a file; choose another"):
        write_atomically(tmp_path / "file" / "model", b"")


def test_a_read_only_folder_is_named(tmp_path: Path):
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("permissions do not bind this user")
        with pytest.raises(PermissionError, match="not permitted; choose another"):
            write_atomically(folder / "model", b"")
    finally:
        folder.chmod(0o700)


def test_permissions_are_kept(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(0o640)
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_links_are_replaced_and_not_followed(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    for target in (real, link, tmp_path / "none"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        write_atomically(link, b"new")
        assert not link.is_symlink()
        assert link.read_bytes() == b"new"
        assert real.read_bytes() == b"old"
    assert not (tmp_path / "none").exists()


def test_a_new_file_has_the_usual_permissions(tmp_path: Path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_a_live_process_writes_is_not_swept_away(tmp_path: Path):
    left = tmp_path / f".{'0' * 16}.tmp"
    left.write_bytes(b"of a process that was killed")
    (tmp_path / ".mine.tmp").write_bytes(b"mine")
    (tmp_path / f".{'1' * 16}.tmp").mkdir()
    (tmp_path / f".{'2' * 16}.tmp").symlink_to(tmp_path / ".mine.tmp")
    with replacing(tmp_path / "table") as (temporary, handle):
        os.write(handle, b"rows")
        sweep(tmp_path)
        assert temporary.is_file()
        assert not left.exists()
    assert (tmp_path / "table").read_bytes() == b"rows"
    sweep(tmp_path)
    kept = {".mine.tmp", f".{'1' * 16}.tmp", f".{'2' * 16}.tmp", "table"}
    assert {each.name for each in tmp_path.iterdir()} == kept


def test_a_temporary_file_that_was_swept_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch):
    swept = []

    def late(handle: int) -> bool:
        if not swept:
            swept.extend(tmp_path.glob("*.tmp"))
            swept[0].unlink()
        return True

    monkeypatch.setattr("orbitwise.inference.disk.try_lock", late)
    write_atomically(tmp_path / "model", b"new")
    assert (tmp_path / "model").read_bytes() == b"new"
    assert len(swept) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(tmp_path / "pipe", b"data")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]
