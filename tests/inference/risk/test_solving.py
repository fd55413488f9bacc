"""All solvers against each other and against independent ones."""

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from orbitwise.inference.risk import CopiedGram, DenseGram, Problem, Term, newton, solve
from orbitwise.inference.risk.machines import SOLVERS
from orbitwise.losses import Hinge, Logistic, Multinomial, Squared, SquaredHinge
from tests.inference.risk.problems import PAIRS, random_problem


@pytest.mark.parametrize("losses", PAIRS, ids=lambda pair: type(pair[0]).__name__)
@pytest.mark.parametrize("basis", [0, 2])
def test_all_solvers_find_the_same_risk(losses, basis):
    best = newton(random_problem(losses, strength=2.0, basis=basis))
    assert best.converged
    for solver in SOLVERS[2:]:
        problem = random_problem(losses, strength=2.0, basis=basis, structured=solver != "steepest")
        found = solve(problem, solver, generator=torch.Generator().manual_seed(0))
        assert found.converged, solver
        assert abs(found.objective - best.objective) <= 1e-6 * abs(best.objective), solver
        torch.testing.assert_close(found.values, best.values, rtol=0, atol=2e-3)


@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_squared_hinges_agree_with_liblinear_on_the_cholesky_factor(rate):
    problem = random_problem((SquaredHinge(), Squared()), num_functionals=1, basis=0)
    gram = problem.gram.matrix[:30, :30]
    labels = problem.terms[0].targets
    ours = newton(Problem(DenseGram(gram), [Term(SquaredHinge(), labels, torch.full_like(labels, rate))]))
    factor = torch.linalg.cholesky(gram + 1e-12 * torch.eye(30)).numpy()
    theirs = LinearSVC(C=rate, fit_intercept=False, tol=1e-12, max_iter=10**4, dual=False).fit(
        factor, labels.numpy()
    )
    np.testing.assert_allclose(ours.values.numpy(), theirs.decision_function(factor), rtol=0, atol=1e-5)


def test_squared_losses_solve_linear_equations():
    problem = random_problem((Squared(), Squared()), strength=3.0, basis=2)
    found = newton(problem, tolerance=1e-15)
    count, width = problem.basis.shape
    system = torch.zeros(count + width, count + width, dtype=torch.float64)
    # (G + I/(2w))α + Bβ = y, Bᵀα = 0
    system[:count, :count] = problem.gram.matrix + torch.eye(count) / 6.0
    system[:count, count:], system[count:, :count] = problem.basis, problem.basis.mT
    targets = torch.cat([term.targets for term in problem.terms])
    expected = torch.linalg.solve(system, torch.cat([targets, torch.zeros(width)]))
    torch.testing.assert_close(found.coefficients, expected[:count], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.beta, expected[count:], rtol=1e-6, atol=1e-6)


def test_the_multinomial_loss_of_two_classes_is_logistic():
    """f₁ = -f₀ = f/2 has half the squared norm of f, so half the strength does the same."""
    problem = random_problem((Logistic(), Squared()), num_functionals=1, basis=0)
    gram, labels = DenseGram(problem.gram.matrix[:30, :30]), problem.terms[0].targets
    logistic = newton(Problem(gram, [Term(Logistic(), labels, torch.full_like(labels, 2.0))]))
    codes = torch.stack([(labels < 0).double(), (labels > 0).double()], -1).flatten()
    two = solve(Problem(CopiedGram(gram, 2), [Term(Multinomial(2), codes, torch.full_like(codes, 1.0))]))
    scores = two.values.unflatten(-1, (-1, 2))
    torch.testing.assert_close(scores[:, 1] - scores[:, 0], logistic.values, rtol=0, atol=1e-3)
    torch.testing.assert_close(scores.sum(-1), torch.zeros(30, dtype=torch.float64), rtol=0, atol=1e-6)


def test_folds_of_weight_zero_are_fits_without_these_rows():
    problem = random_problem((Hinge(0.2), Squared()), num_functionals=1, basis=1)
    gram, labels = problem.gram.matrix[:30, :30], problem.terms[0].targets
    weights = torch.ones(3, 30, dtype=torch.float64)
    for fold in range(3):
        weights[fold, 10 * fold : 10 * fold + 10] = 0
    ones = torch.ones(30, 1, dtype=torch.float64)
    batch = newton(Problem(DenseGram(gram), [Term(Hinge(0.2), labels, weights)], ones))
    for fold in range(3):
        kept = weights[fold] > 0
        alone = newton(
            Problem(
                DenseGram(gram[kept][:, kept]),
                [Term(Hinge(0.2), labels[kept], weights[fold][kept])],
                ones[kept],
            )
        )
        torch.testing.assert_close(batch.objective[fold], alone.objective)
        torch.testing.assert_close(batch.values[fold][kept], alone.values, rtol=0, atol=1e-4)
        assert (batch.coefficients[fold][~kept] == 0).all()


def test_duplicated_rows_and_single_precision():
    problem = random_problem((Hinge(), Squared()))
    index = torch.arange(30).repeat_interleave(2)
    gram = problem.gram.matrix[index][:, index]
    labels = problem.terms[0].targets[index]
    doubled = newton(Problem(DenseGram(gram), [Term(Hinge(), labels, torch.ones_like(labels))]))
    single = newton(
        Problem(
            DenseGram(problem.gram.matrix[:30, :30]),
            [Term(Hinge(), labels[::2], 2 * torch.ones_like(labels[::2]))],
        )
    )
    torch.testing.assert_close(doubled.objective, single.objective)
    half = newton(
        Problem(DenseGram(gram.float()), [Term(Hinge(), labels.float(), torch.ones_like(labels.float()))]),
        tolerance=1e-4,
    )
    assert half.values.dtype == torch.float32
    torch.testing.assert_close(half.objective.double(), doubled.objective, rtol=1e-4, atol=0)


def test_bad_choices():
    with pytest.raises(ValueError, match="solver must be one of auto, newton"):
        solve(random_problem(), "simplex")  # pyright: ignore
    with pytest.raises(ValueError, match="needs a dense Gram matrix"):
        solve(random_problem(structured=True), "newton")
    batch = Problem(
        DenseGram(torch.eye(2, dtype=torch.float64)),
        [Term(Squared(), torch.ones(3, 2).double(), torch.ones(2).double())],
    )
    for solver in ("lbfgs", "newton_cg", "steepest", "stochastic"):
        with pytest.raises(ValueError, match="a single problem, not a batch"):
            solve(batch, solver)
