"""Estimates of the time left."""

import math

import numpy as np
import pytest

from orbitwise.cli.watching import Forecast, Part, parts_of_search


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
