"""A journal of evaluations: L-BFGS that was killed is replayed from it, and goes on bit for bit.

That holds for one number of threads, on which rounding depends: a record of run 0 says how many worked on
what follows it, and a journal that goes on with another number warns.

L-BFGS is deterministic given values and gradients, so these are all that a run has to leave behind. Each is
appended to a file as a record: its length, a checksum, then the number of the run within the fit, the point,
and value and gradient or why there are none. A record that was torn ends the file, and so does one of a point
that is not asked for.
"""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

FRAME = struct.Struct("<QI")
HEAD = struct.Struct("<IQQd")
MOST_BYTES = 2**34


class Evaluation(NamedTuple):
    """The value and gradient of what is minimised, or why it failed there."""

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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.run = 0
        self._threads = 0.0
        self.num_recalled = 0
        self._end = 0
        self._replays = self.path.is_file()

    def begin(self) -> None:
        """Another run of the optimiser starts."""
        self.run += 1

    def recall(self, point: NDArray[np.float64]) -> Evaluation | None:
        """What was found at this point, if it is what was asked for next before."""
        if not self._replays:
            return None
        found = self._next()
        if found is not None:
            run, known, evaluation, size = found
            if run == 0:
                self._end += size
                self._compare_threads(evaluation.value)
                return self.recall(point)
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Once the file is closed, the operating system has it, and the record outlives the process.
        self.path.touch()
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(self._end)
            file.truncate()
            if file.write(record) != len(record):
                raise OSError(f"{self.path} could not be written in full: is the disk full?")
        self._end += len(record)
        self._replays = False

    def _compare_threads(self, kept: float) -> None:
        if kept not in (self._threads, torch.get_num_threads()):
            warn_of_threads(f"{kept:g} {'thread' if kept == 1 else 'threads'}", self.path)
        self._threads = kept

    def _next(self) -> tuple[int, NDArray[np.float64], Evaluation, int] | None:
        with open(self.path, "rb") as file:
            file.seek(self._end)
            frame = file.read(FRAME.size)
            if len(frame) < FRAME.size:
                return None
            length, checksum = FRAME.unpack(frame)
            content = file.read(length) if HEAD.size <= length <= MOST_BYTES else b""
        if len(content) < max(length, 1) or zlib.crc32(content) != checksum:
            return None
        run, size, slopes, value = HEAD.unpack_from(content)
        point = np.frombuffer(content, dtype="<f8", count=size, offset=HEAD.size)
        gradient = np.frombuffer(content, dtype="<f8", count=slopes, offset=HEAD.size + 8 * size)
        failure = content[HEAD.size + 8 * (size + slopes) :].decode()
        return run, point, Evaluation(value, gradient.copy(), failure), FRAME.size + length
