import pytest
import torch

from orbitwise.inference.sparse.iterative import covariance_product, cross_product, prior_means
from orbitwise.process.process import PAIRS_AT_ONCE
from tests.inference.sparse_problems import random_problem


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(PAIRS_AT_ONCE, "cpu", 256)


@pytest.mark.parametrize("invariant", [False, True])
def test_product_and_gradient_equal_the_dense_ones(invariant):
    process, rows, _, generator = random_problem(1, 45, invariant=invariant)
    vectors = torch.randn(45, 3, generator=generator, dtype=torch.float64)
    slopes = torch.randn(45, 3, generator=generator, dtype=torch.float64)
    fast = covariance_product(process, rows, vectors)
    slow = process.covariance(rows.atoms()) @ vectors
    torch.testing.assert_close(fast, slow)
    leaves = list(process.parameters())
    mine = torch.autograd.grad((fast * slopes).sum(), leaves)
    theirs = torch.autograd.grad((slow * slopes).sum(), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_products_with_other_rows_and_means():
    process, rows, _, generator = random_problem(2, 40, mean=True)
    _, queries, _, _ = random_problem(3, 21)
    vectors = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    expected = process.covariance(queries.atoms(), rows.atoms()) @ vectors
    torch.testing.assert_close(cross_product(process, queries.atoms(), rows, vectors), expected)
    torch.testing.assert_close(prior_means(process, rows), process.mean(rows.atoms()))
