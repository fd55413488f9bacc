"""Names of invariances: each stands for its group, and wrong ones are met with help."""

import pytest
import torch

from orbitwise.estimators.names import OF_COLUMNS, OF_IMAGES, functional_of, is_of_images
from orbitwise.functionals import DirectionalDerivative, Evaluation, OrbitAverage
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.transforms import Translation, cyclic_shifts

# name, one row, how many points its orbit has, one of them
ORBITS = [
    ("permutation", [1.0, 2.0, 3.0], 6, [3.0, 1.0, 2.0]),
    ("cyclic", [1.0, 2.0, 3.0], 3, [3.0, 1.0, 2.0]),
    ("sign", [1.0, 2.0, 3.0], 8, [1.0, -2.0, 3.0]),
    ("negation", [1.0, 2.0, 3.0], 2, [-1.0, -2.0, -3.0]),
    ("flip", [1.0, 2.0, 3.0, 4.0], 2, [2.0, 1.0, 4.0, 3.0]),
    ("quarter_turn", [1.0, 2.0, 3.0, 4.0], 4, [2.0, 4.0, 1.0, 3.0]),
    ("flip+quarter_turn", [1.0, 2.0, 3.0, 4.0], 8, [1.0, 3.0, 2.0, 4.0]),
]


@pytest.mark.parametrize(
    ("name", "row", "size", "member"), ORBITS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_name_averages_over_its_group(name, row, size, member):
    functional = functional_of(name, len(row), (2, 2) if is_of_images(name) else None)
    atoms = functional.atoms(torch.tensor([row]))
    points = {tuple(point) for point in atoms.points[0].tolist()}
    assert len(points) == atoms.num_atoms == size
    assert tuple(member) in points
    torch.testing.assert_close(atoms.weights, torch.full((1, size), 1 / size))
    assert atoms.symmetry is not None, "a group, so one side of the double sum suffices"


FINITE = {name for name, *_ in ORBITS}
DRAWN = sorted(set(OF_IMAGES) - FINITE)


def test_every_finite_name_is_tested_here():
    assert set(OF_COLUMNS) <= FINITE


@pytest.mark.parametrize("name", DRAWN)
def test_other_names_of_images_are_drawn_near_the_identity_with_bounds_to_learn(name):
    functional = functional_of(name, 64, (8, 8))
    assert any(parameter.requires_grad for parameter in functional.parameters())
    image = torch.zeros(1, 8, 8)
    image[:, 2:6, 3:5] = 1
    atoms = functional.atoms(image.reshape(1, 64), torch.Generator().manual_seed(0))
    assert atoms.is_drawn
    distance = (atoms.points - image.reshape(1, 1, 64)).norm(dim=-1) / image.norm()
    assert 0 < distance.max() < 1.2


def test_nothing_is_evaluation():
    assert functional_of(None, 3).is_identity


def test_an_orbit_is_averaged_and_a_functional_is_taken_as_it_is():
    orbit = FiniteOrbit(cyclic_shifts(3))
    average = functional_of(orbit, 3)
    assert isinstance(average, OrbitAverage)
    assert average.orbit is orbit
    assert isinstance(functional_of(SampledOrbit(Translation(3), -1.0, 1.0), 3), OrbitAverage)
    functional = DirectionalDerivative(torch.ones(3)) + Evaluation()
    assert functional_of(functional, 3) is functional


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("permutations", "permutation"), ("signs", "sign"), ("quarter_turns", "quarter_turn")],
)
def test_a_wrong_name_is_met_with_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match=rf"Unknown invariance '{wrong}'.*cyclic.*Did you mean '{meant}'\?"):
        functional_of(wrong, 3)


def test_a_name_like_no_other_is_met_with_all_names():
    with pytest.raises(ValueError, match="known names are") as caught:
        functional_of("xyz", 3)
    assert "mean" not in str(caught.value)
    assert all(name in str(caught.value) for name, *_ in ORBITS)


@pytest.mark.parametrize("name", sorted(OF_IMAGES))
def test_names_of_images_need_the_shape_of_an_image(name):
    with pytest.raises(ValueError, match=r"image_shape=\(height, width\)"):
        functional_of(name, 4)


def test_a_group_too_large_to_list_is_refused():
    with pytest.raises(ValueError, match="479,001,600 elements"):
        functional_of("permutation", 12)


@pytest.mark.parametrize("wrong", [3, OrbitAverage, ["permutation"]])
def test_other_kinds_are_refused(wrong):
    with pytest.raises(TypeError, match="invariance must be None, a name, an orbit or a functional"):
        functional_of(wrong, 3)
