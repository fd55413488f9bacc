"""Passes over all rows: their mean, their error, and what nothing drawn needs; see also statistics/."""

from types import SimpleNamespace

import pytest
import torch

from orbitwise.inference.stochastic.unbiased_bound import DEGREES_OF_FREEDOM, average_passes

BATCHES = torch.arange(12).split(5)


def passes(deviation: float, shared: bool = False, seed: int = 0):
    """Terms whose rows have variance `deviation`², alone or, where shared, all rows of a batch together."""
    generator, calls = torch.Generator().manual_seed(seed), []

    def terms(index):
        calls.append(index)
        noise = torch.randn(1 if shared else len(index), generator=generator).expand(len(index))
        data = (index + deviation * noise).sum()
        return SimpleNamespace(data=data, projection=SimpleNamespace(is_drawn=deviation > 0))

    return terms, calls


def test_nothing_drawn_is_known_after_one_pass():
    terms, calls = passes(0.0)
    assert average_passes(terms, BATCHES, 6.0) == (60.0, 0.0)
    assert len(calls) == len(BATCHES)


@pytest.mark.parametrize("shared", [False, True])
def test_errors_hold_whether_rows_of_a_batch_depend_on_each_other_or_not(shared):
    found = torch.tensor([average_passes(passes(2.0, shared, seed)[0], BATCHES, 6.0) for seed in range(300)])
    scores = (found[:, 0] - 60) / found[:, 1]
    assert abs(float(scores.mean())) < 0.2
    assert 0.9 < float(scores.std()) < 1.15


def test_few_batches_take_more_passes():
    for size in (1, 5, 12):
        terms, calls = passes(1.0)
        batches = torch.arange(12).split(size)
        average_passes(terms, batches, 0.0)
        count = len(calls) // len(batches)
        assert count >= 2
        assert len(batches) * (count - 1) >= DEGREES_OF_FREEDOM
    assert torch.tensor(average_passes(terms, batches, 0.0, 1).standard_error).isnan()
