import pytest
import torch

from orbitwise.inference.risk import DenseGram, Problem, Term, newton
from orbitwise.inference.risk.problem import FLATNESS, Iterate
from orbitwise.losses import Hinge, Logistic, Squared
from tests.inference.risk.problems import PAIRS, random_problem


@pytest.mark.parametrize("losses", PAIRS)
def test_slopes_are_derivatives_of_the_losses(losses):
    problem = random_problem(losses)
    values = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values.requires_grad_()
    (slope,) = torch.autograd.grad(problem.loss(values), values)
    torch.testing.assert_close(problem.slope(values), slope)
    direction = torch.linspace(-1, 1, 50, dtype=torch.float64)
    product = problem.curvature(values) * direction
    torch.testing.assert_close(problem.curvature_product(values, direction), product)


@pytest.mark.parametrize("losses", PAIRS)
@pytest.mark.parametrize("basis", [1, 3])
def test_the_best_beta_has_no_slope_left(losses, basis):
    problem = random_problem(losses, basis=basis)
    images = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    zeros = torch.zeros(50, dtype=torch.float64)
    f = problem.with_best_beta(Iterate(zeros, images, torch.zeros(basis, dtype=torch.float64)))
    slope = problem.slope(problem.values(f)) @ problem.basis
    assert slope.abs().max() < 1e-5
    for step in (1e-3, -1e-3):
        assert problem.risk(f._replace(beta=f.beta + step)) >= problem.risk(f)


def test_a_beta_that_starts_far_away_is_found():
    problem = random_problem((Hinge(0.01), Squared()))
    start = problem.iterate()
    near = problem.with_best_beta(start)
    far = problem.with_best_beta(start._replace(beta=torch.full((1,), 1e6, dtype=torch.float64)))
    torch.testing.assert_close(problem.risk(far), problem.risk(near))


@pytest.mark.parametrize("losses", PAIRS)
@pytest.mark.parametrize("length", [1e-4, 1.0, 1e6])
def test_a_line_search_ends_where_the_slope_has_fallen(losses, length):
    problem = random_problem(losses, basis=0)
    f = problem.iterate()
    direction = -length * problem.slope(problem.values(f))
    step = Iterate(direction, problem.gram.product(direction), f.beta)
    size, first = problem.line_search(f, step)
    assert first < 0
    moved = f.moved(step, size)
    there = ((moved.coefficients + problem.slope(problem.values(moved))) * step.images).sum()
    assert there.abs() <= FLATNESS * first.abs()


def test_the_gap_bounds_the_distance_from_the_optimum():
    problem = random_problem(PAIRS[1])
    least = newton(problem).objective
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        alpha = newton(problem).coefficients
        alpha = alpha + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)
        f = Iterate(alpha, problem.gram.product(alpha), torch.zeros(1, dtype=torch.float64))
        found = problem.certified(f, 0, 0, 1e-8, [])
        assert 0 < found.objective - least <= found.gap
        assert not found.converged


def test_some_rows_of_a_problem():
    problem = random_problem(PAIRS[2])
    index = torch.tensor([3, 7, 29, 30, 44])
    part = problem.take(index, DenseGram(problem.gram.matrix[index][:, index]))
    values = torch.linspace(-1, 1, 50, dtype=torch.float64)
    torch.testing.assert_close(part.slope(values[index]), problem.slope(values)[index])
    torch.testing.assert_close(part.curvature(values[index]), problem.curvature(values)[index])


def test_bad_problems():
    gram = DenseGram(torch.eye(3, dtype=torch.float64))
    ones = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="2 rows together, but the Gram matrix has 3"):
        Problem(gram, [Term(Logistic(), ones, ones)])
    three = torch.ones(3, dtype=torch.float64)
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and at least 0"):
            Problem(gram, [Term(Logistic(), three, weight * three)])
