"""A table of kernel values goes through the engine as its kernel does, and counts what is asked of it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from orbitwise.estimators import SparseGPRegressor
from orbitwise.experiments.wide_sparsity import (
    TableKernel,
    automatic,
    certify,
    comparable,
    correlations,
    draw,
    sparsity,
)
from orbitwise.kernels import WideNetworkKernel

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.stack([X[:, 0].sin(), X[:, 1].abs()], dim=1)


def gram() -> torch.Tensor:
    with torch.no_grad():
        return WideNetworkKernel(2, "erf").double()(X).to_dense()


def test_a_table_counts_different_pairs():
    table = TableKernel(gram())
    numbers = torch.arange(40.0, dtype=torch.float64)[:, None]
    assert torch.equal(table(numbers[3:5], numbers[:4]).to_dense(), gram()[3:5, :4])
    assert table.num_evaluations == 2 * 4
    assert torch.equal(table(numbers, diag=True), gram().diagonal())
    # (3, 3) was asked for before
    assert table.num_evaluations == 8 + 39
    table(numbers[:4], numbers[3:5]).to_dense()
    assert table.num_evaluations == 8 + 39


def test_the_table_and_the_kernel_have_one_certificate():
    kernel = WideNetworkKernel(2, "erf").double()
    settings = {"num_inducing": 9, "selection": "greedy", "optimize_inducing": False, "noise": 0.1,
                "normalize_y": False, "max_iterations": 0, "random_state": 0}  # fmt: skip
    model = SparseGPRegressor(kernel, **settings).fit(X.numpy(), Y.numpy())
    found = certify(gram(), Y, 0.1, 9)
    # the estimator refines its bracket with products by all of K
    assert found["lower"] - 1e-6 <= model.certificate_.lower <= model.certificate_.upper
    assert model.certificate_.upper <= found["upper"] + 1e-6
    # columns of the inducing variables and the diagonal
    assert found["evaluations"] == 9 * 40 - 9 * 8 // 2 + 40 - 9
    settled = automatic(gram(), Y, 0.1, 0.01)
    model = SparseGPRegressor(kernel, **(settings | {"num_inducing": "auto"})).fit(X.numpy(), Y.numpy())
    assert settled["inducing"] == model.certificate_.num_inducing
    assert settled["lower"] == pytest.approx(model.certificate_.lower, rel=1e-9)
    assert settled["evaluations"] <= 820


def test_the_least_number_of_inducing_variables():
    noise, tolerances = 0.1, [0.01, 0.5]
    found = sparsity(gram(), Y, noise, tolerances)
    assert found["all_evaluations"] == 820
    for tolerance in tolerances:
        needed = found["needed"][str(tolerance)]
        assert needed["gap"] <= 40 * tolerance
        fewer = certify(gram(), Y, noise, needed["inducing"] - 1)
        assert fewer["gap"] > 40 * tolerance
        assert needed["evaluations"] <= 820
    assert found["needed"]["0.5"]["inducing"] < found["needed"]["0.01"]["inducing"]
    # the bracket holds the exact evidence
    matrix = gram() + noise * torch.eye(40, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), matrix)
    exact = sum(normal.log_prob(column).item() for column in Y.T)
    for bracket in (found["automatic"], *found["needed"].values()):
        assert bracket["lower"] - 1e-4 <= exact <= bracket["upper"] + 1e-4


def cell(rank: int, size: int = 8, rows: int = 10) -> dict[str, object]:
    needed = {"0.1": {"inducing": 10 + rank}}
    return {"kind": "dense", "activation": "relu", "depth": rank, "residual": False, "orbit": "none",
            "rows": rows, "size": size, "test_error": 0.01 * rank, "log_evidence": -1.0 * rank,
            "sparsity": {"needed": needed}}  # fmt: skip


def test_rank_correlations_and_the_picture(tmp_path: Path):
    cells = {str(rank): cell(rank) for rank in range(1, 6)}
    cells |= {"other": cell(9, size=4), "large": cell(9, rows=50)}
    assert len(comparable(cells, 10)) == 5
    found = correlations(cells, 10, [0.1])
    assert found["inducing at 0.1 nats a row"]["spearman"] == pytest.approx(1)
    assert found["log evidence"]["spearman"] == pytest.approx(-1)
    assert math.isclose(found["log evidence"]["models"], 5)
    assert correlations({"1": cell(1)}, 10, [0.1]) == {}
    assert correlations({str(i): cell(1) for i in range(4)}, 10, [0.1]) == {}
    draw({"cells": cells, "command": {"tolerances": [0.1]}}, tmp_path / "picture.png")
    assert np.frombuffer((tmp_path / "picture.png").read_bytes()[:4], "S4")[0][1:] == b"PNG"
