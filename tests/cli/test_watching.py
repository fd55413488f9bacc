"""What is seen of a fit while it runs, and how it ends early."""

import io
import os
import signal

import pytest
from rich.console import Console

from orbitwise.cli import watching
from orbitwise.cli.watching import Stopwatch, Watch
from orbitwise.inference.optimise.watching import Phase


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def test_nothing_is_said_where_there_is_no_terminal():
    screen = console(False)
    with Watch(screen).candidate("affine") as listener:
        listener.begin(Phase("learning", 10), ())
        listener(0, -1234.5)
    assert screen.file.getvalue() == ""  # pyright: ignore
    assert listener.reason is None


def test_a_terminal_has_a_bar_with_the_time_left():
    screen, now = console(True), 0.0
    with Watch(screen, clock=lambda: now).candidate("affine") as listener:
        listener.begin(Phase("learning", 20), ())
        now = 5.0
        listener(0, 1.0)
        screen.file.truncate(0)  # pyright: ignore
        now = 10.0
        listener(1, 2.0)
    text = screen.file.getvalue()  # pyright: ignore
    assert "log evidence 2.0" in text
    assert "about 90 s left" in text or "about 2 min left" in text


def test_time_is_shared_and_over():
    now = 50.0
    watch = Watch(console(False), time_limit=100.0, clock=lambda: now)
    now += 20
    with watch.candidate("affine", share=0.5) as listener:
        now += 39.5
        listener(0, 1.0)
        assert listener.reason is None
        now += 0.5
        with pytest.raises(KeyboardInterrupt):
            listener(1, 1.0)
    assert listener.reason == "time limit"
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
        with watch.candidate("affine") as listener, pytest.raises(KeyboardInterrupt):
            listener(0, 1.0)
        assert listener.reason == "interrupted"
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
