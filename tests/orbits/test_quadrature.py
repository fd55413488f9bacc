import math

import pytest
import torch

from orbitwise.orbits import ComposedOrbit, FiniteOrbit, ImageOrbit, JitterOrbit, SampledOrbit
from orbitwise.orbits.nodes import Noise, gauss_nodes, nodes_for
from orbitwise.transforms import Rotation, Translation, negation
from tests.contracts.annotations import unchecked
from tests.contracts.orbit_contract import inputs, seeded

LIKE = torch.zeros((), dtype=torch.float64)


def average(orbit, x: torch.Tensor) -> torch.Tensor:
    """The frozen average of g(x) = sin(x₀ + x₁ + …)."""
    moved = orbit.points(x)
    return (moved.weights * moved.points.sum(-1).sin()).sum(-1)


def test_legendre_nodes_integrate_uniform_noise():
    """∫ sin(x+α) dα over [-1, 1] / 2 = sin(x)·sin(1)."""
    x = inputs(1)
    frozen = SampledOrbit(Translation(1), -1.0, 1.0).freeze(6, rule="gauss")
    torch.testing.assert_close(average(frozen, x), x[:, 0].sin() * math.sin(1), rtol=0, atol=1e-10)


def test_hermite_nodes_integrate_normal_noise():
    """E sin(x+θε) = sin(x)·exp(-θ²/2), and in two dimensions with 2θ²."""
    for dimension in (1, 2):
        x, frozen = inputs(dimension), JitterOrbit(dimension, 0.7).freeze(12**dimension, rule="gauss")
        assert frozen.size == 12**dimension
        exact = x.sum(-1).sin() * math.exp(-dimension * 0.49 / 2)
        torch.testing.assert_close(average(frozen, x), exact, rtol=0, atol=1e-10)


def test_a_product_of_both_kinds():
    noise = Noise((("uniform", 2), ("normal", 1)))
    nodes, weights = gauss_nodes(noise, torch.tensor([True, False, True]), 30)
    assert nodes.shape == (25, 3), "as many in each dimension as 30 nodes allow"
    assert (nodes[:, 1] == 0).all()
    assert weights.sum().item() == pytest.approx(1)
    moment = (weights * nodes[:, 0] ** 4 * nodes[:, 2] ** 6).sum().item()
    assert moment == pytest.approx(1 / 5 * 15)


def test_only_what_moves_counts_as_a_dimension():
    """An image orbit that only turns has one dimension, though it has room for six parameters."""
    orbit = ImageOrbit((4, 4), {"angle": 0.5})
    assert orbit.active.tolist() == [True] + 5 * [False]
    assert orbit.freeze(7, rule="gauss").size == 7
    with pytest.raises(ValueError, match=r"noise has 6: .*rule='sobol'"):
        ImageOrbit((4, 4)).freeze(7, rule="gauss")


def test_nothing_that_moves_is_one_node():
    nodes, weights = gauss_nodes(Noise((("uniform", 2),)), torch.tensor([False, False]), 5)
    assert nodes.tolist() == [[0, 0]]
    assert weights.tolist() == [1]


@torch.no_grad()
def test_sobol_nodes_are_better_than_draws():
    x = inputs(2)
    source = SampledOrbit(Translation(2), -1.0, 1.0)
    exact = average(source.freeze(400, rule="gauss"), x)
    errors = {
        rule: torch.stack(
            [(average(source.freeze(64, seeded(s), rule), x) - exact).square().mean() for s in range(20)]
        )
        .mean()
        .sqrt()
        for rule in ("random", "sobol")
    }
    assert errors["sobol"] < errors["random"] / 5


def test_nodes_are_repeatable():
    source = SampledOrbit(Rotation(2), -1.0, 1.0)
    for rule in ("random", "sobol"):
        assert torch.equal(source.freeze(5, seeded(), rule).nodes, source.freeze(5, seeded(), rule).nodes)
        assert not torch.equal(
            source.freeze(5, seeded(1), rule).nodes, source.freeze(5, seeded(), rule).nodes
        )
    assert torch.equal(source.freeze(5, rule="gauss").nodes, source.freeze(5, seeded(), rule="gauss").nodes)


@pytest.mark.parametrize("rule", ["random", "sobol", "gauss"])
def test_precision(rule):
    noise = Noise((("uniform", 1),))
    for dtype in (torch.float32, torch.float64):
        like = torch.zeros((), dtype=dtype)
        nodes, weights = nodes_for(noise, torch.tensor([True]), 4, rule, seeded(), like)
        assert nodes.dtype == weights.dtype == dtype
        assert weights.sum().item() == pytest.approx(1)


def test_bad_arguments():
    source = SampledOrbit(Rotation(2), -1.0, 1.0)
    for rule in ("random", "sobol", "gauss"):
        with pytest.raises(ValueError, match="at least 1, not 0"):
            source.freeze(0, rule=rule)
    with unchecked(), pytest.raises(ValueError, match="'random', 'sobol' or 'gauss', not 'halton'"):
        source.freeze(4, rule="halton")


def test_gauss_nodes_do_not_choose_elements():
    picked = ComposedOrbit(
        SampledOrbit(Translation(2), [-1.0, 0.0], [1.0, 0.0]), FiniteOrbit(negation(2), num_samples=2)
    )
    with pytest.raises(ValueError, match="leave out its num_samples"):
        picked.freeze(9, rule="gauss")
