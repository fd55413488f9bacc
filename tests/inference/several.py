"""Several processes in one: a thread for each of them, which speak through gloo as processes do."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from orbitwise.inference.processes import Processes

T = TypeVar("T")
PATIENCE = timedelta(seconds=60)


def in_processes(size: int, work: Callable[[Processes], T]) -> list[T]:
    """What `work` returns in each of so many processes; the error of the first that fails."""
    store, found, errors = dist.HashStore(), {}, {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(Processes(group_of(store, rank, size)))
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [found[rank] for rank in range(size)]


def group_of(store: dist.Store, rank: int, size: int) -> dist.ProcessGroup:
    """The group of these processes, as one of them holds it."""
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, PATIENCE)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group
