"""Learned ranges with where they started, where they ended, and how well the data determine them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from orbitwise.estimators.error_bars import expected_seconds
from orbitwise.estimators.names import functional_of
from orbitwise.functionals.freezing import learnable_orbits, orbit_in
from orbitwise.orbits.bounds import Interval
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.orbits.units import Unit, is_collapsed, shown_error, unit_of
from orbitwise.report.numbers import decimals_of, number

ERROR_SECONDS = 20.0
"""Error bars of ranges take one gradient for each parameter: they are left out where that takes longer."""

LABELS = {
    "amplitude": "deformation",
    "angle": "rotation",
    "jitter": "jitter",
    "log_scale": "scaling",
    "log_scale_x": "horizontal stretch",
    "log_scale_y": "vertical stretch",
    "log_zoom": "zoom",
    "shear": "shear",
    "shift": "shift in time",
    "shift_x": "horizontal shift",
    "shift_y": "vertical shift",
    "smoothness": "its smoothness",
    "thickness": "thickness of strokes",
    "warp": "bending of time",
    "weight": "weight of an element",
}


@final
@dataclass(frozen=True)
class Range:
    """One learned range in raw numbers; `error` is the standard error of its upper end, None if unknown."""

    name: str
    unit: Unit
    low: float
    high: float
    start: Interval | None = None
    error: float | None = None

    @property
    def label(self) -> str:
        """The move in plain words."""
        return label_of(self.name)

    @property
    def is_determined(self) -> bool:
        """Whether the error is known and smaller than the range."""
        return self.shown_error is not None

    @property
    def is_needed(self) -> bool:
        """Whether the range has not collapsed to nothing."""
        return not is_collapsed(self.name, (self.low, self.high), self.unit)

    @property
    def shown_error(self) -> float | None:
        """The error in the unit of the range, None unless it is determined."""
        return shown_error((self.low, self.high), self.error, self.unit) if self.is_needed else None

    def text(self) -> str:
        """The range alone: ±21°, −13 to +15 %, 0.3 pixels, or that there is none."""
        if not self.is_needed:
            return "not needed"
        return interval_text((self.low, self.high), self.unit, self.shown_error)

    def error_text(self) -> str:
        """The standard error of the upper end, or that there is none."""
        error = self.shown_error
        if not self.is_needed:
            return "–"
        return (
            "not determined" if error is None else f"± {number(error, decimals_of(error))}{self.unit.symbol}"
        )

    def phrase(self) -> str:
        """What f does not care about: rotation up to ±21° (± 2°)."""
        if not self.is_needed:
            words = f"no {self.label} learned"
        elif self.name.startswith("smoothness"):
            words = f"smooth over {self.text()}"
        elif self.low == 0:
            words = f"{self.label} by {self.text()}"
        elif math.isclose(self.unit.convert(self.low), -self.unit.convert(self.high)):
            words = f"{self.label} up to {self.text()}"
        else:
            words = f"{self.label} from {self.text()}"
        return words if self.shown_error is None else f"{words} ({self.error_text()})"


def interval_text(interval: Interval, unit: Unit, error: float | None = None) -> str:
    """An interval in its unit, to the digits that the error of an end leaves."""
    low, high = (unit.convert(end) for end in interval)
    largest = max(abs(low), abs(high))
    if error is not None and error > 0:
        decimals = decimals_of(error)
    else:
        decimals = max(0, 1 - math.floor(math.log10(largest))) if largest > 0 else 0
    if low == 0:
        return number(high, decimals) + unit.symbol
    if math.isclose(low, -high):
        return "±" + number(high, decimals) + unit.symbol
    return f"{number(low, decimals, True)} to {number(high, decimals, True)}{unit.symbol}"


def label_of(name: str) -> str:
    """A parameter in plain words; the number of a stage of a composition stays behind it."""
    stem, _, last = name.rpartition("_")
    if name in LABELS:
        return LABELS[name]
    if stem in LABELS and last.isdigit():
        return f"{LABELS[stem]} {last}"
    return name.replace("_", " ")


def orbit_of(model: Any) -> Orbit | None:
    """The orbit in a fitted model: the learned one, else a finite one, else None."""
    # models of earlier versions remember learned orbits only
    return orbit_in(model.functional_) if model.orbit_ is None else model.orbit_


def learned_ranges(model: Any) -> list[Range]:
    """Every learned range of a fitted model, with its error where it can be had in time."""
    orbit = model.orbit_
    if orbit is None or not orbit.learned():
        return []
    starts, errors, units = start_of(model), range_errors(model), orbit.units()
    return [
        Range(name, unit_of(name, units), low, high, starts.get(name), errors.get(name))
        for name, (low, high) in orbit.learned().items()
    ]


def start_of(model: Any) -> Mapping[str, Interval]:
    """Where the ranges started: those of the invariance that the model was given."""
    functional = functional_of(model.invariance, model.n_features_in_, model._image_shape)
    orbits = learnable_orbits(functional)
    return orbits[0].learned() if orbits else {}


def range_errors(model: Any) -> Mapping[str, float]:
    """The standard error of every range, or nothing where it takes long or the training data are gone."""
    if hasattr(model, "_orbit_errors"):
        return model.orbit_errors_
    try:
        if expected_seconds(model._objective, model._learned_parameters) > ERROR_SECONDS:
            return {}
        return model.orbit_errors_
    except (RuntimeError, ValueError):
        return {}


def symmetry_phrase(model: Any) -> str:
    """What a finite orbit makes f indifferent to, or "" where there is no finite orbit."""
    orbit = orbit_of(model)
    if orbit is None or orbit.size is None:
        return ""
    name = model.invariance if isinstance(model.invariance, str) else type(orbit).__name__
    words = {
        "cyclic": "cyclic shifts of the columns",
        "flip": "flips",
        "flip+quarter_turn": "flips and quarter turns",
        "negation": "the sign of all columns together",
        "permutation": "the order of the columns",
        "quarter_turn": "quarter turns",
        "sign": "the signs of the columns",
    }
    what = words.get(name, f"the {orbit.size} elements of {name}")
    count = f" ({orbit.size} elements, exactly)" if isinstance(orbit, FiniteOrbit) and name in words else ""
    return f"{what}{count}"
