"""A bar that shows a fit: its phase, its bound, the time that has passed and the time left."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orbitwise.inference.optimise.watching import Forecast, Phase

LINE_EVERY = 10.0
"""Seconds between lines where there is no bar."""


@final
class Bar:
    """A listener that shows the phase of a fit, its bound, the time that has passed and the time left.

    A terminal, and a notebook with ipywidgets, show a bar that goes away in the end. Elsewhere a line is
    printed when the fit begins, every `line_every` seconds, and when it ends.
    """

    def __init__(
        self,
        title: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        line_every: float = LINE_EVERY,
    ) -> None:
        self.console = Console(highlight=False) if console is None else console
        self._title, self._clock, self._line_every = title, clock, line_every
        self._phase, self._step, self._bound = Phase("learning"), 0, math.nan
        self._forecast = Forecast(clock())
        self._printed = -math.inf
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if can_draw(self.console):
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._task = self._progress.add_task(self._title, total=1.0, left="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        elif self._step and kind is None:
            seconds = self._clock() - self._forecast.start
            self._print(f"{self._title}: ended after {seconds:,.1f} s{self._reached}")

    def begin(self, phase: Phase, later: Sequence[Phase]) -> None:
        """Show that a phase begins."""
        self._phase = phase
        self._forecast.begin(phase, later, self._clock())
        self._show()

    def __call__(self, step: int, bound: float) -> None:
        self._step, self._bound = step, bound
        self._forecast.add(self._clock())
        self._show()

    @property
    def _reached(self) -> str:
        return f", log evidence {self._bound:,.1f}" if self._step else ""

    def _show(self) -> None:
        left = self._forecast.left
        words = f"about {in_words(left)} left" if math.isfinite(left) else ""
        if self._progress is not None:
            text = f"{self._title}  {self._phase}{self._reached}"
            self._progress.update(self._task, completed=self._forecast.share, description=text, left=words)
            return
        now = self._clock()
        if now - self._printed >= self._line_every:
            self._printed = now
            step = f", step {self._step:,}" if self._step else ""
            self._print(f"{self._title}: {self._phase}{step}{self._reached}{words and f', {words}'}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


def can_draw(console: Console) -> bool:
    """Whether a bar can be drawn there; in a notebook that takes ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


def in_words(seconds: float) -> str:
    """The seconds in words, rounded to steps of ten because forecasts are rough."""
    if seconds < 90:
        return f"{max(10, 10 * round(seconds / 10))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
