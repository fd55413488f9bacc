import gpytorch
import pytest
import torch
from gpytorch.kernels import (
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.process.closed_forms import Jet, jet, select, snapped_squared_distance, squared_distance

BATCH = torch.Size([2])

KERNELS = {
    "rbf": lambda **options: RBFKernel(**options),
    "matern 1/2": lambda **options: MaternKernel(nu=0.5, **options),
    "matern 3/2": lambda **options: MaternKernel(nu=1.5, **options),
    "matern 5/2": lambda **options: MaternKernel(nu=2.5, **options),
    "rational quadratic": lambda **options: RQKernel(**options),
    "linear": lambda **options: LinearKernel(**options),
    "polynomial": lambda **options: PolynomialKernel(power=3, **options),
    "periodic": lambda **options: PeriodicKernel(**options),
    "constant": lambda **options: ConstantKernel(**{k: v for k, v in options.items() if k == "batch_shape"}),
    "scale": lambda **options: ScaleKernel(RBFKernel(**options), batch_shape=options.get("batch_shape", ())),
    "sum": lambda **options: RBFKernel(**options) + ScaleKernel(LinearKernel(**options)),
    "product": lambda **options: MaternKernel(nu=2.5, **options) * PeriodicKernel(**options),
}
RADIAL = ["rbf", "matern 3/2", "matern 5/2", "rational quadratic", "scale"]


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(kernel: Kernel) -> Kernel:
    """Different values for every entry of every parameter."""
    for number, parameter in enumerate(kernel.parameters()):
        shift = 0.3 * seeded(parameter.numel(), seed=number).reshape(parameter.shape)
        parameter.data += shift.to(parameter)
    return kernel


@pytest.mark.parametrize("options", [{}, {"active_dims": [2, 0]}, {"batch_shape": BATCH}], ids=str)
@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_values_are_those_of_gpytorch(name: str, options: dict):
    kernel = spread(KERNELS[name](**options).double())
    p, q = seeded(4, 3), seeded(5, 3, seed=1)
    torch.testing.assert_close(jet(kernel, p, q).value, kernel(p, q).to_dense(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["rbf", "matern 3/2", "matern 5/2", "rational quadratic", "linear", "sum"])
@torch.no_grad()
def test_values_with_one_lengthscale_a_dimension_are_those_of_gpytorch(name: str):
    kernel = spread(KERNELS[name](ard_num_dims=3, batch_shape=BATCH).double())
    p, q = seeded(2, 4, 3), seeded(2, 5, 3, seed=1)
    torch.testing.assert_close(jet(kernel, p, q).value, kernel(p, q).to_dense(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", RADIAL)
@torch.no_grad()
def test_single_precision_values_are_those_of_gpytorch(name: str):
    kernel = spread(KERNELS[name]())
    p, q = seeded(40, 3).float(), seeded(50, 3, seed=1).float()
    torch.testing.assert_close(jet(kernel, p, q).value, kernel(p, q).to_dense(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"active_dims": [2, 0]}, {"batch_shape": BATCH}], ids=str)
@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_rows_are_pairs_of_lists(name: str, options: dict):
    kernel = spread(KERNELS[name](**options).double())
    p, q = seeded(6, 4, 3), seeded(6, 5, 3, seed=1)
    one_by_one = torch.stack([kernel(a, b).to_dense() for a, b in zip(p, q, strict=True)], dim=-3)
    torch.testing.assert_close(jet(kernel, p, q, rows=True).value, one_by_one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["rbf", "matern 3/2", "rational quadratic", "polynomial", "sum", "scale"])
@torch.no_grad()
def test_derivatives_of_a_batch_are_those_of_its_kernels(name: str):
    kernel = spread(KERNELS[name](batch_shape=BATCH).double())
    p, q, v, w = seeded(4, 3), seeded(5, 3, seed=1), seeded(4, 3, seed=2), seeded(5, 3, seed=3)
    together = jet(kernel, p, q, v, w)
    for number in range(2):
        alone = jet(kernel[number], p, q, v, w)
        for all_parts, part in zip(together.parts, alone.parts, strict=True):
            torch.testing.assert_close(all_parts[number], part, rtol=1e-12, atol=1e-12)
    in_rows = jet(kernel, p[:, None], q[:4, None], v[:, None], w[:4, None], rows=True)
    for all_parts, part in zip(together.parts, in_rows.parts, strict=True):
        torch.testing.assert_close(all_parts[:, :, :4].diagonal(dim1=-1, dim2=-2), part[..., 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RADIAL)
@torch.no_grad()
def test_kernels_far_from_the_origin_are_those_near_it(name: str, dtype: torch.dtype):
    """A million away, where |p|² + |q|² - 2p·q has no correct digit in single precision."""
    kernel = spread(KERNELS[name]()).to(dtype)
    # Multiples of 1/16 are exact there, in single precision too.
    p, q, v, w = ((seeded(8, 3, seed=i) * 16).round().to(dtype) / 16 for i in range(4))
    near, far = jet(kernel, p, q, v, w), jet(kernel, p + 1e6, q + 1e6, v, w)
    tolerance = 5e-5 if dtype == torch.float32 else 1e-9
    for here, there in zip(near.parts, far.parts, strict=True):
        torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        jet(kernel, p + 1e6, q + 1e6).value, near.value, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squared_distances(dtype: torch.dtype):
    p, q = seeded(6, 4).to(dtype), seeded(7, 4, seed=1).to(dtype)
    direct = (p[:, None] - q[None]).square().sum(-1)
    tolerance = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(squared_distance(p, q), direct, rtol=tolerance, atol=tolerance)
    assert bool((squared_distance(p, p) >= 0).all())
    snapped = snapped_squared_distance(p, p)
    assert bool((snapped.diagonal() == 0).all())
    torch.testing.assert_close(
        snapped, (p[:, None] - p[None]).square().sum(-1), rtol=tolerance, atol=tolerance
    )


def test_duplicated_points_have_gradients():
    kernel = MaternKernel(nu=1.5).double()
    p = seeded(3, 2).repeat(2, 1).requires_grad_()
    v = seeded(6, 2, seed=1)
    parts = jet(kernel, p, p, v, v)
    total = sum(part.square().sum() for part in parts.parts)
    for gradient in torch.autograd.grad(total, [p, kernel.raw_lengthscale]):
        assert bool(gradient.isfinite().all())


def test_gradients_of_values_are_those_of_gpytorch():
    for name in RADIAL:
        kernel = spread(KERNELS[name]().double())
        p, q = seeded(4, 3).requires_grad_(), seeded(5, 3, seed=1)
        weights = seeded(4, 5, seed=2)
        leaves = [p, *kernel.parameters()]
        ours = torch.autograd.grad((weights * jet(kernel, p, q).value).sum(), leaves)
        theirs = torch.autograd.grad((weights * kernel(p, q).to_dense()).sum(), leaves)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_only_derivatives_asked_for_are_computed(left: bool, right: bool):
    p, q = seeded(2, 3), seeded(4, 3, seed=1)
    for kernel in (
        RBFKernel().double(),
        LinearKernel().double(),
        RBFKernel().double() * LinearKernel().double(),
    ):
        parts = jet(kernel + ConstantKernel().double(), p, q, p if left else None, q if right else None)
        present = [part is not None for part in parts.parts]
        assert present == [True, left, right, left and right]


def test_a_subclass_is_not_taken_for_its_parent():
    class Halved(RBFKernel):
        def forward(self, x1: Tensor, x2: Tensor, **params: object) -> Tensor:
            return super().forward(x1, x2, **params) / 2

    kernel, p = Halved().double(), seeded(3, 2)
    torch.testing.assert_close(jet(kernel, p, p).value.diagonal(), torch.full((3,), 0.5, dtype=torch.float64))
    with pytest.raises(ValueError, match="Halved has no derivatives in closed form"):
        jet(kernel, p, p, p)


@pytest.mark.parametrize("kernel", [PeriodicKernel(), MaternKernel(nu=0.5), RBFKernel() * PeriodicKernel()])
def test_unknown_derivatives_name_the_remedy(kernel: Kernel):
    p = seeded(2, 2)
    with pytest.raises(ValueError, match="FiniteDifference"):
        jet(kernel.double(), p, p, p, p)


@pytest.mark.parametrize("rows", [False, True])
def test_kernels_of_several_outputs_are_refused(rows: bool):
    p = seeded(2, 3, 2) if rows else seeded(3, 2)
    with pytest.raises(ValueError, match="RBFKernelGrad has several outputs"):
        jet(RBFKernelGrad().double(), p, p, rows=rows)


def test_the_product_rule():
    a, b = (
        Jet(*(torch.tensor([[value]]) for value in values))
        for values in ((2.0, 3.0, 5.0, 7.0), (11.0, 13.0, 17.0, 19.0))
    )
    product = a * b
    # 3·11 + 2·13, 5·11 + 2·17, 7·11 + 3·17 + 5·13 + 2·19
    assert [float(part) for part in product.parts] == [22.0, 59.0, 89.0, 231.0]
    assert [float(part) for part in (a + b).parts] == [13.0, 16.0, 22.0, 26.0]
    assert [float(part) for part in a.scale(torch.tensor(2.0)).parts] == [4.0, 6.0, 10.0, 14.0]


def test_select_takes_the_active_dimensions_in_their_order():
    x = seeded(2, 3)
    assert torch.equal(select(RBFKernel(active_dims=[2, 0]), x), x[:, [2, 0]])
    assert select(RBFKernel(), x) is x


def test_lazily_evaluated_kernels_may_be_switched_off():
    kernel, p = PeriodicKernel().double(), seeded(3, 2)
    with gpytorch.settings.lazily_evaluate_kernels(False):
        eager = jet(kernel, p, p).value
    torch.testing.assert_close(eager, jet(kernel, p, p).value)


@pytest.mark.parametrize("name", RADIAL)
def test_values_in_place_are_those_that_gradients_are_taken_of(name: str):
    kernel, p, q = spread(KERNELS[name]().double()), seeded(4, 3), seeded(5, 3, seed=1)
    before = p.clone(), q.clone()
    with torch.no_grad():
        in_place = jet(kernel, p, q).value
    torch.testing.assert_close(in_place, jet(kernel, p, q).value, rtol=1e-12, atol=1e-12)
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_the_precision_is_that_of_the_points(name: str, rows: bool):
    """A kernel learned in double precision serves products in single precision."""
    kernel = spread(KERNELS[name]().double())
    p, q = (points[None] if rows else points for points in (seeded(4, 3), seeded(5, 3, seed=1)))
    double, single = jet(kernel, p, q, rows=rows).value, jet(kernel, p.float(), q.float(), rows=rows).value
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)
    if name in (*RADIAL, "linear", "polynomial", "sum"):
        for part in jet(kernel, p.float(), q.float(), p.float(), q.float(), rows=rows).parts:
            assert part.dtype == torch.float32
