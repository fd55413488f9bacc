"""Held-out means, their gradient, and learning by the held-out probability of labels."""

import pytest
import torch

from orbitwise.functionals import Evaluation
from orbitwise.inference.exact import evidence
from orbitwise.inference.held_out_labels import HeldOutLabels
from orbitwise.inference.linear_algebra import held_out_means
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.kernels.bases import default_kernel
from orbitwise.likelihoods import Gaussian
from orbitwise.process import Process

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = (X[:, 0] * X[:, 1] > 0).long()


def objective() -> HeldOutLabels:
    likelihood = Gaussian(0.3)
    rows = Observations(Evaluation(), X, likelihood.encode_labels(LABELS, 2))
    model = LatentModel(
        Process(None, default_kernel(X, separate_lengthscales=False)), Evaluation(), likelihood
    )
    return HeldOutLabels(model, rows, LABELS)


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    root = X[:9] @ X[:9].T
    return root + torch.eye(9, dtype=torch.float64), X[:9, :2] + 1.0


def test_held_out_means_are_those_of_rows_left_out_in_turn():
    covariance, residual = problem()
    found = held_out_means(covariance, residual)
    for n in range(9):
        others = [i for i in range(9) if i != n]
        weights = torch.linalg.solve(covariance[others][:, others], residual[others])
        torch.testing.assert_close(found[n], covariance[n, others] @ weights)


def test_the_gradient_of_held_out_means_is_that_of_differences():
    covariance, residual = problem()

    def symmetric(root: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return held_out_means((root + root.mT) / 2, residual)

    inputs = covariance.requires_grad_(), residual.requires_grad_()
    assert torch.autograd.gradcheck(symmetric, inputs)


def test_learning_raises_the_probability_of_held_out_labels():
    found = objective()
    before, value = found.loss(), found().item()
    training = found.learn(50)
    assert training.value > value + 1
    assert found.loss() < before - 0.02


def test_the_variance_of_f_is_that_of_most_evidence():
    found = objective()
    found.learn(20)
    model, rows = found.model, found.observations

    def at(factor: float) -> float:
        scale = model.process.kernel.outputscale
        atoms, noise = Evaluation().atoms(X), torch.full((60,), factor * model.noise.item()).double()
        with torch.no_grad():
            model.process.kernel.outputscale = factor * scale
            value = evidence(model.process, atoms, rows.targets, noise).value
            model.process.kernel.outputscale = scale
        return float(value)

    assert at(1.0) > max(at(0.97), at(1.03))


def test_held_out_means_do_not_change_with_the_variance_of_f():
    found = objective()
    before = found.means().detach()
    found._set_variance()
    torch.testing.assert_close(found.means().detach(), before)
    assert found.model.noise.item() != pytest.approx(0.3)
