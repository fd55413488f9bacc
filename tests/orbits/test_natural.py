"""Natural sizes: those of the moves that are named, and the start for all others."""

import math

import pytest

from orbitwise.orbits import (
    ComposedOrbit,
    CropOrbit,
    DeformationOrbit,
    ImageOrbit,
    JitterOrbit,
    PointCloudOrbit,
    SampledOrbit,
    SignalOrbit,
)
from orbitwise.orbits.orbit import DrawnOrbit, image_widths, signal_widths, widths_of
from orbitwise.transforms import AffineWarp, Rotation, Scaling, TimeShift, Translation

FIFTEEN = math.radians(15)


def natural_of(orbit: DrawnOrbit) -> list[float]:
    """The natural sizes of all that is learned and can vanish."""
    return [
        size
        for module in orbit.modules()
        for widths in getattr(module, "learned_widths", list)()
        if widths.can_vanish
        for size in widths.natural.tolist()
    ]


@pytest.mark.parametrize(
    ("orbit", "sizes"),
    [
        (ImageOrbit((8, 16), {"angle": 1.0, "shift_x": 0.3}, amplitude=2.0), [0.5, FIFTEEN, 2 / 16]),
        (SignalOrbit(64, shift=1.0, log_scale=0.7, warp=0.1, jitter=0.3), [4.0, 0.15, 0.3, 2.0]),
        (CropOrbit((8, 16), log_zoom=0.6, shift=0.4), [2 / 16, 2 / 8, 0.15]),
        (DeformationOrbit((8, 8), amplitude=2.0, thickness=1.0), [0.25, 0.5]),
        (PointCloudOrbit(3, 2, angle=1.0, shift=0.4, jitter=0.2), [FIFTEEN, 0.4, 0.4, 0.2]),
        (SampledOrbit(Rotation(), -1.0, 1.0), [FIFTEEN]),
        (SampledOrbit(Rotation(3), -1.0, 1.0), [FIFTEEN] * 3),
        (SampledOrbit(Translation(2), -1.0, 1.0), [1.0, 1.0]),
        (JitterOrbit(3, 0.2), [0.2]),
        (ComposedOrbit(JitterOrbit(2, 0.2), SampledOrbit(Rotation(), -1.0, 1.0)), [0.2, FIFTEEN]),
    ],
)
def test_every_kind_of_move_has_its_size(orbit, sizes):
    assert natural_of(orbit) == pytest.approx(sizes)


def test_sizes_of_transforms_are_those_of_their_orbits():
    assert widths_of(AffineWarp((8, 8))) == image_widths((8, 8))
    assert widths_of(TimeShift(32)) == signal_widths(32)
    assert widths_of(Scaling(2)) == {"log_scale_0": 0.15, "log_scale_1": 0.15}
    assert widths_of(Translation(2)) == {}


def test_a_shift_is_one_pixel_and_no_more_than_a_quarter_of_a_small_image():
    assert image_widths((2, 28))["shift_x"] == pytest.approx(2 / 28)
    assert image_widths((2, 28))["shift_y"] == 0.5


def test_only_orbits_that_say_so_are_smooth():
    class Mine(DrawnOrbit):
        @property
        def randomness(self):
            return JitterOrbit(2).randomness

        def move(self, x, noise):
            return x[:, None] + noise.sign()

    assert not Mine().is_smooth
    assert not ComposedOrbit(JitterOrbit(2), Mine()).is_smooth
    assert ComposedOrbit(JitterOrbit(2), JitterOrbit(2)).is_smooth
