"""Costs are counted, said before work begins, and refused where memory cannot do."""

import warnings
from pathlib import Path

import pytest

from orbitwise.inference.optimise import cost as module
from orbitwise.inference.optimise.cost import (
    OPERATIONS_A_SECOND,
    Cost,
    check_cost,
    dense_cost,
    exact_cost,
    gradient_search_cost,
    machine_memory,
)


def test_what_is_cheap_passes_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_cost(Cost(1e9, 1e6), "This", "do that")


@pytest.mark.parametrize(
    ("seconds", "said"), [(150, r"2 minutes|3 minutes"), (7201, "2 hours"), (3.6e6, "1,000 hours")]
)
def test_what_takes_long_is_said_with_operations_time_memory_and_another_way(seconds: float, said: str):
    cost = Cost(seconds * OPERATIONS_A_SECOND, 3 * 2**30)
    with pytest.warns(UserWarning, match=rf"This will take .* operations \(({said}).*3.0 GiB.*do that\."):
        check_cost(cost, "This", "do that")


def test_patience_can_be_longer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_cost(Cost(150 * OPERATIONS_A_SECOND, 1.0), "This", "do that", patience=1000)


def test_more_memory_than_there_is_is_refused_or_warned_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "machine_memory", lambda: 2.0**30)
    with pytest.raises(ValueError, match=r"20 GiB of memory, and this machine has 1.0 GiB: do that\."):
        check_cost(Cost(1.0, 20 * 2.0**30), "This", "do that")
    with pytest.warns(UserWarning, match="20 GiB"):
        check_cost(Cost(1.0, 20 * 2.0**30), "This", "do that", refuses=False)
    monkeypatch.setattr(module, "machine_memory", lambda: None)
    check_cost(Cost(1.0, 1e30), "This", "do that")


def test_memory_is_that_of_the_container_where_it_is_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module, "LIMIT", tmp_path / "none")
    whole = machine_memory()
    assert whole is not None
    assert whole > 2**28
    for text, expected in (("1048576\n", 2.0**20), ("max\n", whole)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(module, "LIMIT", tmp_path / "limit")
        assert machine_memory() == expected


def test_costs_grow_as_the_work_does():
    assert dense_cost(2000, 10).operations == pytest.approx(8 * dense_cost(1000, 10).operations, rel=0.01)
    assert dense_cost(2000, 0).memory == 4 * dense_cost(1000, 0).memory
    few, many = gradient_search_cost(1500, 241, 10), gradient_search_cost(1500, 241, 100)
    assert many.operations == 10 * few.operations
    assert gradient_search_cost(3000, 241, 10).operations == 4 * few.operations
    assert exact_cost(100, 20, 784, 5).operations > 50 * exact_cost(100, 2, 784, 5).operations
    both, one = exact_cost(100, 200, 6, 5), exact_cost(100, 200, 6, 5, one_sided=True)
    assert both.operations > 150 * one.operations
    assert exact_cost(100, 2000, 6, 5).memory < 11 * both.memory, "tiles are held, not all pairs"
    assert few.times(3) == Cost(3 * few.operations, few.memory)


def test_the_warning_points_at_the_users_line():
    calls = """
def between(check, cost):
    check(cost, "This", "do that")
"""
    ours: dict = {"__name__": "orbitwise.somewhere"}
    exec(compile(calls, "ours.py", "exec"), ours)
    with pytest.warns(UserWarning, match="This will take") as seen:
        ours["between"](check_cost, Cost(1e15, 1.0))
    assert seen[0].filename == __file__
