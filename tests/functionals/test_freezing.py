import torch

from orbitwise.functionals import Difference, DirectionalDerivative, Evaluation, OrbitAverage, OrbitSum
from orbitwise.functionals.averages import (
    drawn_form,
    freeze_functional,
    is_drawn,
    learnable_orbits,
    orbit_in,
)
from orbitwise.orbits import ComposedOrbit, FiniteOrbit, ImageOrbit, PatchOrbit, SampledOrbit
from orbitwise.transforms import Translation, coordinate_permutations


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_frozen_average_is_exact_and_repeats():
    drawn = OrbitAverage(SampledOrbit(Translation(2), -0.5, 0.5, num_samples=4))
    frozen = freeze_functional(drawn, 6, generator())
    x = torch.randn(3, 2, generator=generator())
    first, second = frozen.atoms(x), frozen.atoms(x)
    assert not first.is_drawn
    assert first.num_atoms == 6
    assert torch.equal(first.points, second.points)


def test_bounds_stay_shared():
    orbit = SampledOrbit(Translation(1), -0.5, 0.5, num_samples=4)
    frozen = freeze_functional(OrbitAverage(orbit), 3, generator())
    assert learnable_orbits(frozen) == [orbit]
    names = {id(p) for p in orbit.parameters()}
    assert names == {id(p) for p in frozen.parameters()}


def test_compositions_and_combinations_are_frozen_inside():
    average = OrbitAverage(SampledOrbit(Translation(2), -0.5, 0.5, num_samples=4))
    for functional in (
        DirectionalDerivative(torch.ones(2)) @ average,
        Difference() @ average,
        average - Evaluation(),
    ):
        assert is_drawn(functional)
        assert not is_drawn(freeze_functional(functional, 5, generator()))
        x = torch.randn(2, 2, 2) if "Difference" in str(functional) else torch.randn(2, 2)
        assert not freeze_functional(functional, 5, generator()).atoms(x).is_drawn


def test_subsampled_finite_orbit_becomes_whole():
    drawn = OrbitAverage(FiniteOrbit(coordinate_permutations(3), num_samples=4))
    frozen = freeze_functional(drawn, 2)
    atoms = frozen.atoms(torch.randn(2, 3))
    assert atoms.num_atoms == 6
    assert not atoms.is_drawn


def test_exact_functionals_are_left_alone():
    evaluation = Evaluation()
    assert freeze_functional(evaluation, 3) is evaluation
    assert not is_drawn(evaluation)
    assert learnable_orbits(evaluation) == []


def test_sums_of_subsampled_orbits_are_frozen_too():
    total = freeze_functional(OrbitSum(FiniteOrbit(coordinate_permutations(3), num_samples=4)), 2)
    assert not is_drawn(total)
    assert total.atoms(torch.randn(2, 3)).weights.tolist() == [[1.0] * 6] * 2


def test_the_orbit_of_a_functional_is_the_learned_one_or_a_finite_one():
    finite = FiniteOrbit(coordinate_permutations(3))
    learned = SampledOrbit(Translation(3), -1.0, 1.0)
    assert orbit_in(Evaluation()) is None
    assert orbit_in(OrbitAverage(finite)) is finite
    assert orbit_in(OrbitAverage(finite) @ OrbitAverage(learned)) is learned
    assert orbit_in(freeze_functional(OrbitAverage(learned), 3)) is learned


def test_with_a_width_only_an_orbit_of_such_rows_is_found():
    patches = PatchOrbit((1, 5, 5), (3, 3))
    turned = ImageOrbit((5, 5), {"angle": 0.2})
    turned_patches = ImageOrbit((3, 3), {"angle": 0.2})
    assert orbit_in(OrbitSum(patches)) is patches
    assert orbit_in(OrbitSum(patches), 25) is None
    assert orbit_in(OrbitAverage(turned), 25) is turned
    assert orbit_in(OrbitAverage(ComposedOrbit(turned, patches)), 25) is turned
    assert orbit_in(OrbitAverage(ComposedOrbit(patches, turned_patches)), 25) is None


def test_a_finite_orbit_draws_its_elements():
    orbit = drawn_form(FiniteOrbit(coordinate_permutations(3)))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    moved = orbit.move(x, orbit.noise((1, 64), torch.Generator().manual_seed(0), x))[0]
    assert len({tuple(row) for row in moved.tolist()}) == 6
    learned = SampledOrbit(Translation(3), -1.0, 1.0)
    assert drawn_form(learned) is learned
    assert drawn_form(learned.freeze(2)) is learned
