import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitwise.functionals import (
    Combination,
    Composition,
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    FiniteDifference,
    Functional,
    Gradient,
    OrbitAverage,
    OrbitSum,
    TransformationDerivative,
)
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.transforms import Rotation, Translation, coordinate_permutations, negation, turns
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Case, FunctionalContract, Waves, apply
from tests.contracts.orbit_contract import inputs, seeded

G = Waves.random(2)
V = torch.tensor([0.3, -2.0], dtype=torch.float64)
SWAP = FiniteOrbit(coordinate_permutations(2))


class TestCombination(FunctionalContract):
    @pytest.fixture
    def case(self):
        combination = 2 * Evaluation() - DirectionalDerivative(V) + 0.5 * (OrbitAverage(SWAP) - Evaluation())
        return Case(combination, (2,), lambda g, x: 2 * g(x) - g.slope(x, V) + 0.25 * (g(x.flip(-1)) - g(x)))


class TestMixedOrders(FunctionalContract):
    """Values and slopes side by side, inside and outside of a sum of several atoms."""

    @pytest.fixture(params=["inside", "outside"])
    def case(self, request):
        both, mean = Evaluation() + 2 * DirectionalDerivative(V), OrbitAverage(SWAP)

        def inside(g, x):
            mirrored = x.flip(-1)
            return (g(x) + 2 * g.slope(x, V) + g(mirrored) + 2 * g.slope(mirrored, V)) / 2

        def outside(g, x):
            mirrored = x.flip(-1)
            return (g(x) + g(mirrored)) / 2 + g.slope(x, V) + g.slope(mirrored, V.flip(-1))

        chosen = {"inside": (mean @ both, inside), "outside": (both @ mean, outside)}
        functional, by_hand = chosen[request.param]
        return Case(functional, (2,), by_hand)


class TestComposition(FunctionalContract):
    @pytest.fixture
    def case(self):
        three = FiniteDifference(V, 0.1, order=2) @ FeatureMap(torch.exp) @ OrbitSum(SWAP)

        def value(g, x):
            return g(x.exp()) + g(x.exp().flip(-1))

        return Case(
            three, (2,), lambda g, x: (value(g, x + 0.1 * V) - 2 * value(g, x) + value(g, x - 0.1 * V)) / 0.01
        )


SMOOTH = [
    Evaluation(),
    OrbitAverage(SWAP),
    OrbitSum(FiniteOrbit(turns(3))),
    OrbitAverage(FiniteOrbit(negation(2), weights=torch.tensor([1.0, -1.0]))),
    FeatureMap(lambda x: torch.stack([x[:, 0] * x[:, 1], x[:, 0].sin()], -1)),
    FiniteDifference(V, 0.2),
    FiniteDifference(V, 0.3, order=2),
]
SLOPES = [DirectionalDerivative(V), TransformationDerivative(Rotation(2), "angle")]
factors = st.floats(-3, 3, allow_subnormal=False)
smooth = st.sampled_from(SMOOTH)
# At most one derivative in a composition.
anything = st.sampled_from(SMOOTH + SLOPES)
chains = st.tuples(smooth, smooth, smooth) | st.tuples(st.sampled_from(SLOPES), smooth, smooth)


def values(functional: Functional) -> torch.Tensor:
    return apply(functional.atoms(inputs(2, rows=2)), G)


def agree(left: Functional, right: Functional) -> None:
    torch.testing.assert_close(values(left), values(right), rtol=1e-8, atol=1e-8)


@settings(max_examples=15)
@given(st.lists(st.tuples(factors, anything), min_size=1, max_size=4))
def test_combinations_are_linear(terms):
    total, expected = 0.0 * Evaluation(), torch.zeros(2, dtype=torch.float64)
    for factor, functional in terms:
        total, expected = total + factor * functional, expected + factor * values(functional)
    torch.testing.assert_close(values(total), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=12)
@given(chains)
def test_composition_is_associative(chain):
    a, b, c = chain
    agree((a @ b) @ c, a @ (b @ c))


@settings(max_examples=12)
@given(chains, factors)
def test_composition_distributes(chain, factor):
    a, b, c = chain
    agree((a + factor * b) @ c, a @ c + factor * (b @ c))
    agree(a @ (b - factor * c), a @ b - factor * (a @ c))


@settings(max_examples=15)
@given(anything, anything)
def test_sums_commute(a, b):
    agree(a + b, b + a)
    torch.testing.assert_close(values(a - b), -values(b - a))


def test_evaluation_is_the_neutral_element():
    average = OrbitAverage(SWAP)
    assert Evaluation() @ average is average
    assert average @ Evaluation() is average
    assert isinstance(average @ average, Composition)
    assert not (1 * Evaluation()).is_identity


def test_parts_are_modules():
    orbit = SampledOrbit(Rotation(2), -1.0, 1.0)
    functional = 2 * (DirectionalDerivative(V) @ OrbitAverage(orbit)) + Evaluation()
    assert set(functional.parameters()) == set(orbit.parameters()) != set()
    assert isinstance(functional, Combination)


def test_independent_parts_draw_independently():
    orbit = SampledOrbit(Translation(2), -1.0, 1.0, num_samples=2)
    atoms = (OrbitAverage(orbit) - OrbitAverage(orbit)).atoms(torch.zeros(2, 2), seeded())
    assert not torch.equal(atoms.points[:, :2], atoms.points[:, 2:])
    assert [group.family for group in atoms.groups] == [1, 1, 2, 2]


def test_a_scaled_block_stays_a_block():
    block = (-2 * Gradient()).atoms(inputs(2))
    expected = torch.stack([-2 * G.gradient(row) for row in inputs(2)]).flatten()
    torch.testing.assert_close(apply(block, G), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Evaluation() + 1,
        lambda: Evaluation() - "x",
        lambda: 1 + Evaluation(),
        lambda: Evaluation() * Evaluation(),
        lambda: Evaluation() @ SWAP,
        lambda: Evaluation() @ 2,
    ],
)
def test_operands_of_other_kinds(wrong):
    with unchecked(), pytest.raises(TypeError, match="unsupported operand"):
        wrong()


def test_parts_that_do_not_fit_together():
    widened = FeatureMap(lambda x: x.repeat(1, 2))
    with pytest.raises(ValueError, match="width 4 and 2"):
        (widened + Evaluation()).atoms(inputs(2))
    with pytest.raises(ValueError, match="permutes 2 coordinates, but the inputs have 4"):
        (widened @ OrbitAverage(SWAP)).atoms(inputs(2))


def test_a_functional_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Functional()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0, 2.0]], "not list"),
        (torch.ones(2, 2, dtype=torch.long), r"not torch\.int64"),
        (torch.ones(2, 2, dtype=torch.bool), r"not torch\.bool"),
        (torch.ones(2), r"not shape \(2,\)"),
        (torch.ones(0, 2), r"not shape \(0, 2\)"),
        (torch.ones(2, 0), r"not shape \(2, 0\)"),
        (torch.ones(2, 2, 2), r"Evaluation takes inputs \[n, d\], not shape \(2, 2, 2\)"),
    ],
)
def test_bad_inputs(x, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        Evaluation().atoms(x)


def test_nan_and_half_precision_pass():
    atoms = Evaluation().atoms(torch.tensor([[torch.nan, 1.0]], dtype=torch.float16))
    assert atoms.points.isnan().tolist() == [[[True, False]]]
    assert atoms.points.dtype == torch.float16
