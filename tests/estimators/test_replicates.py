"""Merged rows say all that the rows said: the likelihood of repeated observations."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import multivariate_normal

from orbitwise import InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.regression_model import merge, without_noise

NOISE = 0.3


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 2))[[0, 1, 2, 3, 1, 1, 3]]
    return x, rng.normal(size=(7, 2))


def gram(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))


def merged_log_density(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    merged = merge(x, y, weight)
    covariance = gram(merged.x.numpy()) + np.diag(NOISE / merged.weight.numpy())
    density = sum(multivariate_normal(cov=covariance).logpdf(column) for column in merged.targets.numpy().T)
    return density + merged.merged_term(torch.tensor(NOISE, dtype=torch.float64)).item()


def full_log_density(x: np.ndarray, y: np.ndarray) -> float:
    covariance = gram(x) + NOISE * np.eye(len(x))
    return sum(multivariate_normal(cov=covariance).logpdf(column) for column in y.T)


def test_merging_equal_inputs_keeps_the_evidence(rows):
    x, y = rows
    assert len(merge(x, y, np.ones(7)).x) == 4
    assert merged_log_density(x, y, np.ones(7)) == pytest.approx(full_log_density(x, y), rel=1e-10)


def test_a_weight_counts_repetitions(rows):
    x, y = rows
    weight = np.array([1, 2, 3, 1, 2, 1, 4])
    repeated = np.repeat(np.arange(7), weight)
    expected = full_log_density(x[repeated], y[repeated])
    assert merged_log_density(x, y, weight.astype(float)) == pytest.approx(expected, rel=1e-10)


def test_rows_of_weight_zero_are_left_out(rows):
    x, y = rows
    weight = np.array([1.0, 0, 1, 1, 0, 1, 1])
    with_nonsense = np.where(weight[:, None] > 0, y, 1e6)
    for merged, expected in zip(
        merge(x, with_nonsense, weight).tensors,
        merge(x[weight > 0], y[weight > 0], np.ones(5)).tensors,
        strict=True,
    ):
        np.testing.assert_array_equal(merged, expected)


def test_the_order_of_rows_leaves_no_trace(rows):
    x, y = rows
    y[4] = y[5]
    weight = np.array([0.3, 0.7, 1.1, 1.3, 0.1, 1.9, 2.3])
    first = merge(x, y, weight)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(7)
        for mine, other in zip(first.tensors, merge(x[order], y[order], weight[order]).tensors, strict=True):
            np.testing.assert_array_equal(mine, other)


def test_mean_weight_and_scatter_are_those_of_each_input():
    merged = merge(
        np.array([[1.0], [0.0], [1.0]]), np.array([[2.0], [5.0], [5.0]]), np.array([2.0, 1.0, 1.0])
    )
    assert merged.x.tolist() == [[0.0], [1.0]]
    assert merged.targets.tolist() == [[5.0], [3.0]]
    assert merged.weight.tolist() == [1.0, 3.0]
    assert merged.scatter.tolist() == [[0.0], [2 * 1 + 4]]


def test_weights_that_are_all_zero_are_refused(rows):
    with pytest.raises(ValueError, match="at least one row needs a positive weight"):
        merge(*rows, np.zeros(7))


def test_distinct_rows_lose_nothing_even_without_noise(rows):
    x, y = rows
    assert merge(x[:4], y[:4], np.ones(4)).merged_term(torch.tensor(0.0)).item() == 0.0


def test_without_noise_a_repetition_counts_once(rows):
    x, y = rows
    y = y[[0, 1, 2, 3, 1, 1, 3]] * 0.1
    silent = without_noise(merge(x, y, np.ones(7)))
    assert silent.weight.tolist() == [1.0] * 4
    assert silent.merged_term(torch.tensor(0.0)).item() == 0.0


def test_without_noise_contradicting_targets_are_refused(rows):
    with pytest.raises(ValueError, match="equal inputs have different targets"):
        without_noise(merge(*rows, np.ones(7)))


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_weights_of_equal_rows_that_add_up_to_one_keep_the_scatter_of_their_targets(share):
    rng = np.random.default_rng(1)
    num = round(1 / share)
    x = np.repeat(rng.normal(size=(10, 2)), num, axis=0)
    y, weight = rng.normal(size=len(x)), np.full(len(x), share)
    settings = {"kernel": RBFKernel(), "noise": 0.3, "normalize_y": False, "max_iterations": 0}
    exact = InvariantGPRegressor(**settings).fit(x, y, weight)
    sparse = SparseGPRegressor(num_inducing=10, **settings).fit(x, y, weight)
    assert merge(x, y[:, None], weight).scatter.sum() > 0.1
    assert sparse.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-4)
