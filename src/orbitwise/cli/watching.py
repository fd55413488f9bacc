"""Watching a fit: how much of it is done, how long it may still take, and how to end it early.

An evaluation on n nodes costs about n² (METHOD 11), so a search spends most of its time in its last stage. It
does not announce that it has moved to more nodes: the forecast notices that evaluations have become slower.
"""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orbitwise.cli.files import number_in
from orbitwise.inference.disk import open_unlinked
from orbitwise.inference.optimise.orbit_search import FIRST_NODES

FEW = 3
"""The number of evaluations whose median is the current pace."""

ON_FIRST, ON_SECOND, ON_MORE = 95, 35, 24
"""Evaluations that a search needs on its first nodes, on twice as many, and on each larger number."""


@final
@dataclass(frozen=True)
class Part:
    """Evaluations that cost about the same, in units of those of the first part."""

    evaluations: int
    cost: float = 1.0


def parts_of_search(num_nodes: int) -> list[Part]:
    """The parts of a search for ranges that ends on `num_nodes` nodes."""
    first = nodes = min(FIRST_NODES, num_nodes)
    parts = [Part(ON_FIRST)]
    while nodes < num_nodes:
        nodes = min(2 * nodes, num_nodes)
        parts.append(Part(ON_SECOND if len(parts) == 1 else ON_MORE, (nodes / first) ** 2))
    return parts


@final
class Forecast:
    """The share of a fit that is done, from the seconds at which its evaluations ended.

    The pace is the median time of the last evaluations. What is left is the number of evaluations that the
    present part and the later ones are expected to need, each at the present pace times its relative cost.
    When evaluations become as slow as those of the next part should be, the next part has begun.
    """

    def __init__(self, parts: Sequence[Part], start: float) -> None:
        self.parts = list(parts)
        self.start = self.now = start
        self._part, self._count = 0, 0
        self._seconds: list[float] = []
        self._paces: list[float] = []
        self._share = 0.0

    def add(self, now: float) -> None:
        """Take note that an evaluation has ended."""
        self._seconds.append(now - self.now)
        self.now = now
        self._count += 1
        if self._has_slowed():
            self._part, self._count = self._part + 1, FEW
            self._paces.clear()
        self._paces.append(self._seconds[-1])

    def _has_slowed(self) -> bool:
        """Whether the last evaluations were as slow as those of the next part should be."""
        if self._part + 1 >= len(self.parts) or self._count <= 2 * FEW:
            return False
        ratio = self.parts[self._part + 1].cost / self.parts[self._part].cost
        usual = statistics.median(self._paces)
        return min(self._seconds[-FEW:]) > math.sqrt(ratio) * usual

    @property
    def left(self) -> float:
        """The seconds that the rest may take."""
        if not self._seconds:
            return math.inf
        pace = statistics.median(self._paces[-2 * FEW :])
        here, *rest = self.parts[self._part :]
        # until the end, at least one more evaluation is expected
        evaluations = max(1, here.evaluations - self._count)
        return pace * (evaluations + sum(each.evaluations * each.cost / here.cost for each in rest))

    @property
    def share(self) -> float:
        """The share that is done; it never decreases."""
        left = self.left
        if math.isfinite(left) and self.now > self.start:
            self._share = max(self._share, (self.now - self.start) / (self.now - self.start + left))
        return self._share


Callback = Callable[[int, float], None]
Parts = Callable[[], Sequence[Part]]
"""What a fit will do; called at its first step, when this is known."""
KEPT_EVERY = 1.0
MOST_SECONDS = 1e9


@final
class Stopwatch:
    """Seconds spent on a fit by all processes that worked on it, in a file that survives a killed process.

    Each line holds the seconds since the previous one, so a torn line loses only its own seconds.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        lines: list[str] = []
        with contextlib.suppress(OSError):
            if file.is_file():
                with open(file, errors="replace", opener=open_unlinked) as kept:
                    lines = kept.read().splitlines()
        self._before = sum(map(seconds_in, lines))
        self._start = self._kept = time.perf_counter()

    @property
    def seconds(self) -> float:
        """All seconds until now."""
        return self._before + time.perf_counter() - self._start

    def keep(self, least: float = KEPT_EVERY) -> None:
        """Write down the seconds since the last line, if they are at least `least`."""
        now = time.perf_counter()
        if now - self._kept < least:
            return
        # neither a full disk nor a link in place of the file may end the fit
        with contextlib.suppress(OSError), open(self.file, "a", opener=open_unlinked) as file:
            file.write(f"{now - self._kept:.3f}\n")
        self._kept = now


@final
class Watch:
    """A progress bar on a terminal, and nothing elsewhere; Ctrl-C or a time limit ends a fit early.

    An estimator stops learning, and keeps the best so far, when its callback raises KeyboardInterrupt. The
    `time_limit`, in seconds, is that of the whole run. Tests give a `clock` of their own.
    """

    def __init__(
        self,
        console: Console,
        time_limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.clock = clock
        self.deadline = None if time_limit is None else clock() + time_limit
        self.is_asked = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more should be started."""
        return self.is_asked or (self.deadline is not None and self.clock() >= self.deadline)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """The first Ctrl-C asks to end after the current step; the second one ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.is_asked:
                raise KeyboardInterrupt
            self.is_asked = True
            self.console.print(
                "stopping after this step with the best so far; press Ctrl-C again to stop at once"
            )

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def candidate(self, name: str, parts: Parts, share: float = 1.0) -> Iterator[tuple[Callback, list[str]]]:
        """A callback for the fit of one candidate, and a list with the reason if it ended early.

        The fit may take the fraction `share` of the time that is left.
        """
        end = None
        if self.deadline is not None:
            now = self.clock()
            end = now + share * max(0.0, self.deadline - now)
        reasons: list[str] = []
        show, close = self._bar(name, parts) if self.console.is_terminal else (_ignore, _ignore)

        def callback(step: int, bound: float) -> None:
            show(bound)
            late = end is not None and self.clock() >= end
            if self.is_asked or late:
                reasons[:] = ["interrupted" if self.is_asked else "time limit"]
                raise KeyboardInterrupt

        try:
            yield callback, reasons
        finally:
            close()

    def _bar(self, name: str, parts: Parts) -> tuple[Callable[[float], None], Callable[[], None]]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        progress = Progress(*columns, console=self.console, transient=True)
        task = progress.add_task(name, total=1.0, left="")
        progress.start()
        start, forecast = self.clock(), None

        def show(bound: float) -> None:
            nonlocal forecast
            if forecast is None:
                forecast = Forecast(parts(), start)
            forecast.add(self.clock())
            words = f"{name}  log evidence {bound:,.1f}"
            progress.update(task, completed=forecast.share, description=words, left=_left(forecast.left))

        return show, progress.stop


def _ignore(*_: object) -> None:
    """Do nothing."""


def _left(seconds: float) -> str:
    """Roughly how long it will still take."""
    if seconds < 90:
        # in steps of ten seconds, because it is not known any better
        return f"about {max(10, 10 * round(seconds / 10))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 120 else f"about {round(minutes / 60)} h left"


def seconds_in(value: object) -> float:
    """The seconds that a file holds, 0 if it holds anything else."""
    found = number_in(value)
    return found if found is not None and 0 <= found < MOST_SECONDS else 0.0
