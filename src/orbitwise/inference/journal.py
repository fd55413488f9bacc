"""A journal of evaluations: L-BFGS that was killed is replayed from it, and goes on bit for bit.

That holds for one number of threads, on which rounding depends: a record of run 0 says how many worked on
what follows it, and a journal that goes on with another number warns.

L-BFGS is deterministic given values and gradients, so these are all that a run has to leave behind. Each is
appended to a file as a record: its length, a checksum, then the number of the run within the fit, the point,
and value and gradient or why there are none. A record that was torn ends the file, and so does one of a point
that is not asked for. The file begins with its own name, which stands for all that a fit depends on, so that
one that was copied from another fit is not believed.

Each record is handed to the operating system at once, so a killed process loses none. A power failure may
cost those of the last second.
"""

from __future__ import annotations

import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from orbitwise.inference.disk import open_unlinked, sync_file, warn_ended, warn_ignored, write_in_place

MAGIC = b"orbitwise journal 2\n"
FRAME = struct.Struct("<QI")
HEAD = struct.Struct("<IQQd")
SYNCED_EVERY = 1.0
"""Seconds between two waits for the disk, each of which may take longer than an evaluation."""


class Evaluation(NamedTuple):
    """The value and gradient of an objective at a point, or why it failed there."""

    value: float
    gradient: NDArray[np.float64]
    failure: str = ""


def warn_of_threads(kept: str, path: Path) -> None:
    """Say that a checkpoint was made by another number of threads than work now."""
    warnings.warn(
        f"The checkpoint {path} was made with {kept}, and torch uses {torch.get_num_threads()} now. Sums are "
        "then rounded in another order, so the fit agrees with an uninterrupted one only up to rounding. For "
        "the same bits, set OMP_NUM_THREADS, or torch.set_num_threads, as it was.",
        UserWarning,
        stacklevel=4,
    )


@final
class Journal:
    """Evaluations in the order they were made, in a file that is made when the first is added."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self.run = 0
        self._clock = clock
        self._synced = clock()
        self._is_synced = True
        self._threads = 0.0
        self.num_recalled = 0
        self._header = MAGIC + self.path.name.encode(errors="replace") + b"\n"
        self._end = 0
        self._size = 0
        self._is_kept = True
        self._replays = self._open()

    def begin(self) -> None:
        """Another run of the optimiser starts."""
        self.run += 1

    def recall(self, point: NDArray[np.float64]) -> Evaluation | None:
        """What was found at this point, if it is what was asked for next before."""
        if not self._replays:
            return None
        found = self._found()
        while found is not None and found[0] == 0:
            self._end += found[-1]
            self._compare_threads(found[2].value)
            found = self._found()
        if found is not None:
            run, known, evaluation, size = found
            # equal bits, so that -0 and 0 differ
            if run == self.run and known.tobytes() == np.asarray(point, dtype=np.float64).tobytes():
                self._end += size
                self.num_recalled += 1
                return evaluation
        self._replays = False
        return None

    def add(self, point: NDArray[np.float64], evaluation: Evaluation) -> None:
        """Append an evaluation; what was behind the last one that was recalled is gone."""
        if self._threads != torch.get_num_threads():
            self._threads = float(torch.get_num_threads())
            run, self.run = self.run, 0
            self.add(np.zeros(0), Evaluation(self._threads, np.zeros(0)))
            self.run = run
        content = b"".join(
            (
                HEAD.pack(self.run, len(point), len(evaluation.gradient), evaluation.value),
                np.ascontiguousarray(point, dtype="<f8").tobytes(),
                np.ascontiguousarray(evaluation.gradient, dtype="<f8").tobytes(),
                evaluation.failure.encode(),
            )
        )
        record = FRAME.pack(len(content), zlib.crc32(content)) + content
        self._replays = False
        if not self._is_kept:
            return
        written = record if self._end else self._header + record
        now = self._clock()
        is_due = now - self._synced >= SYNCED_EVERY

        def is_as_left(file: int) -> bool:
            return os.fstat(file).st_size == self._size

        try:
            write_in_place(self.path, self._end, written, is_as_left, is_due)
        except OSError as error:
            self._is_kept = False
            warn_ended(self.path, error)
            return
        self._end = self._size = self._end + len(written)
        self._is_synced = is_due
        self._synced = now if is_due else self._synced

    def sync(self) -> None:
        """Have all that was added reach the disk: a run has ended."""
        if self._is_synced or not self._is_kept:
            return
        try:
            sync_file(self.path)
        except OSError as error:
            self._is_kept = False
            warn_ended(self.path, error)
            return
        self._is_synced, self._synced = True, self._clock()

    def _open(self) -> bool:
        """Whether there is a file to replay."""
        try:
            if not self.path.is_file() and not self.path.is_symlink():
                return False
            with open(self.path, "rb", opener=open_unlinked) as file:
                self._size = os.fstat(file.fileno()).st_size
                start = file.read(len(self._header))
        except OSError as error:
            warn_ignored(self.path, error.strerror or error)
            return False
        if start == self._header:
            self._end = len(start)
            return True
        if not self._header.startswith(start):  # what a killed process leaves is the beginning of one
            is_other = start.startswith(MAGIC)
            warn_ignored(
                self.path, "it is of another fit" if is_other else "it is no journal of this version"
            )
        return False

    def _compare_threads(self, kept: float) -> None:
        if kept not in (self._threads, torch.get_num_threads()):
            warn_of_threads(f"{kept:g} {'thread' if kept == 1 else 'threads'}", self.path)
        self._threads = kept

    def _found(self) -> tuple[int, NDArray[np.float64], Evaluation, int] | None:
        """The next record, None with a warning where the file cannot be read."""
        try:
            return self._next()
        except OSError as error:
            warn_ignored(self.path, error.strerror or error)
            return None

    def _next(self) -> tuple[int, NDArray[np.float64], Evaluation, int] | None:
        with open(self.path, "rb", opener=open_unlinked) as file:
            left = os.fstat(file.fileno()).st_size - self._end - FRAME.size
            file.seek(self._end)
            frame = file.read(FRAME.size)
            if len(frame) < FRAME.size:
                return None
            length, checksum = FRAME.unpack(frame)
            content = file.read(length) if HEAD.size <= length <= left else b""
        if len(content) < max(length, 1) or zlib.crc32(content) != checksum:
            return None
        run, size, slopes, value = HEAD.unpack_from(content)
        if HEAD.size + 8 * (size + slopes) > length:
            return None
        point = np.frombuffer(content, dtype="<f8", count=size, offset=HEAD.size)
        gradient = np.frombuffer(content, dtype="<f8", count=slopes, offset=HEAD.size + 8 * size)
        failure = content[HEAD.size + 8 * (size + slopes) :].decode(errors="replace")
        if not failure and not (slopes == size and np.isfinite(value) and np.isfinite(gradient).all()):
            return None
        return run, point, Evaluation(value, gradient.copy(), failure), FRAME.size + length
