import importlib
import math
import sys

import pytest
import torch

from orbitwise.export import OrbitTransform, to_torchvision
from orbitwise.export.libraries import one_scale
from orbitwise.export.moves import moves_of
from orbitwise.orbits import DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import flips, quarter_turns
from tests.export.round_trips import (
    MOVES,
    fixed,
    fixed_orbit,
    image_of,
    mean_distance,
    ours,
    shapes,
    slanted_orbit,
)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ImportError, match=r'needs torchvision.*pip install "orbitwise\[export\]"'):
        to_torchvision(ImageOrbit((4, 4)), faithful=False)


def test_the_faithful_form_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    assert isinstance(to_torchvision(ImageOrbit((4, 4))), OrbitTransform)


def test_one_scale_is_the_nearest_to_two():
    """Of two ranges of half-width w about zero it is 0.7 w, of one range alone half of it."""
    for widths, half in (((0.01, 0.01), 0.007), ((0.01, 0.0), 0.005)):
        start = {name: w for name, w in zip(("log_scale_x", "log_scale_y"), widths, strict=True) if w}
        (first, last), _ = one_scale(moves_of(ImageOrbit((8, 8), start)))
        assert math.log(last) == pytest.approx(half, rel=0.02)
        assert math.log(first) == pytest.approx(-half, rel=0.02)
    moves = moves_of(ImageOrbit((8, 8), {"log_scale_x": 0.3, "log_scale_y": 0.3}))
    (first, last), at = one_scale(moves)
    places = [at(moves.at(torch.tensor([0.0, x, x, 0.0, 0.0, 0.0]))) for x in (-1.0, 0.0, 1.0)]
    assert places == pytest.approx([first, (first + last) / 2, last], rel=3e-3)


@pytest.fixture
def v2():
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")


SINGLE_SCALE = {
    **{name: MOVES[name] for name in ("rotation", "shear", "shift")},
    "scale": lambda shape: fixed(shape, log_scale_x=0.3, log_scale_y=0.3),
    "combined": lambda shape: fixed(shape, (-2, 1), angle=-0.3, log_scale_x=0.2, log_scale_y=0.2, shear=0.25),
}


@pytest.mark.parametrize("move", SINGLE_SCALE)
@shapes
def test_a_warp_with_our_parameters_has_our_pixels(v2, move, shape):
    values, image = SINGLE_SCALE[move](shape), image_of(shape)
    _, height, width = shape
    warped = v2.functional.affine(
        image,
        angle=-math.degrees(values.get("angle", 0.0)),
        translate=[round(values["shift_x"] * width / 2), round(values["shift_y"] * height / 2)],
        scale=math.exp(values.get("log_scale_x", 0.0)),
        shear=[-math.degrees(math.atan(values.get("shear", 0.0))), 0.0],
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    torch.testing.assert_close(warped, ours(image, values), rtol=0, atol=1e-5)


@pytest.mark.parametrize("move", ["rotation", "scale", "shear"])
@shapes
def test_a_range_of_one_move_is_exact(v2, move, shape):
    values, image = SINGLE_SCALE[move](shape), image_of(shape)
    transform, error, extent, _ = to_torchvision(fixed_orbit(shape, values), faithful=False)
    torch.testing.assert_close(transform(image), ours(image, values), rtol=0, atol=1e-5)
    assert error < 1e-5 < 0.1 < extent


def test_random_draws_have_the_mean_of_ours(v2):
    """A sign that is wrong would make this 0.35 or more."""
    orbit, image = slanted_orbit(), image_of((1, 16, 16))
    assert mean_distance(orbit, to_torchvision(orbit, faithful=False).transform, image) < 0.25


def test_what_lies_outside(v2):
    image = image_of((1, 16, 16), fill=5.0)
    nearest = to_torchvision(fixed_orbit((1, 16, 16), {"angle": 0.6}), faithful=False, fill=5.0)
    expected = ours(image - 5, {"angle": 0.6}) + 5
    moved = nearest.transform(image)
    torch.testing.assert_close(moved[:, 4:-4, 4:-4], expected[:, 4:-4, 4:-4], rtol=0, atol=1e-5)
    torch.testing.assert_close(moved[:, 0, 0], torch.tensor([5.0]))
    assert nearest.differences == ["pixels half outside the image are mixed with `fill` twice"]


def test_differences_are_told_and_measured(v2):
    angle = to_torchvision(ImageOrbit((1, 16, 16), {"angle": 0.5}), faithful=False)
    assert angle.error < 1e-5
    assert angle.differences == []
    scales = to_torchvision(ImageOrbit((1, 16, 16), {"log_scale_x": 0.3, "log_scale_y": 0.3}), faithful=False)
    assert 0.05 < scales.error < scales.extent
    assert "both axes have one scale instead of one each" in scales.differences
    shifts = to_torchvision(ImageOrbit((1, 16, 16), {"shift_x": (0.0, 0.25)}, learnable=[]), faithful=False)
    assert any("mean shift of (+1, +0) pixels is lost" in each for each in shifts.differences)


def test_a_displacement_is_near_and_at_its_own_scale(v2):
    """Another sign of x or y would be further from the moved picture than the unmoved one is."""
    field = to_torchvision(ImageOrbit((1, 20, 28), {}, amplitude=1.0, smoothness=3.0), faithful=False)
    assert field.error < 0.5 * field.extent
    tangent = to_torchvision(DeformationOrbit((1, 48, 40), amplitude=0.5, smoothness=3.0), faithful=False)
    assert tangent.error < 0.5 * tangent.extent
    image = torch.arange(28.0).expand(1, 20, 28)
    columns = torch.stack([field.transform(image) - image for _ in range(200)])[:, 0, 5:-5, 6:-6]
    assert columns.std() == pytest.approx(1.0, rel=0.1)
    small = to_torchvision(ImageOrbit((1, 8, 8), {}, amplitude=0.5, smoothness=3.0), faithful=False)
    assert "the displacement is left out" in small.differences[-1]
    assert small.error == pytest.approx(small.extent)


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (flips((1, 6, 6)), 2),
        (flips((1, 6, 6), vertical=True), 4),
        (quarter_turns((1, 6, 6)), 4),
        (closure(flips((1, 6, 6)), quarter_turns((1, 6, 6))).transform, 8),
    ],
)
def test_flips_and_quarter_turns_are_drawn_evenly(v2, transform, size):
    nearest = to_torchvision(FiniteOrbit(transform), faithful=False, image_shape=(1, 6, 6))
    assert nearest.error < 1e-6 < nearest.extent
    image = image_of((1, 6, 6))
    elements = transform.all_elements(image.reshape(1, -1))[0]
    draws = torch.stack([nearest.transform(image).flatten() for _ in range(400)])
    counts = torch.cdist(draws, elements).argmin(-1).bincount(minlength=size)
    assert len(counts) == size
    assert ((counts - 400 / size).abs() < 5 * math.sqrt(400 / size)).all()


def test_the_faithful_form_goes_into_a_pipeline_with_labels(v2):
    pipeline = v2.Compose([to_torchvision(ImageOrbit((3, 8, 8))), v2.ToDtype(torch.float64)])
    image = torch.rand(3, 8, 8)
    moved, label = pipeline(image, 4)
    assert label == 4
    assert moved.shape == image.shape
    assert not torch.equal(moved, image.double())
