"""Cholesky factors: as little jitter as it takes, and errors where it cannot help."""

import numpy as np
import pytest
import torch

from orbitwise.inference.linear_algebra import (
    cholesky,
    gaussian_log_density,
    log_determinant,
    remaining_variance,
    solve_factored,
    solve_lower,
)


def spd(count: int, seed: int = 0) -> torch.Tensor:
    root = torch.randn(count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(count, dtype=torch.float64)


def with_spectrum(values: list[float], seed: int = 0) -> torch.Tensor:
    vectors = torch.linalg.qr(spd(len(values), seed)).Q
    matrix = vectors @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ vectors.T
    return (matrix + matrix.T) / 2


def test_a_positive_definite_matrix_gets_no_jitter():
    matrix = spd(7)
    lower, jitter = cholesky(matrix)
    assert jitter == 0.0
    assert torch.equal(lower, lower.tril())
    torch.testing.assert_close(lower @ lower.T, matrix)


@pytest.mark.parametrize("negative", [3e-12, 3e-11, 3e-8, 3e-4])
def test_jitter_grows_only_as_far_as_needed(negative):
    matrix = with_spectrum([1.0, 2.0, 3.0, -negative])
    lower, jitter = cholesky(matrix)
    # Steps are tenfold, so at most ten times what the smallest eigenvalue asks for.
    assert negative <= jitter <= 10.1 * negative
    assert torch.linalg.cholesky_ex(matrix + jitter / 10 * torch.eye(4, dtype=torch.float64)).info > 0
    torch.testing.assert_close(lower @ lower.T, matrix + jitter * torch.eye(4, dtype=torch.float64))


def test_equal_rows_need_jitter_of_rounding_size():
    _, jitter = cholesky(torch.ones(5, 5, dtype=torch.float64))
    assert 0 < jitter < 1e-13


def test_single_precision_needs_more_than_double():
    x = torch.linspace(0, 1, 60, dtype=torch.float64)
    gram = torch.exp(-((x[:, None] - x) ** 2) / 2)
    double, single = cholesky(gram).jitter, cholesky(gram.float()).jitter
    assert 0 < double < 1e-10
    assert double < single < 1e-2


def test_jitter_has_the_scale_of_the_matrix():
    matrix = with_spectrum([1.0, 2.0, -1e-9])
    assert cholesky(1e8 * matrix).jitter == pytest.approx(1e8 * cholesky(matrix).jitter)


def test_a_matrix_of_zeros_is_factorised():
    lower, jitter = cholesky(torch.zeros(3, 3, dtype=torch.float64))
    assert 0 < jitter < 1e-290
    assert bool((lower.diagonal() > 0).all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
def test_entries_that_are_not_finite_are_refused(bad, place):
    matrix = spd(3)
    matrix[place] = matrix[place[::-1]] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        cholesky(matrix)


def test_an_indefinite_matrix_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"far from positive definite.*freeze the orbit"):
        cholesky(with_spectrum([1.0, 1.0, -0.9]))


def test_a_batch_is_factorised_together():
    batch = torch.stack([spd(4, 0), spd(4, 1)])
    lower, jitter = cholesky(batch)
    assert jitter == 0.0
    torch.testing.assert_close(lower[1], cholesky(batch[1]).lower)


def test_gradients_pass_through_a_jittered_factor():
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    # log|c A + jitter I| has the derivative n/c when the jitter is part of c A.
    lower, jitter = cholesky(scale * with_spectrum([1.0, 2.0, 1e-6, -1e-12]))
    assert jitter > 0
    (slope,) = torch.autograd.grad(log_determinant(lower), scale)
    assert torch.isfinite(slope)


def test_solves_and_determinants_are_numpys():
    matrix = spd(6)
    right = torch.arange(12, dtype=torch.float64).reshape(6, 2)
    lower = cholesky(matrix).lower
    np.testing.assert_allclose(solve_factored(lower, right), np.linalg.solve(matrix, right))
    np.testing.assert_allclose(solve_lower(lower, right), np.linalg.solve(np.linalg.cholesky(matrix), right))
    np.testing.assert_allclose(log_determinant(lower), np.linalg.slogdet(matrix)[1])


def test_variance_that_remains_is_never_below_rounding():
    prior = torch.tensor([2.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    explained = torch.tensor([0.5, 2.0, 2.0 + 1e-12, 0.0], dtype=torch.float64)
    floor = 10 * torch.finfo(torch.float64).eps * 2.0
    found = remaining_variance(prior, explained, 10)
    torch.testing.assert_close(found, torch.tensor([1.5, floor, floor, 0.0], dtype=torch.float64))


def test_the_gaussian_log_density_and_its_gradient():
    matrix = spd(4).requires_grad_()
    residual = torch.linspace(-1, 2, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), matrix.detach())
    value = gaussian_log_density(matrix, residual)
    assert value.item() == pytest.approx(expected.log_prob(residual.detach()).item(), rel=1e-10)

    def symmetric(each: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return gaussian_log_density((each + each.mT) / 2, right)

    assert torch.autograd.gradcheck(symmetric, (matrix, residual))


def test_the_gaussian_log_density_does_not_give_wrong_second_derivatives():
    residual = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(gaussian_log_density(spd(4), residual), residual, create_graph=True)
