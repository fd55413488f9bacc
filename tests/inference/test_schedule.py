"""Rates, batches and history of stochastic training."""

import pytest
import torch

from orbitwise.inference.schedule import SPAN, Batches, History, Rates


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


def test_a_bound_settles_when_it_gains_little_in_this_run():
    history = History()
    history.start()
    for step in range(300):
        history.add(float(min(step, 100)))
    assert history.has_settled(50, 1e-9)
    assert not History(bound=[1.0] * 30, smoothed=[1.0] * 30).has_settled(50, 1.0), "too few steps to tell"
    history.start()
    assert not history.has_settled(50, 1e-9), "nothing of this run"


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
