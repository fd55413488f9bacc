"""Atomic writing: a file is there in full, old or new, whatever interrupts the writing of it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orbitwise.inference.disk import sync_folder, try_lock

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
