import pytest
import torch

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Gradient,
    LocalAverage,
    OrbitAverage,
    OrbitSum,
    average_minus_value,
)
from orbitwise.orbits import FiniteOrbit, Group, SampledOrbit
from orbitwise.transforms import Rotation, Translation, coordinate_permutations, negation, turns
from tests.contracts.functional_contract import Case, FunctionalContract, Waves, apply, mean_over, slope_of
from tests.contracts.orbit_contract import inputs, seeded

SWAP = FiniteOrbit(coordinate_permutations(2))
PERMUTATIONS = FiniteOrbit(coordinate_permutations(3))
ODD = FiniteOrbit(negation(2), weights=torch.tensor([1.0, -1.0]))
FROZEN = SampledOrbit(Rotation(2), -0.5, 1.0).freeze(4, seeded())
DIRECTION = torch.tensor([0.3, -2.0], dtype=torch.float64)


def mirrored(x: torch.Tensor) -> torch.Tensor:
    """x and its mirror image, in two dimensions."""
    return torch.stack([x, x.flip(-1)])


def turned(x: torch.Tensor) -> torch.Tensor:
    """x turned by the angles of FROZEN."""
    angle = 0.25 + 0.75 * FROZEN.nodes[:, 0].double()
    return torch.stack([angle.cos() * x[0] - angle.sin() * x[1], angle.sin() * x[0] + angle.cos() * x[1]], -1)


CASES = {
    "mean over two": Case(OrbitAverage(SWAP), (2,), lambda g, x: (g(x) + g(x.flip(-1))) / 2),
    "odd part": Case(OrbitAverage(ODD), (2,), lambda g, x: (g(x) - g(-x)) / 2),
    "sum over two": Case(OrbitSum(SWAP), (2,), lambda g, x: g(x) + g(x.flip(-1))),
    "mean over frozen turns": Case(
        OrbitAverage(FROZEN), (2,), lambda g, x: mean_over(g, turned(x)).detach(), tolerance=1e-6
    ),
    "mean minus value": Case(average_minus_value(SWAP), (2,), lambda g, x: (g(x) + g(x.flip(-1))) / 2 - g(x)),
    "mean of features": Case(
        OrbitAverage(SWAP) @ FeatureMap(lambda y: y**2), (2,), lambda g, x: (g(x**2) + g(x.flip(-1) ** 2)) / 2
    ),
    "features of a mean": Case(
        FeatureMap(lambda y: y**2) @ OrbitAverage(SWAP), (2,), lambda g, x: mean_over(g, mirrored(x**2))
    ),
    "mean of a mean": Case(
        OrbitAverage(SWAP) @ OrbitAverage(ODD),
        (2,),
        lambda g, x: mean_over(lambda y: (g(y) - g(-y)) / 2, mirrored(x)),
    ),
    "slope of a mean": Case(
        DirectionalDerivative(DIRECTION) @ OrbitAverage(SWAP),
        (2,),
        lambda g, x: slope_of(lambda y: mean_over(g, mirrored(y)), x, DIRECTION),
        tolerance=1e-7,
    ),
    "mean of a slope": Case(
        OrbitAverage(SWAP) @ DirectionalDerivative(DIRECTION),
        (2,),
        lambda g, x: mean_over(lambda y: g.slope(y, DIRECTION), mirrored(x)),
    ),
    "slope of a mean minus value": Case(
        DirectionalDerivative(DIRECTION) @ average_minus_value(SWAP),
        (2,),
        lambda g, x: slope_of(lambda y: mean_over(g, mirrored(y)) - g(y), x, DIRECTION),
        tolerance=1e-7,
    ),
}


class TestAverages(FunctionalContract):
    @pytest.fixture(params=CASES)
    def case(self, request):
        return CASES[request.param]


def test_an_average_is_invariant_and_an_odd_part_changes_sign():
    g, x = Waves.random(3), inputs(3)
    average = OrbitAverage(PERMUTATIONS)
    expected = apply(average.atoms(x), g)
    for element in range(6):
        moved = PERMUTATIONS.transform.all_elements(x)[:, element]
        torch.testing.assert_close(apply(average.atoms(moved), g), expected)
    g, x = Waves.random(2), inputs(2)
    torch.testing.assert_close(apply(OrbitAverage(ODD).atoms(-x), g), -apply(OrbitAverage(ODD).atoms(x), g))


def test_a_whole_orbit_carries_its_symmetry():
    x = inputs(3)
    for functional in (OrbitAverage(PERMUTATIONS), OrbitSum(PERMUTATIONS), 2 * OrbitAverage(PERMUTATIONS)):
        symmetry = functional.atoms(x).symmetry
        assert symmetry is not None
        assert symmetry.token is PERMUTATIONS
        assert symmetry.isometric
    assert average_minus_value(PERMUTATIONS).atoms(x).symmetry is None


def test_a_drawn_average_says_how_it_was_drawn():
    atoms = OrbitAverage(SampledOrbit(Translation(2), -1.0, 1.0, num_samples=4)).atoms(inputs(2), seeded())
    assert atoms.is_drawn
    assert atoms.draw.tolist() == [1, 1, 2, 2]
    assert atoms.groups == (Group(1, None),) * 2
    assert atoms.order.tolist() == [0] * 4
    subset = OrbitSum(FiniteOrbit(turns(7), num_samples=4)).atoms(inputs(2), seeded())
    assert subset.groups == (Group(1, 7),) * 2
    torch.testing.assert_close(subset.weights, torch.full((3, 4), 7 / 4, dtype=torch.float64))


def test_average_minus_value_mixes_drawn_and_exact_atoms():
    atoms = average_minus_value(SampledOrbit(Translation(2), -1.0, 1.0, num_samples=4)).atoms(
        inputs(2), seeded()
    )
    assert atoms.draw.tolist() == [1, 1, 2, 2, 0]
    torch.testing.assert_close(atoms.weights[0], torch.tensor([0.25] * 4 + [-1.0], dtype=torch.float64))
    torch.testing.assert_close(atoms.points[:, 4], inputs(2))


@pytest.mark.parametrize("make", [OrbitAverage, OrbitSum, average_minus_value])
def test_drawn_functionals_are_unbiased(make):
    """z-score over many rows at one input, without replacement from nine turns."""
    g, x = Waves.random(2), inputs(2, rows=1)
    drawn = make(FiniteOrbit(turns(9), num_samples=4)).atoms(x.expand(400, 2), seeded(3))
    truth = apply(make(FiniteOrbit(turns(9))).atoms(x), g)
    estimates = apply(drawn, g)
    assert estimates.std() > 0.01
    assert abs((estimates.mean() - truth.item()) / (estimates.std() / 20)) < 3


def test_the_slope_of_a_drawn_average_is_the_average_of_slopes():
    orbit = SampledOrbit(Translation(2), -1.0, 1.0, num_samples=4)
    g, x = Waves.random(2), inputs(2)
    atoms = (DirectionalDerivative(DIRECTION) @ OrbitAverage(orbit)).atoms(x, seeded())
    points = orbit.points(x, seeded()).points.detach()
    expected = [mean_over(lambda y: g.slope(y, DIRECTION), row) for row in points]
    torch.testing.assert_close(apply(atoms, g).detach(), torch.stack(expected))
    assert atoms.draw.tolist() == [1, 1, 2, 2]


def test_gradients_reach_the_bounds_through_a_slope():
    orbit = SampledOrbit(Rotation(2), -0.5, 1.0)
    functional = DirectionalDerivative(DIRECTION) @ OrbitAverage(orbit.freeze(4, seeded()))

    def total() -> torch.Tensor:
        return apply(functional.atoms(inputs(2)), Waves.random(2)).sum()

    for bound in orbit.parameters():
        (gradient,) = torch.autograd.grad(total(), bound)
        with torch.no_grad():
            bound += 1e-5
            ahead = total()
            bound -= 2e-5
            behind = total()
            bound += 1e-5
        assert gradient.abs() > 1e-3
        torch.testing.assert_close(gradient, ((ahead - behind) / 2e-5).reshape(1), rtol=1e-5, atol=1e-6)


def test_only_a_finite_orbit_has_a_sum():
    with pytest.raises(ValueError, match="Only a finite orbit has a sum"):
        OrbitSum(SampledOrbit(Rotation(2), 0.0, 1.0))


@pytest.mark.parametrize("functional", [OrbitAverage(PERMUTATIONS), OrbitSum(PERMUTATIONS)])
def test_an_orbit_that_does_not_fit(functional):
    with pytest.raises(ValueError, match="permutes 3 coordinates, but the inputs have 4"):
        functional.atoms(torch.zeros(2, 4))


def test_the_sum_of_an_average_and_a_value():
    g, x = Waves.random(2), inputs(2)
    both = OrbitAverage(SWAP) + 3.0 * Evaluation()
    expected = [mean_over(g, mirrored(row)) + 3 * g(row) for row in x]
    torch.testing.assert_close(apply(both.atoms(x), g), torch.stack(expected))


def smoothed(g: Waves, x: torch.Tensor, width: float, slope: torch.Tensor | None = None) -> torch.Tensor:
    """∫ g(τ) N(τ; x, width² I) dτ in closed form, or its slope: a Gaussian damps the wave sin(b·x + c)."""
    damping = torch.exp(-0.5 * (width * g.frequency).square().sum(-1))
    blurred = Waves(g.amplitude * damping, g.frequency, g.phase)
    return blurred(x) if slope is None else blurred.slope(x, slope)


def apply_blurred(atoms, g: Waves) -> torch.Tensor:
    """`apply` for atoms with a blur, one at a time."""
    rows = []
    for i in range(atoms.num_rows):
        total = torch.zeros((), dtype=torch.float64)
        for s in range(atoms.num_atoms):
            slope = None if atoms.order[s] == 0 else atoms.tangents[i, s]
            value = smoothed(g, atoms.points[i, s], atoms.filled_blur[s].sqrt().item(), slope)
            total = total + atoms.weights[i, s] * value
        rows.append(total)
    return torch.stack(rows)


def test_a_local_average_by_hand():
    g, x = Waves.random(2), inputs(2)
    expected = torch.stack([smoothed(g, row, 0.7) - g(row) for row in x])
    assert expected.abs().max() > 0.1
    atoms = LocalAverage(0.7).atoms(x)
    torch.testing.assert_close(apply_blurred(atoms, g), expected)
    assert atoms.blur.tolist() == pytest.approx([0.49, 0.0])
    assert not atoms.is_drawn
    assert atoms.weights.stride(0) == 0
    # and by drawing: a z-score over many draws
    moves = torch.randn(20_000, 2, generator=seeded(5), dtype=torch.float64)
    values = mean_and_error(g, x[0] + 0.7 * moves)
    assert abs(values[0] - g(x[0]) - expected[0]) < 4 * values[1]


def mean_and_error(g: Waves, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = (g.amplitude * (points @ g.frequency.T + g.phase).sin()).sum(-1)
    return values.mean(), values.std() / len(values) ** 0.5


def test_combinations_and_slopes_of_local_averages():
    g, x = Waves.random(2), inputs(2)
    both = 2 * LocalAverage(0.7) - LocalAverage(0.3) + Evaluation()
    expected = [2 * smoothed(g, row, 0.7) - smoothed(g, row, 0.3) for row in x]
    torch.testing.assert_close(apply_blurred(both.atoms(x), g), torch.stack(expected))
    slope = DirectionalDerivative(DIRECTION) @ LocalAverage(0.7)
    expected = [smoothed(g, row, 0.7, DIRECTION) - g.slope(row, DIRECTION) for row in x]
    torch.testing.assert_close(apply_blurred(slope.atoms(x), g), torch.stack(expected))
    mean = OrbitAverage(SWAP) @ LocalAverage(0.7)
    expected = [mean_over(lambda y: smoothed(g, y, 0.7) - g(y), mirrored(row)) for row in x]
    torch.testing.assert_close(apply_blurred(mean.atoms(x), g), torch.stack(expected))
    torch.testing.assert_close(
        apply_blurred((Evaluation() @ LocalAverage(0.7)).atoms(x), g),
        apply_blurred((LocalAverage(0.7) @ Evaluation()).atoms(x), g),
    )


@pytest.mark.parametrize("inner", [OrbitAverage(SWAP), FeatureMap(torch.sin), LocalAverage(0.3), Gradient()])
def test_local_averages_of_other_functionals_are_refused(inner):
    with pytest.raises(ValueError, match=f"A local average of {type(inner).__name__} is not a finite sum"):
        (LocalAverage(0.7) @ inner).atoms(inputs(2))


def test_a_block_of_gradients_takes_no_local_averages():
    with pytest.raises(ValueError, match=r"DirectionalDerivative\(v\) @ LocalAverage"):
        (Gradient() @ LocalAverage(0.7)).atoms(inputs(2))


@pytest.mark.parametrize("width", [0.0, -1.0, torch.inf, torch.nan])
def test_widths_of_local_averages(width: float):
    with pytest.raises(ValueError, match="width of a local average must be positive and finite"):
        LocalAverage(width)


def test_local_averages_take_matrices():
    with pytest.raises(ValueError, match=r"LocalAverage takes inputs \[n, d\]"):
        LocalAverage(0.5).atoms(torch.ones(2, 2, 2))
    assert LocalAverage(0.5).atoms(torch.ones(2, 3)).blur.dtype == torch.float32
