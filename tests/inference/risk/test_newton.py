import torch

from orbitwise.inference.risk import DenseGram, Problem, Term, newton
from orbitwise.losses import Hinge, Squared
from tests.inference.risk.problems import random_problem


def test_a_grid_of_strengths_is_one_batch_and_warm_starts_end_at_once():
    problem = random_problem((Hinge(0.1), Hinge(0.1)))
    labels = problem.terms[0].targets
    rates = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)[:, None].expand(3, 30)
    grams = torch.stack([(1 + i) * problem.gram.matrix[:30, :30] for i in range(2)])[:, None]
    batch = Problem(DenseGram(grams), [Term(Hinge(0.1), labels, rates)], problem.basis[:30])
    found = newton(batch)
    assert found.objective.shape == (2, 3)
    assert found.converged
    alone = newton(Problem(DenseGram(grams[1, 0]), [Term(Hinge(0.1), labels, rates[2])], problem.basis[:30]))
    torch.testing.assert_close(found.objective[1, 2], alone.objective)
    torch.testing.assert_close(found.values[1, 2], alone.values, rtol=0, atol=1e-5)
    again = newton(batch, found)
    assert again.iterations <= 2
    torch.testing.assert_close(again.objective, found.objective)


def test_iterations_that_run_out_are_not_called_converged():
    heavy = random_problem((Hinge(0.001), Hinge(0.001)), strength=100.0)
    light = newton(random_problem((Hinge(0.001), Hinge(0.001)), strength=0.01))
    found = newton(heavy, light, max_iterations=1)
    assert not found.converged
    assert found.gap > 0


def test_heavy_losses_are_solved_to_rounding():
    """Steps, not new coefficients, are solved for: nothing cancels where weights are large."""
    problem = random_problem((Squared(), Squared()), strength=1e7, num_functionals=1)
    found = newton(problem)
    assert found.gap <= 1e-6 * found.objective
