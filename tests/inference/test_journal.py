"""Evaluations come back in order and bit for bit; torn and foreign records end a journal."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.inference import maximize
from orbitwise.inference.journal import Evaluation, Journal


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
    data[40] ^= 1
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


def learned(path: Path | None, stop_after: int | None = None) -> tuple[list[float], list[float], int]:
    p = nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64))
    calls: list[int] = []
    generator = torch.Generator().manual_seed(0)

    def callback(step: int, _: float) -> None:
        if step == stop_after:
            raise RuntimeError("killed")

    journal = None if path is None else Journal(path)
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
