"""A series that is cut at a year, and how a forecast of what came later is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from orbitwise.selection.model_posterior import PredictiveMixture

Array = NDArray[np.float64]
HORIZONS = (5, 10, 20)
"""Years ahead."""


@final
@dataclass(frozen=True)
class Series:
    """Values before and after the end of training, in years from its middle and about its mean."""

    end: int
    origin: float
    shift: float
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array

    @staticmethod
    def of(years: Array, values: Array, end: int = 2004, every: int = 1) -> Series:
        """Split at the beginning of the year `end`; `every` keeps every so many training values."""
        is_train = years < end
        kept = np.flatnonzero(is_train)[::every]
        origin, shift = float(np.round(years[kept].mean())), float(values[kept].mean())
        x, y = (years - origin)[:, None], values - shift
        return Series(end, origin, shift, x[kept], y[kept], x[~is_train], y[~is_train])

    @property
    def years_ahead(self) -> Array:
        """How far after the training years every test value lies."""
        return self.x_test[:, 0] + self.origin - self.end


def judge(predictor: PredictiveMixture, series: Series) -> dict[str, Any]:
    """Coverage of the 95 % band, error and log density of what was measured, up to each horizon.

    The bias is the mean of measured minus predicted over the last year before the horizon.
    """
    x, y, ahead = series.x_test, series.y_test, series.years_ahead
    residual = y - predictor.predict(x)
    low, high = (predictor.quantile(x, level, include_noise=True) for level in (0.025, 0.975))
    inside, density = (low <= y) & (y <= high), predictor.log_density(x, y)
    record: dict[str, Any] = {}
    for horizon in HORIZONS:
        until = ahead < horizon
        if not until.any() or ahead.max() < horizon - 1 / 12:
            continue
        last_year = until & (ahead >= horizon - 1)
        record[str(horizon)] = {
            "months": int(until.sum()),
            "coverage": float(inside[until].mean()),
            "rmse": float(np.sqrt(np.mean(residual[until] ** 2))),
            "log_density": float(density[until].mean()),
            "bias_of_last_year": float(residual[last_year].mean()),
            "band_of_last_year": float((high - low)[last_year].mean()),
        }
    return record


def growth(predictor: PredictiveMixture, series: Series, horizon: int = 20) -> dict[str, float]:
    """The rise a year over the first and the last five years of the horizon, as predicted and as measured."""
    ahead, rates = series.years_ahead, {}
    for name, values in (("predicted", predictor.predict(series.x_test)), ("measured", series.y_test)):
        annual = [float(values[(ahead >= k) & (ahead < k + 1)].mean()) for k in range(horizon)]
        rates[f"{name}_first"] = (annual[5] - annual[0]) / 5
        rates[f"{name}_last"] = (annual[-1] - annual[-6]) / 5
    return rates
