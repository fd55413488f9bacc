import math

import pytest
import torch

from orbitwise.functionals import (
    DirectionalDerivative,
    DirectionalDerivatives,
    FeatureMap,
    FiniteDifference,
    Gradient,
    OrbitAverage,
    TransformationDerivative,
    total_variation,
)
from orbitwise.orbits import FiniteOrbit
from orbitwise.transforms import AffineWarp, Rotation, Scaling, Translation, coordinate_permutations, turns
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Case, FunctionalContract, Waves, apply, mean_over, slope_of
from tests.contracts.orbit_contract import inputs

V = torch.tensor([0.3, -2.0], dtype=torch.float64)
SWAP = FiniteOrbit(coordinate_permutations(2))


def square(x: torch.Tensor) -> torch.Tensor:
    return x**2


def mirrored(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x.flip(-1)])


def turned(g: Waves, x: torch.Tensor) -> torch.Tensor:
    """d/dα g(R(α)x) at 0."""
    return g.slope(x, torch.stack([-x[1], x[0]]))


def first_difference(g: Waves, x: torch.Tensor, step: float) -> torch.Tensor:
    return (g(x + step * V) - g(x - step * V)) / (2 * step)


def second_difference(g: Waves, x: torch.Tensor, step: float) -> torch.Tensor:
    return (g(x + step * V) - 2 * g(x) + g(x - step * V)) / step**2


CASES = {
    "slope": Case(DirectionalDerivative(V), (2,), lambda g, x: g.slope(x, V)),
    "slope along a float32 direction": Case(
        DirectionalDerivative(V.float()), (2,), lambda g, x: g.slope(x, V.float().double())
    ),
    "slopes along two directions": Case(
        DirectionalDerivatives(torch.stack([V, V.flip(0)])),
        (2,),
        lambda g, x: torch.stack([g.slope(x, V), g.slope(x, V.flip(0))]),
    ),
    "slopes of a mean": Case(
        DirectionalDerivatives(torch.stack([V, V.flip(0)])) @ OrbitAverage(SWAP),
        (2,),
        lambda g, x: torch.stack(
            [
                slope_of(lambda y: mean_over(g, mirrored(y)), x, V),
                slope_of(lambda y: mean_over(g, mirrored(y)), x, V.flip(0)),
            ]
        ),
        tolerance=1e-7,
    ),
    "all slopes": Case(Gradient(), (2,), lambda g, x: g.gradient(x)),
    "two slopes of three": Case(Gradient([2, -3]), (3,), lambda g, x: g.gradient(x)[[2, 0]]),
    "all slopes of a mean": Case(
        Gradient() @ OrbitAverage(SWAP),
        (2,),
        lambda g, x: (g.gradient(x) + g.gradient(x.flip(-1)).flip(-1)) / 2,
    ),
    "all slopes of features": Case(
        Gradient() @ FeatureMap(square), (2,), lambda g, x: g.gradient(square(x)) * 2 * x
    ),
    "turn": Case(TransformationDerivative(Rotation(2), 0), (2,), turned),
    "turn by name": Case(TransformationDerivative(Rotation(2), "angle"), (2,), turned),
    "growth of a cloud": Case(
        TransformationDerivative(Scaling(2), "log_scale_1"),
        (4,),
        lambda g, x: g.slope(x, torch.stack([0 * x[0], x[1], 0 * x[2], x[3]])),
    ),
    "all shifts of a cloud": Case(
        TransformationDerivative(Translation(2)),
        (4,),
        lambda g, x: torch.stack([g.gradient(x)[0::2].sum(), g.gradient(x)[1::2].sum()]),
    ),
    "turn of a mean": Case(
        TransformationDerivative(Rotation(2), -1) @ OrbitAverage(SWAP),
        (2,),
        lambda g, x: slope_of(lambda y: mean_over(g, mirrored(y)), x, torch.stack([-x[1], x[0]])),
        tolerance=1e-7,
    ),
    "mean of a turn": Case(
        OrbitAverage(SWAP) @ TransformationDerivative(Rotation(2), 0),
        (2,),
        lambda g, x: mean_over(lambda y: turned(g, y), mirrored(x)),
    ),
    "difference": Case(FiniteDifference(V, 0.1), (2,), lambda g, x: first_difference(g, x, 0.1)),
    "second difference": Case(
        FiniteDifference(V, 0.1, order=2), (2,), lambda g, x: second_difference(g, x, 0.1)
    ),
    "difference of slopes": Case(
        FiniteDifference(V, 0.1) @ DirectionalDerivative(V),
        (2,),
        lambda g, x: (g.slope(x + 0.1 * V, V) - g.slope(x - 0.1 * V, V)) / 0.2,
    ),
    "slope of differences": Case(
        DirectionalDerivative(V) @ FiniteDifference(V, 0.1),
        (2,),
        lambda g, x: (g.slope(x + 0.1 * V, V) - g.slope(x - 0.1 * V, V)) / 0.2,
    ),
    "difference of a mean": Case(
        FiniteDifference(V, 0.1) @ OrbitAverage(SWAP),
        (2,),
        lambda g, x: (mean_over(g, mirrored(x + 0.1 * V)) - mean_over(g, mirrored(x - 0.1 * V))) / 0.2,
    ),
}


class TestDerivatives(FunctionalContract):
    @pytest.fixture(params=CASES)
    def case(self, request):
        return CASES[request.param]


def test_one_direction_for_every_row():
    x, g = inputs(2), Waves.random(2)
    directions = torch.randn(3, 2, dtype=torch.float64)
    slopes = torch.stack([g.slope(row, v) for row, v in zip(x, directions, strict=True)])
    torch.testing.assert_close(apply(DirectionalDerivative(directions).atoms(x), g), slopes)
    torch.testing.assert_close(
        apply(FiniteDifference(directions, 1e-5).atoms(x), g), slopes, rtol=1e-6, atol=1e-6
    )


def test_second_differences_near_second_derivatives():
    x, g = inputs(2), Waves.random(2)
    curvature = torch.stack([slope_of(lambda y: g.slope(y, V), row, V) for row in x])
    torch.testing.assert_close(
        apply(FiniteDifference(V, 1e-3, order=2).atoms(x), g), curvature, rtol=1e-3, atol=1e-3
    )


def test_a_turning_image():
    """The tangent of an image warp is pushed through whatever follows."""
    warp, x = AffineWarp((3, 4)), inputs(12)
    atoms = TransformationDerivative(warp, "angle").atoms(x)
    torch.testing.assert_close(atoms.tangents[:, 0], warp.tangent(x)[:, 0])
    everything = TransformationDerivative(warp).atoms(x)
    torch.testing.assert_close(everything.directions[:, 0], warp.tangent(x))


def test_a_function_invariant_to_turns_has_no_slope_along_them():
    """The mean over many turns changes little when its input turns."""
    g, x = Waves.random(2), inputs(2)
    slope = TransformationDerivative(Rotation(2), "angle")
    mean = OrbitAverage(FiniteOrbit(turns(40)))
    assert apply((slope @ mean).atoms(x), g).abs().max() < 1e-9
    assert apply(slope.atoms(x), g).abs().max() > 0.1


def test_integer_free_directions_are_buffers():
    functional = DirectionalDerivative(V.float())
    assert dict(functional.named_buffers())["direction"].dtype == torch.float32
    assert functional.double().direction.dtype == torch.float64


@pytest.mark.parametrize("make", [DirectionalDerivative, FiniteDifference])
@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (torch.tensor(1.0), r"\[d\] or \[n, d\]"),
        (torch.ones(1, 2, 2), r"\[d\] or \[n, d\]"),
        (torch.ones(0), r"\[d\] or \[n, d\]"),
        (torch.ones(2, dtype=torch.long), r"torch\.int64"),
    ],
)
def test_bad_directions(make, direction, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        make(direction)


@pytest.mark.parametrize("make", [DirectionalDerivative, FiniteDifference])
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 2), (3, 3)], ids=str)
def test_directions_that_do_not_fit(make, shape):
    with pytest.raises(ValueError, match=r"\[2\] or \[3, 2\].*not \("):
        make(torch.ones(shape)).atoms(inputs(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FiniteDifference(V, order=3), "order 1 or 2, not 3"),
        (lambda: FiniteDifference(V, step=0.0), "positive and finite, not 0.0"),
        (lambda: FiniteDifference(V, step=-1.0), "positive and finite"),
        (lambda: FiniteDifference(V, step=math.nan), "positive and finite"),
        (lambda: FiniteDifference(V, step=math.inf), "positive and finite"),
        (lambda: Gradient([]), "at least one coordinate"),
        (lambda: Gradient([2]).atoms(inputs(2)), r"coordinates=\[2\].*width 2"),
        (lambda: Gradient([0, -3]).atoms(inputs(2)), r"coordinates=\[0, -3\].*width 2"),
        (lambda: TransformationDerivative(Rotation(2), "turn"), "the parameters angle, not 'turn'"),
        (lambda: TransformationDerivative(Rotation(2), 1), "has 1 parameters; there is no number 1"),
        (lambda: TransformationDerivative(turns(3)), "discrete family"),
        (lambda: TransformationDerivative(Rotation(2)).atoms(inputs(3)), "width 3 is not a multiple of 2"),
    ],
)
def test_bad_arguments(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "functional",
    [
        DirectionalDerivative(V) @ DirectionalDerivative(V),
        DirectionalDerivative(V) @ TransformationDerivative(Rotation(2), 0),
        Gradient() @ DirectionalDerivative(V),
    ],
)
def test_no_derivatives_of_derivatives(functional):
    with pytest.raises(ValueError, match="FiniteDifference"):
        functional.atoms(inputs(2))


def test_directions_of_every_row():
    x, g = inputs(2), Waves.random(2)
    directions = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    block = DirectionalDerivatives(directions).atoms(x)
    assert block.num_rows == 12
    expected = [g.slope(row, v) for row, few in zip(x, directions, strict=True) for v in few]
    torch.testing.assert_close(apply(block, g), torch.stack(expected))


@pytest.mark.parametrize("shape", [(2,), (0, 2), (1, 2, 2, 2)])
def test_directions_that_are_none(shape: tuple[int, ...]):
    with unchecked(), pytest.raises(ValueError, match=r"\[k, d\] or \[n, k, d\]"):
        DirectionalDerivatives(torch.ones(shape))
    with unchecked(), pytest.raises(ValueError, match=r"torch\.int64"):
        DirectionalDerivatives(torch.ones(2, 2, dtype=torch.long))


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 2)])
def test_directions_of_other_inputs(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"shape \[k, 2\] or \[3, k, 2\] for inputs of shape \(3, 2\)"):
        DirectionalDerivatives(torch.ones(shape)).atoms(inputs(2))


def test_total_variation_of_a_wave():
    """∫|cos| over [0, 5π/4] is 2 + √½, with a kink; where the wave only rises the sum is exact."""
    slope, points, weights = total_variation(0.0, 1.25 * math.pi, 400)
    wave = Waves(*(torch.tensor(part, dtype=torch.float64) for part in ([1.0], [[1.0]], [0.0])))
    slopes = apply(slope.atoms(points), wave)
    assert abs((weights * slopes.abs()).sum() - (2 + math.sqrt(0.5))) < 1e-4
    slope, points, weights = total_variation(-1.0, 1.0, 12)
    assert abs((weights * apply(slope.atoms(points), wave).abs()).sum() - 2 * math.sin(1.0)) < 1e-12
    assert weights.sum() == pytest.approx(2.0)
    single = total_variation(0.0, 1.0, 3, torch.float32)
    assert single.points.dtype == single.weights.dtype == single.slope.direction.dtype == torch.float32


@pytest.mark.parametrize("interval", [(1.0, 1.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_intervals_of_total_variation(interval: tuple[float, float]):
    with pytest.raises(ValueError, match="finite interval"):
        total_variation(*interval)
    with pytest.raises(ValueError, match="num_nodes must be at least 1, not 0"):
        total_variation(0.0, 1.0, 0)
