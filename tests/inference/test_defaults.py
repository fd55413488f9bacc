"""Starts that know the scale of the data."""

import math

import pytest
import torch

from orbitwise.inference.optimise.hyperpriors import log_prior
from orbitwise.kernels.bases import (
    LinearTrend,
    default_kernel,
    deviations,
    log_positive,
    typical_distance,
    typical_spread,
)


@pytest.fixture
def points() -> torch.Tensor:
    return torch.randn(30, 3, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1]) + 5


def test_a_lengthscale_for_each_coordinate_is_its_spread_times_the_root_of_their_number(points):
    kernel = default_kernel(points, separate_lengthscales=True)
    expected = points.numpy().std(0) * 3**0.5
    torch.testing.assert_close(kernel.base_kernel.lengthscale[0].detach(), torch.from_numpy(expected))
    assert kernel.outputscale.item() == pytest.approx(1.0)
    assert kernel.base_kernel.lengthscale.dtype == torch.float64


def test_one_lengthscale_is_the_typical_distance_of_two_points_from_the_middle(points):
    kernel = default_kernel(points, separate_lengthscales=False)
    from_the_middle = (points - points.mean(0)).square().sum(-1).mean().sqrt()
    assert kernel.base_kernel.ard_num_dims is None
    assert kernel.base_kernel.lengthscale.item() == pytest.approx(from_the_middle.item())


def test_a_hyperprior_of_lengthscales_has_its_mode_at_the_scale_of_columns_that_vary(points):
    points = torch.cat([points, torch.full((30, 1), 7.0)], dim=1)
    base = default_kernel(points, separate_lengthscales=True, deviation=0.5).base_kernel
    mode = torch.cat([typical_distance(points[:, :3], True), typical_distance(points, True)[:, 3:]], dim=1)
    mode[:, 3] *= (3 / 4) ** 0.5

    def density(lengthscale: torch.Tensor) -> float:
        base.lengthscale = lengthscale
        return log_prior(base).item()

    for factor in (0.5, 2.0):
        fall = density(mode) - density(factor * mode)
        # four lengthscales, each log 2 / 0.5 deviations away
        assert fall == pytest.approx(4 * 0.5 * (math.log(2) / 0.5) ** 2)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_lengthscales_scale_with_the_points(points, separate, factor):
    small = typical_distance(points, separate)
    torch.testing.assert_close(typical_distance(factor * points, separate), factor * small)


def test_a_coordinate_that_varies_by_rounding_only_counts_as_constant():
    points = torch.full((7, 2), 0.1, dtype=torch.float64)
    points[:, 1] = torch.arange(7)
    points[0, 0] += 1e-16
    assert points.std(0, correction=0)[0] > 0, "rounding is what this test is about"
    torch.testing.assert_close(typical_distance(points, True)[0, 0].item(), 2**0.5)
    assert typical_distance(points[:1], False).item() == pytest.approx(2**0.5)


@pytest.mark.parametrize("value", [1e-12, 1.0, 1e12])
def test_positive_parameters_move_by_factors(value):
    constraint = log_positive()
    raw = constraint.inverse_transform(torch.tensor(value, dtype=torch.float64))
    assert constraint.transform(raw).item() == pytest.approx(value)
    # The same step multiplies by the same factor, whatever the size.
    assert constraint.transform(raw + 1).item() == pytest.approx(value * torch.e)


def test_a_linear_trend_starts_at_zero_and_is_linear(points):
    trend = LinearTrend(points)
    assert not trend(points).any()
    with torch.no_grad():
        trend.weights.copy_(torch.tensor([1.0, -2.0, 3.0]))
        trend.bias.fill_(0.5)
    assert trend(points).mean().item() == pytest.approx(0.5)
    spread = points.numpy().std(0)
    value, slope = torch.func.jvp(trend, (points,), (torch.ones_like(points),))
    torch.testing.assert_close(value, trend(points))
    torch.testing.assert_close(slope, torch.full_like(slope, 1 / spread[0] - 2 / spread[1] + 3 / spread[2]))


def test_a_linear_trend_does_not_depend_on_the_unit_of_the_points(points):
    small, large = LinearTrend(points), LinearTrend(1e9 * points)
    with torch.no_grad():
        small.weights.fill_(2.0)
        large.weights.fill_(2.0)
    torch.testing.assert_close(small(points), large(1e9 * points))


@pytest.mark.parametrize("size", [1.0, 1e-300, 1e-170, 1e170, 1e300])
def test_deviations_do_not_overflow_or_vanish(points, size):
    torch.testing.assert_close(deviations(size * points) / size, points.std(0, correction=0))
    assert torch.equal(
        deviations(torch.zeros(4, 2, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64)
    )


@pytest.mark.parametrize(("share", "is_of_the_others"), [(0.05, True), (0.3, False)])
def test_few_rows_far_away_do_not_count_but_many_do(share: float, is_of_the_others: bool):
    column = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    column[: int(400 * share)] += 100
    spread = typical_spread(column).item()
    assert (spread < 2) == is_of_the_others
    if not is_of_the_others:
        assert spread == pytest.approx(column.std(correction=0).item())
