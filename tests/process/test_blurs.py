import itertools
import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    Functional,
    Gradient,
    LocalAverage,
    OrbitAverage,
    average_minus_value,
)
from orbitwise.functionals.functional import exact_atoms
from orbitwise.orbits import FiniteOrbit, JitterOrbit
from orbitwise.process import FunctionalKernel, Process, unbiased_variance
from orbitwise.process import process as module
from orbitwise.process.closed_forms import Jet, is_mixed, jet, pieces, variance_of, widened
from orbitwise.process.process import atom_covariance, block_covariance, pair_covariance
from orbitwise.transforms import coordinate_permutations

LEFT, RIGHT = 0.6, 0.3
V, W = (torch.tensor(each, dtype=torch.float64) for each in ([0.5, -1.0], [0.8, 0.3]))


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return 0.7 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rbf(*lengthscales: float, **options: object) -> RBFKernel:
    kernel = RBFKernel(ard_num_dims=len(lengthscales) if len(lengthscales) > 1 else None, **options).double()
    kernel.lengthscale = torch.tensor(lengthscales)
    return kernel


def polynomial(power: float, **options: object) -> PolynomialKernel:
    kernel = PolynomialKernel(power=power, **options).double()
    kernel.offset = 0.8
    return kernel


KERNELS = {
    "rbf": lambda: rbf(1.3),
    "ard": lambda: ScaleKernel(rbf(1.3, 2.0)),
    "active dimensions": lambda: ScaleKernel(rbf(1.3, active_dims=[1])),
    "scale with active dimensions": lambda: ScaleKernel(rbf(1.3), active_dims=[1]),
    "linear": lambda: LinearKernel(ard_num_dims=2),
    "polynomial": lambda: ScaleKernel(polynomial(4)),
    "polynomial of one coordinate": lambda: polynomial(3, active_dims=[0]),
    "sum": lambda: ScaleKernel(rbf(1.3) + polynomial(2) + ConstantKernel()),
    "product of coordinates": lambda: rbf(1.3, active_dims=[0]) * polynomial(2, active_dims=[1]),
    "product with a constant": lambda: ProductKernel(rbf(1.3), ConstantKernel()),
}


def made(name: str) -> Kernel:
    return KERNELS[name]().double()


def quadrature(kernel: Kernel, x: Tensor, y: Tensor, left: float, right: float, nodes: int = 11) -> Tensor:
    """E k(x + left·ε, y + right·ε′) by Gauss-Hermite quadrature of both, for all pairs of points."""
    at, weights = np.polynomial.hermite_e.hermegauss(nodes)
    grid = torch.tensor(list(itertools.product(at, repeat=x.shape[-1])))
    weight = torch.tensor(list(itertools.product(weights / weights.sum(), repeat=x.shape[-1]))).prod(-1)
    p, q = (x[:, None] + left * grid).flatten(0, 1), (y[:, None] + right * grid).flatten(0, 1)
    values = kernel(p, q).to_dense().reshape(len(x), len(grid), len(y), len(grid))
    return torch.einsum("nsmt,s,t->nm", values, weight, weight)


@pytest.mark.parametrize("blur", [(LEFT, RIGHT), (LEFT, 0.0), (0.0, RIGHT)])
@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_averages_equal_quadrature(name: str, blur: tuple[float, float]):
    kernel, x, y = made(name), seeded(3, 2), seeded(4, 2, seed=1)
    expected = quadrature(kernel, x, y, *blur)
    found = jet(kernel, x, y, blur=(blur[0] ** 2, blur[1] ** 2)).value
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    if name != "linear":
        assert (found - jet(kernel, x, y).value).abs().max() > 1e-3


@pytest.mark.parametrize("power", range(7))
@torch.no_grad()
def test_powers_of_any_degree(power: int):
    """Quadrature with as many nodes is exact for polynomials."""
    kernel, x, y = polynomial(power), seeded(2, 2), seeded(3, 2, seed=1)
    for blur in ((LEFT, RIGHT), (LEFT, 0.0), (0.0, RIGHT)):
        found = jet(kernel, x, y, blur=(blur[0] ** 2, blur[1] ** 2)).value
        torch.testing.assert_close(found, quadrature(kernel, x, y, *blur, nodes=8), rtol=1e-11, atol=1e-11)


def draws(count: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(count, width, generator=generator, dtype=torch.float64) for _ in range(2))


@pytest.mark.parametrize("name", ["rbf", "cubic", "quintic"])
@torch.no_grad()
def test_local_averages_equal_monte_carlo_in_five_dimensions(name: str):
    kernel = {"rbf": rbf(1.3, 2.0, 0.9, 1.5, 1.1), "cubic": polynomial(3), "quintic": polynomial(5)}[name]
    x, y = seeded(1, 5), seeded(1, 5, seed=1)
    found = Process(None, kernel).covariance(LocalAverage(LEFT).atoms(x), LocalAverage(RIGHT).atoms(y))
    noise, other = draws(200_000, 5)
    p, q = x + LEFT * noise, y + RIGHT * other

    def values(left: Tensor, right: Tensor) -> Tensor:
        return kernel(left.expand_as(noise), right.expand_as(noise), diag=True)

    # (δ_τ - δ_x)(δ_τ′ - δ_x′) k
    sample = values(p, q) - values(p, y) - values(x, q) + values(x, y)
    error = sample.std() / math.sqrt(len(sample))
    assert abs(sample.mean() - found.item()) < 4 * error
    assert found.abs().item() > 4 * error


@torch.no_grad()
def test_erratum_of_rkhs_4_3_variances_add():
    """Printed: κ_σ + (1+2θ/σ)^{-n} κ_{σ+2θ} - 2(1+θ/σ)^{-n} κ_{σ+θ}. Widths do not add, variances do."""
    sigma, theta, x, y = 1.3, 0.5, seeded(1, 3), seeded(1, 3, seed=1)
    kernel = rbf(sigma)
    ours = Process(None, kernel).covariance(LocalAverage(theta).atoms(x), LocalAverage(theta).atoms(y))

    def gaussian(p: Tensor, q: Tensor, width: float = sigma) -> Tensor:
        return torch.exp(-0.5 * ((p - q) / width).square().sum(-1))

    def printed(added: float) -> Tensor:
        return (1 + added / sigma) ** -3 * gaussian(x, y, sigma + added)

    p, q = (point + theta * noise for point, noise in zip((x, y), draws(400_000, 3), strict=True))
    sample = gaussian(p, q) - gaussian(p, y) - gaussian(x, q) + gaussian(x, y)
    error = sample.std() / math.sqrt(len(sample))
    assert abs(sample.mean() - ours.item()) < 4 * error
    wrong = gaussian(x, y) + printed(2 * theta) - 2 * printed(theta)
    assert abs(sample.mean() - wrong.item()) > 40 * error


def five_point(function: object, step: float = 1e-2) -> Tensor:
    moves = ((step, 8.0), (-step, -8.0), (2 * step, -1.0), (-2 * step, 1.0))
    return sum(weight * function(move) for move, weight in moves) / (12 * step)


@pytest.mark.parametrize("blur", [(0.36, 0.09), (0.36, 0.0)])
@pytest.mark.parametrize("name", KERNELS)
@torch.no_grad()
def test_slopes_of_averages_equal_finite_differences(name: str, blur: tuple[float, float]):
    kernel, x, y = made(name), seeded(3, 2), seeded(4, 2, seed=1)
    v, w = seeded(3, 2, seed=2), seeded(4, 2, seed=3)
    found = jet(kernel, x, y, v, w, blur=blur)

    def value(along_v: float, along_w: float) -> Tensor:
        return jet(kernel, x + along_v * v, y + along_w * w, blur=blur).value

    expected = Jet(
        value(0.0, 0.0),
        five_point(lambda a: value(a, 0.0)),
        five_point(lambda b: value(0.0, b)),
        five_point(lambda a: five_point(lambda b: value(a, b))),
    )
    for one, other in zip(found.parts, expected.parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    one_sided = jet(kernel, x, y, v, blur=blur)
    torch.testing.assert_close(one_sided.left, found.left)
    assert one_sided.right is None
    assert one_sided.mixed is None
    torch.testing.assert_close(jet(kernel, x, y, None, w, blur=blur).right, found.right)


FUNCTIONALS: dict[str, Functional] = {
    "local average": LocalAverage(LEFT),
    "slope of it": DirectionalDerivative(V) @ LocalAverage(LEFT),
    "mean of it": OrbitAverage(FiniteOrbit(coordinate_permutations(2))) @ LocalAverage(LEFT),
    "several": 2 * LocalAverage(LEFT) - LocalAverage(RIGHT) + DirectionalDerivative(V) + Evaluation(),
}
OTHERS: dict[str, Functional] = FUNCTIONALS | {
    "value": Evaluation(),
    "slope": DirectionalDerivative(W),
    "gradient": Gradient(),
    "orbit": OrbitAverage(FiniteOrbit(coordinate_permutations(2))),
}


def gauss(functional: Functional) -> Functional:
    """The same functional with Gauss-Hermite nodes instead of closed forms."""
    several = [
        average_minus_value(JitterOrbit(2, width, learnable=False).freeze(196, rule="gauss"))
        for width in (LEFT, RIGHT)
    ]
    by_nodes = {
        "local average": several[0],
        "slope of it": DirectionalDerivative(V) @ several[0],
        "mean of it": OrbitAverage(FiniteOrbit(coordinate_permutations(2))) @ several[0],
        "several": 2 * several[0] - several[1] + DirectionalDerivative(V) + Evaluation(),
    }
    return next((by_nodes[name] for name, each in FUNCTIONALS.items() if each is functional), functional)


@pytest.mark.parametrize("kernel_name", ["ard", "sum"])
@pytest.mark.parametrize("right", OTHERS)
@pytest.mark.parametrize("left", FUNCTIONALS)
@torch.no_grad()
def test_functionals_of_local_averages_equal_their_quadrature(left: str, right: str, kernel_name: str):
    process, x, y = Process(None, made(kernel_name)), seeded(2, 2), seeded(2, 2, seed=1)
    one, other = FUNCTIONALS[left], OTHERS[right]
    found = process.covariance(one.atoms(x), other.atoms(y))
    expected = process.covariance(gauss(one).double().atoms(x), gauss(other).double().atoms(y))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(process.covariance(other.atoms(y), one.atoms(x)), found.T)


def probed(matrix: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    probe = torch.cos(torch.arange(matrix.numel(), dtype=matrix.dtype)).reshape(matrix.shape)
    return list(torch.autograd.grad((probe * matrix).sum(), leaves, retain_graph=True))


@pytest.mark.parametrize("right", ["several", "gradient", "value"])
@pytest.mark.parametrize("kernel_name", ["ard", "sum"])
def test_streaming_changes_neither_values_nor_gradients(
    right: str, kernel_name: str, monkeypatch: pytest.MonkeyPatch
):
    kernel, x, y = made(kernel_name), seeded(5, 2).requires_grad_(), seeded(4, 2, seed=1).requires_grad_()
    left, columns = FUNCTIONALS["several"].atoms(x), OTHERS[right].atoms(y)
    leaves = [x, y, *kernel.parameters()]
    whole = block_covariance(kernel, left, columns, row_block=100)
    half = block_covariance(kernel, left, row_block=100)
    torch.testing.assert_close(half, block_covariance(kernel, left, left), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(half, half.mT, rtol=1e-12, atol=1e-12)
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 40)
    for streamed, expected in (
        (block_covariance(kernel, left, columns), whole),
        (block_covariance(kernel, left, columns, row_block=2), whole),
        (block_covariance(kernel, left), half),
    ):
        torch.testing.assert_close(streamed, expected, rtol=1e-11, atol=1e-12)
        used = leaves if expected is whole else [x, *kernel.parameters()]
        for one, other in zip(probed(streamed, used), probed(expected, used), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_tile_holds_no_more_pairs_than_allowed(monkeypatch: pytest.MonkeyPatch):
    sizes, evaluate = [], module.jet

    def counted(*arguments):
        found = evaluate(*arguments)
        sizes.append(found.value.numel())
        return found

    monkeypatch.setattr(module, "jet", counted)
    monkeypatch.setitem(module.PAIRS_AT_ONCE, "cpu", 500)
    with torch.no_grad():
        block_covariance(rbf(1.3), LocalAverage(LEFT).atoms(seeded(60, 2)), Evaluation().atoms(seeded(50, 2)))
    assert max(sizes) <= 500
    assert sum(sizes) == 2 * 60 * 50


@pytest.mark.parametrize("name", ["ard", "polynomial", "sum"])
def test_hyperparameters_have_gradients(name: str):
    kernel, x = made(name), seeded(3, 2)
    parameters = list(kernel.parameters())

    def matrix(*values: Tensor) -> Tensor:
        return torch.func.functional_call(
            Covariance(kernel), {f"kernel.{key}": value for key, value in zip(names, values, strict=True)}, x
        )

    names = [key for key, _ in kernel.named_parameters()]
    assert torch.autograd.gradcheck(matrix, tuple(parameters))


class Covariance(torch.nn.Module):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return block_covariance(self.kernel, LocalAverage(LEFT).atoms(x))


@torch.no_grad()
def test_single_atoms_and_rows_add_up():
    kernel, x, y = made("sum"), seeded(4, 2), seeded(3, 2, seed=1)
    left, right = FUNCTIONALS["several"].atoms(x), FUNCTIONALS["local average"].atoms(y)
    whole = block_covariance(kernel, left, right)
    every = atom_covariance(kernel, left, right)
    assert every.shape == (4, 6, 3, 2)
    torch.testing.assert_close(torch.einsum("ns,nsmt,mt->nm", left.weights, every, right.weights), whole)
    paired = pair_covariance(kernel, left, left)
    square = atom_covariance(kernel, left, left)
    torch.testing.assert_close(paired, square.diagonal(dim1=0, dim2=2).movedim(-1, 0))
    torch.testing.assert_close(
        Process(None, kernel).variance(left), block_covariance(kernel, left).diagonal()
    )


@torch.no_grad()
def test_drawn_rows_may_hold_local_averages():
    """Unbiased variances of a drawn average beside a local average, by z-score."""
    kernel, x = rbf(1.3), seeded(1, 2).expand(4000, -1)
    drawn = OrbitAverage(JitterOrbit(2, RIGHT, learnable=False, num_samples=4)) + LocalAverage(LEFT)
    estimates = unbiased_variance(kernel, drawn.atoms(x, torch.Generator().manual_seed(1)))
    frozen = OrbitAverage(JitterOrbit(2, RIGHT, learnable=False).double().freeze(400, rule="gauss"))
    truth = Process(None, kernel).variance((frozen + LocalAverage(LEFT)).atoms(x[:1]))
    error = estimates.std() / math.sqrt(len(estimates))
    assert abs(estimates.mean() - truth.item()) < 4 * error
    assert error / truth < 0.02


@torch.no_grad()
def test_batches_of_kernels_and_rows():
    kernel = RBFKernel(batch_shape=torch.Size([2]), ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([[[0.8, 1.2]], [[1.5, 2.0]]])
    power = PolynomialKernel(power=3, batch_shape=torch.Size([2])).double()
    power.offset = torch.tensor([[0.5], [2.0]])
    x = seeded(2, 4, 2)
    for each in (kernel, power):
        together = FunctionalKernel(each, LocalAverage(LEFT))(x).to_dense()
        diagonal = FunctionalKernel(each, LocalAverage(LEFT))(x, diag=True)
        for number in range(2):
            alone = block_covariance(each[number], LocalAverage(LEFT).atoms(x[number]))
            torch.testing.assert_close(together[number], alone)
            torch.testing.assert_close(diagonal[number], alone.diagonal())


@pytest.mark.parametrize("name", ["ard", "polynomial"])
@torch.no_grad()
def test_single_precision(name: str):
    kernel, x = made(name), seeded(4, 2)
    double = block_covariance(kernel, LocalAverage(LEFT).atoms(x))
    single = block_covariance(kernel, LocalAverage(LEFT).atoms(x.float()))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


def test_blurs_of_blocks():
    sharp, local = Evaluation().atoms(seeded(2, 2)), LocalAverage(LEFT).atoms(seeded(2, 2))
    assert variance_of(sharp) == variance_of(Gradient().atoms(seeded(2, 2))) == 0.0
    assert (is_mixed(sharp), is_mixed(local), is_mixed(local + local)) == (False, True, True)
    found = pieces(local + local)
    assert [piece.num_atoms for piece in found] == [2, 2]
    assert [variance_of(piece) for piece in found] == pytest.approx([LEFT**2, 0.0])
    assert pieces(sharp) == [sharp]


def test_rows_without_blur_take_the_way_they_took(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(module, "pieces", lambda block: seen.append(block))
    monkeypatch.setattr(module, "assembled", lambda *arguments: seen.append(arguments))
    rows = exact_atoms(seeded(3, 1, 2), torch.ones(3, 1, dtype=torch.float64))
    block_covariance(rbf(1.3), rows)
    pair_covariance(rbf(1.3), rows, rows)
    assert not seen


def test_widths_and_heights():
    wide, height = widened(torch.tensor([[3.0]]), 2, (7.0, 9.0))
    assert wide.item() == 5.0
    assert height.item() == pytest.approx((3 / 5) ** 2)
    wide, height = widened(torch.tensor([[3.0, 4.0]]), 2, (16.0, 0.0))
    assert wide.tolist() == [[5.0, pytest.approx(math.sqrt(32))]]
    assert height.item() == pytest.approx(3 / 5 * 4 / math.sqrt(32))


class Halved(RBFKernel):
    def forward(self, x1: Tensor, x2: Tensor, **params: object) -> Tensor:
        return super().forward(x1, x2, **params) / 2


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (MaternKernel(nu=2.5), "MaternKernel"),
        (ScaleKernel(RQKernel()), "RQKernel"),
        (RBFKernel() * RBFKernel(), "ProductKernel"),
        (RBFKernel(active_dims=[0]) * RBFKernel(active_dims=[0, 1]), "ProductKernel"),
        (RBFKernel() + MaternKernel(nu=1.5), "MaternKernel"),
        (Halved(), "Halved"),
    ],
)
def test_other_kernels_name_the_remedy(kernel: Kernel, name: str):
    rows = LocalAverage(LEFT).atoms(seeded(2, 2))
    for other in (rows, Evaluation().atoms(seeded(2, 2)), Gradient().atoms(seeded(2, 2))):
        message = rf"{name} has no local averages in closed form here. Use average_minus_value\(orbit\)"
        with pytest.raises(ValueError, match=message):
            block_covariance(kernel.double(), rows, other)


def test_powers_that_are_not_whole():
    rows = LocalAverage(LEFT).atoms(seeded(2, 2))
    with pytest.raises(ValueError, match=r"whole power of 0 or more, not 2\.5"):
        block_covariance(polynomial(2.5), rows)
