"""What is seen of a fit while it runs, and how it ends early."""

import io
import math
import os
import signal

import numpy as np
import pytest
from rich.console import Console

from orbitwise.cli import watching
from orbitwise.cli.watching import Forecast, Part, Stopwatch, Watch, parts_of_search


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def steps(count: int):
    return lambda: [Part(count)]


def test_nothing_is_said_where_there_is_no_terminal():
    screen = console(False)
    with Watch(screen).candidate("affine", steps(10)) as (callback, reasons):
        callback(0, -1234.5)
    assert screen.file.getvalue() == ""  # pyright: ignore
    assert reasons == []


def test_a_terminal_has_a_bar_with_the_time_left():
    screen, now = console(True), 0.0
    with Watch(screen, clock=lambda: now).candidate("affine", steps(20)) as (callback, _):
        now = 5.0
        callback(0, 1.0)
        screen.file.truncate(0)  # pyright: ignore
        now = 10.0
        callback(1, 2.0)
    text = screen.file.getvalue()  # pyright: ignore
    assert "log evidence 2.0" in text
    assert "about 90 s left" in text or "about 2 min left" in text


def test_time_is_shared_and_over():
    now = 50.0
    watch = Watch(console(False), time_limit=100.0, clock=lambda: now)
    now += 20
    with watch.candidate("affine", steps(2), share=0.5) as (callback, reasons):
        now += 39.5
        callback(0, 1.0)
        assert reasons == []
        now += 0.5
        with pytest.raises(KeyboardInterrupt):
            callback(1, 1.0)
    assert reasons == ["time limit"]
    assert not watch.is_over
    now += 40
    assert watch.is_over
    assert not Watch(console(False), clock=lambda: now).is_over


def test_control_c_asks_first_and_stops_at_once_the_second_time():
    watch = Watch(console(False))
    before = signal.getsignal(signal.SIGINT)
    with watch.signals():
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.is_over
        with watch.candidate("affine", steps(2)) as (callback, reasons), pytest.raises(KeyboardInterrupt):
            callback(0, 1.0)
        assert reasons == ["interrupted"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_seconds_of_processes_add_up(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watching.time, "perf_counter", lambda: clock[0])
    first = Stopwatch(tmp_path / "seconds.txt")
    for step in (0.4, 0.4, 0.4, 3.0, 0.2):
        clock[0] += step
        first.keep()
    assert first.seconds == pytest.approx(4.4)
    # killed here: the last fifth of a second was not kept
    clock[0] = 7.0
    second = Stopwatch(tmp_path / "seconds.txt")
    clock[0] += 2
    assert second.seconds == pytest.approx(6.2)
    second.keep(0.0)
    kept = (tmp_path / "seconds.txt").read_text()
    (tmp_path / "seconds.txt").write_text(kept + "torn\ninf\nnan\n-5\n1e300\n")
    assert Stopwatch(tmp_path / "seconds.txt").seconds == pytest.approx(6.2)


def test_seconds_that_cannot_be_kept_do_not_end_a_fit(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "victim").write_text("100\n")
    (tmp_path / "link").symlink_to("victim")
    for name in ("folder", "pipe", "none/file", "link"):
        watch = Stopwatch(tmp_path / name)
        watch.keep(0.0)
        assert 0 <= watch.seconds < 100
    assert (tmp_path / "victim").read_text() == "100\n"


def test_parts_double_their_nodes_and_cost_their_square():
    assert [part.cost for part in parts_of_search(64)] == [1.0, 4.0, 16.0]
    assert parts_of_search(8) == [Part(95)]
    assert [part.cost for part in parts_of_search(24)] == [1.0, 2.25]


def test_nothing_is_known_before_the_first_evaluation():
    forecast = Forecast([Part(10)], 3.0)
    assert forecast.share == 0.0
    assert forecast.left == math.inf


def test_steps_that_cost_the_same_are_counted():
    forecast = Forecast([Part(10)], 3.0)
    for step in range(1, 5):
        forecast.add(3.0 + 2 * step)
        assert forecast.left == pytest.approx(2 * (10 - step))
        assert forecast.share == pytest.approx(step / 10)


def test_the_estimate_is_corrected_by_searches_that_take_other_numbers_of_evaluations():
    parts = parts_of_search(64)
    seconds = np.repeat([0.1, 0.4, 1.6], [50, 30, 30])  # of a search that has fewer than usual at first
    seconds *= np.random.default_rng(0).uniform(0.8, 1.25, len(seconds))
    ends = (7.0 + np.cumsum(seconds)).tolist()
    forecast, shares = Forecast(parts, 7.0), []
    for end in ends:
        forecast.add(end)
        shares.append(forecast.share)
        assert forecast.left == pytest.approx(ends[-1] - end, rel=0.3, abs=12.0)
    assert all(np.diff(shares) >= 0)
    assert shares[-1] < 1
