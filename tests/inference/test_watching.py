"""Phases, forecasts, the bar and its lines, and how a reporter ends a fit."""

import io
import math
import os
import signal
import threading

import numpy as np
import pytest
from rich.console import Console

from orbitwise.inference.optimise.bar import Bar, can_draw
from orbitwise.inference.optimise.orbit_search import phases_of_search
from orbitwise.inference.optimise.training import INTERRUPTED, TIME_IS_OVER, TimeIsOverError
from orbitwise.inference.optimise.watching import (
    Forecast,
    Phase,
    Reporter,
    announce,
    first_interrupt,
)


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=150)


def text_of(screen: Console) -> str:
    return screen.file.getvalue()  # pyright: ignore


class Told:
    """A listener that remembers everything."""

    def __init__(self) -> None:
        self.seen = []

    def begin(self, phase, later):
        self.seen.append((phase, tuple(later)))

    def __call__(self, step, bound):
        self.seen.append((step, bound))


def test_phases_double_their_nodes_and_cost_their_square():
    assert [(each.num_nodes, each.cost) for each in phases_of_search(64)] == [
        (16, 1.0),
        (32, 4.0),
        (64, 16.0),
    ]
    assert [(each.num_nodes, each.num_steps) for each in phases_of_search(8)] == [(8, 95)]
    assert [each.cost for each in phases_of_search(24)] == [1.0, 2.25]


def test_a_phase_says_what_it_works_with():
    assert (
        str(Phase("learning", num_inducing=2000, num_nodes=16)) == "learning, 2,000 inducing points, 16 nodes"
    )
    assert str(Phase("polishing")) == "polishing"


def test_nothing_is_known_before_the_first_step():
    forecast = Forecast(3.0)
    forecast.begin(Phase("learning", 10), (), 4.0)
    assert forecast.share == 0.0
    assert forecast.left == math.inf


def test_steps_that_cost_the_same_are_counted():
    forecast = Forecast(3.0)
    forecast.begin(Phase("learning", 10), (), 3.0)
    for step in range(1, 5):
        forecast.add(3.0 + 2 * step)
        assert forecast.left == pytest.approx(2 * (10 - step))
        assert forecast.share == pytest.approx(step / 10)


def test_nothing_is_known_of_phases_without_a_number_of_steps():
    forecast = Forecast(0.0)
    forecast.begin(Phase("learning"), (), 0.0)
    forecast.add(1.0)
    assert forecast.left == math.inf
    forecast.begin(Phase("polishing", 3, cost=2.0), (), 1.0)
    # until it has steps of its own, the pace follows from the relative cost
    assert forecast.left == pytest.approx(6.0)
    forecast.add(6.0)
    assert forecast.left == pytest.approx(10.0)


def test_the_estimate_is_corrected_by_searches_that_take_other_numbers_of_evaluations():
    phases = phases_of_search(64)
    counts, each = [50, 30, 30], [0.1, 0.4, 1.6]  # of a search that has fewer than usual at first
    random = np.random.default_rng(0)
    seconds = [cost * random.uniform(0.8, 1.25, count) for count, cost in zip(counts, each, strict=True)]
    end = 7.0 + float(np.concatenate(seconds).sum())
    forecast, now, shares = Forecast(7.0), 7.0, []
    for number, part in enumerate(seconds):
        forecast.begin(phases[number], phases[number + 1 :], now)
        for one in part.tolist():
            now += one
            forecast.add(now)
            shares.append(forecast.share)
            assert forecast.left == pytest.approx(end - now, rel=0.3, abs=12.0)
    assert all(np.diff(shares) >= 0)
    assert shares[-1] < 1


def test_a_bar_shows_phase_bound_and_time_left():
    screen, now = console(True), 0.0
    with Bar("exact inference", screen, clock=lambda: now) as bar:
        bar.begin(Phase("search for ranges", 12, num_nodes=16), ())
        now = 5.0
        bar(1, 1.0)
        screen.file.truncate(0)
        now = 10.0
        bar(2, 1234.5)
    for words in ("exact inference", "16 nodes", "log evidence 1,234.5", "about 50 s left"):
        assert words in text_of(screen)


def test_without_a_terminal_a_line_is_printed_now_and_then():
    screen, now = console(False), 0.0
    assert not can_draw(screen)
    with Bar("sparse inference", screen, clock=lambda: now, line_every=10.0) as bar:
        bar.begin(Phase("learning", 100, num_inducing=512), ())
        for step in range(1, 26):
            now += 1.0
            bar(step, -float(step))
    assert text_of(screen).splitlines() == [
        "sparse inference: learning, 512 inducing points",
        "sparse inference: learning, 512 inducing points, step 10, log evidence -10.0, about 2 min left",
        "sparse inference: learning, 512 inducing points, step 20, log evidence -20.0, about 80 s left",
        "sparse inference: ended after 25.0 s, log evidence -25.0",
    ]


def test_an_error_ends_a_bar_without_a_last_line():
    screen = console(False)
    bar = Bar("exact inference", screen)
    bar(1, 0.0)
    with pytest.raises(RuntimeError), bar:
        raise RuntimeError
    assert "ended" not in text_of(screen)


def test_plain_callbacks_are_told_of_steps_and_listeners_of_phases_too():
    told, steps = Told(), []
    reporter = Reporter(None, Reporter(told), lambda *each: steps.append(each))
    first, second = Phase("learning", 3), Phase("polishing")
    announce(reporter, first, second)
    reporter(1, 2.0)
    announce(lambda step, bound: None, first)
    announce(None, first)
    assert told.seen == [(first, (second,)), (1, 2.0)]
    assert steps == [(1, 2.0)]
    assert reporter.stopped == ""


def test_a_fit_that_a_callback_ended_ends_in_every_later_phase():
    seen = []

    def stop(step, bound):
        seen.append(step)
        if step == 2:
            raise KeyboardInterrupt

    reporter = Reporter(stop)
    reporter(1, 0.0)
    with pytest.raises(KeyboardInterrupt):
        reporter(2, 0.0)
    with pytest.raises(KeyboardInterrupt):
        reporter(3, 0.0)
    assert seen == [1, 2]
    assert (reporter.stopped, reporter.is_over()) == (INTERRUPTED, True)


def test_time_ends_a_fit_and_an_interruption_before_it_stays_one():
    now, told = 0.0, Told()
    reporter = Reporter(told, max_seconds=5.0, clock=lambda: now)
    now = 4.9
    reporter(1, 0.0)
    assert not reporter.is_over()
    now = 5.0
    with pytest.raises(TimeIsOverError):
        reporter(2, 0.0)
    assert (told.seen[-1], reporter.stopped) == ((2, 0.0), TIME_IS_OVER)
    reporter = Reporter(max_seconds=5.0, clock=lambda: now)
    reporter.stopped = INTERRUPTED
    now = 20.0
    with pytest.raises(KeyboardInterrupt):
        reporter.check()


def test_the_first_interrupt_ends_after_a_step_and_the_second_one_at_once():
    before = signal.getsignal(signal.SIGINT)
    reporter = Reporter()
    with reporter.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            reporter(1, 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_who_handles_interrupts_already_still_does():
    asked, own = [], []
    before = signal.signal(signal.SIGINT, lambda *_: own.append("own"))
    try:
        with first_interrupt(lambda: asked.append("asked")):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (asked, own) == ([], ["own"])
    errors = []

    def elsewhere():
        try:
            with Reporter().interruptible():
                pass
        except ValueError as error:  # only the main thread may handle signals
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert errors == []
