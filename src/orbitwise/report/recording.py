"""Learned ranges over time, through the callback that every estimator has."""

from __future__ import annotations

from typing import Any, final

from orbitwise.orbits.ranges import Interval


@final
class RangeHistory:
    """A callback that keeps the ranges of its estimator's orbit after every iteration of `fit`."""

    def __init__(self, estimator: Any, then: Any = None) -> None:
        self.estimator = estimator
        self.then = then
        self.ranges: list[dict[str, Interval]] = []

    def __call__(self, step: int, bound: float) -> None:
        orbit = getattr(self.estimator, "orbit_", None)
        if orbit is not None and orbit.learned():
            self.ranges.append(dict(orbit.learned()))
        if self.then is not None:
            self.then(step, bound)


def record_ranges(estimator: Any) -> RangeHistory:
    """Have the next `fit` of the estimator keep its ranges for the report; its own callback is still called.

    A clone of the estimator records nothing: call this for the clone.
    """
    history = RangeHistory(estimator, estimator.callback)
    estimator.set_params(callback=history)
    return history


def recorded_ranges(model: Any) -> list[dict[str, Interval]]:
    """What `record_ranges` kept of the model's fit; empty where nothing was recorded."""
    history = getattr(model, "callback", None)
    return history.ranges if isinstance(history, RangeHistory) and history.estimator is model else []
