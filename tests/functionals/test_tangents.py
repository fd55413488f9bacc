import math

import pytest
import torch
from scipy import ndimage
from torch import Tensor

from orbitwise.functionals import (
    MOVES,
    PAPER_MOVES,
    ImageTangent,
    OrbitAverage,
    image_tangents,
    moved_images,
    moved_pairs,
    smoothed_images,
)
from orbitwise.orbits import FiniteOrbit
from orbitwise.transforms import AffineWarp, flips
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Case, FunctionalContract, Waves, apply, mean_over, slope_of
from tests.contracts.orbit_contract import inputs

SHAPE = (3, 4)
WARP = AffineWarp(SHAPE)


def tangent_of(x: Tensor, number: int) -> Tensor:
    return WARP.tangent(x[None])[0, number]


def shifted(x: Tensor) -> Tensor:
    """One pixel to the right, zero from the left."""
    image = x.reshape(SHAPE)
    return torch.cat([torch.zeros_like(image[:, :1]), image[:, :-1]], dim=1).flatten()


CASES = {
    "angle": Case(ImageTangent(SHAPE, ["angle"]), (12,), lambda g, x: g.slope(x, tangent_of(x, 0))),
    "whole shift": Case(
        ImageTangent(SHAPE, [("shift_x", 1.0)]), (12,), lambda g, x: g.slope(x, shifted(x) - x)
    ),
    "shear and shift": Case(
        ImageTangent(SHAPE, ["shear_x", ("shift_x", 1.0)]),
        (12,),
        lambda g, x: torch.stack([g.slope(x, tangent_of(x, 3)), g.slope(x, shifted(x) - x)]),
    ),
    "tangent of a mean": Case(
        ImageTangent(SHAPE, [("shift_x", 1.0)]) @ OrbitAverage(FiniteOrbit(flips(SHAPE))),
        (12,),
        lambda g, x: slope_of(
            lambda y: mean_over(g, torch.stack([y, y.reshape(SHAPE).flip(-1).flatten()])), x, shifted(x) - x
        ),
        tolerance=1e-6,
    ),
}


class TestImageTangent(FunctionalContract):
    @pytest.fixture(params=CASES)
    def case(self, request):
        return CASES[request.param]


def blob(size: int = 41, width: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """A Gaussian away from the centre, with its places x and y in pixels from the centre."""
    place = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(place, place, indexing="ij")
    return torch.exp(-0.5 * ((x - 3.0).square() + (y + 2.0).square()) / width**2), x, y


def test_tangents_of_a_smooth_image_are_the_analytic_ones():
    """T_α(g) = g ∘ t_α⁻¹, so the tangent is -(∂t/∂α)·∇g: the content moves along the field ∂t/∂α."""
    image, x, y = blob()
    along_x, along_y = -(x - 3.0) / 16 * image, -(y + 2.0) / 16 * image
    fields = {
        "shift_x": (torch.ones_like(x), torch.zeros_like(x)),
        "shift_y": (torch.zeros_like(x), torch.ones_like(x)),
        "angle": (y, -x),  # y points down: counter-clockwise on the screen
        "log_scale": (x, y),
        "shear_x": (y, torch.zeros_like(x)),
        "shear_y": (torch.zeros_like(x), x),
    }
    found = image_tangents(image.reshape(1, -1), image.shape).reshape(len(MOVES), *image.shape)
    for tangent, name in zip(found, MOVES, strict=True):
        expected = -(fields[name][0] * along_x + fields[name][1] * along_y)
        error = (tangent - expected)[2:-2, 2:-2].abs().max() / expected.abs().max()
        # the differences of pixels that a bilinear warp makes have an error of h²/6·g‴
        assert error < 0.06, name


def test_tangents_are_those_of_the_warp():
    x = inputs(12)
    found = image_tangents(x, SHAPE, ["shift_x", "shift_y", "angle", "log_scale", "shear_x", "shear_y"])
    warp = WARP.tangent(x)
    torch.testing.assert_close(found[:, 2], warp[:, 0])
    torch.testing.assert_close(found[:, 4], warp[:, 3])
    # one pixel is 2/width of the warp's shift, and within a pixel the warp is linear
    torch.testing.assert_close(found[:, 0], warp[:, 4] * 2 / SHAPE[1])
    torch.testing.assert_close(found[:, 1], warp[:, 5] * 2 / SHAPE[0])
    torch.testing.assert_close(found[:, 3], warp[:, 1] + warp[:, 2], rtol=0.05, atol=0.02)
    # a shear down is a shear to the right and a turn back
    torch.testing.assert_close(found[:, 5], warp[:, 3] - warp[:, 0], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("shape", [(6, 7), (2, 5, 6)])
@pytest.mark.parametrize("smoothing", [0.6, 1.5])
def test_smoothing_equals_a_convolution(shape: tuple[int, ...], smoothing: float):
    x = inputs(math.prod(shape))
    sigma = (0, *([0] if len(shape) == 3 else []), smoothing, smoothing)
    images = x.reshape(3, *shape).numpy()
    expected = ndimage.gaussian_filter(images, sigma, mode="constant", truncate=10)
    found = smoothed_images(x, shape, smoothing)
    torch.testing.assert_close(found, torch.from_numpy(expected).flatten(1), rtol=1e-10, atol=1e-10)
    assert smoothed_images(x, shape, 0.0) is x
    tangents = image_tangents(x, shape, ["angle", ("shear_y", 0.1)], smoothing)
    torch.testing.assert_close(tangents, image_tangents(found, shape, ["angle", ("shear_y", 0.1)]))
    assert (tangents - image_tangents(x, shape, ["angle", ("shear_y", 0.1)])).abs().max() > 0.01


def test_the_moves_of_the_paper():
    """2-pixel shifts in 4 directions, ±10°, scalings and shears along both axes by ±0.1."""
    assert len(PAPER_MOVES) == len(set(PAPER_MOVES)) == 12
    names = [name for name, _ in PAPER_MOVES]
    assert [names.count(name) for name in MOVES] == [2, 2, 2, 2, 2, 2]
    x = inputs(64).reshape(3, 8, 8)
    moved = moved_images(x.flatten(1), (8, 8)).reshape(3, 12, 8, 8)
    shifts = {("shift_x", 2.0): (0, 2), ("shift_x", -2.0): (0, -2), ("shift_y", 2.0): (2, 0),
              ("shift_y", -2.0): (-2, 0)}  # fmt: skip
    for move, shift in shifts.items():
        expected = torch.from_numpy(ndimage.shift(x.numpy(), (0, *shift), order=0))
        torch.testing.assert_close(moved[:, PAPER_MOVES.index(move)], expected)
    linear = {
        ("angle", math.radians(10)): [[math.cos(0.174533), math.sin(0.174533)],
                                      [-math.sin(0.174533), math.cos(0.174533)]],
        ("log_scale", math.log(1.1)): [[1.1, 0.0], [0.0, 1.1]],
        ("log_scale", math.log(0.9)): [[0.9, 0.0], [0.0, 0.9]],
        ("shear_x", 0.1): [[1.0, 0.1], [0.0, 1.0]],
        ("shear_y", 0.1): [[1.0, 0.0], [0.1, 1.0]],
        ("shear_y", -0.1): [[1.0, 0.0], [-0.1, 1.0]],
    }  # fmt: skip
    for move, matrix in linear.items():
        # content at (x, y) goes to A(x, y) about the centre, so (row, column) reads from the inverse
        inverse = torch.tensor(matrix, dtype=torch.float64).inverse().flip(0).flip(1).numpy()
        centre = torch.tensor([3.5, 3.5], dtype=torch.float64).numpy()
        for image, found in zip(x, moved[:, PAPER_MOVES.index(move)], strict=True):
            expected = ndimage.affine_transform(
                image.numpy(), inverse, centre - inverse @ centre, order=1, mode="grid-constant"
            )
            torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


def test_tangents_of_whole_moves_are_differences():
    x = inputs(64)
    tangents = ImageTangent((8, 8), PAPER_MOVES).atoms(x).directions[:, 0]
    torch.testing.assert_close(tangents, moved_images(x, (8, 8)) - x[:, None])
    pairs = moved_pairs(x, (8, 8))
    torch.testing.assert_close((pairs[:, 0] - pairs[:, 1]).reshape(tangents.shape), tangents)
    assert torch.equal(pairs[:12, 1], x[:1].expand(12, -1))


def test_a_function_of_the_total_brightness_does_not_feel_small_shifts():
    image = blob()[0].reshape(1, -1)
    total = Waves(
        torch.ones(1).double(), torch.ones(1, image.shape[1]).double() / 100, torch.zeros(1).double()
    )
    slopes = apply(ImageTangent((41, 41), ["shift_x", "shift_y", "angle", "log_scale"]).atoms(image), total)
    assert slopes[:3].abs().max() < 1e-3 * slopes[3].abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision(dtype: torch.dtype):
    x = inputs(144, dtype=dtype)
    found = image_tangents(x, (12, 12), smoothing=1.0)
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), image_tangents(x.double(), (12, 12), smoothing=1.0), rtol=1e-2, atol=1e-2
    )


def test_clear_errors():
    x = inputs(12)
    with pytest.raises(ValueError, match="one of shift_x, shift_y, angle"):
        ImageTangent(SHAPE, ["turn"])
    with pytest.raises(ValueError, match=r"not \('angle', nan\)"):
        ImageTangent(SHAPE, [("angle", math.nan)])
    with pytest.raises(ValueError, match="at least one move"):
        ImageTangent(SHAPE, [])
    with pytest.raises(ValueError, match=r"smoothing is a width in pixels of 0 or more, not -1\.0"):
        ImageTangent(SHAPE, smoothing=-1.0)
    with pytest.raises(ValueError, match="smoothing is a width"):
        smoothed_images(x, SHAPE, math.inf)
    with pytest.raises(ValueError, match=r"image_shape must be \(height, width\)"):
        ImageTangent((12,))
    with pytest.raises(ValueError, match="have 16 pixels, but the inputs have width 12"):
        ImageTangent((4, 4)).atoms(x)
    with pytest.raises(ValueError, match="have 16 pixels, but the inputs have width 12"):
        moved_images(x, (4, 4))
    with unchecked(), pytest.raises(ValueError, match="A moved image needs an amount"):
        moved_images(x, SHAPE, ["angle"])
