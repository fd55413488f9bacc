"""What the benchmark of solvers compares with: L-BFGS on coefficients instead of functions."""

import torch

from benchmarks.risk_solvers import plain
from orbitwise.inference.risk import DenseGram, Problem, Term, lbfgs, newton
from orbitwise.losses import Logistic, Squared
from tests.inference.risk.problems import random_problem


def test_the_function_space_needs_far_fewer_products_than_coordinates():
    problem = random_problem((Logistic(), Squared()), strength=3.0)
    best = newton(problem).objective
    ours, scaled = lbfgs(problem), plain(problem, True, max_iterations=100)
    assert ours.converged
    assert ours.products < 0.3 * scaled.products
    assert best <= ours.objective < scaled.objective


def test_scaled_coordinates_help_where_norms_differ():
    problem = random_problem((Logistic(), Squared()), strength=3.0)
    scale = torch.ones(50, dtype=torch.float64)
    scale[30:] = 30.0
    terms = [
        problem.terms[0],
        Term(Squared(), problem.terms[1].targets, problem.terms[1].weights / scale[30:].square()),
    ]
    uneven = Problem(DenseGram(scale[:, None] * problem.gram.matrix * scale), terms, problem.basis)
    results = [plain(uneven, scaled, max_iterations=60).objective for scaled in (True, False)]
    assert results[0] < results[1]
