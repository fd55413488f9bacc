"""Learned ranges with where they started, where they ended, and how well the data determine them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from orbitwise.estimators.forms import input_shape
from orbitwise.estimators.invariances import NAMES, functional_of
from orbitwise.estimators.learned_ranges import expected_seconds
from orbitwise.functionals.averages import learnable_orbits, orbit_in
from orbitwise.orbits.certainty import Certainty, Kind, Unit, decimals_of, unit_of
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.orbits.ranges import Interval
from orbitwise.report.numbers import number

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
    """One learned range in raw numbers; `error` and `interval` (95 %) are those of its upper end."""

    name: str
    unit: Unit
    low: float
    high: float
    start: Interval | None = None
    error: float | None = None
    interval: Interval | None = None

    @property
    def certainty(self) -> Certainty:
        """How well it is known."""
        return Certainty(self.name, self.unit, (self.low, self.high), self.error, self.interval)

    @property
    def label(self) -> str:
        """The move in plain words."""
        return label_of(self.name)

    @property
    def is_determined(self) -> bool:
        """Whether the error is known and small beside the range."""
        return self.certainty.kind is Kind.DETERMINED

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the error."""
        return self.certainty.kind is not Kind.UNKNOWN

    @property
    def is_needed(self) -> bool:
        """Whether the range has not collapsed to nothing."""
        return self.certainty.kind not in (Kind.NOT_NEEDED, Kind.NOT_RULED_OUT)

    def text(self) -> str:
        """The range alone: ±21°, −13 to +15 %, 0.3 pixels, or that there is none."""
        if not self.is_needed:
            return "not needed" if self.certainty.is_determined else "not determined"
        return interval_text((self.low, self.high), self.unit, self.certainty.shown_error)

    def error_text(self) -> str:
        """How sure it is: the standard error of the upper end, or what else is known of it."""
        return self.certainty.text() or "–"

    def phrase(self) -> str:
        """What f does not care about: rotation up to ±21° (± 2°)."""
        if not self.is_needed:
            words = f"{self.label} {self.text()}"
        elif self.name.startswith("smoothness"):
            words = f"smooth over {self.text()}"
        elif self.low == 0:
            words = f"{self.label} by {self.text()}"
        elif math.isclose(self.unit.convert(self.low), -self.unit.convert(self.high)):
            words = f"{self.label} up to {self.text()}"
        else:
            words = f"{self.label} from {self.text()}"
        return words + self.remark()

    def remark(self) -> str:
        """How sure it is, in brackets behind the range; nothing where nothing is known."""
        text = self.certainty.text() if self.is_known else ""
        return f" ({text})" if text else ""


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
    starts, known, units = start_of(model), range_errors(model), orbit.units()
    return [
        Range(
            name,
            unit_of(name, units),
            low,
            high,
            starts.get(name),
            known.errors.get(name),
            known.intervals.get(name),
        )
        for name, (low, high) in orbit.learned().items()
    ]


def start_of(model: Any) -> Mapping[str, Interval]:
    """Where the ranges started: those of the invariance that the model was given."""
    functional = functional_of(model.invariance, model.n_features_in_, input_shape(model))
    orbits = learnable_orbits(functional)
    return orbits[0].learned() if orbits else {}


@final
@dataclass(frozen=True)
class RangeErrors:
    """The standard error and 95 % interval of every range's upper end, or why there are none."""

    errors: Mapping[str, float]
    intervals: Mapping[str, Interval]
    reason: str = ""


def range_errors(model: Any) -> RangeErrors:
    """The errors of every range; none where they take long to compute, or the training data are gone."""
    try:
        if not hasattr(model, "_orbit_errors"):
            seconds = expected_seconds(model.fit_result_.objective, list(model.fit_result_.parameters))
            if seconds > ERROR_SECONDS:
                return RangeErrors({}, {}, _too_long(model, seconds))
        return RangeErrors(model.orbit_errors_, model.orbit_intervals_)
    except (RuntimeError, ValueError) as error:
        return RangeErrors({}, {}, str(error))


def _too_long(model: Any, seconds: float) -> str:
    count = sum(parameter.numel() for parameter in model.fit_result_.parameters)
    minutes = math.ceil(seconds / 60)
    return (
        f"Error bars were not computed: with {count:,} parameters they would take about {minutes:,} "
        f"minute{'s' if minutes > 1 else ''}. Ask the fitted model for orbit_errors_ first."
    )


def symmetry_phrase(model: Any) -> str:
    """What a finite orbit makes f indifferent to, or "" where there is no finite orbit."""
    orbit = orbit_of(model)
    if orbit is None or orbit.size is None:
        return ""
    name = model.invariance
    if not isinstance(name, str) or name not in NAMES:
        return f"the {orbit.size} elements of {type(orbit).__name__}"
    count = f" ({orbit.size} elements, exactly)" if isinstance(orbit, FiniteOrbit) else ""
    return f"{NAMES[name].meaning}{count}"
