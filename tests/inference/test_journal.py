"""Evaluations come back in order and bit for bit; torn and foreign records end a journal."""

import errno
import itertools
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.inference import maximize
from orbitwise.inference.optimise.checkpoints import Evaluation, Journal


def points(count: int) -> list[np.ndarray]:
    return [np.array([float(i), -0.0]) for i in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three evaluations of one run, the last of which failed."""
    journal = Journal(tmp_path / "new" / "a.journal")
    journal.begin()
    for point in points(2):
        assert journal.recall(point) is None
        journal.add(point, Evaluation(point[0] / 3, point + 0.1))
    journal.add(points(3)[2], Evaluation(np.nan, np.zeros(0), "no: Cholesky"))
    return journal.path


def replayed(path: Path, count: int = 3) -> int:
    journal = Journal(path)
    journal.begin()
    for point in points(count):
        if journal.recall(point) is None:
            break
    return journal.num_recalled


def test_evaluations_come_back(path: Path):
    journal = Journal(path)
    journal.begin()
    first, second, third = (journal.recall(point) for point in points(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.value == 1 / 3
    np.testing.assert_array_equal(second.gradient, [1.1, 0.1])
    assert third.failure == "no: Cholesky"
    assert journal.recall(np.array([3.0, 0.0])) is None


@pytest.mark.parametrize("lost", [1, 5, 20, 60])
def test_a_torn_record_is_dropped_and_written_again(path: Path, lost: int):
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    kept = replayed(path)
    assert kept < 3
    journal = Journal(path)
    journal.begin()
    for point in points(kept):
        journal.recall(point)
    assert journal.recall(points(3)[kept]) is None
    for point in points(3)[kept:]:
        journal.add(point, Evaluation(0.5, point))
    assert replayed(path) == 3


def test_a_changed_byte_ends_it(path: Path):
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    assert replayed(path) == 0


def test_another_point_or_run_ends_it(path: Path):
    other = Journal(path)
    other.begin()
    assert other.recall(np.array([0.0, 0.0])) is None  # 0 is not -0
    assert other.recall(points(1)[0]) is None
    later = Journal(path)
    later.begin()
    later.begin()
    assert later.recall(points(1)[0]) is None
    later.add(points(1)[0], Evaluation(1.0, np.ones(2)))
    assert replayed(path) == 0


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, which is put back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_another_number_of_threads_is_said_once(tmp_path: Path, threads):
    def written(count: int) -> int:
        """Recalls all that is there, and adds one evaluation more."""
        journal = Journal(tmp_path / "a.journal")
        journal.begin()
        for point in points(9):
            if journal.recall(point) is None:
                journal.add(point, Evaluation(float(count), point))
                return journal.num_recalled
        return 9

    threads(2)
    assert [written(2), written(2)] == [0, 1]
    threads(1)
    with pytest.warns(
        UserWarning, match=r"made with 2 threads, and torch uses 1 now.* up to rounding"
    ) as said:
        assert written(1) == 2
    assert len(said) == 1
    threads(2)
    with pytest.warns(UserWarning, match="made with 1 thread, and torch uses 2 now"):
        assert written(2) == 3
    with pytest.warns(UserWarning, match="made with 1 thread"):
        assert written(2) == 4, "what one thread did is in it for good"


def rosenbrock(p: nn.Parameter, calls: list[int]):
    def objective():
        calls.append(1)
        if float(p[0].detach()) > 1.05:
            raise ValueError("beyond the edge")
        return -((1 - p[0]) ** 2) - 100 * (p[1] - p[0] ** 2) ** 2

    return objective


def learned(
    path: Path | None, stop_after: int | None = None, clock: Callable[[], float] = time.monotonic
) -> tuple[list[float], list[float], int]:
    p = nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
    calls: list[int] = []
    generator = torch.Generator().manual_seed(0)

    def callback(step: int, _: float) -> None:
        if step == stop_after:
            raise RuntimeError("killed")

    journal = None if path is None else Journal(path, clock)
    training = maximize(
        rosenbrock(p, calls), [p], num_restarts=1, generator=generator, callback=callback, journal=journal
    )
    return p.tolist(), training.history + training.starts, len(calls)


def test_a_run_that_was_killed_is_replayed_and_goes_on(tmp_path: Path):
    expected = learned(None)
    with pytest.raises(RuntimeError):
        learned(tmp_path / "a.journal", stop_after=7)
    found = learned(tmp_path / "a.journal")
    assert found[:2] == expected[:2]
    assert 0 < found[2] < expected[2]
    assert learned(tmp_path / "a.journal") == (*expected[:2], 0)


def test_a_journal_of_another_fit_is_not_believed(path: Path):
    copy = path.with_name("b.journal")
    copy.write_bytes(path.read_bytes())
    with pytest.warns(UserWarning, match="starts from the beginning: it belongs to another fit"):
        assert replayed(copy) == 0
    with pytest.warns(UserWarning, match="another fit"):
        journal = Journal(copy)
    journal.begin()
    journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))
    assert replayed(copy) == 1


@pytest.mark.parametrize("content", [b"garbage", b"\xff" * 300, b"orbitwise journal 1\n" + b"\0" * 80])
def test_what_is_no_journal_is_written_over(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is ignored, and the fit starts from the beginning"):
        journal = Journal(path)
    journal.begin()
    assert journal.recall(points(1)[0]) is None
    journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))
    assert replayed(path) == 1


def sealed(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<QI", len(content) if length is None else length, zlib.crc32(content)) + content


def head(run: int, size: int, slopes: int, value: float) -> bytes:
    return struct.pack("<IQQd", run, size, slopes, value)


POINT = points(1)[0].tobytes()


@pytest.mark.parametrize(
    "record",
    [
        sealed(head(1, 2**61, 2**61, 0.0) + POINT + POINT),
        sealed(head(1, 2, 2, 0.0) + POINT),
        sealed(head(1, 2, 0, 0.0) + POINT),
        sealed(head(1, 2, 2, np.nan) + POINT + POINT),
        sealed(head(1, 2, 2, 0.0) + POINT + np.array([np.inf, 0]).tobytes()),
        sealed(head(1, 0, 0, 0.0)),
        sealed(b"short"),
        sealed(b"", 2**63),
        sealed(head(1, 2, 2, 0.0) + POINT + POINT, 2**33),
    ],
)
def test_a_record_with_the_right_checksum_is_still_doubted(path: Path, record: bytes):
    header = path.read_bytes()[: len(b"orbitwise journal 2\na.journal\n")]
    path.write_bytes(header + record)
    assert replayed(path) == 0


def test_words_that_are_no_text_are_read_as_far_as_they_are(path: Path):
    header = path.read_bytes()[: len(b"orbitwise journal 2\na.journal\n")]
    path.write_bytes(header + sealed(head(1, 2, 0, np.nan) + POINT + b"no \xff"))
    journal = Journal(path)
    journal.begin()
    found = journal.recall(points(1)[0])
    assert found is not None
    assert found.failure.startswith("no ")


def test_places_that_are_no_files_end_checkpoints_and_not_the_fit(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "loop", "pipe", "file/a.journal"):
        expected = pytest.warns(UserWarning, match="is ignored") if name == "loop" else nullcontext()
        with expected:
            journal = Journal(tmp_path / name)
        journal.begin()
        assert journal.recall(points(1)[0]) is None
        with pytest.warns(UserWarning, match="the fit continues without checkpoints"):
            journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))
        journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))  # says it once


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("failing_call", [1, 3])
def test_a_full_disk_ends_checkpoints_and_not_the_fit(tmp_path, monkeypatch, number, failing_call):
    expected, calls, sync = learned(None), [], os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= failing_call:
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    slow = itertools.count(0.0, 5.0)
    with pytest.warns(UserWarning, match=os.strerror(number)) as caught:
        assert learned(tmp_path / "a.journal", clock=lambda: next(slow)) == expected
    assert len(caught) == 1
    monkeypatch.undo()
    assert learned(tmp_path / "a.journal")[:2] == expected[:2]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kind of file of every call of `fsync`."""
    calls, sync = [], os.fsync

    def counted(handle: int) -> None:
        calls.append(stat.S_IFMT(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", counted)
    return calls


def test_records_reach_the_disk_once_a_second_and_in_the_end(tmp_path: Path, synced: list[int]):
    now = 100.0
    journal = Journal(tmp_path / "a.journal", clock=lambda: now)
    journal.begin()
    for count, point in enumerate(points(9)):
        now += 0.25
        journal.add(point, Evaluation(0.5, point))
        # the operating system has every record at once, whatever happens to this process
        assert replayed(journal.path, 9) == count + 1
    assert synced.count(stat.S_IFDIR) == 1  # the name of the new file
    assert synced.count(stat.S_IFREG) == 2
    for _ in range(2):
        journal.sync()
        assert synced.count(stat.S_IFREG) == 3, "what was added since, and nothing the second time"


@pytest.mark.parametrize("stop_after", [None, 7])
def test_the_end_of_a_training_reaches_the_disk(tmp_path: Path, synced: list[int], stop_after):
    with nullcontext() if stop_after is None else pytest.raises(RuntimeError, match="killed"):
        learned(tmp_path / "a.journal", stop_after, clock=lambda: 0.0)
    assert synced == [stat.S_IFDIR, stat.S_IFREG]


def test_an_end_that_does_not_reach_the_disk_is_said(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(path)
    journal.begin()
    journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.warns(UserWarning, match="continues without checkpoints"):
        journal.sync()
    journal.sync()  # says it once


def test_a_link_is_neither_read_nor_written_through(path: Path):
    victim = path.rename(path.with_name("victim"))
    content = victim.read_bytes()
    path.symlink_to(victim)
    with pytest.warns(UserWarning, match="starts from the beginning: it is a symbolic link"):
        journal = Journal(path)
    journal.begin()
    assert journal.recall(points(1)[0]) is None
    with pytest.warns(UserWarning, match=r"\(it is a symbolic link\).*continues without checkpoints"):
        journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))
    assert victim.read_bytes() == content
    victim.unlink()  # nor is a file made where a link leads to none
    with pytest.warns(UserWarning, match="symbolic link"):
        journal = Journal(path)
    with pytest.warns(UserWarning, match="continues without checkpoints"):
        journal.add(points(1)[0], Evaluation(0.5, points(1)[0]))
    assert not victim.exists()


def test_the_second_of_two_writers_stops(path: Path):
    one, other = Journal(path), Journal(path)
    for journal in (one, other):
        journal.begin()
        for point in points(3):
            assert journal.recall(point) is not None
    new = points(5)[3:]
    one.add(new[0], Evaluation(0.5, new[0]))
    with pytest.warns(UserWarning, match="another process writes to it"):
        other.add(new[0], Evaluation(0.5, new[0]))
    one.add(new[1], Evaluation(0.5, new[1]))
    assert replayed(path, 5) == 5
    path.unlink()
    with pytest.warns(UserWarning, match="has removed it"):
        one.add(new[1], Evaluation(0.5, new[1]))
