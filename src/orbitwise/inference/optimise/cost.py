"""Estimates of what a computation will cost in operations and memory, and warnings before costly ones start.

Costs are counted, not measured, so that the same data give the same estimate on every machine. Times are for
one processor core at `OPERATIONS_A_SECOND`, accurate to a factor of a few.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

OPERATIONS_A_SECOND = 2e10
"""Operations per second of one core, in products of matrices in double precision."""
PATIENCE = 20.0
"""Computations that take longer than this many seconds give a warning."""
OPERATIONS_A_PAIR = 100
"""Operations per pair of atoms besides their inner product, mostly passes over memory."""
COPIES = 6
"""Copies of Gram matrices, atoms and tiles that are held at once, gradients included."""
TILE = 2.0**20
"""Pairs of atoms that are held at once."""
OTHERS = ("beartype", "contextlib", "jaxtyping", "joblib", "orbitwise", "sklearn", "torch")
"""Packages that are skipped when looking for the user's line."""
NUMBER = 8
"""Bytes of a number in double precision."""
STEPS = 50
"""Assumed steps of conjugate gradients; most searches take 15 to 150."""
LIMIT, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
"""Where Linux says how much memory a container may have, and how much of it is taken."""
MEMORY = Path("/proc/meminfo")
"""Where it says how much of the machine's memory may still be taken."""


class Cost(NamedTuple):
    """Operations on numbers, and the bytes that are held at once."""

    operations: float
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds on one core."""
        return self.operations / OPERATIONS_A_SECOND

    def times(self, count: int) -> Cost:
        """The cost of doing it `count` times, one after the other."""
        return Cost(count * self.operations, self.memory)


def dense_cost(rows: int, columns: int) -> Cost:
    """The cost of holding and decomposing a Gram matrix, with some right-hand sides."""
    size = float(rows)
    return Cost(12 * size**3 + 2 * size**2 * columns, NUMBER * (4 * size**2 + 2 * size * columns))


def gradient_search_cost(points: int, width: int, columns: int) -> Cost:
    """The cost of conjugate gradients with all slopes at l points: 6l²d operations per product and column."""
    product = 6 * float(points) ** 2 * width
    return Cost(STEPS * product * columns, NUMBER * (2 * float(points) ** 2 + 12 * float(points) * width))


def exact_cost(rows: int, atoms: int, width: int, steps: int, one_sided: bool = False) -> Cost:
    """The cost of exact inference for rows of `atoms` atoms each, with `steps` evaluations of the evidence.

    Half of the pairs of atoms are computed, tile by tile, forward and backward; with `one_sided`, only one
    atom per row is paired with all others. A few copies of the Gram matrix and of all atoms are held.
    """
    size, points = float(rows), float(rows) * atoms
    pairs = size * points / 2 if one_sided else points**2 / 2
    step = 3 * pairs * (2 * width + OPERATIONS_A_PAIR) + 3 * size**3
    tile = min(2 * pairs, TILE)
    return Cost(max(1, steps) * step, NUMBER * COPIES * (size**2 + points * width + tile))


def machine_memory() -> float | None:
    """Bytes of memory of this machine or container; None if unknown."""
    try:
        total = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    if total <= 0:
        return None
    try:
        return min(total, float(LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total


def free_memory(device: torch.device) -> float | None:
    """Bytes that may still be taken on a device at this moment; None where it does not say.

    On a GPU that is what is free there, and what torch holds without using it.
    """
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + held)
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text(encoding="ascii").splitlines())
        free = 1024 * float(lines["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        return machine_memory()
    try:
        # pages of files that a container has read count as used, though they can be given back
        used = float(USED.read_text(encoding="ascii"))
        return min(free, max(0.0, float(LIMIT.read_text(encoding="ascii")) - used))
    except (OSError, ValueError):
        return free


def check_cost(cost: Cost, what: str, instead: str, patience: float = PATIENCE, refuses: bool = True) -> None:
    """Raise a ValueError if memory does not suffice, and warn if `what` takes long; `instead` is the advice.

    Without `refuses`, too little memory only gives a warning, for estimates that may be too pessimistic. The
    warning points at the user's line.
    """
    available = machine_memory()
    too_large = available is not None and cost.memory > available
    if available is not None and too_large and refuses:
        raise ValueError(
            f"{what} would take about {_size(cost.memory)} of memory, and this machine has "
            f"{_size(available)}: {instead}."
        )
    if too_large or cost.seconds > patience:
        warnings.warn(
            f"{what} will take about {cost.operations:.0e} operations ({_time(cost.seconds)} on one core) "
            f"and {_size(cost.memory)} of memory. To make it cheaper, {instead}.",
            UserWarning,
            stacklevel=users_level(sys._getframe()),
        )


def users_level(frame: FrameType) -> int:
    """The stacklevel of the first frame outside of libraries, for a warning given in this frame."""
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OTHERS:
        frame, level = frame.f_back, level + 1
    return level


def _size(count: float) -> str:
    gigabytes = count / 2**30
    return f"{gigabytes:,.0f} GiB" if gigabytes >= 10 else f"{gigabytes:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.0f} hours"
