from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import (
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Gradient,
    Gradients,
    OrbitAverage,
    TransformationDerivative,
)
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process, gradients
from orbitwise.process.gradients import gradient_covariance, takes_gradients
from orbitwise.process.process import block_covariance
from orbitwise.transforms import Rotation, coordinate_permutations

RADIAL = {
    "rbf": lambda: RBFKernel(),
    "ard": lambda: RBFKernel(ard_num_dims=4),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=4),
    "rational quadratic": lambda: RQKernel(),
    "active dimensions": lambda: RBFKernel(active_dims=[0, 3]),
    "scaled active dimensions": lambda: ScaleKernel(RBFKernel(active_dims=[1, 2])),
    "scale with active dimensions": lambda: ScaleKernel(RBFKernel(), active_dims=[0, 2]),
    "scaled sum": lambda: ScaleKernel(ScaleKernel(RBFKernel()) + MaternKernel(nu=2.5) + ConstantKernel()),
}
V = torch.tensor([1.0, -0.5, 0.25, 2.0], dtype=torch.float64)


def features(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].square(), x[:, 0] - x[:, 3]], dim=-1)


ORBIT = FiniteOrbit(coordinate_permutations(4))
BLOCKS = {
    "gradient": Gradient(),
    "some coordinates": Gradient([3, 1]),
    "gradient of average": Gradient() @ OrbitAverage(ORBIT),
    "gradient of features": Gradient() @ FeatureMap(features),
    "transformation derivatives": TransformationDerivative(Rotation(2)),
    "scaled": -2.0 * Gradient([0]),
}
OTHERS = {
    "value": Evaluation(),
    "average": OrbitAverage(ORBIT),
    "slope": DirectionalDerivative(V),
    "slope of average": DirectionalDerivative(V) @ OrbitAverage(ORBIT),
    **BLOCKS,
}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(kernel: Kernel, left: Gradients, right: object) -> Tensor:
    """The same rows one by one, both sides of every sum."""
    left = replace(left.expand(), symmetry=None)
    return block_covariance(kernel, left, right.expand() if isinstance(right, Gradients) else right)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["gradient", "gradient of average", "gradient of features"])
def test_a_block_is_its_rows(name: str, other: str):
    kernel = RADIAL["scaled sum"]().double()
    left, right = BLOCKS[name].atoms(seeded(3, 4)), OTHERS[other].atoms(seeded(2, 4, seed=1))
    assert isinstance(left, Gradients)
    expected = slow(kernel, left, right)
    torch.testing.assert_close(gradient_covariance(kernel, left, right), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient_covariance(kernel, right, left), expected.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", RADIAL)
def test_a_block_has_the_gradients_of_its_rows(name: str):
    kernel, x = RADIAL[name]().double(), seeded(3, 4).requires_grad_()
    block = (Gradient() @ OrbitAverage(ORBIT)).atoms(x)
    probe = seeded(12, 12, seed=2)
    leaves = [x, *kernel.parameters()]
    fast, rows = gradient_covariance(kernel, block, block), slow(kernel, block, block)
    torch.testing.assert_close(fast, rows, rtol=1e-10, atol=1e-12)
    for one, other in zip(
        *(
            torch.autograd.grad((probe * each).sum(), leaves, allow_unused=True, retain_graph=True)
            for each in (fast, rows)
        ),
        strict=True,
    ):
        # A constant has no slope: its parameter is not used here, and gets zeros there.
        one, other = (torch.zeros(()) if each is None else each for each in (one, other))
        torch.testing.assert_close(one.expand_as(other), other, rtol=1e-8, atol=1e-10, check_dtype=False)


@pytest.mark.parametrize("name", RADIAL)
@torch.no_grad()
def test_single_precision(name: str):
    kernel = RADIAL[name]()
    block = Gradient().atoms(seeded(6, 4))
    exact = gradient_covariance(kernel.double(), block, block)
    block = Gradient().atoms(seeded(6, 4).float())
    single = gradient_covariance(kernel.float(), block, block)
    assert (single - exact).abs().max() < 5e-6 * float(exact.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 5e-5)])
def test_far_from_the_origin(dtype: torch.dtype, tolerance: float):
    x = (seeded(5, 4) * 16).round().to(dtype) / 16
    for name in RADIAL:
        kernel = RADIAL[name]().to(dtype)
        near, far = (
            gradient_covariance(kernel, block, block)
            for block in (Gradient().atoms(x), Gradient().atoms(x + 1e6))
        )
        torch.testing.assert_close(near, far, rtol=tolerance, atol=tolerance)


def test_kernels_and_rows_that_it_serves():
    block = Gradient().atoms(seeded(3, 4))
    values, slopes = Evaluation().atoms(seeded(2, 4)), DirectionalDerivative(V).atoms(seeded(2, 4))
    mixed = (Evaluation() + DirectionalDerivative(V)).atoms(seeded(2, 4))
    for name in RADIAL:
        assert all(takes_gradients(RADIAL[name](), block, other) for other in (block, values, slopes))
        assert not takes_gradients(RADIAL[name](), block, mixed)
    unserved = [
        LinearKernel(),
        PolynomialKernel(power=2),
        RBFKernel() * RBFKernel(),
        RBFKernel() + LinearKernel(),
        RBFKernel(batch_shape=torch.Size([2])),
    ]
    for kernel in unserved:
        assert not takes_gradients(kernel, block, block)


@pytest.mark.parametrize(
    "kernel",
    [
        LinearKernel(),
        PolynomialKernel(power=3),
        RBFKernel() * MaternKernel(nu=2.5),
    ],
    ids=["linear", "polynomial", "product"],
)
def test_other_kernels_take_the_general_path(kernel: Kernel):
    kernel, block = kernel.double(), Gradient().atoms(seeded(3, 4))
    torch.testing.assert_close(block_covariance(kernel, block), slow(kernel, block, block))
    assert block_covariance(kernel, block).abs().max() > 0.01


def test_batches_of_kernels_take_the_general_path():
    kernel, block = RBFKernel(batch_shape=torch.Size([2])).double(), Gradient().atoms(seeded(3, 4))
    kernel.lengthscale = torch.tensor([0.5, 1.5]).reshape(2, 1, 1)
    together = Process(None, kernel).covariance([Evaluation().atoms(seeded(2, 4)), block])
    assert together.shape == (2, 14, 14)
    for number in range(2):
        alone = Process(None, kernel[number]).covariance([Evaluation().atoms(seeded(2, 4)), block])
        torch.testing.assert_close(together[number], alone)


def test_distances_do_not_grow_with_the_number_of_directions(monkeypatch: pytest.MonkeyPatch):
    shapes, distance = [], gradients.snapped_squared_distance
    monkeypatch.setattr(
        gradients,
        "snapped_squared_distance",
        lambda p, q: shapes.append((len(p), len(q))) or distance(p, q),
    )
    block = Gradient().atoms(seeded(5, 4))
    block_covariance(RBFKernel().double(), block, block)
    assert shapes == [(5, 5)]
