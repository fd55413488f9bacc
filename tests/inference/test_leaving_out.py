"""Rows left out one at a time beside brute-force refits without them, for every likelihood of classes."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import HeldRows, best_tilt, condition, expanded_rows
from orbitwise.inference.sparse.inducing import project_rows
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.nonconjugate import fit_q
from orbitwise.likelihoods import Bernoulli, Dirichlet, Likelihood, Softmax
from orbitwise.process import Process

ROWS, CLASSES = 24, 3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 2, generator=GENERATOR, dtype=torch.float64)
LABELS = (X[:, 0] > 0.3).long() + (X[:, 1] > 0).long()
Z = X[::3]


@pytest.fixture
def process():
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 4.0, 1.2
    return Process(None, kernel.requires_grad_(False)).double()


def parts(likelihood: Likelihood, process: Process, keep: torch.Tensor):
    projected = project_rows(process, Evaluation(), Z, X[keep])
    return projected, likelihood.encode_labels(LABELS, CLASSES)[keep]


def given(process: Process, likelihood: Likelihood, x, targets, weight=None):
    return LatentModel(process, Evaluation(), likelihood), Observations(Evaluation(), x, targets, weight)


EVERY = torch.ones(ROWS, dtype=torch.bool)


def without(row: int) -> torch.Tensor:
    keep = EVERY.clone()
    keep[row] = False
    return keep


@pytest.mark.parametrize(
    "likelihood",
    [Dirichlet(), Dirichlet(0.1, 20.0), Bernoulli(), Bernoulli(9.0, 0.2)],
    ids=["dirichlet", "dirichlet, counted", "sticks", "sticks, counted"],
)
def test_quadratic_terms_are_left_out_exactly(process, likelihood):
    """Tilts are held, so that the terms of the other rows stay the same."""
    projected, targets = parts(likelihood, process, EVERY)
    tilt = torch.full_like(targets, 1.5) + X[:, :1].abs() if likelihood.needs_tilt else None
    rows = HeldRows.of_quadratic(projected, likelihood.quadratic(targets, tilt), likelihood.shares_curvature)
    left_out = rows.leave_one_out(1.0)
    for row in range(0, ROWS, 5):
        keep = without(row)
        fewer, others = parts(likelihood, process, keep)
        quadratic = likelihood.quadratic(others, None if tilt is None else tilt[keep])
        refit = HeldRows.of_quadratic(fewer, quadratic, likelihood.shares_curvature).optimum(1.0)
        moments = SparsePosterior(process, Z, refit).moments(Evaluation(), X[row : row + 1])
        torch.testing.assert_close(left_out.mean[row], moments.mean[0])
        torch.testing.assert_close(left_out.variance[row], moments.variance[0])
        torch.testing.assert_close(left_out.mean_square[row], moments.mean_square[0])


@pytest.mark.parametrize("likelihood", [Bernoulli(), Bernoulli(9.0, 0.2)], ids=["once", "counted"])
def test_tilts_that_follow_are_foreseen(process, likelihood):
    """Refits choose new tilts. With tilts held, leaving out a row that was fitted changes too little."""
    targets = likelihood.encode_labels(LABELS, CLASSES)

    def fitted(keep: torch.Tensor):
        start = torch.ones_like(targets[keep])
        start = best_tilt(
            project_rows(process, Evaluation(), Z, X[keep]), likelihood, targets[keep], start, 100
        )
        return condition(*given(process, likelihood, X[keep], targets[keep]), Z, tilt=start)

    rows = fitted(EVERY).rows
    foreseen = rows.leave_one_out(1.0).mean
    rows.response = None
    held = rows.leave_one_out(1.0).mean
    truth = torch.stack(
        [fitted(without(row)).posterior.mean(Evaluation(), X[row : row + 1])[0] for row in range(ROWS)]
    )
    seen = targets != 0
    errors = [(found - truth)[seen].abs().mean() for found in (foreseen, held)]
    assert errors[0] < 0.35 * errors[1]
    assert errors[0] < 0.1 * truth[seen].abs().mean()


def test_a_softmax_is_left_out_to_first_order(process):
    likelihood = Softmax(CLASSES, 64)
    projected, targets = parts(likelihood, process, EVERY)
    q = fit_q(*given(process, likelihood, X, targets), Z).q
    rows = expanded_rows(projected, likelihood, targets, q)
    torch.testing.assert_close(rows.optimum(1.0).mean, q.mean, rtol=1e-2, atol=1e-2)
    left_out, mean = rows.leave_one_out(1.0), projected.columns.mT @ q.mean
    found, truth = [], []
    for row in range(0, ROWS, 3):
        keep = without(row)
        refit = fit_q(*given(process, likelihood, X[keep], targets[keep]), Z).q
        moments = SparsePosterior(process, Z, refit).moments(Evaluation(), X[row : row + 1])
        truth.append(moments.mean[0] - mean[row])
        found.append(left_out.mean[row] - mean[row])
    change, right = torch.stack(found), torch.stack(truth)
    assert (change - right).abs().mean() < 0.25 * right.abs().mean()


def test_rows_that_count_several_times_are_left_out_all_at_once(process):
    likelihood, weight = Dirichlet(), 1 + torch.arange(ROWS).double() % 3
    targets = likelihood.encode_labels(LABELS, CLASSES)
    rows = condition(*given(process, likelihood, X, targets, weight), Z).rows
    keep = without(4)
    refit = condition(*given(process, likelihood, X[keep], targets[keep], weight[keep]), Z)
    moments = refit.posterior.moments(Evaluation(), X[4:5])
    torch.testing.assert_close(rows.leave_one_out(1.0).mean[4], moments.mean[0])
