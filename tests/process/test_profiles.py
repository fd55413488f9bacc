import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
)

from orbitwise.process.closed_forms import dot_product_profile, over_rows, radial_profile

RADIAL = {
    "rbf": RBFKernel,
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 5/2": lambda: MaternKernel(nu=2.5),
    "rational quadratic": RQKernel,
}
SQUARES = torch.linspace(0.2, 9.0, 12, dtype=torch.float64)
STENCIL = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}


def profile_of(kernel: Kernel):
    found = radial_profile(kernel.double())
    return lambda q, order: found(q.reshape(1, -1), order).detach().flatten()


def difference(h, q: torch.Tensor, step: float = 1e-2) -> torch.Tensor:
    return sum(c * (h(q + j * step) - h(q - j * step)) for j, c in STENCIL.items()) / step


@pytest.mark.parametrize("name", RADIAL)
def test_a_profile_is_the_kernel_of_the_squared_distance(name: str):
    kernel = RADIAL[name]().double()
    kernel.lengthscale = 1.0
    zero = torch.zeros(1, 1, dtype=torch.float64)
    theirs = kernel(SQUARES.sqrt()[:, None], zero).to_dense()[:, 0].detach()
    torch.testing.assert_close(profile_of(kernel)(SQUARES, 0), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", RADIAL)
def test_derivatives_of_a_profile_agree_with_differences(name: str, order: int):
    profile = profile_of(RADIAL[name]())
    slow = difference(lambda q: profile(q, order - 1), SQUARES)
    torch.testing.assert_close(profile(SQUARES, order), slow, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "values"), [("rbf", (1, -1 / 2, 1 / 4)), ("matern 5/2", (1, -5 / 6, 25 / 12))]
)
def test_profiles_at_zero(name: str, values: tuple[float, ...]):
    profile = profile_of(RADIAL[name]())
    zero = torch.zeros(1, dtype=torch.float64)
    for order, value in enumerate(values):
        assert float(profile(zero, order)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bend_of_matern_32_is_zero_at_zero_in_place_of_infinite(dtype: torch.dtype):
    """κ″ only meets factors that vanish faster, and their product is zero."""
    profile = radial_profile(MaternKernel(nu=1.5))
    q = torch.tensor([[0.0, 1e-6]], dtype=dtype, requires_grad=True)
    bend = profile(q, 2)
    assert bend[0, 0] == 0
    assert bend[0, 1].item() == pytest.approx(2.25 / (3e-6) ** 0.5, rel=1e-2)
    for order in range(3):
        slope = torch.autograd.grad(profile(q, order)[0, 0], q)[0]
        assert bool(slope.isfinite().all())


def test_only_kernels_with_formulas_have_profiles():
    class Wider(RBFKernel):
        pass

    for kernel in (MaternKernel(nu=0.5), PeriodicKernel(), LinearKernel(), Wider()):
        assert radial_profile(kernel) is None
    for kernel in (RBFKernel(), PeriodicKernel(), MaternKernel(nu=1.5)):
        assert dot_product_profile(kernel) is None


@pytest.mark.parametrize("power", [1, 2, 3, 5])
def test_polynomial_profiles(power: int):
    kernel = PolynomialKernel(power=power).double()
    kernel.offset = 0.5
    t = torch.linspace(-2, 2, 9, dtype=torch.float64)[None, :]
    variance, profile = dot_product_profile(kernel)
    assert bool((variance == 1).all())
    torch.testing.assert_close(profile(t, 0).detach(), (t + 0.5) ** power)
    for order in (1, 2):
        slow = difference(lambda s, order=order: profile(s, order - 1), t)
        torch.testing.assert_close(profile(t, order), slow, rtol=1e-9, atol=1e-9)


def test_the_linear_profile():
    kernel = LinearKernel(ard_num_dims=3).double()
    kernel.variance = torch.tensor([[0.5, 1.0, 2.0]])
    variance, profile = dot_product_profile(kernel)
    torch.testing.assert_close(variance.detach(), torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64))
    t = torch.tensor([[-1.0, 3.0]], dtype=torch.float64)
    assert profile(t, 0).tolist() == [[-1.0, 3.0]]
    assert profile(t, 1).tolist() == [[1.0, 1.0]]
    assert profile(t, 2).tolist() == [[0.0, 0.0]]


def test_parameters_of_batched_kernels_make_room_for_rows():
    plain, batched = RBFKernel(), RBFKernel(batch_shape=torch.Size([4]))
    assert over_rows(plain.lengthscale, plain, rows=True).shape == (1, 1)
    assert over_rows(batched.lengthscale, batched, rows=True).shape == (4, 1, 1, 1)
    assert over_rows(batched.lengthscale, batched, rows=False).shape == (4, 1, 1)
