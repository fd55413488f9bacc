"""Learned ranges in the units people think in: degrees, per cent, pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from orbitwise.orbits.bounds import Interval


@final
@dataclass(frozen=True)
class Unit:
    """How a number is converted, what is written behind it, and what is hardly noticed.

    `hardly_noticed` is a raw number: what moves no point by more than half a pixel or half a sample; 0 where
    nothing is known of that.
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
"""Of a degree, a per cent, a pixel or a sample: a range below this moves nothing."""


def image_units(image_shape: tuple[int, int, int]) -> dict[str, Unit]:
    """Units of the moves of an image; shifts are fractions of half its width and height.

    Other linear maps move the edge of the longer side most, which is half that side away from the centre.
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
