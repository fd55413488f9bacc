"""What a fit leaves on disk so that it can resume: a journal for L-BFGS, two slots for stochastic runs.

A killed L-BFGS run is replayed from its journal of evaluations, and so resumes with identical bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.inference.disk import open_unlinked, sync_file, warn_ignored, write_in_place, writes
from orbitwise.inference.optimise.cost import machine_memory

JOURNAL_MAGIC = b"orbitwise journal 3\n"
FRAME = struct.Struct("<QI")
HEAD = struct.Struct("<IQQd")
SYNCED_EVERY = 1.0
"""Seconds between two waits for the disk, each of which may take longer than an evaluation."""


class Evaluation(NamedTuple):
    """The value and gradient of an objective at a point, or why it failed there."""

    value: float
    gradient: NDArray[np.float64]
    failure: str = ""

    @classmethod
    def failed(cls, why: str) -> Evaluation:
        """An evaluation that failed."""
        return cls(math.nan, np.zeros(0), why)


def warn_of_threads(kept: str, path: Path) -> None:
    """Warn that a checkpoint was made with another number of threads than are used now."""
    warnings.warn(
        f"The checkpoint {path} was made with {kept}, and torch uses {torch.get_num_threads()} now. Sums are "
        "then rounded in another order, so the fit agrees with an uninterrupted one only up to rounding. For "
        "identical results, use the earlier number of threads (OMP_NUM_THREADS or torch.set_num_threads).",
        UserWarning,
        stacklevel=4,
    )


@final
class Journal:
    """Evaluations in the order in which they were made, in a file that is created with the first of them.

    L-BFGS asks for the same points again when a fit is repeated. A fit that was killed is therefore replayed:
    `recall` returns the recorded evaluation of every point, and computation resumes where the journal ends,
    with identical bits. Records after the first point that differs are overwritten.

    The file begins with its version and its own name, which identifies the fit. Every record is preceded by
    its length and checksum, so that an incomplete one is recognised. `clock` returns the time in seconds.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self.run = 0
        self._clock = clock
        self._synced = clock()
        self._is_synced = True
        self._threads = 0.0
        self.num_recalled = 0
        self._header = JOURNAL_MAGIC + self.path.name.encode(errors="replace") + b"\n"
        self._end = 0
        self._size = 0
        self._is_kept = True
        self._replays = self._open()

    def begin(self) -> None:
        """Start another run of the optimiser."""
        self.run += 1

    def recall(self, point: NDArray[np.float64]) -> Evaluation | None:
        """The next recorded evaluation if it is of this point, else None.

        After the first None, nothing is recalled any more.
        """
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
        """Append an evaluation after the last one that was recalled; later records are discarded."""
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

        self._is_kept = writes(
            lambda: write_in_place(self.path, self._end, written, is_as_left, is_due), self.path
        )
        self._end = self._size = self._end + len(written)
        self._is_synced = is_due
        self._synced = now if is_due else self._synced

    def sync(self) -> None:
        """Make sure that everything added is on the disk, at the end of a run."""
        if self._is_synced or not self._is_kept:
            return
        self._is_kept = writes(lambda: sync_file(self.path), self.path)
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
            is_other = start.startswith(JOURNAL_MAGIC)
            warn_ignored(
                self.path, "it belongs to another fit" if is_other else "it is not a journal of this version"
            )
        return False

    def _compare_threads(self, kept: float) -> None:
        if kept not in (self._threads, torch.get_num_threads()):
            warn_of_threads(f"{kept:g} {'thread' if kept == 1 else 'threads'}", self.path)
        self._threads = kept

    def _found(self) -> tuple[int, NDArray[np.float64], Evaluation, int] | None:
        """The next record; None, with a warning, if the file cannot be read."""
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


STATE_MAGIC = b"orbitwise state 3\n"
LENGTH = 8
START = len(STATE_MAGIC) + hashlib.sha256().digest_size


class State(NamedTuple):
    """A state from which a run can resume: tensors by name, and what JSON holds."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@final
class Slots:
    """The latest states of a fit, which may have several runs, in two files that take turns.

    Whenever the process is killed, at least one of them is complete. A run starts with `begin`, gets its
    latest state from `recall`, and stores its state from time to time with `write`. Only states of the latest
    run are kept, because earlier runs are finished. A file consists of its version, the checksum of the rest,
    and a state as JSON and safetensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.paths = [Path(f"{os.fspath(path)}.{number}") for number in range(2)]
        self.run = 0
        self._threads: list[int] = []
        self._latest: State | None = None
        self._count = 0
        self._is_kept = True
        self._heads = [_head(path) for path in self.paths]
        found = [state for path in self.paths if (state := _read(path, self._key)) is not None]
        if found:
            self._latest = max(found, key=lambda state: state.numbers["count"])
            self._count = self._latest.numbers["count"]

    def begin(self) -> bool:
        """Start another run; True if a later run has left a state, so that this one is already finished."""
        self.run += 1
        return self._latest is not None and self._latest.numbers["run"] > self.run

    def recall(self) -> State | None:
        """The latest state of the present run, once."""
        if self._latest is None or self._latest.numbers["run"] != self.run:
            return None
        state, self._latest = self._latest, None
        kept = state.numbers.get("threads")
        self._threads = [each for each in kept if type(each) is int] if isinstance(kept, list) else []
        if self._threads and self._threads != [torch.get_num_threads()]:
            named = " and ".join(map(str, self._threads))
            warn_of_threads(f"{named} {'thread' if named == '1' else 'threads'}", self.paths[0])
        return state

    def refuse(self, why: str) -> None:
        """Warn, or raise an error, because the state that `recall` returned does not belong to this run."""
        if self.run > 1:
            # earlier runs were skipped, because their states are no longer kept
            raise ValueError(
                f"{self.paths[0].parent} has a checkpoint that cannot be used ({why}): remove the files "
                f"whose names begin with {self._key}, and fit again."
            )
        warn_ignored(self.paths[self._count % 2], why)

    def write(self, state: State) -> None:
        """Overwrite the older of the two states; if that fails, no further states are written."""
        if not self._is_kept:
            return
        self._count += 1
        numbers = {**state.numbers, "run": self.run, "count": self._count, "fit": self._key, "orders": {}}
        tensors = {}
        for name, tensor in state.tensors.items():
            # the order of dimensions in memory, on which rounding may depend
            order = sorted(range(tensor.dim()), key=lambda each, held=tensor: -held.stride(each))
            numbers["orders"][name] = order
            tensors[name] = tensor.detach().cpu().permute(order).contiguous().clone()
        # all numbers of threads that worked on this state, because rounding depends on them
        numbers["threads"] = self._threads = sorted({*self._threads, torch.get_num_threads()})
        text = json.dumps(numbers).encode()
        content = len(text).to_bytes(LENGTH, "little") + text + safetensors.torch.save(tensors)
        written = STATE_MAGIC + hashlib.sha256(content).digest() + content
        place = self._count % 2
        path = self.paths[place]
        self._is_kept = writes(lambda: write_in_place(path, 0, written, lambda _: self._is_as_left()), path)
        self._heads[place] = written[:START]

    @property
    def _key(self) -> str:
        return self.paths[0].name.removesuffix(".0")

    def _is_as_left(self) -> bool:
        return [_head(path) for path in self.paths] == self._heads


@final
class Progress:
    """The checkpoints of one fit: files named by `key`, the fingerprint of all that it depends on.

    L-BFGS uses the journal, stochastic training the slots.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self.journal = Journal(Path(folder) / f"{key}.journal")
        self.slots = Slots(Path(folder) / f"{key}.state")

    @classmethod
    def of(cls, folder: str | os.PathLike[str] | None, *parts: object) -> Progress | None:
        """The checkpoints of a fit that is determined by these parts; None without a folder."""
        return None if folder is None else cls(folder, fingerprint(*parts))


def fingerprint(*parts: object) -> str:
    """A short name for tensors, arrays, modules, generators, plain values, and collections of these."""
    digest = hashlib.sha256(str(torch.__version__).encode())
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()[:24]


def _feed(digest: hashlib._Hash, part: object) -> None:
    if isinstance(part, Tensor):
        digest.update(f"{part.dtype} {tuple(part.shape)} {part.device.type}".encode())
        digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(part, np.ndarray):
        digest.update(f"{part.dtype} {part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    elif isinstance(part, torch.Generator):
        _feed(digest, part.get_state())
    elif isinstance(part, nn.Module):
        for name, each in part.named_modules():
            plain = {key: value for key, value in vars(each).items() if _is_plain(value)}
            digest.update(f"{name} {type(each).__name__} {sorted(plain.items())}".encode())
        _feed(digest, part.state_dict())
    elif isinstance(part, list | tuple):
        _feed(digest, dict(enumerate(part)))
    elif isinstance(part, Mapping):
        for key, value in part.items():
            digest.update(f"{key}:".encode())
            _feed(digest, value)
    else:
        digest.update(f"{part!r};".encode())


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    return isinstance(value, bool | int | float | str)


def _head(path: Path) -> bytes:
    """The beginning of a file, which includes the checksum of the rest; empty if there is no file."""
    try:
        with open(path, "rb", opener=open_unlinked) as file:
            return file.read(START)
    except OSError:
        return b""


def _read(path: Path, key: str) -> State | None:
    """The state in a file; None if the file is missing, incomplete or invalid."""
    try:
        if not path.is_file() and not path.is_symlink():
            return None
        with open(path, "rb", opener=open_unlinked) as file:
            start = file.read(START)
            if not start.startswith(STATE_MAGIC):
                if not STATE_MAGIC.startswith(
                    start[: len(STATE_MAGIC)]
                ):  # a kill leaves the beginning of a state
                    warn_ignored(path, "it is not a checkpoint of this version")
                return None
            available, size = machine_memory(), os.fstat(file.fileno()).st_size
            if available is not None and size > available / 4:
                warn_ignored(path, f"it has {size:,} bytes, more than a quarter of this machine's memory")
                return None
            content = file.read()
        if start != STATE_MAGIC + hashlib.sha256(content).digest():
            return None
        return _parsed(content, key)
    except OSError as error:
        warn_ignored(path, error.strerror or error)
        return None
    except Exception as error:  # the fit can start without it, whatever is wrong
        warn_ignored(path, f"{type(error).__name__}: {error}"[:200])
        return None


def _parsed(content: bytes, key: str) -> State:
    size = int.from_bytes(content[:LENGTH], "little")
    numbers = json.loads(content[LENGTH : LENGTH + size])
    stored = safetensors.torch.load(content[LENGTH + size :])
    if numbers.pop("fit") != key:
        raise ValueError("it belongs to another fit")
    if any(type(numbers[name]) is not int or numbers[name] < 1 for name in ("run", "count")):
        raise ValueError("its counts are not whole numbers")
    orders = numbers.pop("orders")
    if set(orders) != set(stored):
        raise ValueError("its tensors are not those that it names")
    tensors = {}
    for name, order in orders.items():
        tensors[name] = stored[name].permute([order.index(each) for each in range(len(order))])
    return State(tensors, numbers)
