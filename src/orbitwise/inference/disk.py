"""Atomic writes, files that survive a crash, and locks that end with their process.

A lock belongs to the process that opened its file, and the operating system releases it when that process
ends, however it ends. So locks are never stale and never have to be broken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
BYTE = 2**30
"""The byte that is locked on Windows: far behind the text, so that others may read that."""
MOST_TEXT = 200
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
REASONS = {
    errno.EACCES: "writing in that folder is not permitted; choose another, or change its permissions",
    errno.EPERM: "writing in that folder is not permitted; choose another, or change its permissions",
    errno.EROFS: "that folder is on a read-only file system; choose another",
    errno.ENOSPC: "the disk is full; free some space, or choose another",
    errno.EDQUOT: "the quota of the disk is used up; free some space, or choose another",
    errno.ENOENT: "that folder does not exist; make it first",
    errno.ENOTDIR: "its folder is a file; choose another",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}
"""Errors of the file system: what they mean and what to do about them."""


def try_lock(handle: int) -> bool | None:
    """Try to lock an open file without waiting; None if the file system does not support locks."""
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            import msvcrt

            os.lseek(handle, BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
            os.lseek(handle, 0, os.SEEK_SET)
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True


def sync_folder(folder: Path) -> None:
    """Make sure that new names in a folder are on the disk, where folders can be synchronised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` completely, or raise an error and leave the old file as it was.

    The data are written to a temporary file in the same folder, synchronised, and then moved to `path` in one
    step. The permissions of a replaced file are kept. A link is replaced and not followed, because it may
    point to somebody else's file.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"Cannot write {target}: it is a folder; give a file name")
    try:
        with replacing(target) as (temporary, handle):
            with open(handle, "wb", closefd=False) as file:
                file.write(data.encode() if isinstance(data, str) else data)
            if target.exists() and not target.is_symlink():
                shutil.copymode(target, temporary)
    except OSError as error:
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise OSError(error.errno, f"Cannot write {target}: {reason}") from error


@contextmanager
def replacing(target: Path) -> Iterator[tuple[Path, int]]:
    """A temporary file next to `target` and its handle; it replaces `target` if no error occurs.

    It stays locked, which distinguishes it from files that a killed process left behind. An existing `target`
    that is neither a file nor a link (a device, a pipe) is refused.
    """
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise FileExistsError(errno.EEXIST, f"{target} is not a regular file; choose another name")
    temporary, handle = _new_temporary(target)
    try:
        try:
            yield temporary, handle
            os.fsync(handle)
            if os.name != "nt":
                os.replace(temporary, target)
        finally:
            os.close(handle)
        if os.name == "nt":
            os.replace(temporary, target)  # Windows does not rename a file that is open
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def _new_temporary(target: Path) -> tuple[Path, int]:
    while True:
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with contextlib.suppress(OSError):
            try_lock(handle)
        if os.fstat(handle).st_nlink > 0:
            return temporary, handle
        os.close(handle)  # another process deleted it before it was locked


def sweep(folder: Path) -> None:
    """Delete temporary files that killed processes left in a folder, but not those of running ones."""
    for file in folder.iterdir():
        if TEMPORARY.fullmatch(file.name) and not file.is_symlink() and file.is_file():
            with contextlib.suppress(OSError):
                handle = os.open(file, os.O_RDWR)
                try:
                    if try_lock(handle):
                        file.unlink(missing_ok=True)
                finally:
                    os.close(handle)


def open_unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file; an OSError if it is a symbolic link, which may point to somebody else's file.

    Opening a pipe does not block.
    """
    try:
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        extra = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
        return os.open(path, flags | sum(extra), 0o666)
    except OSError as error:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link") from error
        raise


def write_in_place(
    path: Path, start: int, content: bytes, is_as_left: Callable[[int], bool], sync: bool = True
) -> None:
    """Write `content` at position `start` of a file, which then ends there; the file may be new.

    Afterwards the operating system has the data, so nothing is lost if the process is killed; with `sync`
    they are also on the disk. The file is locked while it is written. An OSError says why not all was
    written. If `is_as_left` returns False, another process has written to the file, and this is an OSError
    too.
    """
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(open_unlinked(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if try_lock(file.fileno()) is False or not is_as_left(file.fileno()):
            raise OSError(errno.EBUSY, "another process writes to it, or has removed it")
        file.seek(start)
        file.truncate()
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync:
            os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make sure that everything written to a file is on the disk."""
    handle = open_unlinked(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def warn_ignored(path: Path, why: object) -> None:
    """Warn that a checkpoint is ignored."""
    warnings.warn(
        f"{path} is ignored, and the fit starts from the beginning: {why}.", UserWarning, stacklevel=3
    )


def writes(write: Callable[[], None], path: Path) -> bool:
    """Whether `write` succeeded; if not, warn that the fit continues without checkpoints."""
    try:
        write()
    except OSError as error:
        why = error.strerror or error
        message = f"{path} cannot be written ({why}): the fit continues without checkpoints."
        warnings.warn(message, UserWarning, stacklevel=3)
        return False
    return True


@final
class Lock:
    """A lock file: one process at a time has it, from `acquire` until `release` or its end.

    If another process has the lock, `acquire` sets `holder` to its description. `release` deletes the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder = ""
        self._handle: int | None = None
        if hasattr(os, "register_at_fork"):
            # a forked process has the open file too, and must not keep the lock of a parent that ends
            forget = weakref.WeakMethod(self.forget)
            os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def acquire(self) -> bool | None:
        """Whether this process has the lock now; None if the file system does not support locks."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        while True:
            handle = os.open(self.path, flags, 0o666)
            try:
                held = try_lock(handle)
                if held is False:
                    self.holder = _printable(os.read(handle, MOST_TEXT))
            except BaseException:
                os.close(handle)
                raise
            if held is False:
                os.close(handle)
                return False
            self._handle = handle
            if self.is_ours():
                break
            # its last owner deleted the file between opening and locking
            os.close(handle)
            self._handle = None
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return held

    def is_ours(self) -> bool:
        """Whether the file that was opened still exists at its path."""
        if self._handle is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        """Delete the file if the lock is ours, and then release the lock."""
        if self._handle is None:
            return
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.forget()

    def forget(self) -> None:
        """Close the file, which releases the lock unless a child process has inherited it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _printable(text: bytes) -> str:
    return "".join(each if each.isprintable() else "?" for each in text.decode(errors="replace")).strip()
