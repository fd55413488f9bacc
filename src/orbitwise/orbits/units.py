"""Learned ranges in the units people think in: degrees, per cent, pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from orbitwise.orbits.bounds import Interval


@final
@dataclass(frozen=True)
class Unit:
    """How a number is converted, and what is written behind it."""

    symbol: str = ""
    convert: Callable[[float], float] = float


PLAIN = Unit()
DEGREES = Unit("°", math.degrees)
PER_CENT = Unit(" %", lambda log_factor: 100 * math.expm1(log_factor))
PIXELS = Unit(" pixels")
SAMPLES = Unit(" samples")
NEGLIGIBLE = 1e-3
"""Of a degree, a per cent, a pixel or a sample: a range below this moves nothing."""


def image_units(image_shape: tuple[int, int, int]) -> dict[str, Unit]:
    """Units of the moves of an image; shifts are fractions of half its width and height."""
    _, height, width = image_shape
    return {
        "amplitude": PIXELS,
        "smoothness": PIXELS,
        "thickness": PIXELS,
        "shift_x": Unit(" pixels", lambda fraction: fraction * width / 2),
        "shift_y": Unit(" pixels", lambda fraction: fraction * height / 2),
    }


def unit_of(name: str, units: Mapping[str, Unit]) -> Unit:
    """The unit of a parameter: as listed, else degrees for angles and per cent for logarithms of factors."""
    if name in units:
        return units[name]
    return DEGREES if name.startswith("angle") else PER_CENT if name.startswith("log_") else PLAIN


def is_collapsed(name: str, interval: Interval, unit: Unit) -> bool:
    """Whether a range has shrunk to nothing against its unit: no move of this kind was needed."""
    if unit.symbol == "" or name.startswith("smoothness"):
        return False  # of no natural size, or no move of its own
    return max(abs(unit.convert(end)) for end in interval) < NEGLIGIBLE


def shown_error(interval: Interval, error: float | None, unit: Unit) -> float | None:
    """The error of an upper end in the unit of its range; None where the data do not determine the range.

    They do where the error is known and smaller than the range.
    """
    low, high = interval
    width = high if low == 0 else (high - low) / 2
    if error is None or not math.isfinite(error) or error >= width:
        return None
    return (unit.convert(high + error) - unit.convert(high - error)) / 2


def describe_errors(
    ranges: Mapping[str, Interval], errors: Mapping[str, float], units: Mapping[str, Unit]
) -> str:
    """One phrase for the error of each range that is there, in the units of `describe`."""
    phrases = []
    for name, interval in ranges.items():
        unit = unit_of(name, units)
        if name not in errors or is_collapsed(name, interval, unit):
            continue
        error = shown_error(interval, errors[name], unit)
        phrases.append(f"{name} not determined" if error is None else f"{name} ± {error:.2g}{unit.symbol}")
    return ", ".join(phrases)


def describe(ranges: Mapping[str, Interval], units: Mapping[str, Unit]) -> str:
    """One phrase for each range; a range from zero is named by its other end."""
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
