import pytest
import torch

from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.iterative import (
    NoisySystem,
    solve,
)
from tests.inference.sparse_problems import random_problem


def dense(process, rows, noise):
    return process.covariance(rows.atoms()) + torch.diag(noise / rows.weights())


def prepared(seed, count, size, **options):
    process, rows, noise, _ = random_problem(seed, count, **options)
    points = rows.x[:size]
    with torch.no_grad():
        lower = inducing_factor(process, points)
        inverse = NoisySystem(process, rows, noise).preconditioner(points, lower)
    return process, rows, noise, points, lower, inverse


def test_the_preconditioner_inverts_the_low_rank_matrix():
    _, rows, noise, _, _, inverse = prepared(1, 40, 9, weighted=True)
    matrix = inverse.columns.mT @ inverse.columns + torch.diag((noise / rows.weights()).detach())
    torch.testing.assert_close(inverse(matrix), torch.eye(40, dtype=torch.float64), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"weighted": True, "outputs": 3}, {"invariant": True}], ids=str)
def test_solutions_and_brackets(options):
    process, rows, noise, _, _, inverse = prepared(2, 60, 10, **options)
    with torch.no_grad():
        matrix = dense(process, rows, noise)
        truth = torch.linalg.solve(matrix, rows.targets)
        quadratic = (rows.targets * truth).sum().item()
        previous = -float("inf")
        for steps in (0, 1, 3, 8, 60):
            found = NoisySystem(process, rows, noise).solve(inverse, 1e-10, steps)
            assert found.lower - 1e-6 <= quadratic <= found.upper + 1e-6
            assert found.lower >= previous - 1e-9
            previous = found.lower
        assert found.converged
        assert found.upper - found.lower <= 1e-9
        torch.testing.assert_close(found.vectors, truth, rtol=1e-4, atol=1e-5)


def test_a_warm_start_needs_fewer_steps_and_a_bad_one_does_no_harm():
    process, rows, noise, _, _, inverse = prepared(3, 80, 6)
    product = NoisySystem(process, rows, noise).product
    cold = solve(product, rows.targets, inverse, 1e-6)
    warm = solve(product, rows.targets, inverse, 1e-6, start=cold.vectors)
    assert warm.iterations == 0 < cold.iterations
    bad = solve(product, rows.targets, inverse, 1e-6, start=1e6 * torch.ones_like(rows.targets))
    assert bad.converged
    torch.testing.assert_close(bad.upper, cold.upper, rtol=1e-5, atol=1e-5)


def test_better_preconditioners_need_fewer_steps():
    steps = []
    for size in (2, 20, 60):
        process, rows, noise, _, _, inverse = prepared(4, 120, size)
        steps.append(NoisySystem(process, rows, noise).solve(inverse, 1e-6, 200).iterations)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]


def test_zero_vectors_give_the_collapsed_bound_back():
    process, rows, noise, points, lower, _ = prepared(5, 30, 6, mean=True, weighted=True)
    totals = gather_totals(process, rows, points, lower, noise)
    at = NoisySystem(process, rows, noise).bracket(points, lower, torch.zeros_like(rows.targets))
    torch.testing.assert_close(
        collapsed_bound(at.totals, noise, quadratic=at.upper), collapsed_bound(totals, noise)
    )
    assert at.lower.item() == 0


@pytest.mark.parametrize("end", ["upper", "lower"])
def test_the_bracket_has_the_gradient_of_a_fixed_vector(end):
    process, rows, noise, points, _, inverse = prepared(6, 25, 5, mean=True)
    vectors = NoisySystem(process, rows, noise).solve(inverse, 0.0, 2).vectors

    def value():
        at = NoisySystem(process, rows, noise).bracket(points, inducing_factor(process, points), vectors)
        return getattr(at, end)

    leaves = [noise, *process.parameters()]
    slopes = torch.autograd.grad(value(), leaves)
    for leaf, slope in zip(leaves, slopes, strict=True):
        ends = []
        for step in (1e-5, -2e-5):
            leaf.data += step
            ends.append(value().item())
        leaf.data += 1e-5
        assert slope.sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-4)
