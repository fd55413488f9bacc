"""What a computation will cost, said before it starts: operations, memory, and a warning where either hurts.

Costs are counted, not measured, so that the same data say the same on every machine. Times are those of one
processor core at `OPERATIONS_A_SECOND`, good to a factor of a few.
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
"""Of one core in double precision, in products of matrices."""
PATIENCE = 20.0
"""Seconds that pass without a warning."""
OPERATIONS_A_PAIR = 100
"""Cost of the kernel of two atoms besides their product, most of it passes over memory."""
COPIES = 6
"""Of Gram matrices, atoms and tiles that are held at once with their gradients."""
TILE = 2.0**20
"""Pairs of atoms that are held at a time."""
OTHERS = ("beartype", "contextlib", "jaxtyping", "joblib", "orbitwise", "sklearn", "torch")
"""Packages whose lines are not the user's."""
NUMBER = 8
"""Bytes, in double precision."""
STEPS = 50
"""Of conjugate gradients; most searches take 15 to 150."""
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
        """On one core."""
        return self.operations / OPERATIONS_A_SECOND

    def times(self, count: int) -> Cost:
        """Done so many times, one after the other."""
        return Cost(count * self.operations, self.memory)


def dense_cost(rows: int, columns: int) -> Cost:
    """Of a Gram matrix that is held and decomposed, with some right-hand sides."""
    size = float(rows)
    return Cost(12 * size**3 + 2 * size**2 * columns, NUMBER * (4 * size**2 + 2 * size * columns))


def gradient_search_cost(points: int, width: int, columns: int) -> Cost:
    """Of conjugate gradients with all slopes at points, 6l²d operations a product and column."""
    product = 6 * float(points) ** 2 * width
    return Cost(STEPS * product * columns, NUMBER * (2 * float(points) ** 2 + 12 * float(points) * width))


def exact_cost(rows: int, atoms: int, width: int, steps: int, one_sided: bool = False) -> Cost:
    """Of exact inference for rows that average so many atoms each, its evidence followed for some steps.

    Half of the pairs of atoms are computed, tile by tile, forward and backward; with `one_sided` only those
    with one atom of each row on the left. The Gram matrix and all atoms are held, a few copies of each.
    """
    size, points = float(rows), float(rows) * atoms
    pairs = size * points / 2 if one_sided else points**2 / 2
    step = 3 * pairs * (2 * width + OPERATIONS_A_PAIR) + 3 * size**3
    tile = min(2 * pairs, TILE)
    return Cost(max(1, steps) * step, NUMBER * COPIES * (size**2 + points * width + tile))


def machine_memory() -> float | None:
    """Bytes of memory that this machine, or the container we are in, has; None where it does not say."""
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
    """Raise a ValueError where memory cannot do, and warn where `what` takes long, with what to do `instead`.

    Without `refuses` an estimate of memory that is too pessimistic for some cases warns, too. The warning
    points at the user's line, however many of our own calls lie between.
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
    """The stacklevel of the first line outside of libraries, for a warning that this frame gives."""
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
