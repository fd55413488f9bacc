"""A table of kernel values goes through the engine as its kernel does, and counts what is asked of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators import SparseGPRegressor
from orbitwise.experiments.wide_networks import (
    Columns,
    TableKernel,
    automatic,
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
    with pytest.warns(ConvergenceWarning, match="raise num_inducing"):
        model = SparseGPRegressor(kernel, **settings).fit(X.numpy(), Y.numpy())
    columns = Columns(gram(), Y, 0.1)
    found = columns.certify(9)
    # the estimator refines its bracket with products by all of K
    assert found["lower"] - 1e-6 <= model.certificate_.lower <= model.certificate_.upper
    assert model.certificate_.upper <= found["upper"] + 1e-6
    # a choice of nine is the beginning of a longer one, and sees its columns and the diagonal
    alone = Columns(gram(), Y, 0.1)
    alone.table.seen[:] = False
    alone.model.place_inducing(alone.choose(9))
    assert torch.equal(alone.choose(9), columns.order[:9])
    assert alone.model.bracket(refine=False).lower == pytest.approx(found["lower"], rel=1e-9)
    assert alone.table.num_evaluations == found["evaluations"]
    settled = automatic(gram(), Y, 0.1, 0.01)
    model = SparseGPRegressor(kernel, **(settings | {"num_inducing": "auto"})).fit(X.numpy(), Y.numpy())
    assert settled["inducing"] == model.certificate_.num_inducing
    assert settled["lower"] == pytest.approx(model.certificate_.lower, rel=1e-9)
    assert settled["evaluations"] <= 820


def test_the_least_number_of_inducing_variables():
    tolerances = [0.01, 0.5]
    found = sparsity(gram(), Y, 0.01, 0.1, tolerances)
    assert found["all_evaluations"] == 820
    assert (found["noise"], found["common_noise"]) == (0.01, 0.1)
    columns = Columns(gram(), Y, 0.1)
    for tolerance in tolerances:
        needed = found["needed"][str(tolerance)]
        assert needed["loss"] <= 40 * tolerance
        assert columns.certify(needed["inducing"] - 1)["loss"] > 40 * tolerance
        assert needed["evaluations"] <= 820
    assert found["needed"]["0.5"]["inducing"] < found["needed"]["0.01"]["inducing"]
    assert found["needed"]["0.5"]["inducing"] < found["at_own_noise"]["0.5"]["inducing"]
    matrix = gram() + 0.1 * torch.eye(40, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), matrix)
    exact = sum(normal.log_prob(column).item() for column in Y.T)
    assert needed["exact"] == pytest.approx(exact, rel=1e-5)
    for bracket in (found["automatic"], *found["needed"].values()):
        assert bracket["lower"] - 1e-4 <= exact <= bracket["upper"] + 1e-4


def record_of(ranks: Sequence[int]) -> dict[str, Any]:
    """Models whose errors, sizes and evidences are in one order."""
    cells, known = {}, {}
    for name, rank in enumerate(ranks):
        model = {"kind": "dense", "activation": "relu", "depth": rank, "residual": False, "orbit": "none"}
        cells[str(name)] = {**model, "test_error": 0.01 * rank, "log_evidence": -1.0 * rank}
        known[str(name)] = {"needed": {"0.1": {"inducing": 10 + rank}}}
    command = {"tolerances": [0.1], "sizes": [10], "image_size": 8, "common_noise": 0.05}
    return {"cells": cells | {"large": {}}, "sparsity": known, "command": command}


def test_rank_correlations_and_the_picture(tmp_path: Path):
    record = record_of(range(1, 6))
    found = correlations(record)
    assert found["inducing within 0.1 nats a row"]["spearman"] == pytest.approx(1)
    assert found["log evidence"]["spearman"] == pytest.approx(-1)
    assert found["log evidence"]["models"] == 5
    assert correlations(record_of([1, 2])) == {}
    assert correlations(record_of([1, 1, 1, 1])) == {}
    draw(record, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[1:4] == b"PNG"
