"""What is said of how well a range is known."""

import math

import pytest

from orbitwise.orbits.certainty import (
    DEGREES,
    NOT_COMPUTED,
    PER_CENT,
    PLAIN,
    Certainty,
    Kind,
    describe_certainty,
    image_units,
)


def degrees(*values: float) -> tuple[float, ...]:
    return tuple(map(math.radians, values))


def turn(size: float, error: float | None, low: float = 0.0, high: float = 0.0) -> Certainty:
    """A rotation by as many degrees to both sides."""
    (wide,) = degrees(size)
    interval = None if error is None else degrees(low, high)
    return Certainty("angle", DEGREES, (-wide, wide), error and math.radians(error), interval)  # pyright: ignore


@pytest.mark.parametrize(
    ("known", "kind", "text"),
    [
        (turn(21, 2.2, 17, 25), Kind.DETERMINED, "± 2°"),
        (turn(0, 1.5, 0, 3), Kind.NOT_NEEDED, "at most 3.0°"),
        (turn(180, 10, 150, 180), Kind.AT_ITS_LIMIT, "anything above 150° fits as well"),
        (turn(10, 12, 2, 17), Kind.WIDE, "between 2° and 17°, not determined more closely"),
        (turn(10, 12, -14, 34), Kind.WIDE, "between 0° and 34°, not determined more closely"),
        (turn(10, math.inf, -math.inf, math.inf), Kind.WIDE, "not determined by these data"),
        (turn(10, None), Kind.UNKNOWN, NOT_COMPUTED),
        (turn(10, math.nan, math.nan, math.nan), Kind.UNKNOWN, NOT_COMPUTED),
        (turn(10, 0.0, 10, 10), Kind.FIXED, "as given"),
        (turn(0, None), Kind.NOT_NEEDED, ""),
        (turn(0, math.inf, 0, math.inf), Kind.NOT_RULED_OUT, "not determined by these data"),
        (turn(1e-6, 1e-6, 0, 1e-5), Kind.NOT_NEEDED, ""),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_every_kind_has_its_sentence(known, kind, text):
    assert known.kind is kind
    assert known.text() == text


def test_an_error_beyond_a_third_of_its_range_is_an_interval_instead():
    narrow = Certainty("angle", DEGREES, (-0.4, 0.4), 0.11, (0.18, 0.62))
    assert narrow.shown_error == pytest.approx(math.degrees(0.11))
    assert Certainty("angle", DEGREES, (-0.4, 0.4), 0.13, (0.15, 0.65)).shown_error is None


@pytest.mark.parametrize(
    ("half", "error", "kind", "text"),
    [
        (0.1, 0.06, Kind.DETERMINED, "± 3°"),
        (0.1, 0.07, Kind.WIDE, "between 0° and 14°, not determined more closely"),
        (0.0, 0.06, Kind.NOT_NEEDED, "at most 14°"),
        (0.0, 0.07, Kind.NOT_RULED_OUT, "anything up to 14° fits as well"),
    ],
)
def test_half_a_pixel_is_determined_closely_enough(half, error, kind, text):
    unit = image_units((1, 16, 10))["angle"]
    known = Certainty("angle", unit, (-half, half), error, (0.0, math.radians(14)))
    assert known.kind is kind
    assert known.text() == text
    assert known.is_determined == (kind in (Kind.DETERMINED, Kind.NOT_NEEDED))


def test_errors_are_converted_as_the_range_is():
    stretch = Certainty("log_scale_x", PER_CENT, (-0.5, 0.5), 0.1, (0.3, 0.7))
    assert stretch.shown_error == pytest.approx(100 * math.exp(0.5) * math.sinh(0.1))


def test_an_interval_around_a_centre_of_its_own_does_not_go_below_it():
    shifted = Certainty("shear", PLAIN, (0.1, 0.5), 0.3, (-0.1, 1.1))
    assert shifted.ends == pytest.approx((0.3, 1.1))
    assert shifted.text() == "between 0.30 and 1.10, not determined more closely"


def test_ranges_are_told_together_in_their_units():
    ranges = {"angle": (-0.4, 0.4), "shift_x": (-0.1, 0.1), "shear": (-0.1, 0.1), "log_scale": (0.0, 0.0)}
    errors = {"angle": math.radians(2), "shift_x": 0.02, "shear": 0.3, "log_scale": 0.02}
    intervals = {"angle": (0.3, 0.5), "shift_x": (0.06, 0.14), "shear": (-0.5, 0.7), "log_scale": (0.0, 0.04)}
    text = describe_certainty(ranges, errors, intervals, image_units((1, 20, 30)))
    assert text == (
        "angle ± 2°; shift_x ± 0.3 pixels; shear between 0.00 and 0.70, not determined more closely; "
        "log_scale at most 4.1 %"
    )
    assert describe_certainty(ranges, {}, {}, {}) == ""
