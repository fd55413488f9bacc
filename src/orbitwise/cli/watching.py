"""What is seen of a fit while it runs, and how it ends early: by Ctrl-C or when its time is over."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orbitwise.cli.forecast import Forecast, Part
from orbitwise.inference.disk import open_unlinked

Callback = Callable[[int, float], None]
Parts = Callable[[], Sequence[Part]]
"""What a fit will do, asked for at its first step, when it is known."""
KEPT_EVERY = 1.0
MOST_SECONDS = 1e9


@final
class Stopwatch:
    """Seconds spent on a fit by all processes that worked on it, in a file that a killed one leaves behind.

    Each line holds the seconds since the last one: a line that was torn costs only itself.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        lines: list[str] = []
        with contextlib.suppress(OSError):
            if file.is_file():
                with open(file, errors="replace", opener=open_unlinked) as kept:
                    lines = kept.read().splitlines()
        self._before = sum(_seconds(line) for line in lines)
        self._start = self._kept = time.perf_counter()

    @property
    def seconds(self) -> float:
        """All of them until now."""
        return self._before + time.perf_counter() - self._start

    def keep(self, least: float = KEPT_EVERY) -> None:
        """Write down what was spent, unless that is less than `least` seconds."""
        now = time.perf_counter()
        if now - self._kept < least:
            return
        # neither a full disk nor a link must end the fit whose seconds these are
        with contextlib.suppress(OSError), open(self.file, "a", opener=open_unlinked) as file:
            file.write(f"{now - self._kept:.3f}\n")
        self._kept = now


@final
class Watch:
    """A bar on a terminal, nothing elsewhere. An estimator's callback that raises ends its learning."""

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
        """Ctrl-C asks to end after the present step; once more ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.is_asked:
                raise KeyboardInterrupt
            self.is_asked = True
            self.console.print("stopping after this step, with the best so far; Ctrl-C again stops at once")

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def candidate(self, name: str, parts: Parts, share: float = 1.0) -> Iterator[tuple[Callback, list[str]]]:
        """A callback for the fit of one candidate, and a list that says why it ended early, if it did.

        `share` is the part of the time left that it may take.
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
    """Show nothing."""


def _left(seconds: float) -> str:
    """About how long it will still take."""
    if seconds < 90:
        # in steps of ten seconds, because it is no better known than that
        return f"about {max(10, 10 * round(seconds / 10))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 120 else f"about {round(minutes / 60)} h left"


def _seconds(line: str) -> float:
    """The seconds of a line, 0 where it is none of ours."""
    try:
        return float(line) if 0 <= float(line) < MOST_SECONDS else 0.0
    except ValueError:
        return 0.0
