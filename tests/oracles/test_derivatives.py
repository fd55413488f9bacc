"""Derivative covariances, against GPyTorch's gradient kernels, finite differences and exact limits."""

import gpytorch
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

from orbitwise.functionals import DirectionalDerivative, Evaluation, Gradient
from orbitwise.process import Process

# Central differences of order eight: Σ_j c_j (f(jh) - f(-jh)) / h.
STENCIL = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ard(kernel: Kernel) -> Kernel:
    kernel.lengthscale = torch.tensor([[0.8, 1.3, 2.0]])
    return kernel


def rational_quadratic() -> Kernel:
    kernel = RQKernel()
    kernel.alpha = 1.7
    return kernel


KERNELS = {
    "rbf": lambda: RBFKernel(),
    "rbf ard": lambda: ard(RBFKernel(ard_num_dims=3)),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 3/2 ard": lambda: ard(MaternKernel(nu=1.5, ard_num_dims=3)),
    "matern 5/2": lambda: MaternKernel(nu=2.5),
    "matern 5/2 ard": lambda: ard(MaternKernel(nu=2.5, ard_num_dims=3)),
    "rational quadratic": rational_quadratic,
    "rational quadratic ard": lambda: ard(RQKernel(ard_num_dims=3)),
    "linear": lambda: LinearKernel(),
    "linear ard": lambda: LinearKernel(ard_num_dims=3),
    "quadratic": lambda: PolynomialKernel(power=2),
    "quartic": lambda: PolynomialKernel(power=4),
    "active dimensions": lambda: RBFKernel(active_dims=[0, 2]),
    "scaled active dimensions": lambda: ScaleKernel(ScaleKernel(MaternKernel(nu=2.5, active_dims=[2, 0]))),
    "scale with active dimensions": lambda: ScaleKernel(RBFKernel(), active_dims=[1]),
    "scale": lambda: ScaleKernel(RBFKernel()),
    "sum": lambda: ScaleKernel(MaternKernel(nu=2.5)) + LinearKernel() + ConstantKernel(),
    "product": lambda: RBFKernel(active_dims=[0]) * RQKernel(active_dims=[1, 2]) * PolynomialKernel(power=2),
    "sum in product": lambda: (
        (RBFKernel() + ConstantKernel()) * ScaleKernel(MaternKernel(nu=2.5) + LinearKernel())
    ),
}
KINKED = {"matern 3/2", "matern 3/2 ard", "matern 5/2", "matern 5/2 ard", "scaled active dimensions", "sum"}
KINKED |= {"sum in product"}


def make(name: str) -> Kernel:
    return KERNELS[name]().double()


def difference(h, x: Tensor, along: Tensor, step: float) -> Tensor:
    """∂_along h(x) by a stencil of eight points."""
    pairs = [c * (h(x + j * step * along) - h(x - j * step * along)) for j, c in STENCIL.items()]
    return sum(pairs) / step


def by_differences(
    kernel: Kernel, x: Tensor, y: Tensor, v: Tensor, w: Tensor, step: float
) -> tuple[Tensor, ...]:
    """k, ∂_v k, ∂_w k, ∂_v ∂_w k of GPyTorch's kernel."""

    def k(a: Tensor, b: Tensor) -> Tensor:
        return kernel(a, b).to_dense()

    return (
        k(x, y),
        difference(lambda a: k(a, y), x, v, step),
        difference(lambda b: k(x, b), y, w, step),
        difference(lambda a: difference(lambda b: k(a, b), y, w, step), x, v, step),
    )


def ours(kernel: Kernel, x: Tensor, y: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    process, value = Process(None, kernel), Evaluation()
    left, right = DirectionalDerivative(v).atoms(x), DirectionalDerivative(w).atoms(y)
    return (
        process.covariance(value.atoms(x), value.atoms(y)),
        process.covariance(left, value.atoms(y)),
        process.covariance(value.atoms(x), right),
        process.covariance(left, right),
    )


@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_every_profile_agrees_with_finite_differences(name: str):
    kernel, v, w = make(name), seeded(3, seed=1), seeded(3, seed=2)
    # The stencil must not reach the kink of a Matérn kernel: far apart, and a smaller step.
    x, y = seeded(4, 3, seed=3), seeded(3, 3, seed=4) + (1.5 if name in KINKED else 0.0)
    step, tolerance = (0.004, 1e-8) if name in KINKED else (0.03, 1e-9)
    for fast, slow in zip(ours(kernel, x, y, v, w), by_differences(kernel, x, y, v, w, step), strict=True):
        torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", sorted(set(KERNELS) - KINKED))
@torch.no_grad()
def test_every_smooth_profile_agrees_with_finite_differences_at_coincident_points(name: str):
    kernel, v, w = make(name), seeded(3, seed=1), seeded(3, seed=2)
    x = seeded(3, 3, seed=3)
    for fast, slow in zip(ours(kernel, x, x, v, w), by_differences(kernel, x, x, v, w, 0.03), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("nu", "curvature"), [(1.5, 3.0), (2.5, 5 / 3)])
@pytest.mark.parametrize("is_ard", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("shift", [0.0, 1e3])
@torch.no_grad()
def test_matern_kernels_have_their_limit_at_coincident_points(nu, curvature, is_ard, dtype, tolerance, shift):
    """∂_v ∂_w k = -2κ′(0) v·w/ℓ²: the second difference of a kinked kernel would not converge to it."""
    kernel = ard(MaternKernel(nu=nu, ard_num_dims=3)) if is_ard else MaternKernel(nu=nu)
    kernel = kernel.to(dtype)
    x, v, w = seeded(4, 3).to(dtype) + shift, seeded(3, seed=1).to(dtype), seeded(3, seed=2).to(dtype)
    slope, other, mixed = (part.diagonal() for part in ours(kernel, x, x, v, w)[1:])
    limit = curvature * (v * w / kernel.lengthscale.square()).sum()
    assert slope.abs().max() <= tolerance * (1 + shift)
    assert other.abs().max() <= tolerance * (1 + shift)
    assert (mixed - limit).abs().max() < tolerance * float(limit.abs())


def near(nu: float, r: float) -> tuple[float, float]:
    """(κ′, κ″) of a Matérn kernel of lengthscale one by the squared distance, at distance r."""
    root = (2 * nu) ** 0.5
    decay = torch.tensor(-root * r, dtype=torch.float64).exp().item()
    if nu == 1.5:
        return -1.5 * decay, 2.25 * decay / (root * r)
    return -5 / 6 * (1 + root * r) * decay, 25 / 12 * decay


@pytest.mark.parametrize("nu", [1.5, 2.5])
@pytest.mark.parametrize("r", [1e-12, 1e-6, 1e-3, 0.1])
@torch.no_grad()
def test_matern_kernels_agree_with_their_formula_at_almost_coincident_points(nu: float, r: float):
    kernel = MaternKernel(nu=nu).double()
    kernel.lengthscale = 1.0
    x, v, w = seeded(1, 3), seeded(3, seed=1), seeded(3, seed=2)
    away = seeded(3, seed=5)
    away = r * away / away.norm()
    first, second = near(nu, r)
    right = -4 * second * (away @ v) * (away @ w) - 2 * first * (v @ w)
    # The distance comes from a product, so it is known to the square root of rounding, 1e-8 of the spread.
    assert (ours(kernel, x + away, x, v, w)[3] - right).abs() < 1e-7


def rows_by_input(process: Process, x: Tensor) -> Tensor:
    """Values and gradients in GPyTorch's order: g(x_1), ∂g(x_1), g(x_2), …"""
    n, d = x.shape
    order = torch.stack([torch.arange(n), *(n + torch.arange(n) * d + k for k in range(d))], dim=1).flatten()
    return process.covariance([Evaluation().atoms(x), Gradient().atoms(x)])[order][:, order]


GRADIENT_KERNELS = {
    "rbf": (lambda **options: RBFKernel(**options), "RBFKernelGrad"),
    "matern 5/2": (lambda **options: MaternKernel(nu=2.5, **options), "Matern52KernelGrad"),
}


@pytest.mark.parametrize("name", GRADIENT_KERNELS)
@pytest.mark.parametrize("is_ard", [False, True])
@torch.no_grad()
def test_gradient_blocks_agree_with_gpytorch(name: str, is_ard: bool):
    plain, theirs = GRADIENT_KERNELS[name]
    options = {"ard_num_dims": 3} if is_ard else {}
    kernel, gradients = plain(**options).double(), getattr(gpytorch.kernels, theirs)(**options).double()
    scale = torch.tensor([[0.8, 1.3, 2.0]]) if is_ard else 0.9
    kernel.lengthscale = gradients.lengthscale = scale
    x = seeded(5, 3)
    torch.testing.assert_close(
        rows_by_input(Process(None, kernel), x), gradients(x).to_dense(), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("power", [2, 3])
@torch.no_grad()
def test_polynomial_gradients_agree_with_gpytorch(power: int):
    kernel, gradients = (
        PolynomialKernel(power=power).double(),
        gpytorch.kernels.PolynomialKernelGrad(power=power),
    )
    x = seeded(5, 3)
    order = torch.cat([torch.arange(0, 20, 4), *(torch.arange(4 * i + 1, 4 * i + 4) for i in range(5))])
    theirs = gradients.double()(x).to_dense()[order][:, order]
    blocks = [Evaluation().atoms(x), Gradient().atoms(x)]
    torch.testing.assert_close(Process(None, kernel).covariance(blocks), theirs, rtol=1e-8, atol=1e-8)


def test_differentiating_a_gpytorch_kernel_twice_is_the_trap_that_profiles_avoid():
    """METHOD 10: autograd gives 0 on the diagonal of Matérn-5/2 where the truth is 5/(3ℓ²)."""
    kernel = MaternKernel(nu=2.5).double()
    x = seeded(1, 1)
    twice = torch.autograd.functional.hessian(
        lambda pair: kernel(pair[:1], pair[1:]).to_dense().sum(), torch.cat([x, x])
    )[0, 0, 1, 0]
    v = torch.ones(1, dtype=torch.float64)
    truth = 5 / (3 * kernel.lengthscale.detach().square())
    assert (twice - truth).abs() > 0.1 * truth
    torch.testing.assert_close(ours(kernel, x, x, v, v)[3].detach(), truth)
