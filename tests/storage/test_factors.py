"""Cholesky factors that a solve survives, and those that no posterior has."""

import pytest
import torch
from torch import Tensor

from orbitwise.inference.linear_algebra import check_factor, check_solution, solve_factored


def factor(size: int = 6, *batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(*batch, size, size, generator=generator, dtype=torch.float64)
    return torch.linalg.cholesky(root @ root.mT + torch.eye(size, dtype=torch.float64))


def test_factors_pass_at_any_size_and_condition():
    check_factor(factor())
    check_factor(factor(3, 2))
    check_factor(factor(1))
    check_factor(factor(2000))
    nearly_singular = torch.ones(50, 50, dtype=torch.float64) + 1e-10 * torch.eye(50, dtype=torch.float64)
    check_factor(torch.linalg.cholesky(nearly_singular))


def test_other_matrices_are_refused():
    above, zero, negative, growing = (factor() for _ in range(4))
    above[0, 3], zero[2, 2], negative[2, 2] = 1e-3, 0.0, -1.0
    growing[1:] += torch.full((5, 6), 1e30, dtype=torch.float64).tril(0)
    growing.diagonal().fill_(1.0)
    cases = {
        "not triangular": above,
        "not positive": zero,
        "cannot be solved with": growing,
        "not square": factor()[:3],
    }
    for message, wrong in cases.items():
        with pytest.raises(ValueError, match=message):
            check_factor(wrong)
    with pytest.raises(ValueError, match="not positive"):
        check_factor(negative)
    with pytest.raises(ValueError, match="not triangular"):
        check_factor(
            torch.eye(2000, dtype=torch.float64) + torch.eye(2000, dtype=torch.float64).roll(1500, 1)
        )


def test_solutions_are_those_of_the_factor():
    lower, right = factor(), torch.arange(12, dtype=torch.float64).reshape(6, 2)
    solution = solve_factored(lower, right)
    check_solution(lower, solution, right)
    check_solution(lower, torch.zeros(6, 2, dtype=torch.float64), 0 * right)
    for wrong in (2 * solution, solution.flip(0), 1e40 * solution):
        with pytest.raises(ValueError, match="do not solve"):
            check_solution(lower, wrong, right)


@pytest.mark.parametrize("entry", [1e20, 1e100, 1e130, 1e149])
def test_a_large_entry_hides_nothing_in_other_rows(entry: float):
    lower = torch.eye(3, dtype=torch.float64)
    lower[2, 0] = entry
    check_factor(lower)
    right = torch.zeros(3, 1, dtype=torch.float64)
    for wrong in (1e20, 1.0):
        solution = torch.tensor([[0.0], [wrong], [0.0]], dtype=torch.float64)
        with pytest.raises(ValueError, match="do not solve"):
            check_solution(lower, solution, right)
        check_solution(lower, solution, solution)


def test_sums_that_overflow_solve_nothing():
    lower = torch.full((2, 2), 1e149, dtype=torch.float64).tril()
    right = torch.ones(2, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="do not solve"):
        check_solution(lower, 1e100 * right, right)
    check_solution(lower, solve_factored(lower, 1e149 * right), 1e149 * right)


def test_solutions_of_several_factors_are_checked():
    lower, right = factor(3, 2), torch.ones(2, 3, 1, dtype=torch.float64)
    check_solution(lower, solve_factored(lower, right), right)
    with pytest.raises(ValueError, match="do not solve"):
        check_solution(lower.flip(0), solve_factored(lower, right), right)
