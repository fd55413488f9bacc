import pytest
import torch

from orbitwise.inference.risk import DenseGram, Problem, Term, coordinate_descent, newton
from orbitwise.losses import EpsilonInsensitive, Hinge, Squared
from tests.inference.risk.problems import random_problem


def test_few_coordinates_are_enough_where_few_rows_matter():
    """Hinges of separated classes: the support vectors, found without the columns of the others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    labels = torch.where(x[:, 0] > 0, 1.0, -1.0).double()
    x[:, 0] += 1.5 * labels
    gram = DenseGram(torch.exp(-0.1 * torch.cdist(x, x).square()))
    problem = Problem(gram, [Term(Hinge(0.01), labels, torch.full_like(labels, 10.0))])
    best = newton(problem)
    steepest = coordinate_descent(problem)
    drawn = coordinate_descent(problem, "random", generator=generator)
    counts = [(found.coefficients != 0).sum() for found in (steepest, drawn)]
    torch.testing.assert_close(steepest.objective, best.objective, rtol=1e-6, atol=0)
    assert steepest.converged
    assert counts[0] < 40
    assert counts[0] < counts[1]


def test_a_budget_of_coordinates_ends_honestly():
    found = coordinate_descent(random_problem((Squared(), Squared())), max_coordinates=5)
    assert (found.coefficients != 0).sum() <= 5
    assert not found.converged
    assert found.gap > 0


def test_seeds_decide_the_order():
    problem = random_problem((Hinge(), EpsilonInsensitive()))
    runs = [
        coordinate_descent(
            problem, "random", max_coordinates=10, generator=torch.Generator().manual_seed(s)
        ).coefficients
        for s in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_an_order_has_a_name():
    with pytest.raises(Exception, match="steepest"):
        coordinate_descent(random_problem(), "cyclic")  # pyright: ignore
