import pytest
import torch
from gpytorch.kernels import (
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.functionals.functional import Atoms, exact_atoms
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import double_sums, process
from orbitwise.process.double_sums import double_sum, own_sum, takes_double_sums
from orbitwise.process.process import block_covariance, paired_covariance
from orbitwise.transforms import coordinate_permutations

KERNELS = {
    "rbf": lambda: RBFKernel(),
    "scaled ard": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "matern 3/2": lambda: ScaleKernel(MaternKernel(nu=1.5)),
    "matern 5/2": lambda: MaternKernel(nu=2.5),
    "some coordinates": lambda: ScaleKernel(RBFKernel(active_dims=(0, 2))),
    "scaled twice, some coordinates": lambda: ScaleKernel(ScaleKernel(RBFKernel(), active_dims=(2, 1))),
}
WEIGHTS = ("shared", "by row", "learned")


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(count: int, atoms: int, weights: str, seed: int = 0) -> Atoms:
    """Rows far from the origin, whose points, and weights where these are learned, ask for gradients."""
    values = seeded(1 if weights == "shared" else count, atoms, seed=seed + 1).expand(count, atoms)
    values = values.clone().requires_grad_() if weights == "learned" else values
    return exact_atoms((100 + seeded(count, atoms, 3, seed=seed)).requires_grad_(), values)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(double_sums.PAIRS_AT_ONCE, "cpu", 200)


def with_gradients(matrix: Tensor, kernel: torch.nn.Module, *blocks: Atoms) -> list[Tensor]:
    leaves = [leaf for block in blocks for leaf in (block.points, block.weights) if leaf.requires_grad]
    probe = seeded(*matrix.shape, seed=9)  # not symmetric
    return [matrix, *torch.autograd.grad((probe * matrix).sum(), [*leaves, *kernel.parameters()])]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_it_equals_the_general_path_with_all_gradients(kernel, weights):
    base = kernel().double()
    left, right = rows_of(11, 5, weights), rows_of(7, 4, weights, seed=3)
    assert takes_double_sums(base, left, right)
    for blocks in ((left,), (left, right)):
        # a band of rows keeps to the general path
        slow = with_gradients(block_covariance(base, *blocks[:1], *blocks[1:], row_block=50), base, *blocks)
        fast = with_gradients(block_covariance(base, *blocks), base, *blocks)
        for one, other in zip(fast, slow, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_gradients_are_those_of_differences():
    kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
    order = torch.zeros(3, dtype=torch.long)

    def sums(points, weights, other):
        left = Atoms(points, weights, None, order, order)
        return double_sum(kernel, left), double_sum(
            kernel, left, Atoms(other, weights[:2], None, order, order)
        )

    arguments = (seeded(4, 3, 2), seeded(4, 3, seed=1), seeded(2, 3, 2, seed=2))
    assert torch.autograd.gradcheck(sums, [argument.requires_grad_() for argument in arguments])


def test_a_symmetric_matrix_is_symmetric_to_the_bit_and_costs_half(evaluations: list[int]):
    rows = rows_of(40, 5, "shared")
    with torch.no_grad():
        matrix = double_sum(RBFKernel().double(), rows)
    assert torch.equal(matrix, matrix.T)
    assert max(evaluations) <= 200
    assert 0.5 <= sum(evaluations) / (40 * 5) ** 2 < 0.6


def test_single_precision_sums_in_double_precision():
    """Each entry is a mean of 4 million values near one: the error stays that of one of them."""
    points = 0.01 * seeded(2, 2000, 3)
    weights = torch.full((2000,), 1 / 2000, dtype=torch.float64).expand(2, 2000)
    exact = double_sum(RBFKernel().double(), exact_atoms(points, weights))
    single = double_sum(RBFKernel(), exact_atoms(points.float(), weights[0].float().expand(2, 2000)))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", [RBFKernel(), ScaleKernel(MaternKernel(nu=2.5))])
def test_second_derivatives_are_those_of_differences(kernel):
    kernel, order = kernel.double(), torch.zeros(3, dtype=torch.long)

    def sums(points, weights, other):
        left = Atoms(points, weights, None, order, order)
        right = Atoms(other, weights[:2], None, order, order)
        return double_sum(kernel, left), double_sum(kernel, left, right)

    # far from each other, because Matérn kernels have kinks in their second derivatives where points meet
    arguments = (3 * seeded(2, 3, 2), seeded(2, 3, seed=1), 3 * seeded(2, 3, 2, seed=2))
    assert torch.autograd.gradgradcheck(sums, [argument.requires_grad_() for argument in arguments])


def test_points_far_from_each_other_take_the_general_path():
    rows = exact_atoms(1e8 * seeded(6, 3, 2), torch.full((6, 3), 1 / 3).double())
    assert double_sum(RBFKernel().double(), rows) is None
    near = exact_atoms(1e8 + seeded(6, 3, 2), torch.full((6, 3), 1 / 3).double())
    matrix = double_sum(RBFKernel().double(), near)
    assert matrix is not None
    assert matrix.max() <= 1


@pytest.mark.parametrize(
    "kernel",
    [RQKernel(), LinearKernel(), PeriodicKernel(), RBFKernel() + RBFKernel(), RBFKernel(batch_shape=(2,))],
)
def test_other_kernels_take_the_general_path(kernel):
    rows = rows_of(3, 2, "shared")
    assert not takes_double_sums(kernel.double(), rows, rows)


def test_single_values_and_slopes_take_the_general_path():
    kernel, x = RBFKernel().double(), seeded(4, 3)
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(x)
    value = Evaluation().atoms(x)
    assert not takes_double_sums(kernel, value, value)
    assert takes_double_sums(kernel, value, average)
    slope = Atoms(
        x[:, None], torch.ones(4, 1).double(), x[:, None], torch.ones(1).long(), torch.zeros(1).long()
    )
    assert not takes_double_sums(kernel, slope, average)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_diagonal_is_that_of_the_matrix_with_all_gradients(kernel, weights, monkeypatch):
    base, rows = kernel().double(), rows_of(11, 5, weights)
    leaves = [each for each in (rows.points, rows.weights, *base.parameters()) if each.requires_grad]
    probe = seeded(11, seed=9)

    def with_slopes(variance: Tensor) -> list[Tensor]:
        return [variance, *torch.autograd.grad((probe * variance).sum(), leaves)]

    fast = with_slopes(own_sum(base, rows))
    for one, other in zip(fast, with_slopes(block_covariance(base, rows).diagonal()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    # the same by a few rows at a time, which are computed again for their gradient
    monkeypatch.setitem(process.PAIRS_AT_ONCE, "cpu", 100)
    for one, other in zip(fast, with_slopes(paired_covariance(base, rows, rows)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", [RBFKernel(), ScaleKernel(MaternKernel(nu=2.5))])
def test_derivatives_of_the_diagonal_are_those_of_differences(kernel):
    kernel, order = kernel.double(), torch.zeros(3, dtype=torch.long)

    def diagonal(points, weights):
        return own_sum(kernel, Atoms(points, weights, None, order, order))

    arguments = [(3 * seeded(4, 3, 2)).requires_grad_(), seeded(4, 3, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(diagonal, arguments)
    assert torch.autograd.gradgradcheck(diagonal, arguments)


def test_rows_of_points_far_from_each_other_have_no_diagonal_by_products():
    spread = exact_atoms(1e9 * seeded(6, 3, 2), torch.full((6, 3), 1 / 3).double())
    assert own_sum(RBFKernel().double(), spread) is None
    # rows may be far from each other, if the points of each are together
    rows = exact_atoms(1e9 * seeded(6, 1, 2) + seeded(6, 3, 2, seed=1), torch.full((6, 3), 1 / 3).double())
    slow = paired_covariance(RBFKernel().double(), rows, exact_atoms(rows.points, rows.weights))
    torch.testing.assert_close(own_sum(RBFKernel().double(), rows), slow, rtol=1e-9, atol=0)
