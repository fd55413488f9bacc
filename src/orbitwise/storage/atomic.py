"""Atomic writing: a file is there in full, old or new, whatever interrupts the writing of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path

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
    one step. A link is followed, and the permissions of a file that is replaced are kept.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"Cannot write {target}: it is a folder; give a file name")
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(target.parent)
    except OSError as error:
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise OSError(error.errno, f"Cannot write {target}: {reason}") from error


def _sync_folder(folder: Path) -> None:
    """Have the new name reach the disk too, where folders can be synchronised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
