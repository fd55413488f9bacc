import math

import pytest
import torch
from sklearn.datasets import load_digits

from orbitwise.orbits import DeformationOrbit
from orbitwise.transforms import TangentDeformation
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import inputs, seeded


class TestDeformationOrbit(LearnableContract):
    @pytest.fixture(params=["field", "thickness", "both", "colour"])
    def case(self, request):
        return {
            "field": lambda: (DeformationOrbit((3, 4), 0.4, 2.0, num_samples=4), 12),
            "thickness": lambda: (DeformationOrbit((3, 4), 0.0, thickness=0.3, num_samples=4), 12),
            "both": lambda: (
                DeformationOrbit((3, 4), 0.4, 2.0, (-0.1, 0.3), two_sided=["thickness"], num_samples=4),
                12,
            ),
            "colour": lambda: (DeformationOrbit((2, 3, 3), 0.4, thickness=0.1, num_samples=2), 18),
        }[request.param]()


def test_zero_is_the_identity():
    x = inputs(12)
    moved = DeformationOrbit((3, 4), 0.0, num_samples=4).points(x, seeded()).points
    torch.testing.assert_close(moved, x[:, None].expand(3, 4, 12), rtol=0, atol=0)
    tiny = DeformationOrbit((3, 4), 1e-9, thickness=1e-9, num_samples=4).points(x, seeded()).points
    torch.testing.assert_close(tiny, x[:, None].expand(3, 4, 12), rtol=0, atol=1e-5)


def test_it_is_the_transform_of_smooth_fields_and_a_uniform_thickness():
    orbit, x = DeformationOrbit((5, 4), 0.3, 2.0, (-0.1, 0.5), num_samples=6), inputs(20)
    noise = orbit.noise((3, 6), seeded(), x)
    fields = orbit.fields(noise[..., 1:])
    assert fields.shape == (3, 6, 40)
    alpha = torch.cat([fields, 0.2 + 0.3 * noise[..., :1]], -1)
    torch.testing.assert_close(orbit.points(x, seeded()).points, TangentDeformation((5, 4))(x, alpha))
    many = orbit.fields(torch.randn(500, 4, 40, generator=seeded(), dtype=torch.float64)).detach()
    assert (many.square().mean((0, 1)).sqrt() - 0.3).abs().max() < 5 * 0.3 / math.sqrt(2 * 2000)


def test_large_thickness_is_bold():
    digits = torch.from_numpy(load_digits().data[:20]) / 16
    bold = DeformationOrbit((8, 8), 0.0, thickness=(0.3, 0.4)).freeze(4, seeded()).points(digits).points
    thin = DeformationOrbit((8, 8), 0.0, thickness=(-0.4, -0.3)).freeze(4, seeded()).points(digits).points
    assert (bold.sum(-1) > 1.1 * digits.sum(-1)[:, None]).all()
    assert (thin.sum(-1) < 0.95 * digits.sum(-1)[:, None]).all()


def test_what_is_learned_can_be_named():
    orbit = DeformationOrbit((4, 4), 0.4, 2.0, 0.1, learnable=["amplitude"])
    assert orbit.widths.moves.tolist() == [True, False]
    assert not orbit.bounds.raw_half.requires_grad
    assert orbit.describe() == "thickness -0.1 to +0.1 pixels, amplitude 0.4 pixels, smoothness 2 pixels"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (5,)}, "height, width"),
        ({"amplitude": -1.0}, "amplitude must be finite and must not be negative"),
        ({"amplitude": math.nan}, "amplitude must be finite"),
        ({"smoothness": 0.0}, "smoothness must be positive"),
        ({"smoothness": math.inf}, "smoothness must be finite"),
        ({"thickness": -0.1}, "symmetric bound"),
        ({"thickness": (0.2, 0.1)}, "lower bound"),
        ({"learnable": ["thickness"]}, "'thickness' cannot be learned here; there are amplitude, smoothness"),
        ({"two_sided": ["amplitude"]}, "no parameter 'amplitude'"),
        ({"num_samples": 1}, "num_samples=1"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        DeformationOrbit(**{"image_shape": (5, 5)} | arguments)
