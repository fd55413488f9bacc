import pytest
import torch

from orbitwise.inference.risk.problem import FLATNESS, search, slope_at
from tests.inference.risk.problems import PAIRS, random_problem


@pytest.mark.parametrize("losses", PAIRS)
@pytest.mark.parametrize("length", [1e-4, 1.0, 1e6])
def test_the_slope_has_fallen_at_the_step(losses, length):
    problem = random_problem(losses, basis=0)
    values = torch.zeros(50, dtype=torch.float64)
    direction = -length * problem.slope(values)
    image = problem.gram.product(direction)
    linear, square = torch.zeros((), dtype=torch.float64), (direction * image).sum()
    size, first = search(problem, values, image, linear, square)
    assert first < 0
    assert slope_at(problem, values, image, linear, square, size).abs() <= FLATNESS * first.abs()
