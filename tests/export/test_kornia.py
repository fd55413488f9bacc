import math
import sys

import pytest
import torch

from orbitwise.export import OrbitTransform, to_kornia
from orbitwise.orbits import DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import flips, quarter_turns
from tests.export.round_trips import (
    MOVES,
    fixed_orbit,
    image_of,
    mean_distance,
    moves,
    ours,
    shapes,
    slanted_orbit,
)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(ImportError, match=r'needs kornia.*pip install "orbitwise\[export\]"'):
        to_kornia(ImageOrbit((4, 4)), faithful=False)


def test_the_faithful_form_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    assert isinstance(to_kornia(ImageOrbit((4, 4))), OrbitTransform)


@pytest.fixture
def kornia():
    reason = "kornia is not installed: pip install 'orbitwise[export]'"
    pytest.importorskip("kornia.augmentation", reason=reason)
    return pytest.importorskip("kornia", reason=reason)


@moves
@shapes
def test_a_warp_with_our_parameters_has_our_pixels(kornia, move, shape):
    """Signs, centre, interpolation and what lies outside; kornia shears before it scales."""
    values, image = MOVES[move](shape), image_of(shape)
    _, height, width = shape
    log_scales = values.get("log_scale_x", 0.0), values.get("log_scale_y", 0.0)
    slope = values.get("shear", 0.0) * math.exp(log_scales[1] - log_scales[0])
    matrix = kornia.geometry.transform.get_affine_matrix2d(
        torch.tensor([[values["shift_x"] * width / 2, values["shift_y"] * height / 2]]),
        torch.tensor([[(width - 1) / 2, (height - 1) / 2]]),
        torch.tensor([log_scales]).exp(),
        torch.tensor([-math.degrees(values.get("angle", 0.0))]),
        torch.tensor([-math.atan(slope)]),
    )
    warped = kornia.geometry.transform.warp_affine(
        image[None],
        matrix[:, :2],
        (height, width),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    torch.testing.assert_close(warped[0], ours(image, values), rtol=0, atol=1e-5)


@pytest.mark.parametrize("move", ["rotation", "scale", "shear"])
@shapes
def test_a_range_of_one_move_is_exact(kornia, move, shape):
    values, image = MOVES[move](shape), image_of(shape)
    transform, error, extent, _ = to_kornia(fixed_orbit(shape, values), faithful=False)
    torch.testing.assert_close(transform(image[None])[0], ours(image, values), rtol=0, atol=1e-5)
    assert error < 1e-5 < 0.1 < extent


def test_random_draws_have_the_mean_of_ours(kornia):
    """A sign that is wrong would make this 0.35 or more."""
    orbit, image = slanted_orbit(affine={"shift_x": 0.2}), image_of((1, 16, 16))
    nearest = to_kornia(orbit, faithful=False)
    assert mean_distance(orbit, lambda x: nearest.transform(x[None])[0], image) < 0.2


def test_what_lies_outside(kornia):
    orbit, image = slanted_orbit(), image_of((1, 16, 16), fill=5.0)
    exact = to_kornia(fixed_orbit((1, 16, 16), {"angle": 0.6}), faithful=False, fill=5.0)
    expected = ours(image - 5, {"angle": 0.6}) + 5
    torch.testing.assert_close(exact.transform(image[None])[0], expected, rtol=0, atol=1e-5)
    assert to_kornia(orbit, faithful=False, fill=5.0, images=image).error < 0.1


def test_differences_are_told_and_measured(kornia):
    angle = to_kornia(ImageOrbit((1, 16, 16), {"angle": 0.5}), faithful=False)
    assert angle.error < 1e-5
    assert angle.differences == []
    scales = to_kornia(ImageOrbit((1, 16, 16), {"log_scale_x": 0.5}), faithful=False)
    assert 0.01 < scales.error < 0.3 * scales.extent
    assert scales.differences == ["scales are drawn uniformly as factors, not as logarithms"]
    moved = ImageOrbit((1, 16, 16), {"shift_x": (0.0, 0.25)}, learnable=[])
    shifts = to_kornia(moved, faithful=False)
    assert shifts.error > 0.3 * shifts.extent
    assert any("mean shift of (+1, +0) pixels is lost" in each for each in shifts.differences)


def test_a_displacement_is_near_and_at_its_own_scale(kornia):
    """Another sign of x or y would be further from the moved picture than the unmoved one is."""
    field = to_kornia(ImageOrbit((1, 20, 28), {}, amplitude=1.0, smoothness=3.0), faithful=False)
    assert field.error < 0.35 * field.extent
    tangent = to_kornia(DeformationOrbit((1, 48, 40), amplitude=0.5, smoothness=3.0), faithful=False)
    assert tangent.error < 0.5 * tangent.extent
    assert tangent.differences[-1].startswith("the image is read at moved places")


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (flips((1, 6, 6)), 2),
        (flips((1, 6, 6), horizontal=False, vertical=True), 2),
        (flips((1, 6, 6), vertical=True), 4),
        (quarter_turns((1, 6, 6)), 4),
        (closure(flips((1, 6, 6)), quarter_turns((1, 6, 6))).transform, 8),
    ],
)
def test_flips_and_quarter_turns_are_drawn_evenly(kornia, transform, size):
    nearest = to_kornia(FiniteOrbit(transform), faithful=False, image_shape=(1, 6, 6))
    assert nearest.error < 1e-5 < nearest.extent
    image = image_of((1, 6, 6))
    elements = transform.all_elements(image.reshape(1, -1))[0]
    draws = nearest.transform(image.expand(400, 1, 6, 6)).flatten(1)
    counts = torch.cdist(draws, elements).argmin(-1).bincount(minlength=size)
    assert len(counts) == size
    assert ((counts - 400 / size).abs() < 5 * math.sqrt(400 / size)).all()


def test_the_faithful_form_goes_into_containers(kornia):
    orbit, images = ImageOrbit((3, 8, 8), amplitude=0.5), torch.rand(5, 3, 8, 8)
    for container in (
        kornia.augmentation.ImageSequential(
            to_kornia(orbit), kornia.augmentation.RandomHorizontalFlip(p=0.0)
        ),
        kornia.augmentation.AugmentationSequential(to_kornia(orbit), data_keys=["input"]),
    ):
        moved = container(images)
        assert moved.shape == images.shape
        assert ((moved - images).flatten(1).norm(dim=1) > 0).all()
