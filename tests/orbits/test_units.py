import math

import pytest

from orbitwise.orbits.units import (
    DEGREES,
    PER_CENT,
    PLAIN,
    SAMPLES,
    describe,
    describe_errors,
    image_units,
    is_collapsed,
    shown_error,
    unit_of,
)


def test_names_tell_units():
    assert unit_of("angle", {}) is DEGREES
    assert unit_of("angle_x", {}) is DEGREES
    assert unit_of("log_scale_x", {}) is PER_CENT
    assert unit_of("jitter", {}) is PLAIN
    assert unit_of("shift", {"shift": SAMPLES}) is SAMPLES


def test_natural_units():
    ranges = {
        "angle": (-math.pi / 4, math.pi / 2),
        "log_scale": (-math.log(2), math.log(2)),
        "jitter": (0.0, 0.5),
    }
    assert describe(ranges, {}) == "angle -45 to +90°, log_scale -50 to +100 %, jitter 0.5"
    assert describe({}, {}) == ""


def test_images_shift_by_pixels():
    units = image_units((1, 20, 30))
    text = describe({"shift_x": (-0.1, 0.1), "shift_y": (-0.1, 0.2), "amplitude": (0.0, 0.8)}, units)
    assert text == "shift_x -1.5 to +1.5 pixels, shift_y -1 to +2 pixels, amplitude 0.8 pixels"


def test_errors_are_told_in_the_units_of_their_ranges():
    ranges = {"angle": (-0.4, 0.4), "shift_x": (-0.1, 0.1), "shear": (-0.1, 0.1), "log_scale": (0.0, 1e-7)}
    errors = {"angle": math.radians(2), "shift_x": 0.02, "shear": 0.3, "log_scale": 0.1}
    text = describe_errors(ranges, errors, image_units((1, 20, 30)))
    assert text == "angle ± 2°, shift_x ± 0.3 pixels, shear not determined"
    assert describe_errors(ranges, {}, {}) == ""


def test_an_error_as_wide_as_its_range_or_unknown_is_not_shown():
    assert shown_error((-0.4, 0.4), 0.39, DEGREES) == pytest.approx(math.degrees(0.39))
    for error in (None, 0.4, math.inf, math.nan):
        assert shown_error((-0.4, 0.4), error, DEGREES) is None


def test_a_range_of_nothing_is_not_needed():
    ranges = {
        "angle": (-1e-7, 1e-7),
        "amplitude": (0.0, 1e-5),
        "smoothness": (0.0, 1e-5),
        "jitter": (0.0, 1e-9),
    }
    text = describe(ranges, image_units((1, 20, 30)))
    assert text == "angle not needed, amplitude not needed, smoothness 1e-05 pixels, jitter 1e-09"
    assert not is_collapsed("angle", (0.0, 0.1), DEGREES)
