"""Random orders of blocks, all equally likely."""

import math
from collections import Counter

import pytest
import torch

from orbitwise.orbits.orders import OrderOrbit
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


class TestOrderOrbit(OrbitContract):
    @pytest.fixture(params=[(6, 1), (4, 3)])
    def case(self, request):
        return OrderOrbit(*request.param, num_samples=4), math.prod(request.param)


def test_all_orders_are_equally_likely():
    points = OrderOrbit(3).points(torch.arange(3.0).expand(750, 3), seeded()).points
    counts = Counter(map(tuple, points.flatten(0, 1).tolist()))
    assert len(counts) == 6
    # 24,000 draws: each order about 4,000 times, with a standard deviation of 58
    assert all(abs(count - 4000) < 4 * 58 for count in counts.values())


def test_points_stay_whole():
    x = inputs(12)
    moved = OrderOrbit(4, 3).points(x, seeded()).points.reshape(3, -1, 4, 3)
    known = {tuple(point) for point in x.reshape(-1, 3).tolist()}
    assert {tuple(point) for point in moved.reshape(-1, 3).tolist()} == known


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fixed_draws_are_the_same_for_every_order_of_the_blocks(size):
    orbit = OrderOrbit(9, size).freeze(16)
    x = inputs(9 * size)
    # ties among the first entries, so that the next ones decide
    x = torch.where(x > 0, x, torch.zeros_like(x))
    mixed = x.reshape(3, 9, size)[:, torch.randperm(9, generator=seeded())].flatten(1)
    torch.testing.assert_close(orbit.points(mixed).points, orbit.points(x).points, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(0, 1), (3, 0)])
def test_nothing_to_order_is_refused(sizes):
    with pytest.raises(ValueError, match="at least one block"):
        OrderOrbit(*sizes)


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="4 blocks of 3 entries have 12 entries"):
        OrderOrbit(4, 3).points(inputs(11), seeded())
