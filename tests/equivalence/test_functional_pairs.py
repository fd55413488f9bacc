"""Gram entries between all kinds of functionals, against kernel values alone.

The reference knows no derivative and no closed form: a slope is a five-point difference, a local average is
Gauss-Hermite quadrature in all dimensions, and everything else is a sum of values.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpytorch.kernels import ConstantKernel, Kernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import (
    Block,
    Difference,
    DirectionalDerivative,
    Evaluation,
    Gradient,
    ImageTangent,
    LocalAverage,
    OrbitAverage,
    deletion_pairs,
    image_tangents,
)
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations

DIMENSION, WIDTH, STEP = 4, 0.3, 1e-2
SHAPE = (2, 2)
V = torch.tensor([0.5, -1.0, 0.25, 0.75], dtype=torch.float64)
ORBIT = FiniteOrbit(coordinate_permutations(DIMENSION))
MEANS = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=torch.float64)

Values = list[tuple[Tensor, Tensor]]
"""For each row points [s d] and weights [s] of values."""


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.7


def slope(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(8[g(x+hv) - g(x-hv)] - [g(x+2hv) - g(x-2hv)])/12h."""
    moves = torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.float64)[:, None] * STEP * v
    return x + moves, torch.tensor([8.0, -8.0, -1.0, 1.0], dtype=torch.float64) / (12 * STEP)


def local(x: Tensor) -> tuple[Tensor, Tensor]:
    """∫ g(x + θε) N(ε; 0, I) dε - g(x)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    grid = torch.tensor(list(itertools.product(nodes, repeat=DIMENSION)))
    product = torch.tensor(list(itertools.product(weights / weights.sum(), repeat=DIMENSION))).prod(-1)
    return torch.cat([x + WIDTH * grid, x[None]]), torch.cat([product, torch.tensor([-1.0]).double()])


def pair(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.stack([first, second]), torch.tensor([1.0, -1.0], dtype=torch.float64)


def without(x: Tensor, feature: int) -> Tensor:
    copy = x.clone()
    copy[feature] = MEANS[feature]
    return copy


EYE = torch.eye(DIMENSION, dtype=torch.float64)
PERMUTATIONS = list(itertools.permutations(range(DIMENSION)))
KINDS: dict[str, tuple[Callable[[Tensor], Block], Callable[[Tensor], Values]]] = {
    "evaluation": (
        lambda x: Evaluation().atoms(x),
        lambda x: [(row[None], torch.ones(1, dtype=torch.float64)) for row in x],
    ),
    "slope": (lambda x: DirectionalDerivative(V).atoms(x), lambda x: [slope(row, V) for row in x]),
    "gradient": (lambda x: Gradient().atoms(x), lambda x: [slope(row, v) for row in x for v in EYE]),
    "tangents": (
        lambda x: ImageTangent(SHAPE, ["angle", ("shift_x", 0.5)], 0.5).atoms(x),
        lambda x: [
            slope(row, v)
            for row, tangents in zip(
                x, image_tangents(x, SHAPE, ["angle", ("shift_x", 0.5)], 0.5), strict=True
            )
            for v in tangents
        ],
    ),
    "local average": (lambda x: LocalAverage(WIDTH).atoms(x), lambda x: [local(row) for row in x]),
    "difference": (
        lambda x: Difference().atoms(torch.stack([x, x.flip(0)], 1)),
        lambda x: [pair(row, other) for row, other in zip(x, x.flip(0), strict=True)],
    ),
    "deletion": (
        lambda x: Difference().atoms(deletion_pairs(x, [1, 3], MEANS)),
        lambda x: [pair(row, without(row, feature)) for row in x for feature in (1, 3)],
    ),
    "orbit average": (
        lambda x: OrbitAverage(ORBIT).atoms(x),
        lambda x: [
            (row[torch.tensor(PERMUTATIONS)], torch.full((24,), 1 / 24, dtype=torch.float64)) for row in x
        ],
    ),
}


def made(name: str) -> Kernel:
    radial = ScaleKernel(RBFKernel(ard_num_dims=DIMENSION)).double()
    radial.base_kernel.lengthscale = torch.tensor([1.2, 1.5, 2.0, 1.3])
    radial.outputscale = 1.7
    power = PolynomialKernel(power=3).double()
    power.offset = 0.8
    kernels = {
        "rbf": radial,
        "one lengthscale": RBFKernel().double().initialize(lengthscale=1.4),
        "polynomial": power,
        "sum": radial + ScaleKernel(power) + ConstantKernel().double(),
    }
    return kernels[name].double()


def reference(kernel: Kernel, left: Values, right: Values) -> Tensor:
    def entry(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
        return one[1] @ kernel(one[0], other[0]).to_dense() @ other[1]

    return torch.stack([torch.stack([entry(one, other) for other in right]) for one in left])


@pytest.mark.parametrize("kernel_name", ["rbf", "one lengthscale", "polynomial", "sum"])
@pytest.mark.parametrize("left_name", KINDS)
@torch.no_grad()
def test_all_pairs_of_kinds(left_name: str, kernel_name: str):
    x, y = seeded(2, DIMENSION), seeded(2, DIMENSION, seed=1)
    kernel = made(kernel_name)
    process = Process(None, kernel)
    make_left, left_values = KINDS[left_name]
    for right_name, (make_right, right_values) in KINDS.items():
        expected = reference(kernel, left_values(x), right_values(y))
        assert expected.abs().max() > 1e-3
        found = process.covariance(make_left(x), make_right(y))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, msg=f"{left_name}, {right_name}")


@pytest.mark.parametrize("kernel_name", ["rbf", "one lengthscale", "polynomial", "sum"])
@torch.no_grad()
def test_all_kinds_together_have_a_valid_matrix(kernel_name: str):
    x = seeded(2, DIMENSION)
    process = Process(None, made(kernel_name))
    blocks = [make(x) for make, _ in KINDS.values()]
    matrix = process.covariance(blocks)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-12, atol=1e-12)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-9 * matrix.abs().max()
    torch.testing.assert_close(process.variance(blocks), matrix.diagonal())
    torch.testing.assert_close(process.covariance(blocks, blocks), matrix, rtol=1e-10, atol=1e-10)
