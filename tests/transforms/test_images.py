import itertools
import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from orbitwise.transforms import AffineWarp, flips, quarter_turns
from orbitwise.transforms.images import AFFINE_PARAMETERS, check_image_shape, warp
from tests.contracts.annotations import unchecked
from tests.contracts.transform_contract import (
    ContinuousContract,
    DiscreteContract,
    assert_group,
    inputs,
    parameters,
)

SHAPES = [(4, 4), (3, 5), (3, 2, 4)]


def alpha_of(**named: float) -> torch.Tensor:
    """The parameters of one move of one image, zero where they are not named."""
    return torch.tensor([[[named.get(name, 0.0) for name in AFFINE_PARAMETERS]]], dtype=torch.float64)


def forward_matrix(alpha: np.ndarray) -> np.ndarray:
    """How the content moves about the centre, in pixels (x right, y down): scale, then shear, then turn."""
    angle, scale_x, scale_y, shear = alpha[:4]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return turn @ np.array([[1, shear], [0, 1]]) @ np.diag(np.exp([scale_x, scale_y]))


def slow_warp(image: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """One pixel at a time: where did the content here come from, and what are the four pixels there?"""
    channels, height, width = image.shape
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    shift = alpha[4:] * [width / 2, height / 2]
    result = np.zeros_like(image)
    for c, row, column in itertools.product(range(channels), range(height), range(width)):
        x, y = np.linalg.solve(forward_matrix(alpha), [column, row] - centre - shift) + centre
        left, top = math.floor(x), math.floor(y)
        for i, j in itertools.product((top, top + 1), (left, left + 1)):
            if 0 <= i < height and 0 <= j < width:
                result[c, row, column] += image[c, i, j] * (1 - abs(x - j)) * (1 - abs(y - i))
    return result


class TestAffineWarp(ContinuousContract):
    tangent_step = 1e-2

    @pytest.fixture(params=SHAPES, ids=str)
    def case(self, request):
        return AffineWarp(request.param), math.prod(request.param)

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_equals_the_slow_loop(self, shape):
        x = inputs(math.prod(shape), rows=2)
        alpha = parameters(AffineWarp(shape), rows=2, samples=3)
        moved = AffineWarp(shape)(x, alpha)
        for i, s in itertools.product(range(2), range(3)):
            expected = slow_warp(x[i].reshape(check_image_shape(shape)).numpy(), alpha[i, s].numpy())
            np.testing.assert_allclose(moved[i, s].numpy(), expected.ravel(), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("shape", [(6, 6), (5, 8)], ids=str)
    def test_equals_scipy(self, shape):
        image = inputs(math.prod(shape), rows=1)
        alpha = parameters(AffineWarp(shape), rows=1, samples=5)
        moved = AffineWarp(shape)(image, alpha)[0].reshape(-1, *shape)
        centre = (np.array(shape) - 1) / 2
        for s in range(5):
            # scipy counts (row, column) and asks where to read
            matrix = np.linalg.inv(forward_matrix(alpha[0, s].numpy()))[::-1, ::-1]
            shift = alpha[0, s, [5, 4]].numpy() * np.array(shape) / 2
            offset = centre - matrix @ (centre + shift)
            expected = ndimage.affine_transform(
                image.reshape(shape).numpy(), matrix, offset, order=1, mode="grid-constant"
            )
            np.testing.assert_allclose(moved[s].numpy(), expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("degrees", [30, 90, -45, 200])
    def test_turns_like_scipy(self, degrees: float):
        image = inputs(63, rows=1)
        moved = AffineWarp((9, 7))(image, alpha_of(angle=math.radians(degrees)))
        turned = ndimage.rotate(
            image.reshape(9, 7).numpy(), degrees, reshape=False, order=1, mode="grid-constant"
        )
        np.testing.assert_allclose(moved.numpy().ravel(), turned.ravel(), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("shape", [(4, 4), (5, 5), (3, 6, 6)], ids=str)
    def test_a_quarter_turn_is_the_exact_one(self, shape):
        x = inputs(math.prod(shape))
        quarters = math.pi / 2 * torch.arange(4, dtype=torch.float64)
        alpha = torch.zeros(3, 4, 6, dtype=torch.float64)
        alpha[..., 0] = quarters
        moved = AffineWarp(shape)(x, alpha)
        torch.testing.assert_close(moved, quarter_turns(shape).all_elements(x), rtol=0, atol=1e-12)
        screen = np.rot90(x[0].reshape(shape).numpy(), axes=(-2, -1)).ravel()
        np.testing.assert_allclose(moved[0, 1].numpy(), screen, rtol=0, atol=1e-12)

    @pytest.mark.parametrize(("right", "down"), [(1, 0), (0, 1), (-2, 0), (0, -1), (2, 3), (-1, 2)])
    def test_whole_pixels_shift_right_and_down(self, right: int, down: int):
        x = inputs(35, rows=1)
        moved = AffineWarp((5, 7))(x, alpha_of(shift_x=2 * right / 7, shift_y=2 * down / 5)).reshape(5, 7)
        expected = np.zeros((5, 7))
        for row, column in itertools.product(range(5), range(7)):
            if 0 <= row - down < 5 and 0 <= column - right < 7:
                expected[row, column] = x.reshape(5, 7)[row - down, column - right]
        np.testing.assert_allclose(moved.numpy(), expected, rtol=0, atol=1e-12)

    def test_a_positive_scale_enlarges(self):
        row = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
        doubled = AffineWarp((1, 5))(row, alpha_of(log_scale_x=math.log(2)))[0, 0]
        torch.testing.assert_close(doubled, torch.tensor([0, 0.5, 1, 0.5, 0], dtype=torch.float64))
        tall = AffineWarp((5, 1))(row, alpha_of(log_scale_y=math.log(2)))[0, 0]
        torch.testing.assert_close(tall, doubled)
        same = AffineWarp((1, 5))(row, alpha_of(log_scale_y=math.log(2)))[0, 0]
        assert same[2] > 0.5
        assert (same[[0, 1, 3, 4]] == 0).all()

    def test_a_positive_shear_moves_lower_rows_to_the_right(self):
        image = torch.zeros(5, 5, dtype=torch.float64)
        image[:, 2] = 1
        moved = AffineWarp((5, 5))(image.reshape(1, -1), alpha_of(shear=1.0)).reshape(5, 5)
        torch.testing.assert_close(moved, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)

    def test_what_comes_from_outside_is_zero(self):
        ones = torch.ones(1, 36, dtype=torch.float64)
        half = AffineWarp((6, 6))(ones, alpha_of(shift_x=1.0)).reshape(6, 6)
        assert (half[:, :3] == 0).all()
        torch.testing.assert_close(half[:, 3:], torch.ones(6, 3, dtype=torch.float64))
        assert (AffineWarp((6, 6))(ones, alpha_of(shift_y=-2.0)) == 0).all()

    def test_pixels_of_any_size(self):
        x = (255 * inputs(36, dtype=torch.float32)).round()
        alpha = parameters(AffineWarp((6, 6)), dtype=torch.float32)
        moved = AffineWarp((6, 6))(x, alpha)
        assert moved.min() >= 0
        assert moved.max() <= 255
        torch.testing.assert_close(moved, 255 * AffineWarp((6, 6))(x / 255, alpha), rtol=1e-5, atol=1e-4)

    def test_channels_move_alike(self):
        x = inputs(60, rows=2)
        alpha = parameters(AffineWarp((4, 5)), rows=2)
        together = AffineWarp((3, 4, 5))(x, alpha).reshape(2, 4, 3, 20)
        for c in range(3):
            alone = AffineWarp((4, 5))(x.reshape(2, 3, 20)[:, c], alpha)
            torch.testing.assert_close(together[:, :, c], alone)

    def test_tangents_of_a_smooth_image(self):
        """d/dα I(A⁻¹(p - shift)) = -∇I·(dA p + dshift): the content moves one way, the reading the other."""
        height, width, size = 25, 21, 5.0
        y, x = np.mgrid[:height, :width].astype(float)
        x, y = x - (width - 1) / 2, y - (height - 1) / 2
        image = np.exp(-((x - 1) ** 2 + (y + 2) ** 2) / (2 * size**2))
        slope_x, slope_y = -(x - 1) / size**2 * image, -(y + 2) / size**2 * image
        # (dx, dy) of the content for each parameter
        moves = [(y, -x), (x, 0), (0, y), (y, 0), (width / 2, 0), (0, height / 2)]
        expected = np.stack([-(slope_x * dx + slope_y * dy) for dx, dy in moves])
        tangent = AffineWarp((height, width)).tangent(torch.from_numpy(image).reshape(1, -1))
        inside = (slice(None), slice(2, -2), slice(2, -2))
        measured = tangent[0].reshape(6, height, width).numpy()[inside]
        largest = np.abs(expected[inside]).max((1, 2))
        assert (np.abs(measured - expected[inside]).max((1, 2)) < 0.05 * largest).all()

    def test_gradients_reach_images_and_parameters_together(self):
        x = inputs(20, rows=2).requires_grad_()
        alpha = parameters(AffineWarp((4, 5)), rows=2, samples=2).requires_grad_()
        assert torch.autograd.gradcheck(AffineWarp((4, 5)), (x, alpha))

    def test_a_forward_derivative_has_gradients(self):
        """Slopes of an average over a learnable orbit are trained: reverse over forward."""
        transform = AffineWarp((4, 5))
        x, direction = inputs(20, rows=2), torch.randn(2, 20, dtype=torch.float64)
        alpha = parameters(transform, rows=2).requires_grad_()
        weights = torch.randn(2, 4, 20, dtype=torch.float64)
        _, slope = torch.func.jvp(lambda image: transform(image, alpha), (x,), (direction,))
        (through,) = torch.autograd.grad((weights * slope).sum(), alpha)
        (straight,) = torch.autograd.grad((weights * transform(direction, alpha)).sum(), alpha)
        assert straight.abs().max() > 0.1
        torch.testing.assert_close(through, straight)

    def test_no_forward_derivative_along_parameters(self):
        x, alpha = inputs(20), parameters(AffineWarp((4, 5)))
        with pytest.raises(ValueError, match=r"tangent\(\) takes differences"):
            torch.func.jvp(lambda a: AffineWarp((4, 5))(x, a), (alpha,), (torch.ones_like(alpha),))

    @pytest.mark.skipif(
        torch.__version__ < "2.12", reason="this torch does not differentiate grid samples twice"
    )
    def test_second_derivatives(self):
        x = inputs(6, rows=1).requires_grad_()
        alpha = parameters(AffineWarp((2, 3)), rows=1, samples=1).requires_grad_()
        assert torch.autograd.gradgradcheck(AffineWarp((2, 3)), (x, alpha))

    def test_one_grid_for_each_sample(self):
        x, transform = inputs(20), AffineWarp((4, 5))
        alpha = parameters(transform)
        assert transform.grid(alpha).shape == (3, 4, 4, 5, 2)
        torch.testing.assert_close(warp(x, transform.grid(alpha), (1, 4, 5)), transform(x, alpha))

    def test_the_message_names_shape_and_widths(self):
        with pytest.raises(ValueError, match=r"\(1, 4, 5\) have 20 pixels.*width 21"):
            AffineWarp((4, 5))(torch.ones(2, 21), torch.zeros(2, 1, 6))


class TestFlips(DiscreteContract):
    @pytest.fixture(
        params=[(True, False), (False, True), (True, True)], ids=["left-right", "up-down", "both"]
    )
    def case(self, request):
        return flips((2, 3, 4), *request.param), 24

    def test_are_those_of_numpy(self):
        x = inputs(24)
        image = x.reshape(3, 2, 3, 4).numpy()
        both = flips((2, 3, 4), horizontal=True, vertical=True).all_elements(x).reshape(3, 4, 2, 3, 4)
        for e, expected in enumerate([image, image[..., ::-1], image[..., ::-1, :], image[..., ::-1, ::-1]]):
            np.testing.assert_array_equal(both[:, e].numpy(), expected)
        upright = flips((2, 3, 4)).all_elements(x)
        assert torch.equal(upright, both[:, :2].reshape(3, 2, 24))
        upside_down = flips((2, 3, 4), horizontal=False, vertical=True).all_elements(x)
        assert torch.equal(upside_down, both[:, [0, 2]].reshape(3, 2, 24))
        assert_group(flips((2, 3, 4), vertical=True))

    def test_none_is_an_error(self):
        with pytest.raises(ValueError, match="or both"):
            flips((3, 4), horizontal=False)


class TestQuarterTurns(DiscreteContract):
    @pytest.fixture(params=[(3, 3), (2, 4, 4)], ids=str)
    def case(self, request):
        return quarter_turns(request.param), math.prod(request.param)

    @pytest.mark.parametrize("shape", [(3, 3), (4, 4), (2, 3, 3)], ids=str)
    def test_are_those_of_numpy(self, shape):
        x = inputs(math.prod(shape))
        turned = quarter_turns(shape).all_elements(x)
        for turn in range(4):
            expected = np.rot90(x.reshape(3, *shape).numpy(), turn, axes=(-2, -1))
            np.testing.assert_array_equal(turned[:, turn].reshape(3, *shape).numpy(), expected)
        assert_group(quarter_turns(shape))

    def test_need_square_images(self):
        with pytest.raises(ValueError, match=r"square images, not \(3, 4\)"):
            quarter_turns((3, 4))


def test_image_shapes():
    assert check_image_shape((4, 5)) == (1, 4, 5)
    assert check_image_shape([3, 4, 5]) == (3, 4, 5)
    assert check_image_shape(torch.Size([4, 5])) == (1, 4, 5)


@pytest.mark.parametrize("shape", [(), (5,), (1, 2, 3, 4), (0, 5), (5, -1), (2.5, 4)], ids=str)
@pytest.mark.parametrize("make", [check_image_shape, AffineWarp, flips, quarter_turns])
def test_bad_image_shapes(make, shape):
    with unchecked(), pytest.raises(ValueError, match=r"\(height, width\) or \(channels, height, width\)"):
        make(shape)
