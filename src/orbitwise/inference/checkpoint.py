"""What a fit leaves on disk to go on from: a journal for L-BFGS, and two slots for states of stochastic runs.

The slots are written in turn, each with a checksum, so that one of them is whole whenever the process ends.
Nothing is renamed and no temporary file is left. A file holds JSON and safetensors, and no code, and the name
of its fit. A file that is not as it should be is ignored, with a warning where no kill explains it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from orbitwise.inference.cost import machine_memory
from orbitwise.inference.disk import open_unlinked, warn_ended, warn_ignored, write_in_place
from orbitwise.inference.journal import Journal, warn_of_threads

MAGIC = b"orbitwise state 3\n"
LENGTH = 8
START = len(MAGIC) + hashlib.sha256().digest_size


class State(NamedTuple):
    """Tensors and plain numbers."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@final
class Slots:
    """The latest states of a fit, which may have several runs."""

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
        """Another run starts; returns whether it has nothing to do, for a state of a later one is there."""
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
        """What `recall` gave is not a state of this run."""
        if self.run > 1:
            # the runs before this one were passed over, because their states are not kept any more
            raise ValueError(
                f"{self.paths[0].parent} has a checkpoint that does not fit ({why}): remove the files that "
                f"begin with {self._key}, and fit again."
            )
        warn_ignored(self.paths[self._count % 2], why)

    def write(self, state: State) -> None:
        """Keep a state in place of the last but one; where that fails, none is kept any more."""
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
        # all that worked on this state: rounding depends on how many there are
        numbers["threads"] = self._threads = sorted({*self._threads, torch.get_num_threads()})
        text = json.dumps(numbers).encode()
        content = len(text).to_bytes(LENGTH, "little") + text + safetensors.torch.save(tensors)
        written = MAGIC + hashlib.sha256(content).digest() + content
        place = self._count % 2
        try:
            write_in_place(self.paths[place], 0, written, lambda _: self._is_as_left())
        except OSError as error:
            self._is_kept = False
            warn_ended(self.paths[place], error)
        else:
            self._heads[place] = written[:START]

    @property
    def _key(self) -> str:
        return self.paths[0].name.removesuffix(".0")

    def _is_as_left(self) -> bool:
        return [_head(path) for path in self.paths] == self._heads


@final
class Progress:
    """What one fit leaves in a folder: files named for `key`, the fingerprint of all that it depends on."""

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self.journal = Journal(Path(folder) / f"{key}.journal")
        self.slots = Slots(Path(folder) / f"{key}.state")

    @classmethod
    def of(cls, folder: str | os.PathLike[str] | None, *parts: Any) -> Progress | None:
        """The progress of a fit that these parts determine, None without a folder."""
        return None if folder is None else cls(folder, fingerprint(*parts))


def fingerprint(*parts: Any) -> str:
    """A short name for tensors, arrays, modules, generators, plain values, and collections of these."""
    digest = hashlib.sha256(str(torch.__version__).encode())
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()[:24]


def _feed(digest: Any, part: Any) -> None:
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


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    return isinstance(value, bool | int | float | str)


def _head(path: Path) -> bytes:
    """The beginning of a file, with the checksum of the rest; empty where there is none."""
    try:
        with open(path, "rb", opener=open_unlinked) as file:
            return file.read(START)
    except OSError:
        return b""


def _read(path: Path, key: str) -> State | None:
    """The state of a file, None where it is not there, was torn, or is not what it should be."""
    try:
        if not path.is_file() and not path.is_symlink():
            return None
        with open(path, "rb", opener=open_unlinked) as file:
            start = file.read(START)
            if not start.startswith(MAGIC):
                if not MAGIC.startswith(start[: len(MAGIC)]):  # a kill leaves the beginning of a state
                    warn_ignored(path, "it is no checkpoint of this version")
                return None
            available, size = machine_memory(), os.fstat(file.fileno()).st_size
            if available is not None and size > available / 4:
                warn_ignored(path, f"it has {size:,} bytes, more than a quarter of this machine's memory")
                return None
            content = file.read()
        if start != MAGIC + hashlib.sha256(content).digest():
            return None
        return _parsed(content, key)
    except OSError as error:
        warn_ignored(path, error.strerror or error)
        return None
    except Exception as error:  # whatever the file holds, the fit can do without
        warn_ignored(path, f"{type(error).__name__}: {error}"[:200])
        return None


def _parsed(content: bytes, key: str) -> State:
    size = int.from_bytes(content[:LENGTH], "little")
    numbers = json.loads(content[LENGTH : LENGTH + size])
    stored = safetensors.torch.load(content[LENGTH + size :])
    if numbers.pop("fit") != key:
        raise ValueError("it is of another fit")
    if any(type(numbers[name]) is not int or numbers[name] < 1 for name in ("run", "count")):
        raise ValueError("its numbers are no counts")
    orders = numbers.pop("orders")
    if set(orders) != set(stored):
        raise ValueError("it has other tensors than it names")
    tensors = {}
    for name, order in orders.items():
        tensors[name] = stored[name].permute([order.index(each) for each in range(len(order))])
    return State(tensors, numbers)
