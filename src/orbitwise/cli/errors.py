"""What went wrong, in one sentence for the terminal."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from difflib import get_close_matches
from typing import final

EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError)
"""Errors whose own words are enough for a user."""
EXPLAINED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of the disk that are explained whoever wrote the file."""


@final
class CommandError(Exception):
    """An error of the user, as a sentence that says what was given, what is accepted and what to do.

    `main` prints it after "error: " and returns the exit status 1.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that hints at the most similar names, or else lists the known ones."""
    names = [str(each) for each in known]
    lowered = {each.lower(): each for each in reversed(names)}
    close = [lowered[each] for each in get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(repr(each) for each in close)}?"
    if not names:
        return "there are none"
    shown = ", ".join(names[:12])
    return f"the names are {shown}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def sentence(error: BaseException) -> str:
    """One line that says what went wrong; an unexpected error points to `--debug`."""
    if isinstance(error, MemoryError):
        text = "out of memory; use fewer rows (--rows) or a smaller --batch-size"
    elif isinstance(error, OSError) and error.strerror:
        from orbitwise.inference.disk import REASONS

        place = "" if error.filename is None else f": {error.filename}"
        number = error.errno or 0
        known = number in EXPLAINED and error.strerror == os.strerror(number)
        text = f"{error.strerror}{place}" + (f"; {REASONS[number]}" if known else "")
    else:
        text = str(error)
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, (CommandError, *EXPECTED)):
        return text
    return f"{type(error).__name__}: {text} (add --debug to see where it comes from)"
