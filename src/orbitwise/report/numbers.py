"""Numbers as text, rounded to the digits that their uncertainty leaves, and intervals of shares."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.stats import binomtest, sem

from orbitwise.orbits.certainty import decimals_of

SMALLEST, LARGEST = 1e-4, 1e7
"""Numbers beyond these are written with a power of ten."""


def number(value: float, decimals: int | None = None, signed: bool = False) -> str:
    """A number with a proper minus sign; three significant digits unless `decimals` is given.

    Very large and very small numbers are written with a power of ten.

    Examples
    --------
    >>> number(-0.12345), number(1234.5), number(2.5e-7)
    ('−0.123', '1,234', '2.50 × 10⁻⁷')
    """
    if not math.isfinite(value):
        return "not finite"
    if value and decimals is None and not SMALLEST <= abs(value) < LARGEST:
        power = math.floor(math.log10(abs(value)))
        return f"{number(value / 10**power, 2, signed)} × 10{_raised(power)}"
    if decimals is None:
        decimals = 0 if abs(value) >= 100 or value == 0 else min(6, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:{'+' if signed else ''},.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def with_error(value: float, error: float | None, unit: str = "", signed: bool = False) -> str:
    """`value ± error`, rounded to the digits that the error leaves; only the value if there is no error.

    An error that begins with 1 is written with two digits, any other with one.

    Examples
    --------
    >>> with_error(12.3456, 0.178), with_error(158.2, 54.0, " nats")
    ('12.35 ± 0.18', '158 ± 54 nats')
    """
    if error is None or not math.isfinite(error) or error <= 0:
        return number(value, 1 if abs(value) >= 100 else None, signed) + unit
    size = max(abs(value), error)
    if not SMALLEST <= size < LARGEST:
        power = math.floor(math.log10(size))
        scaled = with_error(value / 10**power, error / 10**power, "", signed)
        return f"({scaled}) × 10{_raised(power)}{unit}"
    decimals = decimals_of(error)
    return f"{number(value, decimals, signed)} ± {number(error, decimals)}{unit}"


def share(count: int, total: int) -> str:
    """A share in per cent with its 95 % interval (Wilson)."""
    low, high = wilson(count, total)
    decimals = max(1, min(3, math.ceil(math.log10(max(total, 1))) - 2))
    ends = f"{number(100 * low, decimals)} to {number(100 * high, decimals)} %"
    return f"{number(100 * count / total, decimals)} % (95 % interval {ends})"


def wilson(count: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: `count` of `total` independent trials.

    Unlike p ± z √(p(1 - p)/n) it never collapses where there is no mistake, or nothing but mistakes.
    """
    if total == 0:
        return 0.0, 1.0
    interval = binomtest(round(count), total).proportion_ci(method="wilson")
    return interval.low, interval.high


def mean_with_error(values: Float[ndarray, " n"]) -> tuple[float, float | None]:
    """The mean of independent values and its standard error, None for a single value."""
    error = float(sem(values)) if len(values) > 1 else None
    return float(np.mean(values)), error


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
