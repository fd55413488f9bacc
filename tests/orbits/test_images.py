import math

import pytest
import torch

from orbitwise.orbits import ImageOrbit
from orbitwise.transforms import AffineWarp
from orbitwise.transforms.images import AFFINE_PARAMETERS
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestImageOrbit(LearnableContract):
    @pytest.fixture(params=["affine", "deformed", "both", "colour"])
    def case(self, request):
        return {
            "affine": lambda: (ImageOrbit((3, 4), num_samples=4), 12),
            "deformed": lambda: (ImageOrbit((3, 4), {}, amplitude=0.5, num_samples=4), 12),
            "both": lambda: (ImageOrbit((3, 4), amplitude=0.5, num_samples=4, num_groups=4), 12),
            "colour": lambda: (ImageOrbit((2, 3, 3), {"angle": 1.0}, amplitude=0.2, num_samples=2), 18),
        }[request.param]()


def test_without_deformation_it_is_the_affine_warp_between_bounds():
    start = {"angle": 0.4, "shear": (0.1, 0.3)}
    orbit, x = ImageOrbit((4, 5), start, num_samples=6), inputs(20)
    moved = orbit.points(x, seeded()).points
    noise = 2 * torch.rand(3, 6, 6, generator=seeded(), dtype=torch.float64) - 1
    alpha = torch.zeros(3, 6, 6, dtype=torch.float64)
    alpha[..., 0] = 0.4 * noise[..., 0]
    alpha[..., 3] = 0.2 + 0.1 * noise[..., 3]
    torch.testing.assert_close(moved, AffineWarp((4, 5))(x, alpha))


def test_a_displacement_has_its_amplitude_in_pixels():
    orbit = ImageOrbit((8, 6), {}, amplitude=0.7, smoothness=2.0)
    field = orbit.displacement(torch.randn(200, 4, 2 * 48, generator=seeded(), dtype=torch.float64)).detach()
    pixels = field * torch.tensor([6 / 2, 8 / 2])
    deviation = pixels.square().mean((0, 1)).sqrt()
    assert deviation.shape == (8, 6, 2)
    assert (deviation - 0.7).abs().max() < 5 * 0.7 / math.sqrt(2 * 800)
    assert pixels.mean((0, 1)).abs().max() < 5 * 0.7 / math.sqrt(800)


def test_neighbours_move_together_as_far_as_the_field_is_smooth():
    noise = torch.randn(200, 4, 2 * 144, generator=seeded(), dtype=torch.float64)
    for smoothness in (1.0, 3.0):
        orbit = ImageOrbit((12, 12), {}, amplitude=1.0, smoothness=smoothness)
        field = orbit.displacement(noise).detach()[..., 6, :, 0] * 6
        # two Gaussians of width s that are r apart overlap by exp(-r²/4s²)
        correlation = (field[..., 5] * field[..., 7]).mean()
        assert correlation == pytest.approx(math.exp(-4 / (4 * smoothness**2)), abs=0.12)
        across = orbit.displacement(noise).detach()
        assert (across[..., 0] * across[..., 1]).mean().abs() * 36 < 0.1


def test_a_displacement_moves_the_reading_place():
    """A field that points right everywhere by one pixel reads one pixel further right."""
    orbit, x = ImageOrbit((1, 6), {}, amplitude=1.0, smoothness=1e4), inputs(6, rows=1)
    noise = torch.zeros(1, 1, orbit.num_noise, dtype=torch.float64)
    # the smoother is the mean of all pixels times √pixels in each direction, so √6 of noise is one pixel
    noise[..., 6:12] = 1 / math.sqrt(6)
    moved = orbit.move(x, noise)[0, 0]
    torch.testing.assert_close(moved[:5], x[0, 1:], rtol=0, atol=1e-6)
    assert moved[5].abs() < 1e-6


def test_gradients_reach_everything_that_is_learned():
    orbit = ImageOrbit((5, 5), amplitude=0.5)
    orbit.points(inputs(25), seeded()).points.square().sum().backward()
    assert (orbit.bounds.raw_half.grad.abs() > 0).all()
    assert orbit.raw_amplitude.grad.abs() > 0
    assert orbit.raw_smoothness.grad.abs() > 0


def test_what_is_learned_can_be_named():
    orbit = ImageOrbit((5, 5), amplitude=0.5, learnable=["angle", "amplitude"])
    assert orbit.bounds.moves.tolist() == [True] + 5 * [False]
    assert orbit.raw_amplitude.requires_grad
    assert not orbit.raw_smoothness.requires_grad
    assert not ImageOrbit((5, 5)).raw_amplitude.requires_grad


def test_the_learned_ranges():
    learned = ImageOrbit((5, 5), {"angle": 0.5}, amplitude=0.7, smoothness=3.0).learned()
    assert learned["angle"] == pytest.approx((-0.5, 0.5))
    assert learned["amplitude"][1] == pytest.approx(0.7)
    assert learned["smoothness"][1] == pytest.approx(3.0)
    assert set(ImageOrbit((5, 5)).learned()) == set(AFFINE_PARAMETERS)


def test_it_says_what_it_learned_in_natural_units():
    orbit = ImageOrbit((8, 10), {"angle": math.pi / 4, "shift_x": 0.2}, amplitude=0.7, smoothness=3.0)
    assert orbit.describe() == (
        "angle -45 to +45°, shift_x -1 to +1 pixels, amplitude 0.7 pixels, smoothness 3 pixels"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (5,)}, "height, width"),
        ({"affine": {"angel": 1.0}}, "no parameter 'angel'"),
        ({"affine": {"angle": 4.0}}, "above its limit"),
        ({"learnable": ["angel"]}, "'angel' cannot be learned; there are angle"),
        ({"learnable": ["amplitude"]}, "with amplitude above 0"),
        ({"amplitude": -1.0}, "must not be negative"),
        ({"amplitude": math.nan}, "finite"),
        ({"amplitude": 1.0, "smoothness": 0.0}, "must be positive"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        ImageOrbit(**{"image_shape": (5, 5)} | arguments)


def test_images_that_do_not_fit():
    with pytest.raises(ValueError, match=r"25 pixels.*width 24"):
        ImageOrbit((5, 5)).points(torch.zeros(2, 24))
