import math
import pickle
import sys

import numpy as np
import pytest
import torch

from orbitwise.export import to_albumentations
from orbitwise.export.libraries import whole
from orbitwise.orbits import DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import flips, quarter_turns
from tests.export.round_trips import (
    MOVES,
    fixed_orbit,
    image_of,
    linear,
    mean_distance,
    moves,
    ours,
    shapes,
    slanted_orbit,
)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    for faithful in (True, False):
        with pytest.raises(ImportError, match=r'needs albumentations.*pip install "orbitwise\[export\]"'):
            to_albumentations(ImageOrbit((4, 4)), faithful=faithful)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((-1.6, 1.6), (-1, 1)),
        ((-2.4, 2.4), (-2, 2)),
        ((-0.3, 0.3), (0, 0)),
        ((1.0, 4.0), (2, 4)),
        ((2.0, 2.0), (2, 2)),
    ],
)
def test_whole_pixels_spread_like_the_interval(interval, expected):
    assert whole(interval) == pytest.approx(expected, abs=1)
    first, last = whole(interval)
    assert abs(first + last - sum(interval)) <= 1
    assert abs((last - first + 1) - (interval[1] - interval[0])) <= 1


@pytest.fixture
def library():
    reason = "albumentations is not installed: pip install 'orbitwise[export]'"
    return pytest.importorskip("albumentations", reason=reason)


def channels_last(image):
    return np.ascontiguousarray(image.numpy().transpose(1, 2, 0))


def call(transform, image):
    moved = transform(image=channels_last(image))["image"]
    return torch.from_numpy(moved.reshape(*image.shape[1:], -1).transpose(2, 0, 1).copy())


def turned_then_sheared(values):
    """Degrees, scales and slope of albumentations' order H R S that make our R H S.

    With the lower row (c, d) and the determinant D, u = scale_x² solves d²u²/D² - u + c² = 0.
    """
    matrix = linear(values)
    (_, _), (c, d) = matrix.tolist()
    determinant = float(matrix.det())
    root = math.sqrt(1 - 4 * c**2 * d**2 / determinant**2)
    scale_x = math.sqrt(determinant**2 * (1 + root) / (2 * d**2))
    scale_y = determinant / scale_x
    angle = math.atan2(-c / scale_x, d / scale_y)
    turned = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]).double()
    slope = (matrix @ (turned @ torch.tensor([scale_x, scale_y]).double().diag()).inverse())[0, 1]
    return math.degrees(angle), scale_x, scale_y, float(slope)


@moves
@shapes
def test_a_warp_with_our_parameters_has_our_pixels(library, move, shape):
    import cv2

    values, image = MOVES[move](shape), image_of(shape)
    _, height, width = shape
    angle, scale_x, scale_y, slope = turned_then_sheared(values)
    shear = -math.degrees(math.atan(slope))
    pixels = round(values["shift_x"] * width / 2), round(values["shift_y"] * height / 2)
    transform = library.Affine(
        scale={"x": (scale_x, scale_x), "y": (scale_y, scale_y)},
        translate_px={"x": (pixels[0], pixels[0]), "y": (pixels[1], pixels[1])},
        rotate=(angle, angle),
        shear={"x": (shear, shear), "y": (0.0, 0.0)},
        interpolation=cv2.INTER_LINEAR,
        p=1.0,
    )
    # OpenCV may place the four neighbours of a pixel to 1/32 only
    torch.testing.assert_close(call(transform, image), ours(image, values), rtol=0, atol=0.03)


@pytest.mark.parametrize("move", ["rotation", "scale", "shear", "shift"])
@shapes
def test_a_range_of_one_move_is_exact(library, move, shape):
    values, image = MOVES[move](shape), image_of(shape)
    transform, error, extent, _ = to_albumentations(fixed_orbit(shape, values), faithful=False)
    torch.testing.assert_close(call(transform, image), ours(image, values), rtol=0, atol=0.03)
    assert error < 0.02 < 0.1 < extent


def test_random_draws_have_the_mean_of_ours(library):
    """A sign that is wrong would make this 0.35 or more."""
    orbit, image = slanted_orbit(), image_of((1, 16, 16))
    transform = to_albumentations(orbit, faithful=False).transform
    transform.set_random_seed(0)
    assert mean_distance(orbit, lambda x: call(transform, x), image) < 0.2


def test_what_lies_outside(library):
    image = image_of((1, 16, 16), fill=5.0)
    exact = to_albumentations(fixed_orbit((1, 16, 16), {"angle": 0.6}), faithful=False, fill=5.0)
    expected = ours(image - 5, {"angle": 0.6}) + 5
    torch.testing.assert_close(call(exact.transform, image), expected, rtol=0, atol=0.03)


def test_differences_are_told_and_measured(library):
    angle = to_albumentations(ImageOrbit((1, 16, 16), {"angle": 0.5}), faithful=False)
    assert angle.error < 0.02
    assert angle.differences == []
    shifts = to_albumentations(ImageOrbit((1, 16, 16), {"shift_x": 0.2}), faithful=False)
    assert 0.05 < shifts.error < 0.6 * shifts.extent
    assert shifts.differences == ["shifts are whole pixels"]
    both = to_albumentations(ImageOrbit((1, 16, 16), {"angle": 0.5, "shear": 0.3}), faithful=False)
    assert "the content is turned before it is sheared, not after" in both.differences
    assert 0.01 < both.error < 0.5 * both.extent


def test_a_displacement_is_near_and_at_its_own_scale(library):
    """Another sign of x or y would be further from the moved picture than the unmoved one is."""
    field = to_albumentations(ImageOrbit((1, 20, 28), {}, amplitude=1.0, smoothness=3.0), faithful=False)
    assert field.error < 0.5 * field.extent
    tangent = to_albumentations(DeformationOrbit((1, 48, 40), amplitude=0.5, smoothness=3.0), faithful=False)
    assert tangent.error < 0.5 * tangent.extent
    rough = to_albumentations(ImageOrbit((1, 8, 8), {}, amplitude=0.2, smoothness=0.7), faithful=False)
    assert "the smoothness is 1 pixel, the smallest possible" in rough.differences


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (flips((1, 6, 6)), 2),
        (flips((1, 6, 6), vertical=True), 4),
        (quarter_turns((1, 6, 6)), 4),
        (closure(flips((1, 6, 6)), quarter_turns((1, 6, 6))).transform, 8),
    ],
)
def test_flips_and_quarter_turns_are_drawn_evenly(library, transform, size):
    nearest = to_albumentations(FiniteOrbit(transform), faithful=False, image_shape=(1, 6, 6))
    assert nearest.error < 1e-6 < nearest.extent
    pipeline = library.Compose([nearest.transform], seed=0)
    image = image_of((1, 6, 6))
    elements = transform.all_elements(image.reshape(1, -1))[0]
    draws = torch.stack([call(pipeline, image).flatten() for _ in range(400)])
    counts = torch.cdist(draws, elements).argmin(-1).bincount(minlength=size)
    assert len(counts) == size
    assert ((counts - 400 / size).abs() < 5 * math.sqrt(400 / size)).all()


def test_the_faithful_form_goes_into_a_pipeline_and_follows_its_seed(library):
    orbit = ImageOrbit((3, 8, 10), amplitude=0.5)
    image = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    results = []
    for _ in range(2):
        pipeline = library.Compose([to_albumentations(orbit), library.HorizontalFlip(p=0.0)], seed=3)
        results.append([pipeline(image=image, label=7) for _ in range(2)])
    first, second = results[0]
    assert first["label"] == 7
    assert first["image"].dtype == np.uint8
    assert first["image"].shape == image.shape
    assert not np.array_equal(first["image"], second["image"])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


def test_the_faithful_form_moves_a_stack_alike_and_can_be_sent_to_workers(library):
    transform = to_albumentations(ImageOrbit((8, 8)), probability=0.5)
    copy = pickle.loads(pickle.dumps(transform))
    assert copy.p == 0.5
    assert isinstance(copy, library.ImageOnlyTransform)
    image = np.random.default_rng(0).random((8, 8), dtype=np.float32)
    np.testing.assert_array_equal(copy.apply(image, orbit_seed=5), transform.apply(image, orbit_seed=5))
    stack = to_albumentations(ImageOrbit((8, 8)))(images=np.stack([image, image])[..., None])["images"]
    np.testing.assert_array_equal(stack[0], stack[1])
    assert not np.array_equal(stack[0, ..., 0], image)
