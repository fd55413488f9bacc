"""How much of a fit is done, and how long the rest may take: an estimate that the seconds used correct.

An evaluation on n nodes costs about n² (METHOD 11), so that most of the time of a search goes into its last
stage. When a search goes on to more nodes is not said, but felt: evaluations become slower.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from orbitwise.inference.optimise.orbit_search import FIRST_NODES

FEW = 3
"""Evaluations whose median is the present pace."""

ON_FIRST, ON_SECOND, ON_MORE = 95, 35, 24
"""Evaluations that a search takes on its first nodes, on twice as many, and on each number beyond."""


@final
@dataclass(frozen=True)
class Part:
    """Evaluations that cost about the same, in units of those of the first part."""

    evaluations: int
    cost: float = 1.0


def parts_of_search(num_nodes: int) -> list[Part]:
    """Those of a search for ranges that ends on so many nodes."""
    first = nodes = min(FIRST_NODES, num_nodes)
    parts = [Part(ON_FIRST)]
    while nodes < num_nodes:
        nodes = min(2 * nodes, num_nodes)
        parts.append(Part(ON_SECOND if len(parts) == 1 else ON_MORE, (nodes / first) ** 2))
    return parts


@final
class Forecast:
    """The share of a fit that is done, from the seconds at which its evaluations ended."""

    def __init__(self, parts: Sequence[Part], start: float) -> None:
        self.parts = list(parts)
        self.start = self.now = start
        self._part, self._count = 0, 0
        self._seconds: list[float] = []
        self._paces: list[float] = []
        self._share = 0.0

    def add(self, now: float) -> None:
        """An evaluation has ended."""
        self._seconds.append(now - self.now)
        self.now = now
        self._count += 1
        if self._has_slowed():
            self._part, self._count = self._part + 1, FEW
            self._paces.clear()
        self._paces.append(self._seconds[-1])

    def _has_slowed(self) -> bool:
        """Whether the last evaluations took about as long as those of the next part should."""
        if self._part + 1 >= len(self.parts) or self._count <= 2 * FEW:
            return False
        ratio = self.parts[self._part + 1].cost / self.parts[self._part].cost
        usual = statistics.median(self._paces)
        return min(self._seconds[-FEW:]) > math.sqrt(ratio) * usual

    @property
    def left(self) -> float:
        """Seconds that the rest may take."""
        if not self._seconds:
            return math.inf
        pace = statistics.median(self._paces[-2 * FEW :])
        here, *rest = self.parts[self._part :]
        # one more than planned is always to come, until the end
        evaluations = max(1, here.evaluations - self._count)
        return pace * (evaluations + sum(each.evaluations * each.cost / here.cost for each in rest))

    @property
    def share(self) -> float:
        """The share that is done, which never falls."""
        left = self.left
        if math.isfinite(left) and self.now > self.start:
            self._share = max(self._share, (self.now - self.start) / (self.now - self.start + left))
        return self._share
