import pytest
import torch

from orbitwise.orbits import Orbit
from orbitwise.orbits.orbit import Group, check_samples, drawn_points, exact_points


def test_an_orbit_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Orbit()


def test_exact_points_share_their_weights_in_memory():
    """Covariances take one product instead of many where all rows have the same weights."""
    points = torch.arange(12.0).reshape(2, 3, 2)
    moved = exact_points(points, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
    assert moved.weights.tolist() == [[0.5, 0.25, 0.25]] * 2
    assert moved.weights.dtype == torch.float32
    assert moved.weights.stride(0) == 0
    assert moved.draw.tolist() == [0, 0, 0]
    assert moved.groups == ()
    assert moved.symmetry is None


def test_drawn_points_are_numbered_by_group():
    moved = drawn_points(torch.zeros(2, 6, 1), num_groups=3, population=10)
    assert moved.draw.tolist() == [1, 1, 2, 2, 3, 3]
    assert moved.groups == (Group(1, 10),) * 3
    torch.testing.assert_close(moved.weights, torch.full((2, 6), 1 / 6))


@pytest.mark.parametrize(("num_samples", "num_groups"), [(2, 1), (2, 2), (6, 3)])
def test_samples_that_split(num_samples: int, num_groups: int):
    check_samples(num_samples, num_groups)


@pytest.mark.parametrize(
    ("num_samples", "num_groups", "message"),
    [
        (1, 1, "at least two draws"),
        (1, 2, "num_samples=1 cannot be split into num_groups=2"),
        (3, 2, "num_samples=3 cannot be split into num_groups=2"),
        (0, 1, "num_samples=0"),
        (-2, 2, "num_samples=-2"),
        (2, 0, "num_groups=0"),
    ],
)
def test_samples_that_do_not(num_samples: int, num_groups: int, message: str):
    with pytest.raises(ValueError, match=message):
        check_samples(num_samples, num_groups)
