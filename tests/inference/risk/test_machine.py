import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals import (
    Difference,
    DirectionalDerivative,
    Evaluation,
    FiniteDifference,
    Gradient,
    LocalAverage,
)
from orbitwise.functionals.functional import Block, Functional
from orbitwise.inference.risk import DenseGram, ProductGram
from orbitwise.inference.risk.machines import (
    Machine,
    basis_rows,
    gram_of,
)
from orbitwise.process import Process
from orbitwise.process.gradients import has_products


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NEW, PAIRS = seeded(7, 3), seeded(5, 3, seed=1), seeded(4, 2, 3, seed=2)
DIRECTION = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def process_of(kernel=None) -> Process:
    return Process(None, (RBFKernel() if kernel is None else kernel).double().requires_grad_(False))


def blocks() -> list[Block]:
    return [
        Evaluation().atoms(X),
        Gradient().atoms(NEW),
        Difference().atoms(PAIRS),
        LocalAverage(0.3).atoms(X),
        DirectionalDerivative(DIRECTION).atoms(X),
    ]


def test_rows_of_the_basis_are_the_functionals_of_its_functions():
    """Of 1 and x, for which differences, slopes and averages are known."""
    found = basis_rows(blocks(), "linear")
    one, nought = torch.ones(7, 1).double(), torch.zeros(7, 1).double()
    expected = [
        torch.cat([one, X], 1),
        torch.cat([torch.zeros(15, 1).double(), torch.eye(3).double().repeat(5, 1)], 1),
        torch.cat([torch.zeros(4, 1).double(), PAIRS[:, 0] - PAIRS[:, 1]], 1),
        torch.cat([nought, torch.zeros(7, 3).double()], 1),
        torch.cat([nought, DIRECTION.expand(7, 3)], 1),
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-12)
    assert torch.equal(basis_rows(blocks(), "bias"), found[:, :1])
    assert basis_rows(blocks(), "none").shape == (40, 0)
    with pytest.raises(ValueError, match="basis must be one of none, bias, linear, not 'cubic'"):
        basis_rows(blocks(), "cubic")


def test_local_averages_of_values_keep_the_constant():
    block = (LocalAverage(0.3) + 2 * Evaluation()).atoms(X)
    torch.testing.assert_close(
        basis_rows([block], "linear"), 2 * torch.cat([torch.ones(7, 1).double(), X], 1)
    )


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (RBFKernel(), True),
        (ScaleKernel(PolynomialKernel(power=2)), True),
        (AdditiveKernel(RBFKernel(), ScaleKernel(LinearKernel()), ConstantKernel()), True),
        (AdditiveKernel(RBFKernel(), RBFKernel() * RBFKernel()), False),
        (RBFKernel(ard_num_dims=3) * LinearKernel(), False),
    ],
)
def test_products_that_form_no_covariance_are_those_of_the_covariance(kernel, known: bool):
    assert has_products(kernel) is known
    process, vectors = process_of(kernel), seeded(15, 2, seed=3)
    slopes = Gradient().atoms(NEW)
    # products of kernels have no local averages
    for left in blocks() if known else [each for each in blocks() if getattr(each, "blur", None) is None]:
        found = process.product(left, slopes, vectors)
        torch.testing.assert_close(found, process.covariance(left, slopes) @ vectors, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [RBFKernel(), MaternKernel(2.5), RBFKernel() * LinearKernel()])
def test_a_gram_matrix_known_by_products_is_the_dense_one(kernel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orbitwise.process.process.ROWS_AT_ONCE", 4)
    process = process_of(kernel)
    rows = blocks() if type(kernel) is RBFKernel else [blocks()[i] for i in (0, 1, 2, 4)]
    dense, unformed = gram_of(process, rows), gram_of(process, rows, largest=10)
    assert isinstance(dense, DenseGram)
    assert isinstance(unformed, ProductGram)
    vectors = seeded(3, dense.num_rows, seed=4)
    torch.testing.assert_close(unformed.product(vectors), dense.product(vectors), rtol=0, atol=1e-9)
    torch.testing.assert_close(unformed.diagonal(), dense.diagonal(), rtol=0, atol=1e-10)
    index = torch.tensor([0, 9, 20])
    torch.testing.assert_close(unformed.columns(index), dense.columns(index), rtol=0, atol=1e-9)


@pytest.mark.parametrize("basis", ["none", "bias", "linear"])
@pytest.mark.parametrize(
    "functional", [Evaluation(), Gradient(), DirectionalDerivative(DIRECTION), LocalAverage(0.5)]
)
def test_a_machine_is_the_sum_over_its_rows(functional: Functional, basis: str, monkeypatch):
    monkeypatch.setattr("orbitwise.inference.risk.machines.ROWS_AT_ONCE", 2)
    process, width = process_of(), {"none": 0, "bias": 1, "linear": 4}[basis]
    alpha, beta = seeded(40, 2, seed=5), seeded(width, 2, seed=6)
    found = Machine(process, blocks(), alpha, beta, basis).values(functional, NEW)
    rows = functional.atoms(NEW)
    expected = process.covariance(rows, blocks()) @ alpha + basis_rows([rows], basis) @ beta
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_slopes_of_a_machine_are_those_of_its_values():
    machine = Machine(process_of(), blocks(), seeded(40, 1, seed=5), seeded(4, 1, seed=6), "linear")
    step = FiniteDifference(DIRECTION, 1e-5)
    torch.testing.assert_close(
        machine.values(DirectionalDerivative(DIRECTION), NEW), machine.values(step, NEW), rtol=0, atol=1e-7
    )
