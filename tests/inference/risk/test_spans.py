"""Folding among the combinations of k at points, against dense linear algebra and all functions."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import DirectionalDerivatives, Evaluation, Gradient
from orbitwise.functionals.functional import Gradients
from orbitwise.inference.exact import condition
from orbitwise.inference.risk.spans import Span
from orbitwise.process import Process
from orbitwise.process.gradients import squared_slopes


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, PLACES = seeded(12, 4), torch.tensor([1, 4, 7])
VALUES = Evaluation().atoms(X)


def gaussian() -> Process:
    return Process(None, RBFKernel().double().requires_grad_(False))


def matern() -> Process:
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=4)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 2.0, torch.tensor([[0.7, 1.0, 2.0, 3.0]])
    return Process(None, kernel.requires_grad_(False))


def slopes(directions: Tensor | None = None, x: Tensor = X) -> Gradients:
    block = (Gradient() if directions is None else DirectionalDerivatives(directions)).atoms(x).scale(1.3)
    assert isinstance(block, Gradients)
    return block


@pytest.mark.parametrize("process", [gaussian(), matern()], ids=["gaussian", "matern"])
@pytest.mark.parametrize("block", [slopes(), slopes(seeded(2, 4)), slopes(x=seeded(5, 4))])
def test_squared_slopes_are_those_of_the_covariances(process: Process, block: Gradients):
    rows = process.covariance(block, VALUES)
    found = squared_slopes(process.kernel, X, block)
    assert found is not None
    torch.testing.assert_close(found, rows.mT @ rows, rtol=1e-10, atol=1e-10)


def test_other_kernels_and_directions_have_no_short_cut():
    assert squared_slopes(RBFKernel() + MaternKernel(2.5), X, slopes()) is None
    assert squared_slopes(gaussian().kernel, X, slopes(seeded(12, 2, 4))) is None


def test_parts_of_rows_and_their_squares_are_one_penalty():
    process = gaussian()
    gram, rows = process.covariance(VALUES), process.covariance(slopes(), VALUES)
    whole, parts = Span.of_rows(gram, rows.mT @ rows), Span.of_rows(gram, rows.split(7))
    for each in (whole, parts):
        labels = seeded(3, 2, seed=1)
        found = each.fold(0.3, PLACES)
        inner = torch.linalg.inv(gram + 0.6 * rows.mT @ rows)
        torch.testing.assert_close(found, (gram @ inner @ gram)[:, PLACES], rtol=0, atol=1e-9)
        torch.testing.assert_close(
            each.fold(0.3, PLACES, everywhere=False), found[PLACES], rtol=0, atol=1e-12
        )
        alpha = each.coefficients(0.3, PLACES, labels)
        torch.testing.assert_close(gram @ alpha, found @ labels, rtol=0, atol=1e-9)


def test_a_graph_loses_nothing():
    """A penalty of values at the points: k̃ is the posterior covariance given R f = 0."""
    process, root = gaussian(), seeded(12, 12, seed=2)
    gram = process.covariance(VALUES)
    found = Span.of_values(gram, root.mT @ root)
    expected = torch.linalg.inv(torch.linalg.inv(gram) + 2 * 0.7 * root.mT @ root)[:, PLACES]
    torch.testing.assert_close(found.fold(0.7, PLACES), expected, rtol=0, atol=1e-9)
    alpha = found.coefficients(0.7, PLACES, torch.eye(3).double())
    torch.testing.assert_close(gram @ alpha, expected, rtol=0, atol=1e-9)


def test_fewer_functions_have_less_variance_and_more_points_come_closer():
    """Among fewer functions k̃ is smaller; points around the labels bring it to that of all functions."""
    process, noise = gaussian(), torch.full((48,), 1 / (2 * 0.5), dtype=torch.float64)
    labelled = Evaluation().atoms(X[PLACES])
    posterior = condition(process, slopes(), torch.zeros(48, 1).double(), noise)
    everything, before = posterior.covariance(labelled), None
    for count in (12, 60, 300):
        points = torch.cat([X, X.repeat(count // 12 - 1, 1) + 0.4 * seeded(count - 12, 4, seed=3)])
        rows = process.covariance(slopes(), Evaluation().atoms(points))
        span = Span.of_rows(process.covariance(Evaluation().atoms(points)), rows.mT @ rows)
        missing = everything - span.fold(0.5, PLACES, everywhere=False)
        assert torch.linalg.eigvalsh(missing).min() > -1e-6
        assert before is None or missing.trace() < 0.5 * before
        before = missing.trace()
    assert before is not None
    assert before < 0.01 * everything.trace()


def test_points_that_hardly_differ_are_no_obstacle():
    process = gaussian()
    points = torch.cat([X, X + 1e-9])
    rows = process.covariance(slopes(), Evaluation().atoms(points))
    span = Span.of_rows(process.covariance(Evaluation().atoms(points)), rows.mT @ rows)
    plain = process.covariance(slopes(), VALUES)
    expected = Span.of_rows(process.covariance(VALUES), plain.mT @ plain)
    assert span.values.shape == (24, 12)
    torch.testing.assert_close(span.fold(2.0, PLACES)[:12], expected.fold(2.0, PLACES), rtol=0, atol=1e-6)
