import math

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import (
    Atoms,
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Functional,
    Gradient,
    OrbitAverage,
)
from orbitwise.functionals.functional import exact_atoms
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process, double_sums
from orbitwise.process import process as module
from orbitwise.process.process import (
    atom_covariance,
    block_covariance,
    one_of_equal_symmetry,
    pair_covariance,
    paired_covariance,
)
from orbitwise.transforms import Scaling, coordinate_permutations, sign_changes

FUNCTIONALS = {
    "evaluation": lambda: Evaluation(),
    "average": lambda: OrbitAverage(FiniteOrbit(coordinate_permutations(3))),
    "frozen average": lambda: OrbitAverage(
        SampledOrbit(Scaling(), -0.5, 0.5).freeze(5, torch.Generator().manual_seed(0))
    ),
    "slope": lambda: DirectionalDerivative(torch.tensor([1.0, 0.5, -0.5])),
    "gradient": lambda: Gradient(),
    "gradient of average": lambda: Gradient([0, 2]) @ OrbitAverage(FiniteOrbit(sign_changes(3))),
}
KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "ard matern": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3)),
    "no fast gradients": lambda: RBFKernel() * LinearKernel(),
}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(matrix: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    probe = torch.cos(torch.arange(matrix.numel(), dtype=matrix.dtype)).reshape(matrix.shape)
    return list(torch.autograd.grad((probe * matrix).sum(), leaves, allow_unused=True, retain_graph=True))


def assert_same(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    for one, other in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel_name", ["rbf", "no fast gradients"])
@pytest.mark.parametrize("right_name", FUNCTIONALS)
@pytest.mark.parametrize("left_name", ["average", "gradient of average"])
def test_streaming_changes_neither_values_nor_gradients(
    left_name: str, right_name: str, kernel_name: str, monkeypatch: pytest.MonkeyPatch
):
    kernel = KERNELS[kernel_name]().double()
    x, y = seeded(4, 3).requires_grad_(), seeded(3, 3, seed=1).requires_grad_()
    functional = FUNCTIONALS[right_name]().double()
    left, right = FUNCTIONALS[left_name]().atoms(x), functional.atoms(y)
    leaves = [x, y, *kernel.parameters(), *functional.parameters()]
    process = Process(None, kernel)
    whole = process.covariance(left, right, row_block=100)
    assert_same(process.covariance(left, right, row_block=3), whole, leaves)
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 100)
    assert_same(process.covariance(left, right), whole, leaves)


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_half_of_a_symmetric_matrix_is_enough(name: str, kernel_name: str, monkeypatch: pytest.MonkeyPatch):
    kernel, x = KERNELS[kernel_name]().double(), seeded(5, 3).requires_grad_()
    functional = FUNCTIONALS[name]().double()
    rows = functional.atoms(x)
    leaves = [x, *kernel.parameters(), *functional.parameters()]
    process = Process(None, kernel)
    whole = process.covariance(rows, rows, row_block=100)
    assert_same(process.covariance(rows), whole, leaves)
    assert_same(process.covariance(rows, row_block=2), whole, leaves)
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 100)
    tiled = process.covariance(rows)
    assert_same(tiled, whole, leaves)
    torch.testing.assert_close(tiled, tiled.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONALS)
def test_the_diagonal_streams_too(name: str, monkeypatch: pytest.MonkeyPatch):
    kernel, x = KERNELS["rbf"]().double(), seeded(7, 3).requires_grad_()
    functional = FUNCTIONALS[name]().double()
    rows = functional.atoms(x)
    leaves = [x, *kernel.parameters(), *functional.parameters()]
    whole = block_covariance(kernel, rows).diagonal()
    assert_same(paired_covariance(kernel, rows, rows), whole, leaves)
    assert_same(paired_covariance(kernel, rows, rows, row_block=2), whole, leaves)
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 3)
    assert_same(paired_covariance(kernel, rows, rows), whole, leaves)


def test_a_tile_holds_no_more_pairs_than_allowed(evaluations: list[int], monkeypatch: pytest.MonkeyPatch):
    for path in (module, double_sums):
        monkeypatch.setitem(path.PAIRS_AT_ONCE, "cpu", 500)
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    ard = RBFKernel(ard_num_dims=3).double()
    with torch.no_grad():
        block_covariance(ard, average.atoms(seeded(40, 3)), average.atoms(seeded(60, 3, seed=1)))
    assert max(evaluations) <= 500
    assert len(evaluations) > 40 * 60 // 500


def test_costs(evaluations: list[int]):
    """The double sum, one side of it, half of a symmetric matrix, and the diagonal, in kernel evaluations."""
    average, x, y = (
        OrbitAverage(FiniteOrbit(coordinate_permutations(4))),
        seeded(30, 4),
        seeded(20, 4, seed=1),
    )
    rows, columns = average.atoms(x), average.atoms(y)
    plain = Atoms(columns.points, columns.weights, None, columns.order, columns.draw)
    kernel = RBFKernel().double()
    costs = {}
    with torch.no_grad():
        for name, call in {
            "two sides": lambda: block_covariance(kernel, rows, plain),
            "one side": lambda: block_covariance(kernel, rows, columns),
            "diagonal": lambda: paired_covariance(kernel, rows, rows),
            "double diagonal": lambda: paired_covariance(kernel, plain, plain),
        }.items():
            evaluations.clear()
            call()
            costs[name] = sum(evaluations)
    assert costs["two sides"] == 30 * 20 * 24 * 24
    assert costs["one side"] == 30 * 20 * 24
    assert costs["diagonal"] == 30 * 24
    assert costs["double diagonal"] == 20 * 24 * 24


def test_a_symmetric_matrix_costs_little_more_than_its_half(
    evaluations: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 2**12)
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(4))).atoms(seeded(100, 4))
    with torch.no_grad():
        block_covariance(RBFKernel().double(), rows)
    assert 0.5 <= sum(evaluations) / (100 * 100 * 24) < 0.55


def test_weights_of_every_layout_are_used():
    """Weights shared by all rows, different in each row, or shared by all atoms of a row."""
    kernel, points = RBFKernel().double(), seeded(4, 3, 2)
    layouts = {
        "shared": seeded(3, seed=1).expand(4, 3),
        "by row": seeded(4, 3, seed=1),
        "by row, shared in memory by its atoms": seeded(4, 1, seed=1).expand(4, 3),
        "one row": seeded(1, 3, seed=1),
    }
    for name, weights in layouts.items():
        left = exact_atoms(points[: len(weights)], weights)
        for other in layouts.values():
            right = exact_atoms(points[: len(other)] + 0.5, other)
            unreduced = atom_covariance(kernel, left, right)
            slow = torch.einsum("ns,nsmt,mt->nm", weights, unreduced, other)
            torch.testing.assert_close(block_covariance(kernel, left, right), slow, msg=name)


def test_atoms_in_batches():
    kernel = RBFKernel(batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([0.5, 1.5]).reshape(2, 1, 1)
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    x, y = seeded(2, 4, 3), seeded(5, 3, seed=1)
    rows, columns = average.atoms(x.flatten(0, 1)).batched(torch.Size([2])), average.atoms(y)
    together = block_covariance(kernel, rows, columns)
    streamed = block_covariance(kernel, rows, columns, row_block=3)
    for number in range(2):
        alone = block_covariance(kernel[number], average.atoms(x[number]), columns)
        torch.testing.assert_close(together[number], alone)
        torch.testing.assert_close(streamed[number], alone)
    assert block_covariance(kernel, columns).shape == (2, 5, 5)
    assert paired_covariance(kernel, columns, columns).shape == (2, 5)


def test_unreduced_covariances_of_a_general_kernel():
    kernel = PeriodicKernel(batch_shape=torch.Size([2])).double()
    atoms = OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(4, 3))
    every, paired = atom_covariance(kernel, atoms, atoms), pair_covariance(kernel, atoms, atoms)
    assert every.shape == (2, 4, 6, 4, 6)
    torch.testing.assert_close(every.diagonal(dim1=1, dim2=3).movedim(-1, 1), paired)


def test_mixed_rows_meet_gradients():
    """Rows of values and slopes together are no block of gradients, and need the general path."""
    kernel, x = RBFKernel().double(), seeded(4, 3)
    v = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
    gradient = Gradient().atoms(x)
    parts = [
        block_covariance(kernel, functional.atoms(x), gradient)
        for functional in (Evaluation(), DirectionalDerivative(v))
    ]
    both = (Evaluation() + 2 * DirectionalDerivative(v)).atoms(x)
    torch.testing.assert_close(block_covariance(kernel, both, gradient), parts[0] + 2 * parts[1])
    torch.testing.assert_close(block_covariance(kernel, gradient, both), (parts[0] + 2 * parts[1]).T)


def test_one_side_of_equal_symmetry():
    orbit, other = FiniteOrbit(coordinate_permutations(3)), FiniteOrbit(coordinate_permutations(3))
    x = seeded(4, 3)
    rows, same, different = (OrbitAverage(each).atoms(x) for each in (orbit, orbit, other))
    left, right = one_of_equal_symmetry(rows, same)
    assert right is same
    assert torch.equal(left.points[:, 0], x)
    torch.testing.assert_close(left.weights, torch.ones(4, 1, dtype=torch.float64))
    # Two orbits of the same group are not known to be equal, and nothing is lost but time.
    assert one_of_equal_symmetry(rows, different) == (rows, different)
    kernel = RBFKernel().double()
    torch.testing.assert_close(
        block_covariance(kernel, rows, same), block_covariance(kernel, rows, different)
    )


def test_duplicated_points_give_equal_rows_and_a_valid_matrix():
    for functional in (f() for f in FUNCTIONALS.values()):
        x = seeded(4, 3).repeat(3, 1)
        for kernel in (RBFKernel().double(), MaternKernel(nu=1.5).double()):
            matrix = block_covariance(kernel, functional.double().atoms(x)).detach()
            blocks = matrix.unflatten(0, (3, -1)).unflatten(-1, (3, -1))
            for i in range(3):
                for j in range(3):
                    torch.testing.assert_close(blocks[i, :, j], blocks[0, :, 0], rtol=1e-10, atol=1e-10)
            assert torch.linalg.eigvalsh(matrix).min() > -1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_far_from_the_origin(dtype: torch.dtype):
    """Shifting all coordinates by a million commutes with permuting them."""
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    x = (seeded(6, 3) * 16).round().to(dtype) / 16
    kernel = RBFKernel().to(dtype)
    near, far = (block_covariance(kernel, average.atoms(points)) for points in (x, x + 1e6))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(near, far, rtol=tolerance, atol=tolerance)


def test_clear_errors():
    rows, fewer = Evaluation().atoms(seeded(4, 3)), Evaluation().atoms(seeded(3, 3))
    kernel = RBFKernel().double()
    with pytest.raises(ValueError, match="row_block must be at least 1, not 0"):
        block_covariance(kernel, rows, row_block=0)
    with pytest.raises(ValueError, match="row_block must be at least 1, not -2"):
        paired_covariance(kernel, rows, rows, row_block=-2)
    with pytest.raises(ValueError, match="Cannot pair 4 rows with 3 rows"):
        paired_covariance(kernel, rows, fewer)


def test_nothing_is_recomputed_where_no_gradient_is_asked_for(evaluations: list[int]):
    kernel = RBFKernel().double()
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(9, 3))
    kernel.requires_grad_(False)
    matrix = block_covariance(kernel, rows, rows, row_block=2)
    assert not matrix.requires_grad
    kernel.requires_grad_(True)
    evaluations.clear()
    block_covariance(kernel, rows, rows, row_block=2).sum().backward()
    # once forward, once backward: memory is bounded in both
    assert sum(evaluations) == 2 * 9 * 9 * 6
    assert max(evaluations) == 2 * 9 * 6


def test_features_are_points(evaluations: list[int]):
    functional: Functional = OrbitAverage(FiniteOrbit(coordinate_permutations(3))) @ FeatureMap(
        lambda x: torch.cat([x, x.square()], dim=-1)
    )
    rows = functional.atoms(seeded(5, 3))
    with torch.no_grad():
        matrix = block_covariance(RBFKernel().double(), rows)
    assert matrix.shape == (5, 5)
    assert sum(evaluations) == 25 * math.factorial(3)
