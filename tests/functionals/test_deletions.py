import pytest
import torch

from orbitwise.functionals import Difference, deletion_pairs
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Waves, apply
from tests.contracts.orbit_contract import inputs

MEANS = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)


@pytest.mark.parametrize("features", [None, [1], [2, 0], [-1]])
@pytest.mark.parametrize("reference", [0.0, 0.5, MEANS], ids=str)
def test_deletions_by_hand(features: list[int] | None, reference: float | torch.Tensor):
    x, g = inputs(3), Waves.random(3)
    expected = []
    for row in x:
        for j in range(3) if features is None else features:
            without = row.clone()
            without[j] = reference if isinstance(reference, float) else reference[j]
            expected.append(g(row) - g(without))
    found = apply(Difference().atoms(deletion_pairs(x, features, reference)), g)
    torch.testing.assert_close(found, torch.stack(expected))
    assert found.abs().max() > 0.01


def test_the_input_is_left_as_it_was():
    x = inputs(3, dtype=torch.float32)
    before = x.clone()
    pairs = deletion_pairs(x, [0], MEANS)
    assert pairs.dtype == torch.float32
    assert torch.equal(x, before)
    assert torch.equal(pairs[:, 0], x)


def test_a_feature_that_is_deleted_already():
    pairs = deletion_pairs(torch.tensor([[0.0, 1.0]]), [0, 1])
    assert torch.equal(pairs[0, 0], pairs[0, 1])
    assert not torch.equal(pairs[1, 0], pairs[1, 1])


@pytest.mark.parametrize("features", [[], [3], [-4], [0, 7]])
def test_features_that_are_none(features: list[int]):
    with pytest.raises(ValueError, match="must name columns of inputs of width 3, at least one"):
        deletion_pairs(inputs(3), features)


def test_clear_errors():
    with unchecked(), pytest.raises(ValueError, match=r"one number, or 3 numbers .* not shape \(2,\)"):
        deletion_pairs(inputs(3), None, MEANS[:2])
    with unchecked(), pytest.raises(ValueError, match="deletion_pairs takes a floating-point tensor"):
        deletion_pairs(inputs(3).long())
