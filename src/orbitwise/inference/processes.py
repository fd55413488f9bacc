"""Several processes that fit one model together: each computes on its share of the rows (torch.distributed).

Every process runs the same fit of the same rows and takes the same decisions, because sums over rows are
added up in the order of the processes, so that all of them have the same bits, and because whatever is not
arithmetic (the clock, Ctrl-C, free memory, seeds, files) is decided by the first process. With one process,
which is the default, nothing is communicated and nothing changes.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar, cast, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE

T = TypeVar("T")
HEADER = 1024
"""Bytes of the first message of an object; most objects fit into it."""
LENGTH = 8
SMALL = 2**15
"""Up to this many numbers are sent from every process to every other; more are added up in parts."""


PATIENCE = timedelta(days=7)
"""How long a process waits for another that computes. One that has died is noticed at once."""
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables by which torchrun tells processes of each other."""


@final
class ProcessFailedError(RuntimeError):
    """Another process of the fit could not compute its share, for a reason that is not numerical."""


@final
class NothingToShareError(Exception):
    """The fit is not shared, so that a process that only follows the first has nothing to do."""


def _severity(error: Exception | None) -> int:
    """0 for no error, then what is not computable, memory that runs out, and other faults."""
    if error is None:
        return 0
    if isinstance(error, NOT_COMPUTABLE):
        return 1
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return 2 if is_memory or "can't allocate memory" in str(error) else 3


def _sendable(error: Exception | None) -> Exception:
    """The error as other processes raise it: they fail with a genuine fault too, but it is not theirs."""
    told = f"{type(error).__name__}: {error}"
    if _severity(error) == 2:
        return MemoryError(told)
    if error is None or not isinstance(error, NOT_COMPUTABLE):
        return ProcessFailedError(told)
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else ValueError(told)
    except Exception:
        return ValueError(told)


@final
class Processes:
    """The processes that share the rows of a fit, as one of them sees them; by default it is alone.

    After `leave`, and in copies that are pickled, a process is alone.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, follows: bool = False) -> None:
        self._group, self._follows = group, follows
        self.rank = 0 if group is None else group.rank()
        self.size = 1 if group is None else group.size()

    def __reduce__(self) -> tuple[type[Processes], tuple[()]]:
        return Processes, ()

    def __deepcopy__(self, memo: dict[int, object]) -> Processes:
        return self

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether this process decides, prints and writes files."""
        return self.rank == 0

    def leave(self) -> None:
        """Be alone from now on, wherever this object is held."""
        self._group, self.rank, self.size = None, 0, 1

    def do_alone(self) -> None:
        """Be alone in what follows, which every process does by itself, and which a follower leaves out."""
        self.leave()
        if self._follows:
            raise NothingToShareError

    def share(self, count: int) -> slice:
        """Which of so many rows are those of this process."""
        return slice(*(count * rank // self.size for rank in (self.rank, self.rank + 1)))

    def counts(self, count: int) -> list[int]:
        """How many of so many rows each process has."""
        ends = [count * rank // self.size for rank in range(self.size + 1)]
        return [last - first for first, last in pairwise(ends)]

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """The sum over all processes of each tensor, with the same bits in every process; no gradients."""
        if self._group is None or not parts:
            return parts
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        total, device = self._total(self._sent(flat)), flat.device
        pieces = total.to(device).split([part.numel() for part in parts])
        pairs = zip(pieces, parts, strict=True)
        return tuple(piece.view(part.shape).to(part.dtype) for piece, part in pairs)

    def gather(self, part: Tensor, count: int) -> Tensor:
        """The rows of all processes, of which this one has its share `part` of `count` rows."""
        return self.gather_parts(part, self.counts(count))

    def gather_parts(self, part: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, of which each has as many as its entry of `counts` says."""
        if self._group is None:
            return part
        if len(part) != counts[self.rank]:
            raise ValueError(f"This process has {counts[self.rank]} of the rows to gather, not {len(part)}.")
        sent = self._sent(part.detach())
        padded = sent.new_zeros(max(counts), *part.shape[1:])
        padded[: len(part)] = sent
        received = [torch.empty_like(padded) for _ in counts]
        self._group.allgather([received], [padded]).wait()
        rows = [each[:length] for each, length in zip(received, counts, strict=True)]
        return torch.cat(rows).to(part.device)

    def from_first(self, value: T) -> T:
        """What the first process has, in every process: any object that can be pickled."""
        if self._group is None:
            return value
        content = pickle.dumps(value, protocol=5) if self.is_first else b""
        header = torch.zeros(HEADER, dtype=torch.uint8)
        if self.is_first:
            start = len(content).to_bytes(LENGTH, "little") + content[: HEADER - LENGTH]
            header[: len(start)] = _bytes(start)
        self._broadcast(header)
        size = int.from_bytes(header[:LENGTH].numpy().tobytes(), "little")
        rest = torch.zeros(max(0, size - (HEADER - LENGTH)), dtype=torch.uint8)
        if len(rest):
            if self.is_first:
                rest[:] = _bytes(content[HEADER - LENGTH :])
            self._broadcast(rest)
        if self.is_first:
            return value
        received = torch.cat([header[LENGTH : LENGTH + size], rest])
        return cast("T", pickle.loads(received.numpy().tobytes()))

    def all_of(self, value: object) -> list[Any]:
        """What each process has, in the order of the processes."""
        if self._group is None:
            return [value]
        content = _bytes(pickle.dumps(value, protocol=5))
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        self._group.allgather([sizes], [torch.tensor([len(content)])]).wait()
        padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        received = [torch.empty_like(padded) for _ in range(self.size)]
        self._group.allgather([received], [padded]).wait()
        return [
            pickle.loads(each[: int(size)].numpy().tobytes())
            for each, size in zip(received, sizes, strict=True)
        ]

    def together(self, compute: Callable[[], T]) -> T:
        """What `compute` returns here; an error in any process is raised in all, so that none waits in vain.

        All raise the same one, the worst and of these the first, so that all go on in the same way.
        """
        if self._group is None:
            return compute()
        error: Exception | None = None
        result: T | None = None
        try:
            result = compute()
        except Exception as caught:
            error = caught
        codes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        self._group.allgather([codes], [torch.tensor([_severity(error)])]).wait()
        worst = max(codes, key=int)
        if not int(worst):
            return cast("T", result)
        place = next(rank for rank, found in enumerate(codes) if int(found) == int(worst))
        told = self.all_of(_sendable(error) if self.rank == place else None)[place]
        raise error if error is not None and self.rank == place else told

    def _total(self, flat: Tensor) -> Tensor:
        """The sum of one vector over all processes, each number added in the order of the processes."""
        assert self._group is not None
        if self.size == 2 or flat.numel() <= SMALL:
            received = [torch.empty_like(flat) for _ in range(self.size)]
            self._group.allgather([received], [flat]).wait()
            return _added(received)
        # every process adds up one part of the vector for all
        width = -(-flat.numel() // self.size)
        padded = flat.new_zeros(self.size * width)
        padded[: flat.numel()] = flat
        parts = torch.empty_like(padded)
        self._group.alltoall_base(parts, padded, [], []).wait()
        mine = _added(list(parts.view(self.size, width).unbind()))
        sums = [torch.empty_like(mine) for _ in range(self.size)]
        self._group.allgather([sums], [mine]).wait()
        return torch.cat(sums)[: flat.numel()]

    def _broadcast(self, content: Tensor) -> None:
        assert self._group is not None
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([content], options).wait()

    def _sent(self, values: Tensor) -> Tensor:
        """Numbers where they can be sent from: on a GPU only if the group speaks for GPUs."""
        assert self._group is not None
        speaks = values.device.type in {device.type for device in self._group._device_types}
        return values.contiguous() if speaks else values.cpu().contiguous()


ALONE = Processes()
"""One process, which has all rows."""


def is_launched() -> bool:
    """Whether there are other processes: torchrun started several, or there is a process group of several.

    Workers of joblib or Dask and threads other than the first are not meant, because they fit other models.
    """
    if not dist.is_available() or threading.current_thread() is not threading.main_thread():
        return False
    if dist.is_initialized():
        return dist.get_world_size() > 1
    if multiprocessing.current_process().name != "MainProcess" or not set(LAUNCHED) <= set(os.environ):
        return False
    return int(os.environ["WORLD_SIZE"]) > 1


def launched(follows: bool = False) -> Processes:
    """All processes that were launched, in a process group, which is made if there is none yet."""
    num_gpus = torch.cuda.device_count()
    # a GPU belongs to one process only, else they speak through the main memory
    owns_gpu = 0 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= num_gpus
    backend = "cpu:gloo,cuda:nccl" if owns_gpu and dist.is_nccl_available() else "gloo"
    if not dist.is_initialized():
        if num_gpus:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % num_gpus)
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps the store when it starts processes again, with addresses of those that died
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"orbitwise {attempt}", store)
        dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)
        atexit.register(_end)
    world = dist.group.WORLD
    assert world is not None
    if torch.device("cpu") not in world._device_types:
        world = dist.new_group(backend="gloo", timeout=PATIENCE)
        assert isinstance(world, dist.ProcessGroup)
    return Processes(world, follows)


def abandon() -> None:
    """Leave all other processes for good: whatever they wait for fails there at once."""
    _end()
    os.environ.pop("WORLD_SIZE", None)


def _end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _added(parts: list[Tensor]) -> Tensor:
    """The sum of tensors in their order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0).byte()
