"""Locks: one holder at a time, gone with its process, and never stale."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitwise.inference import disk
from orbitwise.inference.disk import Lock, open_unlinked, sync_folder, try_lock

# It has a child that outlives it, as workers may.
HOLDER = """
import os, sys
from pathlib import Path
from orbitwise.inference.disk import Lock

lock = Lock(Path(sys.argv[1]))
held = lock.acquire()
if not hasattr(os, "fork") or os.fork() == 0:
    print(held, flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time_and_its_file_goes_with_it(tmp_path: Path):
    one, other = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert one.acquire()
    assert other.acquire() is False
    assert other.holder.startswith(f"process {os.getpid()} on ")
    other.release()  # has nothing to let go of
    assert one.is_ours()
    one.release()
    assert not list(tmp_path.iterdir())
    assert other.acquire()
    assert not one.is_ours()
    other.release()


def test_a_process_that_was_killed_has_no_lock_though_its_child_lives(tmp_path: Path):
    lock = Lock(tmp_path / "lock")
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(lock.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == "True\n"
        assert lock.acquire() is False
        assert lock.holder.startswith(f"process {process.pid} on ")
        process.kill()
        process.wait(timeout=600)
        assert lock.path.is_file()
        assert lock.acquire()
        lock.release()


def test_a_file_that_was_taken_away_is_not_locked_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lock, calls = Lock(tmp_path / "lock"), []

    def late(handle: int) -> bool | None:
        if not calls:
            lock.path.unlink()  # its holder ends between opening and locking
        calls.append(handle)
        return try_lock(handle)

    monkeypatch.setattr(disk, "try_lock", late)
    assert lock.acquire()
    assert len(calls) == 2
    assert lock.is_ours()
    lock.path.unlink()
    assert not lock.is_ours()
    lock.path.write_text("of another")
    lock.release()
    assert lock.path.read_text() == "of another"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_from_a_busy_one(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip("fcntl")

    def fail(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    lock = Lock(tmp_path / "lock")
    assert lock.acquire() is None
    lock.release()
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        lock.acquire()


def test_what_stands_in_its_place_is_an_error_not_a_lock(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("folder", "link", "none/lock"):
        with pytest.raises(OSError, match=name):
            Lock(tmp_path / name).acquire()
    assert not (tmp_path / "elsewhere").exists()
    sync_folder(tmp_path / "none")
    sync_folder(tmp_path)


@pytest.mark.parametrize("knows_links", [True, False])
def test_links_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_links: bool):
    if not knows_links:  # as on Windows
        monkeypatch.delattr(os, "O_NOFOLLOW")
    (tmp_path / "file").write_text("mine")
    for name in ("file", "none", "loop"):
        (tmp_path / f"link to {name}").symlink_to(f"link to {name}" if name == "loop" else name)
        with pytest.raises(OSError, match="it is a symbolic link"):
            open_unlinked(tmp_path / f"link to {name}", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "none").exists()
    with open(tmp_path / "file", opener=open_unlinked) as file:
        assert file.read() == "mine"
    with pytest.raises(FileNotFoundError):
        open_unlinked(tmp_path / "none", os.O_RDONLY)
