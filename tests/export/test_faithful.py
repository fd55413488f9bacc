import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from orbitwise.export import OrbitTransform
from orbitwise.export.faithful import image_shape_of
from orbitwise.orbits import (
    ComposedOrbit,
    CropOrbit,
    DeformationOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    PatchOrbit,
)
from orbitwise.transforms import flips, quarter_turns
from tests.contracts.orbit_contract import seeded

SHAPE = (2, 6, 7)
ORBITS = {
    "affine": lambda: ImageOrbit(SHAPE),
    "deformed": lambda: ImageOrbit(SHAPE, amplitude=0.7, smoothness=2.0),
    "tangent": lambda: DeformationOrbit(SHAPE, 0.5, thickness=0.2),
    "crop": lambda: CropOrbit(SHAPE, 0.3),
    "composed": lambda: ComposedOrbit(FiniteOrbit(flips(SHAPE)), ImageOrbit(SHAPE)),
}


@pytest.mark.parametrize("name", ORBITS)
def test_it_moves_as_the_orbit_does(name):
    orbit, images = ORBITS[name](), torch.rand(5, *SHAPE, generator=seeded())
    moved = OrbitTransform(orbit, generator=seeded(3))(images)
    rows = images.flatten(1)
    expected = orbit.move(rows, orbit.noise((5, 1), seeded(3), rows))
    torch.testing.assert_close(moved, expected.detach().reshape(5, *SHAPE))
    assert not moved.requires_grad


def test_every_image_and_every_call_has_its_own_draw():
    transform = OrbitTransform(ImageOrbit(SHAPE), generator=seeded())
    image = torch.rand(SHAPE)
    first, second = transform(image.expand(3, 2, *SHAPE)), transform(image.expand(3, 2, *SHAPE))
    assert first.shape == (3, 2, *SHAPE)
    draws = torch.cat([first, second]).flatten(0, 1).flatten(1)
    assert (torch.cdist(draws, draws) + torch.eye(12) > 1e-3).all()


def test_elements_of_a_finite_orbit_are_drawn_evenly():
    orbit, image = FiniteOrbit(quarter_turns((1, 4, 4))), torch.rand(1, 4, 4)
    draws = OrbitTransform(orbit, (1, 4, 4), generator=seeded())(image.expand(400, 1, 4, 4)).flatten(1)
    counts = torch.cdist(draws, orbit.points(image.reshape(1, -1)).points[0]).argmin(-1).bincount()
    assert counts.shape == (4,)
    assert (counts - 100).abs().max() < 50


def test_a_frozen_orbit_is_drawn_by_its_source():
    orbit = ImageOrbit(SHAPE)
    image = torch.rand(SHAPE)
    moved = [OrbitTransform(each, generator=seeded(1))(image) for each in (orbit, orbit.freeze(3))]
    torch.testing.assert_close(*moved)


def test_it_keeps_the_learned_ranges_and_passes_gradients_to_images():
    orbit = ImageOrbit(SHAPE, {"angle": 0.5})
    transform = OrbitTransform(orbit, generator=seeded())
    with torch.no_grad():
        orbit.bounds.raw_half.fill_(-20)
    assert transform.orbit.learned()["angle"] == pytest.approx((-0.5, 0.5))
    assert not any(parameter.requires_grad for parameter in transform.parameters())
    image = torch.rand(SHAPE, requires_grad=True)
    transform(image).sum().backward()
    assert image.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float16, torch.float32, torch.float64])
def test_any_precision_comes_back(dtype):
    orbit = ImageOrbit((8, 8), amplitude=0.5)
    image = (200 * torch.rand(1, 8, 8, generator=seeded(5))).to(dtype)
    moved = OrbitTransform(orbit, generator=seeded())(image)
    exact = OrbitTransform(orbit, generator=seeded())(image.float())
    assert moved.dtype == dtype
    tolerance = 0.501 if not dtype.is_floating_point else 0.1 if dtype == torch.float16 else 1e-3
    if dtype != torch.float64:  # whose draws are others
        torch.testing.assert_close(moved.float(), exact, rtol=0, atol=tolerance)


def test_arrays_have_their_channels_last_and_pictures_stay_pictures():
    orbit, image = ImageOrbit((3, 8, 9)), torch.randint(0, 256, (3, 8, 9), dtype=torch.uint8)
    transform = OrbitTransform(orbit)
    moved = transform(image, generator=seeded()).movedim(0, -1).numpy()
    array = image.movedim(0, -1).numpy()
    # the layout in memory differs, and a rounding error may fall to the next grey
    np.testing.assert_allclose(transform(array, generator=seeded()), moved.astype(float), rtol=0, atol=1)
    returned = transform(Image.fromarray(array), generator=seeded())
    assert isinstance(returned, Image.Image)
    assert returned.mode == "RGB"
    np.testing.assert_allclose(np.asarray(returned), moved.astype(float), rtol=0, atol=1)
    grey = OrbitTransform(ImageOrbit((8, 9)))
    assert grey(array[..., 0]).shape == (8, 9)
    assert grey(image[0]).shape == (8, 9)
    assert grey(Image.fromarray(array[..., 0])).mode == "L"


def test_an_orbit_of_one_channel_moves_all_alike():
    transform = OrbitTransform(ImageOrbit((8, 8), amplitude=0.5), generator=seeded())
    image = torch.rand(4, 1, 8, 8).expand(4, 3, 8, 8)
    moved = transform(image)
    torch.testing.assert_close(moved[:, 0], moved[:, 2])
    assert not torch.allclose(moved[0], moved[1] - image[1] + image[0])


def test_fill_lies_outside():
    orbit = ImageOrbit((6, 6), {"shift_x": (1.0, 1.0)}, learnable=[])
    moved = OrbitTransform(orbit, fill=9.0)(torch.ones(1, 6, 6))
    torch.testing.assert_close(moved[0, 0], torch.tensor([9.0, 9, 9, 1, 1, 1]))


def test_labels_pass_and_it_can_be_sent_to_workers():
    transform = OrbitTransform(ImageOrbit(SHAPE), generator=seeded())
    image = torch.rand(SHAPE)
    moved, label, name = pickle.loads(pickle.dumps(transform))(image, 3, "seven")
    assert (label, name) == (3, "seven")
    torch.testing.assert_close(moved, transform(image))
    assert "image_shape=(2, 6, 7), fill=0" in repr(transform)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (torch.zeros(2, 6, 8), ValueError, r"images \[C, H, W\] = \(2, 6, 7\), but got shape \(2, 6, 8\)"),
        (torch.zeros(3, 6, 7), ValueError, "but got shape"),
        (torch.zeros(7), ValueError, "but got shape"),
        (torch.zeros(6, 7), ValueError, "but got shape"),
        ([1.0], TypeError, "not list"),
        (Image.new("1", (7, 6)), ValueError, "not '1': use image.convert"),
    ],
)
def test_images_that_do_not_fit(image, error, message):
    with pytest.raises(error, match=message):
        OrbitTransform(ImageOrbit(SHAPE))(image)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: image_shape_of(None), TypeError, "not NoneType: pass an orbit, or `orbit_`"),
        (lambda: OrbitTransform(JitterOrbit(4)), ValueError, "pass image_shape="),
        (lambda: OrbitTransform(ImageOrbit((4, 4)), (1, 5, 5)), ValueError, "different image shapes"),
        (lambda: OrbitTransform(PatchOrbit((4, 4), (2, 2)), (4, 4)), ValueError, "16 pixels into 4"),
        (
            lambda: OrbitTransform(FiniteOrbit(flips((4, 4)), weights=torch.tensor([1.0, -1.0])), (4, 4)),
            ValueError,
            "weights cannot be an augmentation",
        ),
        (lambda: OrbitTransform(ImageOrbit((4, 4)), fill=float("nan")), ValueError, "finite pixel value"),
    ],
)
def test_orbits_that_are_no_augmentation(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_shape_is_found_or_asked_for():
    assert image_shape_of(ComposedOrbit(FiniteOrbit(flips((4, 5))), ImageOrbit((4, 5)))) == (1, 4, 5)
    assert image_shape_of(FiniteOrbit(flips((4, 5))), (4, 5)) == (1, 4, 5)
