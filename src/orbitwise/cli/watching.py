"""Watching the fits of a run: a bar on a terminal, the time they took, and how to end them early."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import final

from rich.console import Console

from orbitwise.cli.files import number_in
from orbitwise.inference.disk import open_unlinked
from orbitwise.inference.optimise.bar import Bar, can_draw
from orbitwise.inference.optimise.watching import Phase, first_interrupt

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

        def ask() -> None:
            self.is_asked = True
            self.console.print(
                "stopping after this step with the best so far; press Ctrl-C again to stop at once"
            )

        with first_interrupt(ask):
            yield

    @contextmanager
    def candidate(self, name: str, share: float = 1.0) -> Iterator[CandidateListener]:
        """What listens to the fit of one candidate, and ends it early.

        The fit may take the fraction `share` of the time that is left.
        """
        end = math.inf
        if self.deadline is not None:
            now = self.clock()
            end = now + share * max(0.0, self.deadline - now)
        with Bar(name, self.console, self.clock) if can_draw(self.console) else nullcontext() as bar:
            yield CandidateListener(self, bar, end)


@final
class CandidateListener:
    """Listens to the fit of one candidate: it moves a bar, if there is one, and ends the fit.

    Attributes
    ----------
    reason : str or None
        Why the fit was ended early: "interrupted" or "time limit".
    """

    def __init__(self, watch: Watch, bar: Bar | None, end: float) -> None:
        self.reason: str | None = None
        self._watch, self._bar, self._end = watch, bar, end

    def begin(self, phase: Phase, later: Sequence[Phase]) -> None:
        """Show that a phase of the fit begins."""
        if self._bar is not None:
            self._bar.begin(phase, later)

    def __call__(self, step: int, bound: float) -> None:
        if self._bar is not None:
            self._bar(step, bound)
        if self._watch.is_asked or self._watch.clock() >= self._end:
            self.reason = "interrupted" if self._watch.is_asked else "time limit"
            raise KeyboardInterrupt


def seconds_in(value: object) -> float:
    """The seconds that a file holds, 0 if it holds anything else."""
    found = number_in(value)
    return found if found is not None and 0 <= found < MOST_SECONDS else 0.0
