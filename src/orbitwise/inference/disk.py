"""Files that are there in full, old or new, names that last, and locks that end with their process.

A lock belongs to the process that opened its file, and the operating system takes it away when that process
ends, however it ends. So a lock is never stale, and none has to be broken.
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
"""The byte that Windows locks: far behind the text, which others may read."""
MOST_TEXT = 200
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
REASONS = {
    errno.EACCES: "writing in that folder is not permitted; choose another, or change its permissions",
    errno.EPERM: "writing in that folder is not permitted; choose another, or change its permissions",
    errno.EROFS: "that folder is on a read-only file system; choose another",
    errno.ENOSPC: "the disk is full; free some space, or choose another",
    errno.EDQUOT: "the quota of the disk is used up; free some space, or choose another",
    errno.ENOENT: "that folder does not exist; make it first",
    errno.ENOTDIR: "what is given as its folder is a file; choose another",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}
"""What an error of the disk means, and what to do about it."""


def try_lock(handle: int) -> bool | None:
    """Lock an open file without waiting: whether it is ours now, None where the file system has no locks."""
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
    """Have new names in a folder reach the disk, where folders can be synchronised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Put `data` (text as UTF-8) at `path`: all of it or, with an error, nothing, and what was there stays.

    The data go to a temporary file in the same folder, reach the disk, and then take the place of `path` in
    one step. The permissions of a file that is replaced are kept. A link is replaced, and not followed: it
    may lead to a file of somebody else.
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
    """A temporary file beside `target` and its handle; it takes the place of `target` when all went well.

    It is locked as long as it is there, which tells it from what a killed process left behind. What is there
    and is neither a file nor a link (a device, a pipe) is refused.
    """
    if target.exists() and not target.is_symlink() and not target.is_file():
        raise FileExistsError(errno.EEXIST, f"{target} is no regular file; choose another name")
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
        os.close(handle)  # it was swept away before it was locked


def sweep(folder: Path) -> None:
    """Take away the temporary files that killed processes left in a folder; those of live ones stay."""
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
    """Open a file, with an OSError where it is a symbolic link: it may lead to a file of somebody else.

    Opening a pipe does not wait for its other end.
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
    """Put `content` at `start` of a file, as its end; the file may be new, and a link is not followed.

    The operating system has it then, so a killed process loses nothing; with `sync` it also is on the disk.
    The file is locked meanwhile. An OSError says why nothing, or not all, was written, also where the file is
    not as `is_as_left` expects it: another process then writes to it too.
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
    """Have all that was written to a file reach the disk."""
    handle = open_unlinked(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def warn_ignored(path: Path, why: object) -> None:
    """Say that a checkpoint is not used."""
    warnings.warn(f"{path} is ignored, and the fit starts anew: {why}.", UserWarning, stacklevel=3)


def writes(write: Callable[[], None], path: Path) -> bool:
    """Whether something could be written; else a warning says that the fit continues without checkpoints."""
    try:
        write()
    except OSError as error:
        why = error.strerror or error
        message = f"{path} cannot be written ({why}): the fit goes on, but keeps no more checkpoints."
        warnings.warn(message, UserWarning, stacklevel=3)
        return False
    return True


@final
class Lock:
    """A lock file: one process at a time has it, from `acquire` until `release` or its end.

    `holder` says who has the lock, where `acquire` found that another process does. The file is taken away by
    `release`.
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
        """Whether the lock is ours now; None where the file system has no locks, and it is not known."""
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
            # whoever had it before took the file away between opening and locking
            os.close(handle)
            self._handle = None
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return held

    def is_ours(self) -> bool:
        """Whether the file that we opened still stands at its path, and with it the folder it is in."""
        if self._handle is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def release(self) -> None:
        """Take the file away, if it is ours, and let go of it; nobody can lock it in between."""
        if self._handle is None:
            return
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.forget()

    def forget(self) -> None:
        """Close the file, which lets go of the lock where no other process has it from us."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _printable(text: bytes) -> str:
    return "".join(each if each.isprintable() else "?" for each in text.decode(errors="replace")).strip()
