"""Rates, batches and history of stochastic training."""

import math
from collections.abc import Callable

import pytest
import torch

from orbitwise.inference.stochastic.trainer_state import BLOCK, BLOCKS, SPAN, Batches, History, Rates


def test_adam_rates_are_constant_and_then_fall_to_nearly_nothing():
    rates = Rates(decay_from=0.5)
    assert rates.at(0.0) == rates.at(0.5) == 1.0
    later = [rates.at(0.5 + 0.1 * i) for i in range(6)]
    assert later == sorted(later, reverse=True)
    assert 0 < later[-1] < 0.01
    assert Rates(decay_from=1.0).at(0.99) == 1.0


def test_natural_rates_average_the_first_batches():
    rates = Rates()
    assert [rates.natural_at(age, 10, 1000, False) for age in range(3)] == [1, 1 / 2, 1 / 3]
    assert rates.natural_at(10_000, 10, 1000, False) == 0.005
    assert rates.natural_at(10_000, 100, 100, False) == 0.25
    assert rates.natural_at(10_000, 100, 100, True) == 1.0
    assert Rates(natural=0.2).natural_at(0, 10, 10, True) == 0.2


def test_batches_visit_all_rows_before_any_again():
    batches = Batches(12, 4, torch.Generator().manual_seed(0))
    first = torch.cat([batches.next() for _ in range(3)])
    assert sorted(first.tolist()) == list(range(12))
    second = torch.cat([batches.next() for _ in range(3)])
    assert sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()
    assert Batches(5, 99, torch.Generator()).next().tolist() == [0, 1, 2, 3, 4]


def test_every_row_is_as_likely_where_batches_do_not_divide_the_data():
    batches = Batches(5, 3, torch.Generator().manual_seed(0))
    counts = torch.bincount(torch.cat([batches.next() for _ in range(4000)]), minlength=5)
    assert (counts / counts.sum() - 0.2).abs().max() < 0.01


def test_a_batch_has_rows():
    with pytest.raises(ValueError, match="at least one row"):
        Batches(5, 0, torch.Generator())


def test_a_smoothed_bound_forgets():
    history = History()
    history.start()
    history.add(-1e9)
    for _ in range(SPAN):
        history.add(-2.0)
    assert history.smoothed[-1] == -2.0
    assert history.best == -2.0
    assert len(history.bound) == len(history.smoothed) == SPAN + 1


def test_runs_are_not_averaged_with_each_other():
    history = History()
    for value in (-5.0, 7.0):
        history.start()
        history.add(value)
        assert history.smoothed[-1] == history.best == value


def history_of(bound: Callable[[int], float], *values: Callable[[int], float]) -> History:
    """A run at full rates in which bound and learned values take this course."""
    history = History()
    history.start()
    for step in range(BLOCK * BLOCKS):
        history.add(bound(step))
        if (step + 1) % BLOCK == 0:
            history.note([value(step) for value in values])
    return history


def noise(step: int) -> float:
    return math.sin(37.0 * step) + math.sin(23.0 * step * step)


COURSES = {
    "still": (lambda _: -100.0, lambda _: 2.0, True),
    "noisy": (lambda step: -100 + 30 * noise(step), lambda step: 2 + 0.3 * noise(step), True),
    "falling": (lambda step: -100 - 0.5 * step, lambda _: 2.0, True),
    "rising": (lambda step: -100 + 0.5 * step, lambda _: 2.0, False),
    "rising in noise": (lambda step: -100 + step + 5 * noise(step), lambda _: 2.0, False),
    "rising by next to nothing": (lambda step: -100 + 0.005 * step, lambda _: 2.0, True),
    "a value on its way": (lambda _: -100.0, lambda step: 2 + 0.01 * step, False),
    "a value hardly on its way": (lambda _: -100.0, lambda step: 2 + 0.0005 * step, True),
    "a small value on its way": (lambda _: -100.0, lambda step: 1e-4 * step, True),
}


@pytest.mark.parametrize(("bound", "value", "settles"), COURSES.values(), ids=COURSES)
def test_a_run_settles_when_neither_bound_nor_values_are_on_their_way(bound, value, settles):
    assert history_of(bound, value).has_settled([0.5], 1000) == settles


def test_a_value_that_wanders_does_not_keep_a_run_from_settling():
    """Nothing is gained where the bound does not depend on it: a random walk has no direction."""
    settled = 0
    for seed in range(40):
        walk = torch.randn(BLOCK * BLOCKS, generator=torch.Generator().manual_seed(seed)).cumsum(0).tolist()
        settled += history_of(lambda _: -100.0, walk.__getitem__).has_settled([0.5], 1000)
    assert settled >= 34


def test_too_few_steps_of_this_run_do_not_tell():
    history = history_of(lambda _: -100.0)
    assert history.has_settled([], 1000)
    history.back_off("a bound that is not finite")
    assert not history.has_settled([], 1000), "other steps than those that were taken back"
    history = history_of(lambda _: -100.0)
    history.start()
    assert not history.has_settled([], 1000)


def test_back_offs_are_counted_with_their_reasons():
    history = History()
    history.back_off("the bound is not finite")
    assert history.back_offs == 1
    assert history.reasons == ["the bound is not finite"]


def test_a_bound_collapses_when_it_falls_by_more_than_noise():
    history = History()
    history.start()
    assert not history.has_collapsed(-1e9, 10), "nothing to compare with"
    for step in range(60):
        history.add(-100.0 + (step % 2))
    assert not history.has_collapsed(-150.0, 40)
    assert history.has_collapsed(-260.0, 40)
    assert not history.has_collapsed(-260.0, 200), "less than a nat a target"
    for step in range(60):
        history.add(-100.0 + 30 * (step % 2))
    assert not history.has_collapsed(-260.0, 40), "it swings like that"
