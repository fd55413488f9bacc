"""The block of many derivatives; that it is right by hand is tested with `Gradient` in test_derivatives."""

import pytest
import torch

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Gradient,
    Gradients,
    OrbitAverage,
)
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.transforms import Translation, coordinate_permutations
from tests.contracts.functional_contract import Waves, apply
from tests.contracts.orbit_contract import inputs, seeded

PERMUTATIONS = FiniteOrbit(coordinate_permutations(3))


@pytest.fixture
def block() -> Gradients:
    return (Gradient() @ OrbitAverage(PERMUTATIONS)).atoms(inputs(3, rows=4))


def test_counts(block: Gradients):
    assert block.num_rows == 12
    assert block.num_directions == 3
    assert block.points.shape == (4, 6, 3)
    assert block.directions.shape == (4, 6, 3, 3)


def test_expanding_orders_directions_fastest(block: Gradients):
    atoms = block.expand()
    assert atoms.num_rows == 12
    assert atoms.order.tolist() == [1] * 6
    for row in range(12):
        i, k = divmod(row, 3)
        assert torch.equal(atoms.points[row], block.points[i])
        assert torch.equal(atoms.weights[row], block.weights[i])
        assert torch.equal(atoms.tangents[row], block.directions[i, :, k])
    assert atoms.symmetry is block.symmetry


def test_rows_are_slices_of_points(block: Gradients):
    g = Waves.random(3)
    torch.testing.assert_close(apply(block.rows(slice(1, 3)), g), apply(block, g)[3:9])
    assert block.rows(slice(1, 3)).symmetry is block.symmetry


def test_picking_atoms(block: Gradients):
    picked = block.take(slice(None, None, 2), factor=3.0)
    assert torch.equal(picked.points, block.points[:, ::2])
    assert torch.equal(picked.directions, block.directions[:, ::2])
    assert torch.equal(picked.weights, 3 * block.weights[:, ::2])
    assert picked.symmetry is None


def test_the_symmetry_allows_one_side(block: Gradients):
    """Slopes of an invariant f at hx along hv are those at x along v: each run is an orbit of both."""
    symmetry = block.symmetry
    assert symmetry is not None
    assert symmetry.isometric
    moved = PERMUTATIONS.transform.all_elements(inputs(3, rows=4))
    assert torch.equal(block.points, moved)
    for k in range(3):
        unit = torch.eye(3, dtype=torch.float64)[k]
        expected = PERMUTATIONS.transform.all_elements(unit.expand(4, 3))
        torch.testing.assert_close(block.directions[:, :, k], expected)


def test_features_of_a_symmetric_block_are_no_longer_isometric():
    block = (Gradient() @ OrbitAverage(PERMUTATIONS) @ FeatureMap(torch.sin)).atoms(inputs(3))
    assert block.symmetry is not None
    assert block.symmetry.token is PERMUTATIONS
    assert not block.symmetry.isometric
    assert (Gradient() @ FeatureMap(torch.sin)).atoms(inputs(3)).symmetry is None


def test_combining_rows(block: Gradients):
    coefficients = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    combined = block.combine(coefficients)
    g = Waves.random(3)
    expected = (apply(block, g).reshape(4, 3) * coefficients).sum(-1)
    torch.testing.assert_close(apply(combined, g), expected)


def test_composing_stays_one_block():
    x, g = inputs(3), Waves.random(3)
    block = (Gradient() @ FeatureMap(torch.sin)).atoms(x)
    assert isinstance(block, Gradients)
    by_rows = [
        apply((DirectionalDerivative(unit) @ FeatureMap(torch.sin)).atoms(x), g)
        for unit in torch.eye(3, dtype=torch.float64)
    ]
    torch.testing.assert_close(apply(block, g), torch.stack(by_rows, -1).flatten())


def test_blocks_cannot_be_added():
    for sum_of in (Gradient() + Gradient(), Evaluation() - Gradient()):
        with pytest.raises(ValueError, match="cannot be added"):
            sum_of.atoms(inputs(3))


@pytest.mark.parametrize(
    "inner",
    [
        OrbitAverage(SampledOrbit(Translation(3), -1.0, 1.0)),
        DirectionalDerivative(torch.ones(3)),
        Gradient(),
        2 * Gradient(),
    ],
    ids=["drawn", "slopes", "block", "scaled block"],
)
def test_what_has_no_gradient_here(inner):
    with pytest.raises(ValueError, match="exact values only"):
        (Gradient() @ inner).atoms(inputs(3))
