import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from orbitwise.transforms import TangentDeformation
from tests.contracts.transform_contract import ContinuousContract, inputs


class TestTangentDeformation(ContinuousContract):
    @pytest.fixture(params=["grey", "colour"])
    def case(self, request):
        # a wide interval, so that clipping has no kink where derivatives are taken
        shape = {"grey": (3, 4), "colour": (2, 2, 3)}[request.param]
        return TangentDeformation(shape, clip=(-10.0, 10.0)), 12


def bump(centre: float, size: int = 15) -> torch.Tensor:
    place = torch.arange(size, dtype=torch.float64)
    square = (place[:, None] - size // 2).square() + (place - centre).square()
    return torch.exp(-0.5 * square / 9).reshape(1, -1)


def test_gradients_are_those_of_a_gaussian():
    image = torch.rand(9, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    along_x, along_y, magnitude = TangentDeformation((9, 11), tangent_width=1.5).gradients(
        image.reshape(1, -1)
    )
    for found, order in ((along_x, (0, 1)), (along_y, (1, 0))):
        exact = ndimage.gaussian_filter(image.numpy(), 1.5, order=order, mode="constant", truncate=10)
        np.testing.assert_allclose(found.reshape(9, 11), exact, rtol=0.01, atol=0.002)
    torch.testing.assert_close(magnitude, (along_x.square() + along_y.square()).sqrt())


def test_a_ramp_has_slope_one():
    ramp = (2 * torch.arange(21.0).double() + 5 * torch.arange(21.0).double()[:, None]).reshape(1, -1)
    along_x, along_y, _ = TangentDeformation((21, 21), tangent_width=1.0).gradients(ramp)
    centre = 10 * 21 + 10
    assert along_x[..., centre].item() == pytest.approx(2, rel=1e-9)
    assert along_y[..., centre].item() == pytest.approx(5, rel=1e-9)


def test_constant_fields_move_the_content():
    """F₁ moves it left, F₂ down, by as many pixels as they say, to first order and but for the smoothing."""
    transform = TangentDeformation((15, 15), tangent_width=0.5, clip=(-1.0, 2.0))
    for step, moved in ((0.1, bump(6.9)), (-0.1, bump(7.1))):
        alpha = torch.zeros(1, 1, transform.num_parameters, dtype=torch.float64)
        alpha[..., :225] = step
        change = transform(bump(7), alpha)[:, 0] - bump(7)
        assert (change - (moved - bump(7))).norm() < 0.12 * change.norm()
        alpha = alpha.roll(225, -1)
        down = transform(bump(7), alpha)[:, 0].reshape(15, 15) - bump(7).reshape(15, 15)
        # symmetric about the diagonal: down is right, transposed
        torch.testing.assert_close(down.T.reshape(1, -1), -change, atol=0.001, rtol=0)


def test_thickness_moves_edges_outwards():
    image = torch.zeros(1, 15, 15, dtype=torch.float64)
    image[:, :, 5:10] = 1
    transform = TangentDeformation((15, 15))
    alpha = torch.zeros(1, 2, transform.num_parameters, dtype=torch.float64)
    alpha[0, :, -1] = torch.tensor([0.5, -0.5])
    mass = transform(image.reshape(1, -1), alpha).reshape(2, 15, 15)[:, 7].sum(-1)
    # edges are two, but half of the change is clipped away: outside below, inside above
    assert mass[0] == pytest.approx(5 + 0.5, abs=0.1)
    assert mass[1] == pytest.approx(5 - 0.5, abs=0.1)


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_pixels_stay_within_the_range_of_the_image(scale: float):
    transform, x = TangentDeformation((3, 4)), scale * inputs(12)
    alpha = torch.randn(3, 5, transform.num_parameters, dtype=torch.float64)
    moved = transform(x, alpha)
    assert (moved <= x.amax(-1)[:, None, None]).all()
    assert (moved >= x.amin(-1)[:, None, None]).all()
    torch.testing.assert_close(moved, scale * transform(x / scale, alpha))
    bounded = TangentDeformation((3, 4), clip=(0.4, 0.5))(x, alpha)
    assert bounded.min() == 0.4
    assert bounded.max() == 0.5


def test_an_empty_image_stays_empty_and_has_derivatives():
    transform = TangentDeformation((4, 4))
    x = torch.zeros(1, 16, dtype=torch.float64, requires_grad=True)
    alpha = torch.ones(1, 1, transform.num_parameters, dtype=torch.float64, requires_grad=True)
    moved = transform(x, alpha)
    assert (moved == 0).all()
    for gradient in torch.autograd.grad(moved.sum(), [x, alpha]):
        assert gradient.isfinite().all()
    _, slope = torch.func.jvp(lambda y: transform(y, alpha.detach()), (x.detach(),), (torch.ones_like(x),))
    assert slope.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (5,)}, "height, width"),
        ({"tangent_width": 0.0}, "must be positive and finite, not 0"),
        ({"tangent_width": math.nan}, "must be positive"),
        ({"clip": (1.0, 0.0)}, r"clip must be an interval \(low, high\)"),
    ],
)
def test_bad_arguments(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        TangentDeformation(**{"image_shape": (5, 5)} | arguments)
