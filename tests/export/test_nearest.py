"""The nearest built-in transform: calls as data, pictures, and the error that is measured on them."""

import ast
import math
from types import SimpleNamespace

import pytest
import torch

from orbitwise.export.libraries import Torchvision
from orbitwise.export.moves import moves_of
from orbitwise.export.nearest import (
    Call,
    Constant,
    code,
    described,
    group_of,
    make,
    measure,
    measure_group,
    modules_of,
    picture,
    pictures,
)
from orbitwise.orbits import DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import AffineWarp, flips, quarter_turns


def test_the_picture_has_no_symmetry_and_no_border():
    image = picture((2, 24, 24))
    assert torch.equal(image[0], image[1])
    assert image.max() <= 1
    edge = torch.cat([image[0, 0], image[0, -1], image[0, :, 0], image[0, :, -1]])
    assert edge.max() < 0.1
    for turned in (image.flip(-1), image.flip(-2), image.flip(-1, -2), torch.rot90(image, 1, (-2, -1))):
        assert (turned - image).norm() > 0.4 * image.norm()


def exactly(moves):
    """The draw's own parameters through our own warp."""

    def apply(image, draw):
        _, height, width = moves.image_shape
        values = [draw.angle, 0.0, 0.0, 0.0, 2 * draw.shift_x / width, 2 * draw.shift_y / height]
        alpha = torch.tensor(values)
        alpha[0] = torch.deg2rad(alpha[0])
        return AffineWarp(moves.image_shape)(image.reshape(1, -1), alpha[None, None]).reshape(image.shape)

    return apply


@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_equal_moves_have_no_error_and_no_moves_all_of_it(fill):
    orbit = ImageOrbit((1, 12, 16), {"angle": 0.4, "shift_x": 0.2})
    moves = moves_of(orbit)
    apply = exactly(moves)
    images = picture((1, 12, 16)) + fill

    def filled(image, draw):
        return apply(image - fill, draw) + fill

    error, extent = measure(orbit, filled, moves, images, fill, 8)
    assert error < 1e-5 < 0.1 < extent
    error, extent = measure(orbit, lambda image, draw: image, moves, images, fill, 8)
    assert error == pytest.approx(extent)


def test_the_error_is_relative_to_the_images_that_are_given():
    orbit = ImageOrbit((1, 12, 12), {"angle": 0.4})
    images = torch.stack([picture((1, 12, 12)), picture((1, 12, 12)).flip(-1)])
    sizes = [
        measure(orbit, lambda image, draw: 0 * image, moves_of(orbit), scale * images, 0.0, 8)
        for scale in (1, 100)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-5)
    assert sizes[0][0] == pytest.approx(1.0, abs=0.15)
    with pytest.raises(ValueError, match="all their pixels equal `fill`"):
        measure(orbit, lambda image, draw: image, moves_of(orbit), 0 * images, 0.0, 2)


def test_a_group_is_as_near_as_its_nearest_element():
    assert measure_group(("identity", "flip_horizontal"), lambda x: x.flip(-1), (1, 8, 8), None, 4)[0] == 0
    wrong, extent = measure_group(("identity", "flip_horizontal"), lambda x: x.flip(-2), (1, 8, 8), None, 4)
    assert wrong > 0.2
    assert extent > 0.2


def test_groups_that_libraries_draw_from():
    shape = (1, 4, 4)
    assert group_of(FiniteOrbit(flips(shape)), shape) == ("flip_horizontal",)
    assert len(group_of(closure(flips(shape), quarter_turns(shape)), shape)) == 7
    half = FiniteOrbit(quarter_turns(shape), torch.tensor([[0], [2]]))
    with pytest.raises(ValueError, match=r"identity, turn_180: .*faithful=True"):
        group_of(half, shape)


def test_differences_that_all_share():
    orbit = DeformationOrbit((1, 8, 8), 0.5, thickness=0.1)
    assert "strokes neither grow nor shrink" in described(orbit)[2]
    frozen = ImageOrbit((1, 8, 8), {"angle": 0.1}).freeze(4)
    source, moves, differences = described(frozen)
    assert source is frozen.source
    assert moves.is_affine
    assert differences == []
    for nothing in (ImageOrbit((8, 8), {}), DeformationOrbit((8, 8), 0.0, thickness=0.1)):
        with pytest.raises(ValueError, match="no equivalent of the moves"):
            described(nothing)


def test_images_of_another_shape():
    assert pictures([[[1, 2], [3, 4]]], (1, 2, 2)).shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"images must be \[n, C, H, W\]"):
        pictures(torch.zeros(2, 3), (1, 2, 2))


def test_a_library_that_breaks_at_import(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("raise RuntimeError('operator nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Torchvision, "module", "broken_library")
    with pytest.raises(ImportError, match=r"needs torchvision.*operator nms does not exist.*pip install"):
        Torchvision().load()


def recorded(name):
    return lambda *given, **options: (name, given, options)


LIBRARY = SimpleNamespace(Turn=recorded("Turn"), Both=recorded("Both"), Mode=SimpleNamespace(NEAR=7))
TURN = Call("Turn", ((-1.5, 2), [True, None, "a'b"]), {"mode": Constant("Mode.NEAR"), "by": {"x": (1.0,)}})
CALL = Call("Both", ([TURN, Call("Turn")],), {"width": Constant("pi", "math")})


def test_what_is_written_makes_what_is_made():
    made = make(CALL, LIBRARY)
    assert eval(code(CALL, "library"), {"library": LIBRARY, "math": math}) == made
    assert made[1][0][0] == ("Turn", ((-1.5, 2), [True, None, "a'b"]), {"mode": 7, "by": {"x": (1.0,)}})
    assert made[2] == {"width": math.pi}
    ast.parse(code(CALL, "library"))


def test_other_modules_are_named():
    assert modules_of(CALL) == {"math"}
    assert modules_of(TURN) == set()


def test_nothing_is_made_of_nothing():
    assert make(None, LIBRARY) is None
