import math

from orbitwise.orbits.certainty import (
    DEGREES,
    PER_CENT,
    PLAIN,
    SAMPLES,
    decimals_of,
    describe,
    image_units,
    is_collapsed,
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


def test_decimals_keep_one_digit_of_an_error_or_two():
    assert [decimals_of(error) for error in (0.1, 0.19, 0.2, 1.0, 30.0)] == [2, 2, 1, 1, 0]


def test_a_range_of_nothing_is_not_needed():
    ranges = {
        "angle": (-1e-7, 1e-7),
        "amplitude": (0.0, 1e-5),
        "smoothness": (0.0, 1e-5),
        "jitter": (0.0, 1e-9),
        "shear": (0.0, 0.0),
    }
    text = describe(ranges, image_units((1, 20, 30)))
    assert (
        text
        == "angle not needed, amplitude not needed, smoothness 1e-05 pixels, jitter 1e-09, shear not needed"
    )
    assert not is_collapsed("angle", (0.0, 0.1), DEGREES)
