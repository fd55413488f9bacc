"""Labels left out to first order, against machines that are trained without them."""

import pytest
import torch
from torch import Tensor

from orbitwise.inference.risk import leaving_out
from orbitwise.inference.risk.leaving_out import left_out_scores
from orbitwise.inference.risk.machines import held_out_scores
from orbitwise.losses import Logistic, Loss, Squared, SquaredHinge


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = seeded(14, 2)
GRAMS = torch.stack([torch.exp(-torch.cdist(X, X).square() / (2 * width**2)) for width in (0.5, 1.0, 3.0)])
TARGETS = torch.stack([torch.sign(X[:, 0] + 0.3 * seeded(14, seed=1)), torch.sign(X[:, 1])])
WEIGHTS = torch.linspace(0.5, 2, 14).double()
RATES = torch.tensor([[0.1, 3.0], [0.3, 10.0], [1.0, 1.0]], dtype=torch.float64)
BASES = {"none": X[:, :0], "bias": torch.ones(14, 1).double()}


def exact(loss: Loss, basis: Tensor) -> Tensor:
    return held_out_scores(GRAMS, basis, loss, TARGETS, WEIGHTS, RATES, torch.arange(14)).values


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("loss", "far"), [(Squared(), 1e-6), (Logistic(), 0.1), (SquaredHinge(), 0.15)])
def test_labels_left_out_are_those_of_machines_without_them(loss: Loss, far: float, basis: str):
    found = left_out_scores(GRAMS, BASES[basis], loss, TARGETS, WEIGHTS, RATES)
    expected = exact(loss, BASES[basis])
    assert found.shape == (3, 2, 2, 14)
    assert (found - expected).norm() <= far * expected.norm()


def test_kernels_in_small_parts(monkeypatch: pytest.MonkeyPatch):
    whole = left_out_scores(GRAMS, BASES["bias"], Logistic(), TARGETS, WEIGHTS, RATES)
    monkeypatch.setattr(leaving_out, "problems_at_once", lambda gram, count: 1)
    parts = left_out_scores(GRAMS, BASES["bias"], Logistic(), TARGETS, WEIGHTS, RATES)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)
