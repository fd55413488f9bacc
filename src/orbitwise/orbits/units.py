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
    """Whether a range is zero, or nothing against its unit: no move of this kind was needed."""
    if tuple(interval) == (0.0, 0.0):
        return True
    if unit.symbol == "" or name.startswith("smoothness"):
        return False  # of no natural size, or no move of its own
    return max(abs(unit.convert(end)) for end in interval) < NEGLIGIBLE


def decimals_of(error: float) -> int:
    """How many decimals of a number its error leaves: two digits of errors that start with 1, else one."""
    exponent = math.floor(math.log10(error))
    return max(0, -exponent + (1 if error / 10**exponent < 1.95 else 0))


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
