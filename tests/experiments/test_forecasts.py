"""Forecasts on made-up series: the split, and scores against slow loops."""

import numpy as np
import pytest
from scipy.stats import norm

from orbitwise.experiments.mauna_loa import Series, growth, judge
from orbitwise.selection.model_posterior import PredictiveMixture


def quarters(every: int = 1) -> Series:
    years = np.arange(1990, 2026, 0.25) + 0.125
    return Series.of(years, 350 + 1.5 * (years - 1990), 2004, every)


class Straight:
    """A prediction with a slope of 1 a year after the end of training, and a deviation of 2."""

    def __init__(self, level: float = 0.0) -> None:
        self.level = level

    def predict(self, X, return_std=False, include_noise=False):
        mean = self.level + X[:, 0]
        return (mean, np.full(len(X), 2.0)) if return_std else mean


def twenty_years() -> Series:
    ahead = (np.arange(240) + 0.5) / 12
    measured = ahead + 0.01 * ahead**2
    return Series(2004, 2004.0, 0.0, np.zeros((1, 1)), np.zeros(1), ahead[:, None], measured)


def test_training_values_come_first_and_are_centred():
    series = quarters(2)
    assert len(series.x_train) == 28
    assert abs(series.x_train.mean()) < 0.51
    assert abs(series.y_train.mean()) < 1e-9
    assert series.years_ahead.min() == pytest.approx(0.125)
    assert series.x_train.max() + series.origin < 2004
    whole = quarters()
    assert len(whole.x_train) + len(whole.x_test) == 36 * 4


def test_scores_are_those_of_slow_loops():
    series = twenty_years()
    scores = judge(PredictiveMixture([Straight()], np.ones(1)), series)
    assert set(scores) == {"5", "10", "20"}
    for horizon in (5, 10, 20):
        residuals = [0.01 * ahead**2 for ahead in series.years_ahead if ahead < horizon]
        found = scores[str(horizon)]
        assert found["months"] == 12 * horizon == len(residuals)
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(residuals))))
        assert found["coverage"] == pytest.approx(np.mean([abs(r) < 1.959964 * 2 for r in residuals]))
        assert found["log_density"] == pytest.approx(np.mean([norm.logpdf(r, 0, 2) for r in residuals]))
        assert found["bias_of_last_year"] == pytest.approx(np.mean(residuals[-12:]))
        assert found["band_of_last_year"] == pytest.approx(2 * 1.959964 * 2)
    assert scores["20"]["coverage"] < scores["10"]["coverage"] == 1


def test_horizons_beyond_the_data_are_left_out():
    series = twenty_years()
    short = Series(
        2004, 2004.0, 0.0, series.x_train, series.y_train, series.x_test[:130], series.y_test[:130]
    )
    assert set(judge(PredictiveMixture([Straight()], np.ones(1)), short)) == {"5", "10"}


def test_growth_shows_an_acceleration_that_is_missed():
    rates = growth(PredictiveMixture([Straight()], np.ones(1)), twenty_years())
    assert rates["predicted_first"] == pytest.approx(1)
    assert rates["predicted_last"] == pytest.approx(1)
    # of t + 0.01 t², between the middles of years 0 and 5: 1 + 0.01 (0.5 + 5.5), and of 14 and 19
    assert rates["measured_first"] == pytest.approx(1.06)
    assert rates["measured_last"] == pytest.approx(1.34)
