import math

import pytest
import torch
from scipy import stats

from orbitwise.orbits import Group, SampledOrbit
from orbitwise.transforms import AffineWarp, Rotation, Scaling, Translation, negation
from tests.contracts.annotations import unchecked
from tests.contracts.learnable_contract import LearnableContract
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


class TestSampledOrbit(OrbitContract):
    @pytest.fixture(params=["rotation", "normal", "image", "four groups"])
    def case(self, request):
        return {
            "rotation": lambda: (SampledOrbit(Rotation(2), -0.5, 0.5), 2),
            "normal": lambda: (SampledOrbit(Translation(2), -0.5, 0.5, "normal", num_samples=4), 2),
            "image": lambda: (SampledOrbit(AffineWarp((3, 4)), -0.1, 0.1, num_samples=4), 12),
            "four groups": lambda: (SampledOrbit(Rotation(3), 0.0, 1.0, num_samples=8, num_groups=4), 3),
        }[request.param]()


class TestLearnableBounds(LearnableContract):
    @pytest.fixture(params=["rotation", "normal", "one bound"])
    def case(self, request):
        return {
            "rotation": lambda: (SampledOrbit(Rotation(3), 0.0, 1.0, num_samples=4), 3),
            "normal": lambda: (SampledOrbit(Translation(2), 0.2, 0.5, "normal", num_samples=4), 2),
            "one bound": lambda: (SampledOrbit(Rotation(2), -0.3, 0.5, num_samples=4, two_sided=False), 2),
        }[request.param]()


class TestAnyWidth(OrbitContract):
    fits_any_width = True

    @pytest.fixture
    def case(self):
        return SampledOrbit(Scaling(), -0.5, 0.5), 3


def draws(orbit: SampledOrbit, rows: int = 2000) -> torch.Tensor:
    """The drawn parameters of a translation [rows, s, p]."""
    x = torch.zeros(rows, orbit.transform.num_parameters, dtype=torch.float64)
    return orbit.points(x, seeded()).points.detach()


def test_uniform_draws_fill_their_bounds():
    alpha = draws(SampledOrbit(Translation(2), [-1.0, 2.0], [0.5, 5.0], num_samples=2)).flatten(0, 1)
    for values, low, high in zip(alpha.T, (-1.0, 2.0), (0.5, 5.0), strict=True):
        assert low <= values.min() < low + 0.02
        assert high - 0.02 < values.max() <= high
        assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_normal_draws_have_the_bounds_one_deviation_away():
    alpha = draws(SampledOrbit(Translation(1), 1.0, 5.0, "normal", num_samples=2)).flatten()
    assert stats.kstest(alpha.numpy(), stats.norm(3, 2).cdf).pvalue > 1e-3


def test_draws_are_fresh_for_rows_samples_and_parameters():
    alpha = draws(SampledOrbit(Translation(2), -1.0, 1.0, num_samples=4), rows=3)
    assert len(alpha.flatten().unique()) == alpha.numel()


def test_groups_and_weights():
    moved = SampledOrbit(Translation(1), -1.0, 1.0, num_samples=6, num_groups=3).points(inputs(1), seeded())
    assert moved.draw.tolist() == [1, 1, 2, 2, 3, 3]
    assert moved.groups == (Group(1, None),) * 3
    torch.testing.assert_close(moved.weights, torch.full((3, 6), 1 / 6, dtype=torch.float64))


@pytest.mark.parametrize("density", ["uniform", "normal"])
def test_gradients_reach_the_bounds(density):
    orbit, x = SampledOrbit(Rotation(2), -0.4, 0.9, density), inputs(2)

    def total() -> torch.Tensor:
        return orbit.points(x, seeded()).points.sin().sum()

    parameters = [orbit.bounds.raw_half, orbit.bounds.centre]
    gradients = torch.autograd.grad(total(), parameters)
    for bound, gradient in zip(parameters, gradients, strict=True):
        with torch.no_grad():
            bound += 1e-6
            ahead = total()
            bound -= 2e-6
            behind = total()
            bound += 1e-6
        torch.testing.assert_close(gradient, ((ahead - behind) / 2e-6).reshape(1), rtol=1e-5, atol=1e-6)
        assert abs(gradient) > 0.01


def test_bounds_can_be_fixed():
    assert all(parameter.requires_grad for parameter in SampledOrbit(Rotation(2), 0.0, 1.0).parameters())
    fixed = SampledOrbit(Rotation(2), 0.0, 1.0, learnable=False)
    assert not any(parameter.requires_grad for parameter in fixed.parameters())


def test_bounds_keep_double_precision():
    assert SampledOrbit(Rotation(2), -math.pi, math.pi).upper.item() == pytest.approx(math.pi, rel=1e-12)
    one_each = SampledOrbit(Translation(3), torch.tensor([1.0, 2.0, 3.0]), 4)
    assert one_each.lower.tolist() == pytest.approx([1.0, 2.0, 3.0], rel=1e-12)
    assert one_each.upper.tolist() == pytest.approx([4.0, 4.0, 4.0], rel=1e-12)


def test_bounds_are_copied():
    given = torch.tensor([0.0], dtype=torch.float64)
    orbit = SampledOrbit(Rotation(2), given, 1.0)
    with torch.no_grad():
        orbit.bounds.centre += 0.5
    assert given.item() == 0
    assert orbit.lower.item() == pytest.approx(0.5)


def test_bounds_keep_their_order_wherever_they_are_taken():
    orbit = SampledOrbit(Rotation(2), -1.0, 1.0)
    with torch.no_grad():
        orbit.bounds.raw_half -= 50
    assert orbit.lower.item() <= orbit.upper.item()
    with torch.no_grad():
        orbit.bounds.raw_half += 100
    assert orbit.upper.item() - orbit.lower.item() <= 2 * math.pi * (1 + 1e-9), "a whole turn at most"


def test_one_sided_bounds_keep_their_centre():
    orbit = SampledOrbit(Translation(2), [-1.0, 0.0], [1.0, 4.0], two_sided=False)
    assert [name for name, value in orbit.named_parameters() if value.requires_grad] == ["bounds.raw_half"]
    with torch.no_grad():
        orbit.bounds.raw_half += math.log(2)
    assert orbit.lower.tolist() == pytest.approx([-2.0, -2.0])
    assert orbit.upper.tolist() == pytest.approx([2.0, 6.0])


def test_a_move_with_equal_bounds_learns_its_centre_only():
    orbit = SampledOrbit(Translation(2), [2.0, -1.0], [2.0, 1.0])
    assert orbit.bounds.moves.tolist() == [False, True]
    assert orbit.bounds.shifts.tolist() == [True, True]


def test_it_says_what_it_learned_in_natural_units():
    orbit = SampledOrbit(AffineWarp((8, 10)), -0.2, 0.2, num_samples=4)
    assert "angle -11.5 to +11.5°" in repr(orbit)
    assert "shift_x -1 to +1 pixels" in orbit.describe()
    assert "shift_y -0.8 to +0.8 pixels" in orbit.describe()
    assert "log_scale_x -18.1 to +22.1 %" in orbit.describe()
    assert orbit.learned()["shear"] == pytest.approx((-0.2, 0.2))


def test_equal_bounds_move_everything_alike():
    moved = SampledOrbit(Translation(1), 2.0, 2.0, num_samples=2).points(torch.zeros(3, 1), seeded())
    assert (moved.points == 2).all()


def test_freezing():
    orbit = SampledOrbit(Translation(1), -1.0, 1.0)
    frozen = orbit.freeze(5, seeded())
    assert frozen.size == 5
    assert not frozen.is_drawn
    first = frozen.points(torch.zeros(2, 1)).points
    torch.testing.assert_close(first[0], first[1])
    assert torch.equal(frozen.points(torch.zeros(2, 1), seeded(9)).points, first)
    assert torch.equal(orbit.freeze(5, seeded()).nodes, frozen.nodes)
    assert not torch.equal(orbit.freeze(5, seeded(1)).nodes, frozen.nodes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, "gamma"), "'uniform' or 'normal', not 'gamma'"),
        (lambda: SampledOrbit(negation(2), 0.0, 1.0), "discrete family: use FiniteOrbit"),
        (lambda: SampledOrbit(Rotation(2), 1.0, 0.0), r"lower=\[1.0\] must not exceed upper=\[0.0\]"),
        (lambda: SampledOrbit(Rotation(3), [0.0, 0.0], 1.0), r"one number or 3 numbers, not shape \(2,\)"),
        (lambda: SampledOrbit(Rotation(3), torch.zeros(3, 1), 1.0), r"not shape \(3, 1\)"),
        (lambda: SampledOrbit(Rotation(2), -math.inf, 1.0), "finite"),
        (lambda: SampledOrbit(Rotation(2), 0.0, math.nan), "finite"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, num_samples=1), "num_samples=1"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, num_samples=1, num_groups=1), "at least two draws"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, num_samples=5), "num_samples=5 cannot be split"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0).freeze(0), "at least 1, not 0"),
        (lambda: SampledOrbit(Rotation(2), -4.0, 4.0), "angle starts at 4, above its limit 3.14"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, draws="halton"), "'random' or 'sobol', not 'halton'"),
        (lambda: SampledOrbit(Rotation(2), 0.0, 1.0, num_groups=1, draws="sobol"), "num_groups of 2 or more"),
    ],
)
def test_bad_arguments(make, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        make()
