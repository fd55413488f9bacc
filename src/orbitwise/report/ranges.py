"""Learned ranges: their starts, their ends, their errors, and their history over iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.invariances import NAMES, functional_of
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.estimators.validation import input_shape
from orbitwise.functionals.averages import learnable_orbits, orbit_in
from orbitwise.inference.optimise.watching import Callback, Phase, announce
from orbitwise.orbits.certainty import Certainty, Kind, Unit, decimals_of, unit_of
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Interval, Orbit
from orbitwise.report.numbers import number

Regressor = InvariantGPRegressor | SparseGPRegressor
Model = InvariantGPClassifier | Regressor
"""Models for which a report can be written."""

ERROR_SECONDS = 20.0
"""Error bars need one gradient per parameter; they are left out if that takes more seconds than this."""

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
    "smoothness": "smoothness of the deformation",
    "thickness": "stroke thickness",
    "warp": "time warp",
    "weight": "weight of an element",
}


@final
@dataclass(frozen=True)
class Range:
    """One learned range, with its start and the error of its upper end.

    Attributes
    ----------
    name : str
        The parameter of the orbit, such as "angle".
    unit : Unit
        The unit for display, which converts raw numbers, for example radians to degrees.
    low, high : float
        The ends of the range, in raw numbers.
    start : tuple of float, default=None
        The range at the start of learning; None if it is not known.
    error : float, default=None
        The standard error of the upper end; None if it was not computed.
    interval : tuple of float, default=None
        The 95 % interval of the upper end.
    """

    name: str
    unit: Unit
    low: float
    high: float
    start: Interval | None = None
    error: float | None = None
    interval: Interval | None = None

    @property
    def certainty(self) -> Certainty:
        """The certainty of the range."""
        return Certainty(self.name, self.unit, (self.low, self.high), self.error, self.interval)

    @property
    def label(self) -> str:
        """The plain name of the move."""
        return label_of(self.name)

    @property
    def is_determined(self) -> bool:
        """Whether the error is known and small compared with the range."""
        return self.certainty.kind is Kind.DETERMINED

    @property
    def is_known(self) -> bool:
        """Whether the error is known at least in part."""
        return self.certainty.kind is not Kind.UNKNOWN

    @property
    def is_needed(self) -> bool:
        """Whether the range has not collapsed to zero."""
        return self.certainty.kind not in (Kind.NOT_NEEDED, Kind.NOT_RULED_OUT)

    def start_text(self) -> str:
        """The range at the start of learning, as text."""
        return "not known" if self.start is None else interval_text(self.start, self.unit)

    def text(self) -> str:
        """The range without its error, such as ±21°, −13 to +15 %, 0.3 pixels, or "not needed"."""
        if not self.is_needed:
            return "not needed" if self.certainty.is_determined else "not determined"
        return interval_text((self.low, self.high), self.unit, self.certainty.shown_error)

    def error_text(self) -> str:
        """The standard error of the upper end, or another statement about its uncertainty."""
        return self.certainty.text() or "–"

    def phrase(self) -> str:
        """The move with its range, such as "rotation up to ±21° (± 2°)"."""
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
        """The error of the upper end in brackets, to follow the range; "" if it is not known."""
        text = self.certainty.text() if self.is_known else ""
        return f" ({text})" if text else ""


def interval_text(interval: Interval, unit: Unit, error: float | None = None) -> str:
    """An interval in its unit, rounded to the digits that the error of an end leaves."""
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
    """The plain name of a parameter, followed by the number of its stage in a composition."""
    stem, _, last = name.rpartition("_")
    if name in LABELS:
        return LABELS[name]
    if stem in LABELS and last.isdigit():
        return f"{LABELS[stem]} {last}"
    return name.replace("_", " ")


def orbit_of(model: Model) -> Orbit | None:
    """The orbit in a fitted model: the learned one, else a finite one, else None."""
    # models of earlier versions store learned orbits only
    return orbit_in(model.functional_) if model.orbit_ is None else model.orbit_


@final
@dataclass(frozen=True)
class RangeErrors:
    """The standard error and 95 % interval of the upper end of each range, or why there are none."""

    errors: Mapping[str, float]
    intervals: Mapping[str, Interval]
    reason: str = ""


def range_errors(model: Model) -> RangeErrors:
    """Return the errors of all ranges.

    Errors are replaced by a reason if they would take more than `ERROR_SECONDS` to compute, or if the model
    was loaded without the training data that they need.
    """
    try:
        seconds = model.expected_error_seconds()
        if seconds > ERROR_SECONDS:
            return RangeErrors({}, {}, _too_long(seconds))
        return RangeErrors(model.orbit_errors_, model.orbit_intervals_)
    except (RuntimeError, ValueError) as error:
        return RangeErrors({}, {}, str(error))


def _too_long(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    time = f"{minutes:,} minute{'s' if minutes > 1 else ''}"
    return (
        f"Error bars were not computed: they would take about {time}. "
        "To have them in the report, read orbit_errors_ of the fitted model first."
    )


def learned_ranges(model: Model, known: RangeErrors | None = None) -> list[Range]:
    """The learned ranges of a fitted model, with their errors if these can be computed in time."""
    orbit = model.orbit_
    if orbit is None or not orbit.learned():
        return []
    starts, units = start_of(model), orbit.units()
    known = range_errors(model) if known is None else known
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


def start_of(model: Model) -> Mapping[str, Interval]:
    """The ranges at the start of learning, which are those of the invariance that the model was given."""
    functional = functional_of(model.invariance, model.n_features_in_, input_shape(model))
    orbits = learnable_orbits(functional)
    return orbits[0].learned() if orbits else {}


def symmetry_phrase(model: Model) -> str:
    """The symmetry of a finite orbit in words; "" if there is no finite orbit."""
    orbit = orbit_of(model)
    if orbit is None or orbit.size is None:
        return ""
    name = model.invariance
    if not isinstance(name, str) or name not in NAMES:
        return f"the {orbit.size} elements of {type(orbit).__name__}"
    count = f" ({orbit.size} elements, exactly)" if isinstance(orbit, FiniteOrbit) else ""
    return f"{NAMES[name].meaning}{count}"


@final
class RangeHistory:
    """A callback that records the ranges of its estimator's orbit after each iteration of `fit`.

    Attributes
    ----------
    estimator : estimator
        The estimator whose ranges are recorded.
    then : callable or None
        The previous callback of the estimator, which is still called.
    ranges : list of dict
        The interval of each parameter, one dictionary per iteration.
    """

    def __init__(self, estimator: Model, then: Callback | None = None) -> None:
        self.estimator = estimator
        self.then = then
        self.ranges: list[dict[str, Interval]] = []

    def begin(self, phase: Phase, later: Sequence[Phase]) -> None:
        """Tell the callback before this one that a phase begins, if it listens to phases."""
        announce(self.then, phase, *later)

    def __call__(self, step: int, bound: float) -> None:
        orbit = getattr(self.estimator, "orbit_", None)
        if orbit is not None and orbit.learned():
            self.ranges.append(dict(orbit.learned()))
        if self.then is not None:
            self.then(step, bound)


def record_ranges(estimator: Model) -> RangeHistory:
    """Record the ranges during the next `fit` of the estimator, so that the report draws them over
    iterations.

    The callback of the estimator is still called. A clone of the estimator does not record its ranges: call
    this function for the clone.

    Examples
    --------
    >>> from orbitwise import InvariantGPClassifier
    >>> from orbitwise.report import record_ranges
    >>> model = InvariantGPClassifier(invariance="rotation")
    >>> history = record_ranges(model)
    >>> history.ranges  # until it is fitted
    []
    """
    history = RangeHistory(estimator, estimator.callback)
    estimator.set_params(callback=history)
    return history


def recorded_ranges(model: Model) -> list[dict[str, Interval]]:
    """The ranges that `record_ranges` recorded during the fit; empty if nothing was recorded."""
    history = model.callback
    return history.ranges if isinstance(history, RangeHistory) and history.estimator is model else []
