"""Watching a fit: its phases, how much of it is done, how long it may still take, and how to end it early.

Engines take a callback of (step, bound). One that has a method `begin` is told of phases, too: engines
`announce` each phase as it begins, with those that are still to come, so that the time left can be forecast.
"""

from __future__ import annotations

import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, final, runtime_checkable

from orbitwise.inference.optimise.training import INTERRUPTED, TIME_IS_OVER, TimeIsOverError
from orbitwise.inference.processes import ALONE, Processes

Callback = Callable[[int, float], None]
"""What is called with the step and the bound. It may raise KeyboardInterrupt to end the fit."""

FEW = 6
"""The number of steps whose median is the present pace."""


@final
@dataclass(frozen=True)
class Phase:
    """A part of a fit whose steps cost about the same.

    Attributes
    ----------
    name : str
        What is done, such as "learning".
    num_steps : int
        How many steps it is expected to take; 0 if unknown.
    cost : float
        What a step costs, in units that all phases of the fit share.
    num_inducing, num_nodes : int or None
        How many inducing points and nodes of an orbit are used, where there are any.
    """

    name: str
    num_steps: int = 0
    cost: float = 1.0
    num_inducing: int | None = None
    num_nodes: int | None = None

    def __str__(self) -> str:
        inducing = "" if self.num_inducing is None else f", {self.num_inducing:,} inducing points"
        nodes = "" if self.num_nodes is None else f", {self.num_nodes:,} nodes"
        return self.name + inducing + nodes


@runtime_checkable
class Listener(Protocol):
    """A callback of steps that is told of phases, too."""

    def begin(self, phase: Phase, later: Sequence[Phase]) -> None:
        """A phase begins, after which those that come `later` are expected."""
        ...

    def __call__(self, step: int, bound: float) -> None: ...


def announce(callback: Callback | None, phase: Phase, *later: Phase) -> None:
    """Say that a phase begins, and what is expected to follow, to a callback that listens to phases."""
    if isinstance(callback, Listener):
        callback.begin(phase, later)


@final
class Forecast:
    """The share of a fit that is done, and the seconds that the rest may take.

    The pace is the median time of the last steps. What is left is the number of steps that the present phase
    and the later ones are expected to need, each at the present pace times its relative cost.
    """

    def __init__(self, start: float) -> None:
        self.start = self.now = start
        self._phase, self._later = Phase("learning"), tuple[Phase, ...]()
        self._count, self._share = 0, 0.0
        self._seconds: list[float] = []

    def begin(self, phase: Phase, later: Sequence[Phase], now: float) -> None:
        """Take note that a phase begins; until it has steps of its own, its pace follows from before."""
        ratio = phase.cost / self._phase.cost
        self._seconds = [ratio * statistics.median(self._seconds)] if self._seconds else []
        self._phase, self._later, self._count, self.now = phase, tuple(later), 0, now

    def add(self, now: float) -> None:
        """Take note that a step has ended."""
        if self._count == 0:
            self._seconds.clear()
        self._seconds = [*self._seconds[1 - FEW :], now - self.now]
        self._count, self.now = self._count + 1, now

    @property
    def left(self) -> float:
        """The seconds that the rest may take; infinite while unknown."""
        if not self._seconds or not self._phase.num_steps:
            return math.inf
        # until the phase ends, at least one more step is expected
        steps = max(1, self._phase.num_steps - self._count)
        later = sum(each.num_steps * each.cost / self._phase.cost for each in self._later)
        return statistics.median(self._seconds) * (steps + later)

    @property
    def share(self) -> float:
        """The share that is done; it never decreases."""
        left = self.left
        if math.isfinite(left) and self.now > self.start:
            self._share = max(self._share, (self.now - self.start) / (self.now - self.start + left))
        return self._share


@contextmanager
def first_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `ask`, and the second one raises KeyboardInterrupt, as it does elsewhere.

    If Ctrl-C is already handled elsewhere, or this is not the main thread, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@final
class Reporter:
    """What an engine reports to: it hands steps and phases on to listeners, and says when the fit must end.

    A fit ends after the first Ctrl-C, after `max_seconds`, or where a callback raises KeyboardInterrupt: the
    present step is then the last one of its phase, and of every later phase. If several `processes` share the
    fit, it ends in all of them where it ends in the first.

    Attributes
    ----------
    stopped : str
        Why the fit had to end, as in `CUT_SHORT`; "" where it did not.
    processes : Processes
        The processes that share the fit.
    """

    def __init__(
        self,
        *callbacks: Callback | None,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        processes: Processes = ALONE,
    ) -> None:
        self.callbacks = [each for each in callbacks if each is not None]
        self.stopped, self.processes = "", processes
        self._clock = clock
        self._deadline = math.inf if max_seconds is None else clock() + max_seconds

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within, the first Ctrl-C ends the fit after the present step, and the second one at once."""

        def ask() -> None:
            self.stopped = INTERRUPTED

        with first_interrupt(ask):
            yield

    def begin(self, phase: Phase, later: Sequence[Phase] = ()) -> None:
        """Say that a phase begins, and which ones are expected to follow."""
        for each in self.callbacks:
            announce(each, phase, *later)

    def is_over(self) -> bool:
        """Whether no evaluation may begin any more."""
        if not self.stopped and self._clock() >= self._deadline:
            self.stopped = TIME_IS_OVER
        self.stopped = self.processes.from_first(self.stopped)
        return bool(self.stopped)

    def allows(self, seconds: float) -> bool:
        """Whether a computation of so many seconds may begin; if not, the fit does not end."""
        in_time = self.processes.from_first(self._clock() + seconds <= self._deadline)
        return not self.is_over() and in_time

    def check(self) -> None:
        """Raise KeyboardInterrupt or `TimeIsOverError` where the fit must end."""
        if self.is_over():
            raise KeyboardInterrupt if self.stopped == INTERRUPTED else TimeIsOverError

    def __call__(self, step: int, bound: float) -> None:
        if not self.stopped:
            try:
                for each in self.callbacks:
                    each(step, bound)
            except KeyboardInterrupt:
                self.stopped = INTERRUPTED
        self.check()
