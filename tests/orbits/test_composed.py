import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.functionals import OrbitAverage
from orbitwise.orbits import (
    ComposedOrbit,
    DeformationOrbit,
    FiniteOrbit,
    ImageOrbit,
    JitterOrbit,
    PatchOrbit,
    SampledOrbit,
    WeightedOrbit,
)
from orbitwise.orbits.composed import _pass
from orbitwise.process import Process
from orbitwise.process.unbiased import unbiased_variance
from orbitwise.transforms import Rotation, Scaling, Translation, cyclic_shifts, flips, negation, turns
from tests.contracts.annotations import unchecked
from tests.contracts.learnable_contract import LearnableContract, assert_gradients_reach_what_is_learned
from tests.contracts.orbit_contract import inputs, seeded


class TestComposedOrbit(LearnableContract):
    @pytest.fixture(params=["two drawn", "finite first", "finite last", "three", "frozen", "images"])
    def case(self, request):
        turn, move = SampledOrbit(Rotation(2), -0.5, 0.5), SampledOrbit(Translation(2), 0.1, 0.5)
        stages, width = {
            "two drawn": ([turn, move], 2),
            "finite first": ([FiniteOrbit(turns(4)), move], 2),
            "finite last": ([move, FiniteOrbit(cyclic_shifts(2))], 2),
            "three": ([turn, FiniteOrbit(turns(3), num_samples=2), JitterOrbit(2, 0.2)], 2),
            "frozen": ([turn.freeze(3, seeded()), move], 2),
            "images": ([ImageOrbit((3, 4)), DeformationOrbit((3, 4), 0.2), FiniteOrbit(flips((3, 4)))], 12),
        }[request.param]
        return ComposedOrbit(*stages, num_samples=4), width


def test_stages_act_in_order():
    grow, move = SampledOrbit(Scaling(), 0.0, 1.0), SampledOrbit(Translation(1), 0.0, 1.0)
    orbit, x = ComposedOrbit(grow, move, num_samples=4), inputs(1)
    noise = orbit.noise((3, 4), seeded(), x)
    growth, shift = (0.5 + 0.5 * noise[..., i] for i in (0, 1))
    expected = x * growth.exp() + shift
    torch.testing.assert_close(orbit.move(x, noise)[..., 0], expected)
    torch.testing.assert_close(orbit.points(x, seeded()).points[..., 0], expected)
    other = ComposedOrbit(move, grow).move(x, noise.flip(-1))
    torch.testing.assert_close(other[..., 0], (x + shift) * growth.exp())


def test_one_stage_is_that_stage():
    alone = SampledOrbit(Rotation(2), -0.5, 0.5, num_samples=4)
    composed = ComposedOrbit(alone, num_samples=4)
    found, expected = (orbit.points(inputs(2), seeded()).points for orbit in (composed, alone))
    torch.testing.assert_close(found, expected)


def test_elements_are_equally_likely():
    orbit = ComposedOrbit(FiniteOrbit(cyclic_shifts(5)), num_samples=4)
    x = torch.arange(5.0).expand(2000, -1)
    counts = torch.bincount(orbit.points(x, seeded()).points[..., 0].long().flatten(), minlength=5)
    assert ((counts / 8000 - 0.2).abs() < 4 * math.sqrt(0.16 / 8000)).all()


def test_exact_stages_freeze_to_all_products():
    x = inputs(4)
    first, then = FiniteOrbit(cyclic_shifts(4)), FiniteOrbit(negation(4))
    frozen = ComposedOrbit(first, then).freeze(7)
    assert frozen.size == 8
    moved = frozen.points(x)
    products = torch.stack([first.points(x).points, -first.points(x).points], 2).flatten(1, 2)
    torch.testing.assert_close(moved.points, products)
    torch.testing.assert_close(moved.weights, torch.full((3, 8), 1 / 8, dtype=torch.float64))


def test_a_frozen_composition_takes_finite_stages_in_full():
    x, turn = inputs(2), SampledOrbit(Rotation(2), -0.5, 0.5)
    for rule, count in (("random", 5), ("sobol", 4), ("gauss", 3)):
        frozen = ComposedOrbit(turn, FiniteOrbit(negation(2))).freeze(count, seeded(), rule)
        assert frozen.size == 2 * count
        moved = frozen.points(x)
        torch.testing.assert_close(moved.points[:, 1::2], -moved.points[:, ::2])
        assert moved.weights.sum(-1).tolist() == pytest.approx([1.0] * 3)
    alone = turn.freeze(3, rule="gauss").points(x)
    torch.testing.assert_close(moved.points[:, ::2], alone.points)
    torch.testing.assert_close(moved.weights[:, ::2], alone.weights / 2)


def test_weights_pass_through():
    """An anti-symmetric average stays one, drawn and frozen, and learned weights stay learned."""
    odd = FiniteOrbit(negation(1), weights=torch.tensor([1.0, -1.0]))
    move = SampledOrbit(Translation(1), -0.1, 0.1)
    frozen = ComposedOrbit(move, odd).freeze(3, seeded()).points(inputs(1))
    assert frozen.weights[0].tolist() == pytest.approx([1 / 6, -1 / 6] * 3)
    drawn = ComposedOrbit(move, odd, num_samples=6).points(inputs(1), seeded())
    torch.testing.assert_close(drawn.weights * 6, drawn.points[..., 0].sign(), check_dtype=False)
    learned = ComposedOrbit(move, WeightedOrbit(FiniteOrbit(negation(1))))
    with torch.no_grad():
        learned.stages[1].raw[1] = math.log(3)
    assert learned.freeze(1, seeded()).points(inputs(1)).weights[0].tolist() == pytest.approx([0.25, 0.75])
    assert_gradients_reach_what_is_learned(learned.freeze(3, seeded()), inputs(1))


def test_weights_of_quadrature_pass_through():
    """Gauss's nodes as a stage: E sin(x+α+β) over two uniform shifts is sin(x)·sin(1)²."""
    move = SampledOrbit(Translation(1), -1.0, 1.0)
    orbit, x = ComposedOrbit(move.freeze(8, rule="gauss"), move), inputs(1)
    moved = orbit.freeze(8, rule="gauss").points(x)
    assert moved.points.shape[1] == 64
    average = (moved.weights * moved.points[..., 0].sin()).sum(-1)
    torch.testing.assert_close(average, x[:, 0].sin() * math.sin(1) ** 2, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("draws", ["random", "sobol"])
def test_draws_estimate_the_frozen_double_sum_without_bias(draws):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.8
    stages = [SampledOrbit(Translation(1), -0.5, 1.0), WeightedOrbit(FiniteOrbit(negation(1)))]
    stages[1].raw[1] = 1.0
    orbit, rows = ComposedOrbit(*stages, num_samples=8, draws=draws), 4000
    x = torch.full((rows, 1), 0.4, dtype=torch.float64)
    exact = OrbitAverage(orbit.freeze(20, rule="gauss")).atoms(x[:1])
    truth = Process(None, kernel).variance(exact)[0]
    estimates = unbiased_variance(kernel, OrbitAverage(orbit).atoms(x, seeded()))
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / math.sqrt(rows)


@pytest.mark.parametrize("elements", [None, torch.tensor([[0.1], [0.2], [0.7]])])
def test_choosing_an_element_is_the_general_way_of_any_exact_orbit(elements):
    finite = FiniteOrbit(cyclic_shifts(2) if elements is None else Rotation(2), elements)
    frozen = SampledOrbit(Rotation(2), -0.5, 0.5).freeze(3, rule="gauss")
    noise = 2 * torch.rand(3, 6, 1, generator=seeded(), dtype=torch.float64) - 1
    for orbit in (finite, frozen):
        # weights learned, but still equal: the same orbit, of a kind that has no way of its own
        moved, factors = _pass(orbit, inputs(2), noise)
        general, weights = _pass(WeightedOrbit(orbit), inputs(2), noise)
        torch.testing.assert_close(moved, general)
        assert weights is not None
        torch.testing.assert_close(torch.ones_like(weights) if factors is None else factors, weights)


def test_patches_of_moved_images():
    orbit = ComposedOrbit(ImageOrbit((4, 4), {"angle": 0.5}), PatchOrbit((4, 4), (2, 2)), num_samples=4)
    assert orbit.points(inputs(16), seeded()).points.shape == (3, 4, 4)
    frozen = orbit.freeze(5, seeded())
    assert frozen.size == 5 * 9
    moved = ImageOrbit((4, 4), {"angle": 0.5}).move(inputs(16), frozen.nodes[::9, :6].expand(3, -1, -1))
    first = frozen.points(inputs(16)).points.reshape(3, 5, 9, 4)[:, :, 0]
    torch.testing.assert_close(first, moved.reshape(3, 5, 4, 4)[..., :2, :2].flatten(-2))


def test_what_all_stages_learned():
    stages = [SampledOrbit(Rotation(2), -0.5, 0.5), JitterOrbit(2, 0.1), JitterOrbit(2, 0.3)]
    assert list(ComposedOrbit(*stages).learned()) == ["angle", "jitter", "jitter_3"]
    image = ComposedOrbit(ImageOrbit((8, 8), {"shift_x": 0.25}), ImageOrbit((8, 8), {"shift_x": 0.5}))
    assert image.describe() == "shift_x -1 to +1 pixels, shift_x_2 -2 to +2 pixels"


def test_compositions_nest():
    turn, move = SampledOrbit(Rotation(2), -0.5, 0.5), SampledOrbit(Translation(2), 0.1, 0.5)
    flat = ComposedOrbit(turn, move, turn, num_samples=4)
    nested = ComposedOrbit(turn, ComposedOrbit(move, turn), num_samples=4)
    noise = flat.noise((3, 4), seeded(), inputs(2))
    torch.testing.assert_close(flat.move(inputs(2), noise), nested.move(inputs(2), noise))
    inner = ComposedOrbit(turn, FiniteOrbit(negation(2)))
    assert ComposedOrbit(inner, FiniteOrbit(cyclic_shifts(2))).freeze(3, rule="gauss").size == 12


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least one stage"):
        ComposedOrbit()
    with unchecked(), pytest.raises(TypeError, match="are orbits, not Rotation"):
        ComposedOrbit(Rotation(2))
    with pytest.raises(ValueError, match="num_samples=1"):
        ComposedOrbit(JitterOrbit(2), num_samples=1)
    with pytest.raises(ValueError, match=r"\b3\b"):
        ComposedOrbit(JitterOrbit(2), num_samples=2).points(inputs(3))
