import math

import pytest
import torch
import torch.nn.functional as F

from orbitwise.orbits import CropOrbit, ImageOrbit
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestCropOrbit(LearnableContract):
    @pytest.fixture(params=["zoom", "shift", "both"])
    def case(self, request):
        return {
            "zoom": lambda: (CropOrbit((3, 4), 0.3, num_samples=4), 12),
            "shift": lambda: (CropOrbit((3, 4), 0.0, 0.3, num_samples=4), 12),
            "both": lambda: (CropOrbit((2, 3, 3), 0.3, 0.3, two_sided=["shift_x"], num_samples=4), 18),
        }[request.param]()


def move(orbit: CropOrbit, x: torch.Tensor, *noise: float) -> torch.Tensor:
    return orbit.move(x, torch.tensor(noise, dtype=torch.float64).expand(len(x), 1, -1))[:, 0].detach()


def test_nothing_is_the_identity():
    x = inputs(12)
    moved = CropOrbit((3, 4), 0.0, num_samples=2).points(x, seeded()).points
    torch.testing.assert_close(moved, x[:, None].expand(3, 2, 12))


def test_a_window_is_resized_to_the_whole():
    """A window of half the sides: the four corners' windows are the quarters of the image."""
    orbit, x = CropOrbit((4, 6), math.log(2)), inputs(24)
    images = x.reshape(3, 1, 4, 6)
    for down, rows in ((-1, slice(0, 2)), (1, slice(2, 4))):
        for right, columns in ((-1, slice(0, 3)), (1, slice(3, 6))):
            window = F.interpolate(images[..., rows, columns], scale_factor=2, mode="bilinear")
            moved = move(orbit, x, 0, 0, 1, right, down).reshape(3, 1, 4, 6)
            # pixels at the window's inner edges are interpolated with what lies beyond it
            inner = (slice(None), slice(None), slice(1, 3), slice(1, 5))
            torch.testing.assert_close(moved[inner], window[inner])


def test_the_smallest_noise_is_no_zoom():
    x = inputs(12)
    torch.testing.assert_close(move(CropOrbit((3, 4), 0.5), x, 0, 0, -1, 0.7, -0.3), x)


def test_windows_stay_inside():
    """A constant image has no edge within it."""
    x = torch.ones(1, 100, dtype=torch.float64)
    moved = CropOrbit((10, 10), 1.0, num_samples=200).points(x, seeded()).points
    centres = moved.reshape(200, 10, 10)[:, 1:-1, 1:-1]
    torch.testing.assert_close(centres, torch.ones_like(centres))


def test_a_shift_alone_is_that_of_an_image_orbit():
    x = inputs(20)
    noise = 2 * torch.rand(3, 4, 2, generator=seeded(), dtype=torch.float64) - 1
    padded = torch.cat([torch.zeros(3, 4, 4, dtype=torch.float64), noise], -1)
    same = ImageOrbit((4, 5), {"shift_x": 0.4, "shift_y": 0.4}).move(x, padded)
    torch.testing.assert_close(CropOrbit((4, 5), 0.0, 0.4).move(x, noise), same)
    moved = move(CropOrbit((4, 5), 0.0, 0.4), x, 1, 0).reshape(3, 4, 5)
    torch.testing.assert_close(moved, F.pad(x.reshape(3, 4, 5), (1, 0))[..., :5], msg="one pixel, zero fill")


def test_natural_units():
    text = CropOrbit((8, 10), math.log(1.25), 0.2).describe()
    assert text == "shift_x -1 to +1 pixels, shift_y -0.8 to +0.8 pixels, log_zoom 25 %"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (5,)}, "height, width"),
        ({"log_zoom": -0.1}, "log_zoom must be finite and must not be negative"),
        ({"shift": 1.5}, "above its limit 1"),
        ({"shift": -0.1}, "symmetric bound"),
        ({"learnable": ["shift_x"]}, "'shift_x' cannot be learned here; there are log_zoom"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        CropOrbit(**{"image_shape": (5, 5)} | arguments)
