"""Every kind of invariance is small where it should be, and folds to what the dense algebra says."""

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.invariances import NAMES as VOCABULARY
from orbitwise.estimators.invariances import names_for
from orbitwise.estimators.machines import task as module
from orbitwise.estimators.machines.task import InvarianceRows, gradient_rows, invariance_rows
from orbitwise.functionals import Difference, Evaluation, Gradient, LocalAverage, average_minus_value
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.tangents import PAPER_MOVES, moved_images
from orbitwise.inference.risk.machines import fold
from orbitwise.orbits import JitterOrbit
from orbitwise.process import Process


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POINTS = seeded(9, 4)
X = POINTS[[1, 4, 6]]
PROCESS = Process(None, RBFKernel().double().requires_grad_(False))


def rows_of(invariance: Any, image_shape: tuple[int, ...] | None = (2, 2)) -> InvarianceRows:
    found = invariance_rows(invariance, POINTS, 1.0, image_shape)
    assert found is not None
    return found


NAMES = [name for name in names_for("penalise") if VOCABULARY[name].family != "signal"]
COUNTS = {"deletion": 36, "gradient": 36, "local_average": 9, "tangent": 54, "moves": 90}


@pytest.mark.parametrize("name", NAMES)
def test_named_invariances_see_no_constant(name: str):
    """A machine that is constant has nothing to lose by any of them."""
    rows = rows_of(name)
    assert rows.num_rows == sum(block.num_rows for block in rows.blocks) == len(rows.weights)
    if name in ("deletion", "gradient", "local_average"):
        assert rows.num_rows == COUNTS[name]
    wide = RBFKernel().double().requires_grad_(False)
    wide.lengthscale = 1e4
    variance = Process(None, wide).covariance(rows.blocks).diagonal()
    assert variance.abs().max() < 1e-4
    # images of 2 x 2 pixels, smoothed, hardly change by an ordinary turn, which is the unit of affine names
    assert PROCESS.covariance(rows.blocks).diagonal().max() > 1e-3


@pytest.mark.parametrize("invariance", [*NAMES, Gradient([1]), LocalAverage(0.3)])
def test_folding_is_conditioning_on_rows_that_vanish(invariance: str | Functional):
    rows = rows_of(invariance)
    gram = PROCESS.covariance(rows.blocks)
    cross = PROCESS.covariance(rows.blocks, Evaluation().atoms(X))
    prior = PROCESS.covariance(Evaluation().atoms(X))
    found = rows.fold(PROCESS, X, [0.1, 5.0]).matrices
    for strength, matrix in zip([0.1, 5.0], found, strict=True):
        noise = torch.diag(1 / (2 * strength * rows.weights))
        expected = prior - cross.mT @ torch.linalg.solve(gram + noise, cross)
        torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-9)
        labels = seeded(3, 2, seed=1)
        more = rows.coefficients(PROCESS, X, strength, labels)
        torch.testing.assert_close(prior @ labels + cross.mT @ more, expected @ labels, rtol=0, atol=1e-8)


def test_large_gradients_are_never_formed_and_agree(monkeypatch: pytest.MonkeyPatch):
    rows, labels = gradient_rows(POINTS, 1.0), seeded(3, 2, seed=1)
    dense = rows.fold(PROCESS, X, [0.1, 5.0]).matrices
    more = rows.coefficients(PROCESS, X, 5.0, labels)
    monkeypatch.setattr(module, "LARGEST_DENSE", 8)
    assert rows.invariances(PROCESS, X, X).gram is None
    torch.testing.assert_close(
        rows.fold(PROCESS, X, [0.1, 5.0], tolerance=1e-10).matrices, dense, rtol=0, atol=1e-8
    )
    torch.testing.assert_close(rows.coefficients(PROCESS, X, 5.0, labels), more, rtol=0, atol=1e-6)


def test_lists_have_rows_at_other_inputs():
    pairs, weights = seeded(5, 2, 4, seed=2).numpy(), np.arange(1.0, 6)
    rows = rows_of([(Gradient(), X), (Difference(), pairs, weights)])
    assert [block.num_rows for block in rows.blocks] == [12, 5]
    assert rows.weights.tolist() == [1.0] * 12 + weights.tolist()


def test_no_invariance_and_a_graph_of_one_point():
    assert invariance_rows(None, POINTS, 1.0, None) is None
    assert invariance_rows("graph", POINTS[:1], 1.0, None) is None


@pytest.mark.parametrize(
    ("invariance", "message"),
    [
        ("gradeint", "Unknown invariance 'gradeint'; known names are .* Did you mean 'gradient'"),
        ([(Gradient(),)], r"An entry of invariance is \(functional, inputs\)"),
        ([(3, X)], r"An entry of invariance is \(functional, inputs\)"),
        ([(Gradient(), X[:, :3])], "inputs of width 4 are expected"),
        (
            [(Gradient(), X, np.ones(5))],
            r"12 rows of Gradient need as many positive weights, not shape \(5,\)",
        ),
        ([(Gradient(), X, np.zeros(12))], "12 rows of Gradient need as many positive weights"),
        ([(Gradient(), np.full((2, 4), np.nan))], "NaN"),
        (average_minus_value(JitterOrbit(4, 0.1)), "freeze its orbit first"),
    ],
)
def test_bad_invariances_get_a_clear_error(invariance: Any, message: str):
    with pytest.raises(ValueError, match=message):
        rows_of(invariance)


@pytest.mark.parametrize("invariance", [3, [], {"gradient": 1}])
def test_other_types_get_a_clear_error(invariance: Any):
    with pytest.raises(
        TypeError, match="invariance must be None, a name, a finite orbit, a functional or a list"
    ):
        rows_of(invariance)


@pytest.mark.parametrize("name", ["differences", "tangent", "moves"])
def test_tangents_need_the_shape_of_images(name: str):
    with pytest.raises(ValueError, match=r"pass image_shape=\(height, width\)"):
        rows_of(name, None)


def test_differences_are_of_moved_images():
    values = PROCESS.covariance(
        Evaluation().atoms(moved_images(POINTS, (2, 2)).flatten(0, 1)), Evaluation().atoms(X)
    )
    plain = PROCESS.covariance(Evaluation().atoms(POINTS), Evaluation().atoms(X))
    expected = values - plain.repeat_interleave(len(PAPER_MOVES), 0)
    torch.testing.assert_close(
        PROCESS.covariance(rows_of("differences").blocks, Evaluation().atoms(X)), expected
    )


def test_a_search_that_does_not_converge_is_said(monkeypatch: pytest.MonkeyPatch):
    unfinished = lambda *given, **more: fold(*given, **more)._replace(converged=False)  # noqa: E731
    monkeypatch.setattr(module, "fold", unfinished)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        rows_of("gradient").fold(PROCESS, X, [1.0])
