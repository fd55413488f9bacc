import math

import pytest
import torch
import torch.nn.functional as F

from orbitwise.export.moves import (
    FLIPS,
    SYMMETRIES,
    moves_of,
    orbit_of,
    place_of,
    symmetries,
    symmetries_of,
    uniform_strength,
)
from orbitwise.orbits import CropOrbit, DeformationOrbit, FiniteOrbit, ImageOrbit, closure
from orbitwise.transforms import cyclic_shifts, flips, negation, quarter_turns
from tests.contracts.orbit_contract import seeded


def test_units_of_libraries():
    moves = moves_of(
        ImageOrbit((1, 10, 20), {"angle": (0.1, 0.3), "shift_x": 0.2, "shift_y": 0.2}, 0.5, 3.0, learnable=[])
    )
    assert moves.angle == pytest.approx((math.degrees(0.1), math.degrees(0.3)))
    assert moves.shift_x == pytest.approx((-2, 2))
    assert moves.shift_y == pytest.approx((-1, 1))
    assert (moves.scale_x, moves.scale_y, moves.shear) == ((1, 1), (1, 1), (0, 0))
    assert (moves.amplitude, moves.smoothness) == pytest.approx((0.5, 3.0))
    assert moves.is_affine
    assert moves.mean_shift == pytest.approx((0, 0))


def test_even_factors_are_the_nearest_within_the_bounds():
    """Between the same ends or the ends of a plain fit, draws at equal places would be further apart."""
    for width in (0.2, 1.5):
        moves = moves_of(ImageOrbit((8, 8), {"log_scale_x": width}))
        places = torch.linspace(-1, 1, 2001)
        factors = (width * places).exp()

        def distance(first, last, factors=factors, places=places):
            return float(((first + last) / 2 + (last - first) / 2 * places - factors).square().mean())

        first, last = moves.scale_x
        assert first == pytest.approx(math.exp(-width))
        assert last < math.exp(width)
        assert distance(first, last) < distance(first, math.exp(width))
        for change in (-0.01, 0.01):
            assert distance(first, last) < distance(first, last + change)


def test_an_identity_stays_an_identity():
    moves = moves_of(ImageOrbit((8, 8), {}, amplitude=1.0))
    assert not moves.is_affine
    assert moves_of(DeformationOrbit((8, 8), 0.5)).amplitude == pytest.approx(0.5)


def test_a_draw_lies_where_the_orbit_draws():
    orbit = ImageOrbit((1, 6, 8), {"angle": 0.5, "shift_x": (0.0, 0.5)}, 0.5, learnable=[])
    noise = orbit.noise((1,), seeded(), torch.zeros(()))[0]
    place, field = place_of(orbit, noise)
    draw = moves_of(orbit).at(place, field)
    alpha = orbit.bounds.place(noise[:6])
    assert draw.angle == pytest.approx(math.degrees(alpha[0]), rel=1e-5)
    assert draw.shift_x == pytest.approx(float(alpha[4]) * 4, rel=1e-5)
    # the same order at every pixel, and uniform
    assert torch.equal(field.flatten().argsort(), noise[6:].argsort())
    assert field.abs().max() <= 1
    many = place_of(orbit, torch.cat([torch.zeros(6), torch.linspace(-4, 4, 96)]))[1]
    assert many.min() < -0.99
    assert many.max() > 0.99


def test_tangents_move_up_where_fields_read_below():
    orbit = DeformationOrbit((1, 4, 4), 0.5, thickness=0.2)
    noise = torch.ones(orbit.num_noise)
    place, field = place_of(orbit, noise)
    assert torch.equal(place, torch.zeros(6))
    assert (field[0] > 0).all()
    assert (field[1] < 0).all()


def test_smoothed_uniform_noise_has_the_amplitude():
    noise = 2 * torch.rand(200, 1, 40, 40, generator=seeded()) - 1
    weights = torch.exp(-0.5 * (torch.arange(-8, 9) / 2.0).square())
    weights = weights / weights.sum()
    smooth = F.conv2d(noise, torch.outer(weights, weights)[None, None])
    assert uniform_strength(0.7, 2.0, 8) * smooth.std() == pytest.approx(0.7, rel=0.03)


def test_other_orbits_have_no_equivalent():
    with pytest.raises(ValueError, match=r"no built-in equivalent of CropOrbit.*faithful=True"):
        moves_of(CropOrbit((8, 8)))


def test_names_mean_what_they_say():
    image = torch.arange(18.0).reshape(2, 3, 3)
    moved = {name: image.flatten()[index].reshape(2, 3, 3) for name, index in symmetries((2, 3, 3)).items()}
    assert set(moved) == set(SYMMETRIES)
    assert torch.equal(moved["flip_horizontal"], image.flip(-1))
    assert torch.equal(moved["flip_vertical"], image.flip(-2))
    assert torch.equal(moved["turn_180"], image.flip(-1, -2))
    assert torch.equal(moved["turn_90"], torch.rot90(image, 1, (-2, -1)))
    assert torch.equal(moved["turn_270"], torch.rot90(image, 3, (-2, -1)))
    assert torch.equal(moved["flipped_turn_90"], torch.rot90(image, 1, (-2, -1)).flip(-1))
    assert torch.equal(moved["flipped_turn_270"], torch.rot90(image, 3, (-2, -1)).flip(-1))
    assert len({tuple(each.flatten().tolist()) for each in moved.values()}) == 8


def test_a_rectangle_has_four():
    assert tuple(symmetries((1, 2, 3))) == FLIPS


@pytest.mark.parametrize(
    "orbit",
    [
        FiniteOrbit(flips((2, 4, 4))),
        FiniteOrbit(quarter_turns((2, 4, 4))),
        closure(flips((2, 4, 4)), quarter_turns((2, 4, 4))),
        FiniteOrbit(quarter_turns((2, 4, 4)), torch.tensor([[0], [2]])),
    ],
)
def test_an_orbit_is_rebuilt_from_its_names(orbit):
    again = orbit_of(symmetries_of(orbit, (2, 4, 4)), (2, 4, 4))
    x = torch.rand(3, 32)
    torch.testing.assert_close(again.points(x).points, orbit.points(x).points)
    assert again.transform.is_group


def test_a_list_that_is_no_group_stays_a_list():
    assert not orbit_of(["identity", "turn_90"], (1, 4, 4)).transform.is_group


@pytest.mark.parametrize(
    ("transform", "weights", "message"),
    [
        (cyclic_shifts(16), None, "Element 1 of this orbit is neither a flip nor a quarter turn"),
        (negation(16), None, "Element 1"),
        (flips((4, 4)), torch.tensor([1.0, -1.0]), "SignedPermutations with weights"),
    ],
)
def test_other_elements_have_no_name(transform, weights, message):
    with pytest.raises(ValueError, match=message):
        symmetries_of(FiniteOrbit(transform, weights=weights), (1, 4, 4))


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["identity", "turn_90"], (1, 4, 5), "'turn_90' is not a symmetry"),
        (["flip_horizontal"], (1, 4, 4), "must start with 'identity'"),
        ([], (1, 4, 4), "must start with 'identity'"),
        (["identity", "identity"], (1, 4, 4), "be distinct"),
    ],
)
def test_wrong_names(names, shape, message):
    with pytest.raises(ValueError, match=message):
        orbit_of(names, shape)
