from itertools import pairwise

import pytest
import torch

from orbitwise.inference.risk import DenseGram, Problem, Term, lbfgs, newton_cg
from orbitwise.losses import Squared
from tests.inference.risk.problems import random_problem


@pytest.mark.parametrize("solver", [lbfgs, newton_cg])
def test_the_scale_of_rows_does_not_matter_in_function_space(solver):
    """Rows L and sL with losses ℓ(t) and ℓ(t/s) are the same problem; squared losses take s into weights."""
    problem = random_problem((Squared(), Squared()), basis=0)
    scale = torch.ones(50, dtype=torch.float64)
    scale[30:] = torch.logspace(-2, 2, 20, dtype=torch.float64)
    gram = DenseGram(scale[:, None] * problem.gram.matrix * scale)
    terms = [
        problem.terms[0],
        Term(Squared(), problem.terms[1].targets, problem.terms[1].weights / scale[30:].square()),
    ]
    scaled = Problem(gram, terms)
    one, other = solver(problem), solver(scaled)
    assert one.converged
    assert other.converged
    assert abs(one.products - other.products) <= 2
    torch.testing.assert_close(one.objective, other.objective)


def test_the_risk_never_rises_and_the_history_is_kept():
    for solver in (lbfgs, newton_cg):
        history = solver(random_problem()).history
        assert all(after <= before for before, after in pairwise(history))
