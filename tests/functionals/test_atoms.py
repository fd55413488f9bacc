from typing import final

import pytest
import torch

from orbitwise.functionals import (
    Atoms,
    Difference,
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    FiniteDifference,
    Functional,
    Gradient,
    LocalAverage,
    OrbitAverage,
)
from orbitwise.functionals.functional import exact_atoms, push, scaled
from orbitwise.orbits import FiniteOrbit, Group, SampledOrbit
from orbitwise.transforms import Rotation, Translation, coordinate_permutations, turns
from tests.contracts.functional_contract import Waves, apply
from tests.contracts.orbit_contract import inputs, seeded

G = Waves.random(2)
V = torch.tensor([0.3, -2.0], dtype=torch.float64)
SWAP = FiniteOrbit(coordinate_permutations(2))
DRAWN = SampledOrbit(Translation(2), -1.0, 1.0, num_samples=4, learnable=False)


@pytest.fixture
def values() -> Atoms:
    return OrbitAverage(FiniteOrbit(turns(3))).atoms(inputs(2))


@pytest.fixture
def mixed() -> Atoms:
    """Values and slopes, drawn and exact."""
    return (OrbitAverage(DRAWN) + DirectionalDerivative(V) @ OrbitAverage(DRAWN) + Evaluation()).atoms(
        inputs(2), seeded()
    )


def test_counts(values: Atoms, mixed: Atoms):
    assert (values.num_rows, values.num_atoms, values.is_drawn) == (3, 3, False)
    assert (mixed.num_rows, mixed.num_atoms, mixed.is_drawn) == (3, 9, True)


def test_adding_concatenates(values: Atoms):
    slopes = DirectionalDerivative(V).atoms(inputs(2))
    total = values + slopes
    torch.testing.assert_close(apply(total, G), apply(values, G) + apply(slopes, G))
    assert total.order.tolist() == [0, 0, 0, 1]
    assert (total.tangents[:, :3] == 0).all()
    torch.testing.assert_close(apply(slopes + values, G), apply(values, G) + apply(slopes, G))
    assert (values + values).tangents is None


def test_added_draws_stay_apart():
    first = OrbitAverage(DRAWN).atoms(inputs(2), seeded(0))
    second = OrbitAverage(FiniteOrbit(turns(7), num_samples=4)).atoms(inputs(2), seeded(1))
    exact = Evaluation().atoms(inputs(2))
    total = exact + first + exact + second + first
    assert total.draw.tolist() == [0, 1, 1, 2, 2, 0, 3, 3, 4, 4, 5, 5, 6, 6]
    assert total.groups == (
        Group(1, None),
        Group(1, None),
        Group(2, 7),
        Group(2, 7),
        Group(3, None),
        Group(3, None),
    )


def test_a_sum_keeps_a_symmetry_that_both_have():
    symmetric = OrbitAverage(SWAP).atoms(inputs(2))
    again = OrbitAverage(SWAP).atoms(inputs(2) + 1)
    assert (symmetric + again).symmetry == symmetric.symmetry
    same_group_other_orbit = OrbitAverage(FiniteOrbit(coordinate_permutations(2))).atoms(inputs(2))
    assert (symmetric + same_group_other_orbit).symmetry is None
    assert (symmetric + Evaluation().atoms(inputs(2))).symmetry is None
    assert (Evaluation().atoms(inputs(2)) + symmetric).symmetry is None


def test_adding_what_does_not_fit():
    with pytest.raises(ValueError, match="3 and 2 rows"):
        Evaluation().atoms(inputs(2)) + Evaluation().atoms(inputs(2, rows=2))
    with pytest.raises(ValueError, match="width 2 and 3"):
        Evaluation().atoms(inputs(2)) + Evaluation().atoms(inputs(3))


def test_scaling(mixed: Atoms):
    torch.testing.assert_close(apply(mixed.scale(2.5), G), 2.5 * apply(mixed, G))
    each = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(apply(mixed.scale(each), G), each * apply(mixed, G))


def test_shared_weights_stay_shared(values: Atoms):
    assert values.weights.stride(0) == 0
    assert values.scale(2.0).weights.stride(0) == 0
    assert values.take(slice(0, 2), 3.0).weights.stride(0) == 0
    torch.testing.assert_close(values.scale(2.0).weights, 2 * values.weights)
    own = torch.rand(3, 2)
    assert torch.equal(scaled(own, 2.0), 2 * own)
    one_row = torch.rand(1, 2)
    assert torch.equal(scaled(one_row, 2.0), 2 * one_row)


def test_slices_of_rows(mixed: Atoms):
    part = mixed.rows(slice(1, 3))
    torch.testing.assert_close(apply(part, G), apply(mixed, G)[1:])
    assert part.groups == mixed.groups
    symmetric = OrbitAverage(SWAP).atoms(inputs(2))
    assert symmetric.rows(slice(0, 1)).symmetry is symmetric.symmetry


def test_picking_and_taking_atoms(mixed: Atoms):
    picked = mixed.take(slice(1, None, 4), factor=2.0)
    taken = mixed.take(torch.tensor([1, 5]))
    assert torch.equal(picked.points, taken.points)
    assert torch.equal(picked.weights, 2 * taken.weights)
    assert torch.equal(picked.tangents, taken.tangents)
    assert picked.order.tolist() == taken.order.tolist() == [0, 1]
    assert picked.draw.tolist() == taken.draw.tolist() == [1, 3]
    torch.testing.assert_close(
        apply(mixed.take(torch.arange(4)), G) + apply(mixed.take(torch.arange(4, 9)), G), apply(mixed, G)
    )
    symmetric = OrbitAverage(SWAP).atoms(inputs(2))
    assert symmetric.take(slice(None)).symmetry is None
    assert symmetric.take(torch.arange(2)).symmetry is None


def test_frozen_atoms_forget_that_they_were_drawn(mixed: Atoms):
    frozen = mixed.frozen()
    assert not frozen.is_drawn
    assert (frozen.draw == 0).all()
    torch.testing.assert_close(apply(frozen, G), apply(mixed, G))


def test_rows_split_into_batches(mixed: Atoms):
    batched = OrbitAverage(SWAP).atoms(inputs(2, rows=6)).batched(torch.Size([2]))
    assert batched.points.shape == (2, 3, 2, 2)
    assert batched.weights.shape == (2, 3, 2)
    assert batched.num_rows == 3
    assert torch.equal(batched.points[1, 2, 0], inputs(2, rows=6)[5])
    with_tangents = mixed.batched(torch.Size([3]))
    assert with_tangents.tangents.shape == with_tangents.points.shape == (3, 1, 9, 2)
    assert torch.equal(with_tangents.tangents[2, 0], mixed.tangents[2])
    assert torch.equal(mixed.batched(torch.Size([])).points, mixed.points)
    # rows, atoms and factors are then counted within a batch
    assert torch.equal(batched.rows(slice(1, 2)).points, batched.points[:, 1:2])
    assert torch.equal(batched.take(slice(0, 1)).points, batched.points[:, :, :1])
    each = torch.rand(2, 3, dtype=torch.float64)
    torch.testing.assert_close(batched.scale(each).weights, batched.weights * each[..., None])


def test_exact_atoms():
    points, weights = torch.rand(2, 3, 2), torch.rand(2, 3)
    assert exact_atoms(points, weights).order.tolist() == [0, 0, 0]
    assert exact_atoms(points, weights, torch.rand(2, 3, 2)).order.tolist() == [1, 1, 1]


def test_draws_of_a_substituted_functional():
    """A difference of drawn averages: each of its two atoms draws anew, with groups of its own."""
    pairs = inputs(4).reshape(3, 2, 2)
    atoms = (Difference() @ OrbitAverage(DRAWN)).atoms(pairs, seeded())
    assert atoms.draw.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [group.family for group in atoms.groups] == [1, 1, 2, 2]
    torch.testing.assert_close(atoms.weights[0, [0, 4]], torch.tensor([0.25, -0.25], dtype=torch.float64))
    moves = (atoms.points - pairs.repeat_interleave(4, 1)).flatten()
    assert len(moves.unique()) == moves.numel()
    mixed = (Difference() @ (Evaluation() + OrbitAverage(DRAWN))).atoms(pairs, seeded())
    assert mixed.draw.tolist() == [0, 1, 1, 2, 2, 0, 3, 3, 4, 4]


def test_a_drawn_average_of_one_atom_keeps_its_draws():
    atoms = (OrbitAverage(DRAWN) @ FeatureMap(torch.sin)).atoms(inputs(2), seeded())
    assert atoms.draw.tolist() == [1, 1, 2, 2]
    assert atoms.groups == (Group(1, None),) * 2


@pytest.mark.parametrize(
    "inner",
    [OrbitAverage(DRAWN), OrbitAverage(SWAP), FiniteDifference(V)],
    ids=["drawn", "whole", "difference"],
)
def test_atoms_of_one_draw_are_not_taken_for_independent(inner):
    with pytest.raises(ValueError, match="no unbiased form here; freeze the outer orbit"):
        (OrbitAverage(DRAWN) @ inner).atoms(inputs(2), seeded())


def test_a_block_is_no_inner_function():
    for outer in (OrbitAverage(SWAP), FiniteDifference(V), DirectionalDerivative(V)):
        with pytest.raises(ValueError, match="Gradient is a block of many rows"):
            (outer @ Gradient()).atoms(inputs(2))


def test_which_substitutions_keep_a_symmetry():
    x = inputs(2)
    average = OrbitAverage(SWAP)
    kept = (DirectionalDerivative(V) @ average).atoms(x).symmetry
    assert kept is not None
    assert kept.isometric
    features = (average @ FeatureMap(torch.sin)).atoms(x).symmetry
    assert features is not None
    assert features.token is SWAP
    assert not features.isometric
    # The group moves the points of an average of slopes, but not their directions.
    assert (average @ DirectionalDerivative(V)).atoms(x).symmetry is None
    assert (average @ FiniteDifference(V)).atoms(x).symmetry is None
    inner = OrbitAverage(FiniteOrbit(turns(3)))
    assert (average @ inner).atoms(x).symmetry.token is inner.orbit


@final
class Weighted(Functional):
    """x₀·g(x): a weight that depends on the input."""

    def lower(self, x, generator=None):
        return exact_atoms(x[:, None, :], x[:, :1])


def test_weights_that_depend_on_the_input():
    x = inputs(2)
    torch.testing.assert_close(apply(Weighted().atoms(x), G), x[:, 0] * torch.stack([G(row) for row in x]))
    apply((OrbitAverage(SWAP) @ Weighted()).atoms(x), G)
    with pytest.raises(ValueError, match="weights depend on the input"):
        (DirectionalDerivative(V) @ Weighted()).atoms(x)
    with pytest.raises(ValueError, match="weights depend on the input"):
        (Gradient() @ Weighted()).atoms(x)


def test_pushing_gives_ordinary_tensors():
    """What was made inside a forward derivative must not carry its duals out."""
    x = inputs(2)[:, None]
    orbit = SampledOrbit(Rotation(2), -1.0, 1.0)
    atoms, tangent = push(
        lambda y: OrbitAverage(orbit).lower(y.reshape(3, 2), seeded()), x, torch.ones_like(x)
    )
    plain = OrbitAverage(orbit).atoms(x[:, 0], seeded())
    for name in ("points", "weights", "order", "draw"):
        assert torch.equal(getattr(atoms, name), getattr(plain, name))
    (tangent.sum() + atoms.points.sum()).backward()
    assert any(bound.grad.abs().max() > 0 for bound in orbit.parameters())
    assert atoms.tangents is None
    assert atoms.groups == plain.groups


def test_blurs_are_carried_along():
    x = inputs(2, rows=4)
    local, slope = LocalAverage(0.5).atoms(x), DirectionalDerivative(V).atoms(x)
    both = slope + local + Evaluation().atoms(x)
    assert both.blur.tolist() == [0.0, 0.25, 0.0, 0.0]
    assert (local + slope).blur.tolist() == [0.25, 0.0, 0.0]
    assert (slope + slope).blur is None
    assert slope.filled_blur.tolist() == [0.0]
    assert both.take(torch.tensor([1, 3])).blur.tolist() == [0.25, 0.0]
    assert both.take(slice(1, None, 2)).blur.tolist() == [0.25, 0.0]
    for same in (both.scale(2.0), both.frozen(), both.rows(slice(0, 2)), both.batched(torch.Size([2]))):
        assert torch.equal(same.blur, both.blur)
    inside = (Difference() @ LocalAverage(0.5)).atoms(x.reshape(2, 2, 2))
    assert inside.blur.tolist() == [0.25, 0.0, 0.25, 0.0]
    assert inside.weights[0].tolist() == [1.0, -1.0, -1.0, 1.0]


def test_pushing_carries_blurs_as_ordinary_tensors():
    x = inputs(2)[:, None]
    atoms, _ = push(lambda y: LocalAverage(0.5).lower(y.reshape(3, 2)), x, torch.ones_like(x))
    assert atoms.blur.tolist() == [0.25, 0.0]
    assert float(atoms.blur[0]) == 0.25
