import copy
import pickle

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    Gradient,
    LocalAverage,
    OrbitAverage,
    OrbitSum,
    average_minus_value,
)
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.process.process import as_blocks
from orbitwise.transforms import Scaling, coordinate_permutations
from tests.contracts.annotations import unchecked

V = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def process(mean: Mean | None = None) -> Process:
    return Process(None if mean is None else mean.double(), ScaleKernel(RBFKernel()).double())


def blocks() -> list:
    """Blocks of one, six and one atoms a row, and one of gradients."""
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    return [
        Evaluation().atoms(seeded(2, 3)),
        average.atoms(seeded(3, 3, seed=1)),
        DirectionalDerivative(V).atoms(seeded(2, 3, seed=2)),
        Gradient().atoms(seeded(2, 3, seed=3)),
    ]


class Square(Mean):
    """m(x) = a·|x|²."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("factor", torch.nn.Parameter(torch.tensor(0.75)))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x.square().sum(-1)


def test_blocks_of_different_widths_make_one_matrix():
    rows = blocks()
    matrix = process().covariance(rows)
    assert matrix.shape == (13, 13)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-12)
    sizes = [block.num_rows for block in rows]
    tiles = [row.split(sizes, dim=-1) for row in matrix.split(sizes)]
    for i, left in enumerate(rows):
        for j, right in enumerate(rows):
            torch.testing.assert_close(tiles[i][j], process().covariance(left, right))
    torch.testing.assert_close(process().covariance(rows, rows[1]), matrix[:, 2:5])
    torch.testing.assert_close(process().covariance(rows, rows, row_block=1), matrix)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12


def test_the_variance_is_the_diagonal():
    rows = blocks()
    diagonal = process().covariance(rows).diagonal()
    torch.testing.assert_close(process().variance(rows), diagonal)
    torch.testing.assert_close(process().variance(rows, row_block=1), diagonal)
    torch.testing.assert_close(process().variance(rows[1]), diagonal[2:5])


def test_paired_rows():
    rows, others = (
        OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(4, 3, seed=i)) for i in (0, 1)
    )
    expected = process().covariance(rows, others).diagonal()
    torch.testing.assert_close(process().paired_covariance(rows, others), expected)


def test_single_atoms():
    rows = blocks()[1]
    unreduced = process().atom_covariance(rows, rows)
    assert unreduced.shape == (3, 6, 3, 6)
    summed = torch.einsum("ns,nsmt,mt->nm", rows.weights, unreduced, rows.weights)
    torch.testing.assert_close(summed, process().covariance(rows))


def test_blocks_are_a_list():
    rows = blocks()
    assert as_blocks(rows[0]) == [rows[0]]
    assert as_blocks(tuple(rows)) == rows
    assert as_blocks(rows[3]) == [rows[3]]


def test_a_mean_of_zero():
    assert process().mean(blocks()).tolist() == [0.0] * 13
    assert isinstance(process().mean_module, ZeroMean)


def test_a_constant_mean():
    """A constant is its own average, and has no slope; a sum of six is six of it."""
    mean = ConstantMean().double()
    mean.constant.data.fill_(2.0)
    rows = [*blocks(), OrbitSum(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(1, 3))]
    frozen = SampledOrbit(Scaling(), -0.5, 0.5).freeze(4, torch.Generator().manual_seed(0))
    rows.append(average_minus_value(frozen).atoms(seeded(1, 3)))
    expected = torch.tensor([2.0] * 5 + [0.0] * 8 + [12.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(process(mean).mean(rows), expected)


def test_a_linear_mean():
    mean = LinearMean(3).double()
    rows = blocks()
    slopes = mean.weights.flatten()
    expected = torch.cat(
        [
            mean(rows[0].points[:, 0]),
            mean(rows[1].points).mean(-1),
            (V @ slopes).expand(2),
            slopes.repeat(2),
        ]
    )
    torch.testing.assert_close(process(mean).mean(rows), expected)


def test_any_mean_and_its_gradients():
    mean, rows = Square().double(), blocks()
    values = process(mean).mean(rows)
    points = [rows[0].points[:, 0], rows[2].points[:, 0], rows[3].points[:, 0]]
    expected = torch.cat(
        [
            0.75 * points[0].square().sum(-1),
            0.75 * rows[1].points.square().sum(-1).mean(-1),
            1.5 * points[1] @ V,
            1.5 * points[2].flatten(),
        ]
    )
    torch.testing.assert_close(values, expected)
    values.sum().backward()
    torch.testing.assert_close(mean.factor.grad, expected.sum() / 0.75)


def test_a_mean_of_rows_in_batches():
    mean = Square().double()
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(3))).atoms(seeded(6, 3))
    batched = process(mean).mean(rows.batched(torch.Size([2])))
    torch.testing.assert_close(batched, process(mean).mean(rows).reshape(2, 3))


def test_normalised_rows_have_unit_variance():
    rows = process().normalize(blocks()[1])
    torch.testing.assert_close(process().variance(rows), torch.ones(3, dtype=torch.float64))
    slopes = process().normalize(blocks()[2])
    torch.testing.assert_close(process().variance(slopes), torch.ones(2, dtype=torch.float64))


def test_normalising_is_differentiable():
    """The correlation does not depend on the outputscale, and has a gradient by the lengthscale."""
    base, average = process(), OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
    x = seeded(3, 3)

    def correlation() -> Tensor:
        return base.covariance(base.normalize(average.atoms(x)))[0, 1]

    found = torch.autograd.grad(correlation(), list(base.kernel.parameters()))
    assert abs(found[0]) < 1e-12
    raw, step = base.kernel.base_kernel.raw_lengthscale, 1e-5
    with torch.no_grad():
        raw += step
        up = correlation()
        raw -= 2 * step
        down = correlation()
    torch.testing.assert_close(found[1].squeeze(), (up - down) / (2 * step), rtol=1e-6, atol=1e-9)


def test_a_row_that_is_almost_surely_zero_stays_zero():
    """An anti-symmetric f on its mirror: two equal coordinates."""
    odd = FiniteOrbit(coordinate_permutations(3), weights=torch.tensor([1.0, -1, -1, 1, 1, -1]))
    x = seeded(4, 3)
    x[1, 1] = x[1, 0]
    matrix = process().covariance(process().normalize(OrbitAverage(odd).atoms(x)))
    expected = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(matrix.diagonal(), expected)
    assert bool((matrix[1] == 0).all())


@torch.no_grad()
def test_local_averages_have_means_that_are_known_and_no_others():
    """An average of a linear mean is its value, of a square one it is not."""
    x, rows = seeded(4, 3), (LocalAverage(0.5) + Evaluation()).atoms(seeded(4, 3))
    for mean in (ConstantMean(), LinearMean(3)):
        base = process(mean)
        for parameter in mean.parameters():
            parameter.fill_(1.5)
        torch.testing.assert_close(base.mean(rows), mean(x))
    assert torch.equal(process().mean(rows), torch.zeros(4, dtype=torch.float64))
    with pytest.raises(
        ValueError, match="The Gaussian average of Square is not known: with LocalAverage use"
    ):
        process(Square()).mean(rows)


@torch.no_grad()
def test_the_precision_is_that_of_the_rows():
    """The kernel in double precision, the rows in single: so are the covariances."""
    x = seeded(4, 3)
    for functional in (
        OrbitAverage(FiniteOrbit(coordinate_permutations(3))),
        Gradient(),
        DirectionalDerivative(V),
    ):
        for kernel in (ScaleKernel(RBFKernel()).double(), RBFKernel(ard_num_dims=3).double()):
            base = Process(None, kernel)
            double, single = functional.atoms(x), functional.atoms(x.float())
            for call in (base.covariance, base.variance):
                assert call(single).dtype == torch.float32
                torch.testing.assert_close(call(single).double(), call(double), rtol=1e-5, atol=1e-5)


def test_processes_are_copied_and_pickled():
    rows = blocks()[1]
    base = Process(None, MaternKernel(nu=1.5).double(), one_sided=True)
    expected = base.covariance(rows)
    for twin in (copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert torch.equal(twin.covariance(rows), expected)


def test_parameters_are_those_of_mean_and_kernel():
    names = [name for name, _ in process(ConstantMean()).named_parameters()]
    assert names == [
        "mean_module.raw_constant",
        "kernel.raw_outputscale",
        "kernel.base_kernel.raw_lengthscale",
    ]


def test_clear_errors():
    with unchecked(), pytest.raises(TypeError, match=r"gpytorch\.kernels\.Kernel, not str"):
        Process(None, "rbf")
    with unchecked(), pytest.raises(ValueError, match="one_sided must be 'auto', True or False, not 'maybe'"):
        Process(None, RBFKernel(), one_sided="maybe")


def test_a_stretched_process_has_other_lengthscales_and_leaves_the_first_one_alone():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2)) + LinearKernel()
    kernel.kernels[0].base_kernel.lengthscale = torch.tensor([0.5, 2.0])
    process = Process(None, kernel)
    longer = process.stretched(2.0)
    assert longer is not None
    torch.testing.assert_close(
        longer.kernel.kernels[0].base_kernel.lengthscale, torch.tensor([[1.0, 4.0]]), rtol=1e-6, atol=0.0
    )
    torch.testing.assert_close(kernel.kernels[0].base_kernel.lengthscale, torch.tensor([[0.5, 2.0]]))


def test_a_process_without_a_lengthscale_that_may_change_is_not_stretched():
    fixed = RBFKernel()
    fixed.raw_lengthscale.requires_grad_(False)
    narrow = RBFKernel(lengthscale_constraint=Interval(0.1, 1.0))
    narrow.lengthscale = 0.9
    assert Process(None, fixed).stretched(2.0) is None
    assert Process(None, LinearKernel()).stretched(2.0) is None
    assert Process(None, narrow).stretched(2.0) is None
    assert Process(None, narrow).stretched(0.5) is not None
