import math

import numpy as np
import pytest
import torch

from orbitwise.orbits import FrozenOrbit, ImageOrbit, SampledOrbit, freeze
from orbitwise.transforms import AffineWarp, Rotation, Translation
from tests.contracts.annotations import unchecked
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


class TestFrozenOrbit(OrbitContract):
    @pytest.fixture(params=["rotation", "image", "image orbit"])
    def case(self, request):
        return {
            "rotation": lambda: (SampledOrbit(Rotation(2), -0.5, 0.5).freeze(5, seeded()), 2),
            "image": lambda: (SampledOrbit(AffineWarp((3, 4)), -0.1, 0.1).freeze(3, seeded()), 12),
            "image orbit": lambda: (ImageOrbit((3, 4), amplitude=0.5).freeze(3, seeded()), 12),
        }[request.param]()


def test_nodes_by_hand():
    source = SampledOrbit(Translation(1), 1.0, 5.0)
    frozen = FrozenOrbit(source, torch.tensor([[-1.0], [0.0], [1.0]]), torch.tensor([0.25, 0.5, 0.25]))
    moved = frozen.points(torch.tensor([[10.0], [20.0]]))
    assert moved.points.tolist() == [[[11], [13], [15]], [[21], [23], [25]]]
    assert moved.weights.tolist() == [[0.25, 0.5, 0.25]] * 2
    assert frozen.size == 3


def test_equal_weights_by_default():
    frozen = freeze(SampledOrbit(Translation(1), -1.0, 1.0), 4, seeded())
    torch.testing.assert_close(frozen.weights, torch.full((4,), 0.25))


def test_nodes_move_with_the_bounds():
    source = SampledOrbit(Translation(1), -1.0, 1.0)
    frozen = source.freeze(6, seeded())
    before = frozen.points(torch.zeros(1, 1)).points
    with torch.no_grad():
        source.bounds.raw_half += math.log(3)
    torch.testing.assert_close(frozen.points(torch.zeros(1, 1)).points, 3 * before)
    frozen.points(torch.ones(1, 1)).points.square().sum().backward()
    assert source.bounds.raw_half.grad.abs() > 0
    assert source.bounds.centre.grad.abs() > 0
    assert {name for name, _ in frozen.named_parameters()} == {
        "source.bounds.raw_half",
        "source.bounds.centre",
    }


def test_it_says_what_was_frozen():
    frozen = SampledOrbit(Rotation(2), -math.pi / 2, math.pi / 2).freeze(6, seeded())
    assert repr(frozen) == "FrozenOrbit(SampledOrbit, angle -90 to +90°, num_nodes=6)"
    assert frozen.learned() == frozen.source.learned()


def test_gauss_legendre_nodes_integrate():
    """f(x) = ∫ sin(x+α) dα over [-1, 1] / 2 = sin(x)·sin(1), by six nodes."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(6))
    frozen = FrozenOrbit(SampledOrbit(Translation(1), -1.0, 1.0), nodes[:, None], weights / 2)
    x = inputs(1)
    moved = frozen.points(x)
    average = (moved.weights * moved.points[..., 0].sin()).sum(-1)
    torch.testing.assert_close(average, x[:, 0].sin() * math.sin(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("nodes", "weights", "message"),
    [
        (torch.zeros(0, 1), None, "at least one"),
        (torch.zeros(3), None, r"\[s, q\], at least one, not shape \(3,\)"),
        (torch.zeros(3, 1), torch.ones(2), r"3 weights, not shape \(2,\)"),
        (torch.tensor([[torch.nan]]), None, "finite"),
        (torch.zeros(1, 1), torch.tensor([torch.inf]), "finite"),
    ],
)
def test_bad_nodes(nodes, weights, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        FrozenOrbit(SampledOrbit(Translation(1), -1.0, 1.0), nodes, weights)


def test_at_least_one_node():
    with pytest.raises(ValueError, match="at least 1, not -1"):
        freeze(SampledOrbit(Translation(1), -1.0, 1.0), -1)
