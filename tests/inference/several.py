"""Several processes for tests: threads that speak through gloo as processes do, or forks as of torchrun."""

import contextlib
import os
import signal
import socket
import threading
import time
import traceback
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


def launch(size: int, work: Callable[[int], object]) -> list[int]:
    """Run `work(rank)` in so many processes, as torchrun does; returns how each of them ended, 0 if well.

    They are forked, which takes no time for imports. Where one fails, the others are ended.
    """
    port = _free_port()
    pids = [_forked(rank, size, port, work) for rank in range(size)]
    codes = dict.fromkeys(pids, 0)
    for _ in pids:
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            time.sleep(0.2)  # others may notice by themselves
            for other in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in pids]


def _forked(rank: int, size: int, port: int, work: Callable[[int], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ.update({name: str(value) for name, value in known.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        work(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
