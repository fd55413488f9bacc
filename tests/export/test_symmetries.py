import pytest
import torch

from orbitwise.export.symmetries import FLIPS, NAMES, names_of, orbit_of, symmetries
from orbitwise.orbits import FiniteOrbit, closure
from orbitwise.transforms import cyclic_shifts, flips, negation, quarter_turns


def test_names_mean_what_they_say():
    image = torch.arange(18.0).reshape(2, 3, 3)
    moved = {name: image.flatten()[index].reshape(2, 3, 3) for name, index in symmetries((2, 3, 3)).items()}
    assert set(moved) == set(NAMES)
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
    again = orbit_of(names_of(orbit, (2, 4, 4)), (2, 4, 4))
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
        names_of(FiniteOrbit(transform, weights=weights), (1, 4, 4))


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["identity", "turn_90"], (1, 4, 5), "'turn_90' is no symmetry"),
        (["flip_horizontal"], (1, 4, 4), "must start with 'identity'"),
        ([], (1, 4, 4), "must start with 'identity'"),
        (["identity", "identity"], (1, 4, 4), "be different"),
    ],
)
def test_wrong_names(names, shape, message):
    with pytest.raises(ValueError, match=message):
        orbit_of(names, shape)
