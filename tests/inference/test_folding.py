from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import Difference, Evaluation, Gradient
from orbitwise.functionals.functional import Gradients
from orbitwise.inference.exact import condition
from orbitwise.inference.risk import machines
from orbitwise.inference.risk.machines import Invariances, fold, fold_weights, nearest_positive
from orbitwise.process import Process
from orbitwise.process.gradients import GradientOperator

STRENGTHS = [1e-3, 0.1, 1.0, 1e3]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = seeded(9, 3)
PLACES = torch.tensor([0, 2, 3, 8])


def process_of(dtype: torch.dtype = torch.float64) -> Process:
    kernel = ScaleKernel(RBFKernel()).to(dtype)
    kernel.outputscale, kernel.base_kernel.lengthscale = 2.0, 1.5
    return Process(None, kernel.requires_grad_(False))


def slopes(x: Tensor = X) -> Gradients:
    block = Gradient().atoms(x)
    assert isinstance(block, Gradients)
    return block


def held(x: Tensor = X) -> Invariances:
    return Invariances.of_rows(process_of(x.dtype), slopes(), x, X[PLACES])


def unformed(x: Tensor = X) -> Invariances:
    return Invariances.of_operator(GradientOperator(process_of().kernel, slopes()), x, X[PLACES])


def prior(x: Tensor = X) -> Tensor:
    return process_of().covariance(Evaluation().atoms(x), Evaluation().atoms(X[PLACES]))


WAYS: dict[str, Callable[[Tensor], Invariances]] = {"held": held, "unformed": unformed}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("x", [X, seeded(5, 3, seed=4)], ids=["own points", "other points"])
@pytest.mark.parametrize("way", WAYS)
def test_folding_is_the_posterior_covariance_given_invariance(way: str, x: Tensor, weighted: bool):
    weights = seeded(27, seed=1).exp() if weighted else torch.ones(27, dtype=torch.float64)
    found = fold(prior(x), WAYS[way](x), STRENGTHS, weights if weighted else None, tolerance=1e-12)
    assert found.converged
    assert found.matrices.shape == (4, len(x), 4)
    both = [Evaluation().atoms(x), Evaluation().atoms(X[PLACES])]
    for strength, matrix in zip(STRENGTHS, found.matrices, strict=True):
        zeros = torch.zeros(27, 1, dtype=torch.float64)
        posterior = condition(process_of(), slopes(), zeros, 1 / (2 * strength * weights))
        expected = posterior.covariance(both)[: len(x), len(x) :]
        torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("way", WAYS)
def test_a_folded_kernel_is_symmetric_positive_and_falls_with_the_strength(way: str):
    every = torch.arange(9)
    points = Evaluation().atoms(X)
    process = process_of()
    if way == "held":
        invariances = Invariances.of_rows(process, slopes(), X, X)
    else:
        invariances = Invariances.of_operator(GradientOperator(process.kernel, slopes()), X, X)
    found = fold(process.covariance(points), invariances, STRENGTHS, positions=every, tolerance=1e-12)
    torch.testing.assert_close(found.matrices, found.matrices.mT, rtol=1e-12, atol=1e-12)
    for weaker, stronger in zip(found.matrices, found.matrices[1:], strict=False):
        assert torch.linalg.eigvalsh(stronger).min() > -1e-9
        assert torch.linalg.eigvalsh(weaker - stronger).min() > -1e-9


def test_columns_in_small_parts_and_in_any_order_of_strengths():
    whole = fold(prior(), unformed(), STRENGTHS, tolerance=1e-13)
    parts = fold(prior(), unformed(), STRENGTHS[::-1], tolerance=1e-13, columns_at_once=1)
    torch.testing.assert_close(parts.matrices.flip(0), whole.matrices, rtol=0, atol=1e-9)


def test_memory_sets_the_number_of_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machines, "NUMBERS_AT_ONCE", 700)
    widths, invariances = [], unformed()

    def columns(part: slice) -> Tensor:
        widths.append(part.stop - part.start)
        return invariances.columns(part)

    fold(prior(), Invariances(27, invariances.product, columns), STRENGTHS)
    # 700 numbers over 6·27 and 3·4·9 of a column
    assert widths == [2, 2]


def test_the_search_tells_how_far_it_went():
    exact = fold(prior(), held(), STRENGTHS).matrices
    errors, bounds = [], []
    for iterations in (1, 3, 6, 12):
        found = fold(prior(), unformed(), STRENGTHS, tolerance=1e-14, max_iterations=iterations)
        assert (found.iterations, found.converged) == (iterations, False)
        errors.append((found.matrices - exact).abs().max().item())
        bounds.append(found.bound * 2.0)
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    assert errors[-1] < 0.05 * errors[0]
    loose, tight = (fold(prior(), unformed(), STRENGTHS, tolerance=each) for each in (1e-2, 1e-6))
    assert loose.converged
    assert tight.converged
    assert loose.iterations < tight.iterations
    assert min(tight.correction, tight.bound) <= 1e-6


def test_a_column_that_no_functional_sees_keeps_its_prior():
    far = X + 1e3
    invariances = Invariances.of_operator(GradientOperator(process_of().kernel, slopes()), X, far[:2])
    found = fold(torch.ones(9, 2, dtype=torch.float64), invariances, STRENGTHS)
    assert torch.equal(found.matrices, torch.ones(4, 9, 2, dtype=torch.float64))
    assert found.converged


def test_functionals_of_any_kind():
    process, pairs = process_of(), seeded(6, 2, 3, seed=5)
    rows = [Difference().atoms(pairs), slopes()]
    invariances = Invariances.of_rows(process, rows, X, X[PLACES])
    found = fold(prior(), invariances, [2.0]).matrices[0]
    gram, cross = process.covariance(rows), process.covariance(rows, Evaluation().atoms(X))
    inner = torch.linalg.inv(gram + torch.eye(33, dtype=torch.float64) / 4)
    torch.testing.assert_close(found, prior() - cross.T @ inner @ cross[:, PLACES], rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_coefficients_of_functionals_predict_at_new_points(way: str, weighted: bool):
    weights = seeded(27, seed=1).exp() if weighted else None
    coefficients, new = seeded(4, 2, seed=2), seeded(5, 3, seed=3)
    found = fold_weights(WAYS[way](X), coefficients, 10.0, weights, tolerance=1e-8)
    assert found.converged
    assert found.residual <= 1e-8
    cross = process_of().covariance(Evaluation().atoms(new), slopes())
    predicted = prior(new) @ coefficients + cross @ found.vectors
    expected = fold(prior(new), held(new), [10.0], weights).matrices[0] @ coefficients
    torch.testing.assert_close(predicted, expected, rtol=0, atol=1e-6)


def test_a_search_for_coefficients_tells_how_far_it_went():
    coefficients = seeded(4, 2, seed=2)
    found = fold_weights(unformed(), coefficients, 10.0, max_iterations=1)
    assert (found.iterations, found.converged) == (1, False)
    exact = fold_weights(held(), coefficients, 10.0)
    right = held().columns(slice(None)) @ coefficients
    left = right + process_of().covariance(slopes()) @ found.vectors + found.vectors / 20
    assert found.residual == pytest.approx((left.norm() / right.norm()).item())
    assert (exact.iterations, exact.residual, exact.converged) == (0, 0.0, True)


def test_the_nearest_positive_matrix_lacks_negative_eigenvalues_alone():
    basis = torch.linalg.qr(seeded(2, 5, 5)).Q
    values = torch.tensor([-2.0, -1e-9, 0.0, 1.0, 3.0], dtype=torch.float64)
    found = nearest_positive((basis * values) @ basis.mT)
    torch.testing.assert_close(found, (basis * values.clamp_min(0)) @ basis.mT, rtol=0, atol=1e-12)
    positive = seeded(5, 5) @ seeded(5, 5).mT
    torch.testing.assert_close(nearest_positive(positive), positive, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_single_precision_is_right_to_one_part_in_ten_thousand(way: str):
    process = process_of(torch.float32)
    x, columns = X.float(), X[PLACES].float()
    block = slopes(x)
    if way == "held":
        invariances = Invariances.of_rows(process, block, x, columns)
    else:
        invariances = Invariances.of_operator(GradientOperator(process.kernel, block), x, columns)
    found = fold(prior().float(), invariances, STRENGTHS, tolerance=1e-6)
    assert found.matrices.dtype == torch.float32
    exact = fold(prior(), held(), STRENGTHS).matrices
    torch.testing.assert_close(found.matrices.double(), exact, rtol=0, atol=2e-4)


def test_bad_input_is_told():
    for strengths in ([], [0.0], [-1.0], [float("inf")]):
        with pytest.raises(ValueError, match="Strengths must be positive and finite"):
            fold(prior(), held(), strengths)
    with pytest.raises(ValueError, match="27 functionals take as many positive, finite weights"):
        fold(prior(), held(), [1.0], torch.ones(26, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"values from 0\.0 to 0\.0"):
        fold_weights(held(), seeded(4, 1), 1.0, torch.zeros(27, dtype=torch.float64))
