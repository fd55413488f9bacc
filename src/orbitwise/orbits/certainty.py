"""Learned ranges in degrees, per cent and pixels, and in words how well each is known.

All tables and pages take them from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import final

Interval = tuple[float, float]
"""A range, from its lower to its upper end."""


@final
@dataclass(frozen=True)
class Unit:
    """How a number is converted, the symbol after it, and a change that is hardly noticeable.

    `hardly_noticed` is a raw number that moves no point by more than half a pixel or half a sample; 0 if
    unknown.
    """

    symbol: str = ""
    convert: Callable[[float], float] = float
    hardly_noticed: float = 0.0


PLAIN = Unit()
DEGREES = Unit("°", math.degrees)
PER_CENT = Unit(" %", lambda log_factor: 100 * math.expm1(log_factor))
PIXELS = Unit(" pixels", hardly_noticed=0.5)
SAMPLES = Unit(" samples", hardly_noticed=0.5)
NEGLIGIBLE = 1e-3
"""A range below this, in degrees, per cent, pixels or samples, moves nothing."""


def image_units(image_shape: tuple[int, int, int]) -> dict[str, Unit]:
    """Units of the moves of an image; shifts are fractions of half its width and height.

    Other linear maps move points at the end of the longer side most, which are half that side from the
    centre.
    """
    _, height, width = image_shape
    half_pixel = 1 / max(height, width)
    linear = ("angle", "log_scale", "log_scale_x", "log_scale_y", "log_zoom", "shear")
    return {name: replace(unit_of(name, {}), hardly_noticed=half_pixel) for name in linear} | {
        "amplitude": PIXELS,
        "smoothness": PIXELS,
        "thickness": PIXELS,
        "shift_x": Unit(" pixels", lambda fraction: fraction * width / 2, 1 / width),
        "shift_y": Unit(" pixels", lambda fraction: fraction * height / 2, 1 / height),
    }


def unit_of(name: str, units: Mapping[str, Unit]) -> Unit:
    """The unit of a parameter: as listed, else degrees for angles and per cent for logarithms of factors."""
    if name in units:
        return units[name]
    return DEGREES if name.startswith("angle") else PER_CENT if name.startswith("log_") else PLAIN


def is_collapsed(name: str, interval: Interval, unit: Unit) -> bool:
    """Whether a range is zero or negligible in its unit, so that no move of this kind was needed."""
    if tuple(interval) == (0.0, 0.0):
        return True
    if unit.symbol == "" or name.startswith("smoothness"):
        return False  # of no natural size, or no move of its own
    return max(abs(unit.convert(end)) for end in interval) < NEGLIGIBLE


def decimals_of(error: float) -> int:
    """The number of decimals to show for an error: two digits if it starts with 1, else one."""
    exponent = math.floor(math.log10(error))
    return max(0, -exponent + (1 if error / 10**exponent < 1.95 else 0))


def describe(ranges: Mapping[str, Interval], units: Mapping[str, Unit]) -> str:
    """One phrase for each range; a range from zero is named by its other end.

    Names that start with "angle" are shown in degrees, those with "log_" as a change in per cent, and others
    in their `units`. A range that moves nothing is "not needed".
    """
    phrases = []
    for name, (low, high) in ranges.items():
        unit = unit_of(name, units)
        first, last = unit.convert(low), unit.convert(high)
        if is_collapsed(name, (low, high), unit):
            phrases.append(f"{name} not needed")
        elif low == 0:
            phrases.append(f"{name} {last:.3g}{unit.symbol}")
        else:
            phrases.append(f"{name} {first:+.3g} to {last:+.3g}{unit.symbol}")
    return ", ".join(phrases)


NOT_COMPUTED = "error bar not computed"

DETERMINED_WITHIN = 0.3
"""A range is determined if its error is at most this fraction of it, or hardly noticeable."""


class Kind(Enum):
    """What is known about a range; NOT_RULED_OUT: it is zero, but a wider one fits about as well."""

    NOT_NEEDED = auto()
    NOT_RULED_OUT = auto()
    AT_ITS_LIMIT = auto()
    DETERMINED = auto()
    WIDE = auto()
    FIXED = auto()
    UNKNOWN = auto()


@final
@dataclass(frozen=True)
class Certainty:
    """A learned range with the standard error and the 95 % interval of its upper end; None if unknown."""

    name: str
    unit: Unit
    learned: Interval
    error: float | None = None
    interval: Interval | None = None

    @property
    def kind(self) -> Kind:
        """Whether the range is zero, at its limit, determined, or known at all."""
        high, noticed = self.learned[1], self.unit.hardly_noticed
        if is_collapsed(self.name, self.learned, self.unit):
            if self.error is not None and math.isinf(self.error):
                return Kind.NOT_RULED_OUT
            is_open = self.ends is not None and self.error is not None and 0 < noticed < self.error
            return Kind.NOT_RULED_OUT if is_open else Kind.NOT_NEEDED
        if self.error is None or math.isnan(self.error):
            return Kind.UNKNOWN
        if self.interval is not None and math.isclose(self.interval[1], high, rel_tol=1e-6):
            return Kind.FIXED if math.isclose(self.interval[0], high, rel_tol=1e-6) else Kind.AT_ITS_LIMIT
        is_determined = self.error <= max(DETERMINED_WITHIN * (high - self._middle), noticed)
        return Kind.DETERMINED if is_determined else Kind.WIDE

    @property
    def is_determined(self) -> bool:
        """Whether the data determine the width of the range, including a width of zero or at its limit."""
        return self.kind not in (Kind.NOT_RULED_OUT, Kind.WIDE, Kind.UNKNOWN)

    @property
    def shown_error(self) -> float | None:
        """The error in the unit of the range; None unless the range is determined."""
        if self.error is None or self.kind is not Kind.DETERMINED:
            return None
        high = self.learned[1]
        return (self.unit.convert(high + self.error) - self.unit.convert(high - self.error)) / 2

    @property
    def ends(self) -> Interval | None:
        """The 95 % interval in raw numbers, at least the end of an empty range; None if unknown."""
        if self.interval is None or not all(map(math.isfinite, self.interval)):
            return None
        low, high = self.interval
        return max(low, self._middle), max(high, self._middle)

    def text(self) -> str:
        """For example ± 2°, at most 3°, or between 2° and 17°; empty for an empty range without error."""
        kind, error, symbol = self.kind, self.shown_error, self.unit.symbol
        if error is not None:
            return f"± {error:,.{decimals_of(error)}f}{symbol}" if error > 0 else "as given"
        if kind in (Kind.UNKNOWN, Kind.FIXED):
            return NOT_COMPUTED if kind is Kind.UNKNOWN else "as given"
        if self.ends is None:
            return "" if kind is Kind.NOT_NEEDED else "not determined by these data"
        low, high = (self.unit.convert(end) for end in self.ends)
        decimals = max(0, 1 - math.floor(math.log10(high - low))) if high > low else 0
        first, last = (f"{end:,.{decimals}f}{symbol}" for end in (low, high))
        if kind is Kind.NOT_NEEDED:
            return f"at most {last}" if high >= NEGLIGIBLE else ""
        if kind is Kind.AT_ITS_LIMIT:
            return f"anything above {first} fits as well"
        if kind is Kind.NOT_RULED_OUT:
            return f"anything up to {last} fits as well"
        return f"between {first} and {last}, not determined more closely"

    @property
    def _middle(self) -> float:
        """The upper end of an empty range: its centre, or zero for a size."""
        low, high = self.learned
        return 0.0 if low == 0 else (low + high) / 2


def describe_certainty(
    ranges: Mapping[str, Interval],
    errors: Mapping[str, float],
    intervals: Mapping[str, Interval],
    units: Mapping[str, Unit],
) -> str:
    """One phrase for each range with a known error, in the units of `describe`."""
    phrases = []
    for name, learned in ranges.items():
        each = Certainty(name, unit_of(name, units), learned, errors.get(name), intervals.get(name))
        text = each.text() if name in errors else ""
        phrases += [f"{name} {text}"] if text else []
    return "; ".join(phrases)
