import pytest
import torch
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
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
    Gradient,
    Gradients,
    OrbitAverage,
    TransformationDerivative,
)
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process, gradients
from orbitwise.process.gradients import GradientOperator, gradient_product
from orbitwise.transforms import Rotation, coordinate_permutations

KERNELS = {
    "rbf": lambda: RBFKernel(),
    "ard": lambda: ScaleKernel(RBFKernel(ard_num_dims=4)),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=4),
    "rational quadratic": lambda: RQKernel(),
    "linear": lambda: LinearKernel(),
    "quadratic": lambda: PolynomialKernel(2),
    "cubic": lambda: ScaleKernel(PolynomialKernel(3)),
    "active": lambda: RBFKernel(active_dims=[0, 3]),
    "sum": lambda: ScaleKernel(
        ScaleKernel(RBFKernel()) + MaternKernel(nu=2.5, active_dims=[1, 2]) + ConstantKernel()
    ),
    "unlike": lambda: ScaleKernel(RBFKernel()) + PolynomialKernel(3),
}
ORBIT = FiniteOrbit(coordinate_permutations(4))
V = torch.tensor([1.0, -0.5, 0.25, 2.0], dtype=torch.float64)
SLOPES = {
    "gradient": Gradient(),
    "coordinates": Gradient([3, 1]),
    "scaled": -2.0 * Gradient(),
    "tangents": TransformationDerivative(Rotation(2)),
    "average": Gradient() @ OrbitAverage(ORBIT),
    "slope": DirectionalDerivative(V),
}
VALUES = {"value": Evaluation(), "value of average": OrbitAverage(ORBIT)}


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(name: str) -> Kernel:
    """A kernel away from its defaults."""
    kernel = KERNELS[name]().double()
    for seed, parameter in enumerate(kernel.parameters()):
        parameter.data += 0.3 + 0.2 * seeded(*parameter.shape, seed=seed)
    return kernel


def assert_equal(found: Tensor, expected: Tensor, tolerance: float = 1e-10):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert float((found - expected).norm()) <= tolerance * float(expected.norm())


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        (name, left, right)
        for name in KERNELS
        for left in SLOPES | VALUES
        for right in SLOPES | VALUES
        # every pair for two kernels; the others differ from them only in what gradients feel too
        if not {left, right} <= set(VALUES) and (name in ("rbf", "cubic") or "gradient" in (left, right))
    ],
)
def test_a_product_is_that_of_the_dense_matrix(name: str, left: str, right: str):
    kernel, both = made(name), SLOPES | VALUES
    # the first two points are shared, so that distances of zero are met
    points = seeded(5, 4) + 3
    first, second = (
        both[left].atoms(points),
        both[right].atoms(torch.cat([points[:2], seeded(4, 4, seed=1) + 3])),
    )
    vectors = seeded(second.num_rows, 3, seed=2)
    with torch.no_grad():
        expected = Process(None, kernel, one_sided=False).covariance(first, second) @ vectors
    assert_equal(gradient_product(kernel, first, second, vectors), expected)


@pytest.mark.parametrize("numbers", [1, 7, 60, 10**6])
@pytest.mark.parametrize("block", ["gradient", "scaled", "tangents", "average"])
@pytest.mark.parametrize("name", ["rbf", "unlike"])
def test_an_operator_is_the_dense_matrix_whatever_its_tiles(
    name: str, block: str, numbers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gradients, "NUMBERS_AT_ONCE", numbers)
    kernel, x = made(name), seeded(3, 4, seed=3)
    rows = SLOPES[block].atoms(seeded(6, 4))
    assert isinstance(rows, Gradients)
    operator, process = GradientOperator(kernel, rows), Process(None, kernel, one_sided=False)
    vectors, values = seeded(rows.num_rows, 5, seed=1), Evaluation().atoms(x)
    with torch.no_grad():
        matrix, cross = process.covariance(rows), process.covariance(values, rows)
    assert_equal(operator.product(vectors), matrix @ vectors)
    assert_equal(operator.values_product(values, vectors), cross @ vectors)
    assert_equal(operator.slopes_product(values, seeded(3, 2)), cross.T @ seeded(3, 2))
    assert_equal(operator.columns(x), cross.T)
    assert_equal(operator.diagonal(), matrix.diagonal())
    assert operator.num_rows == len(matrix)


@pytest.mark.parametrize("name", KERNELS)
def test_values_at_the_own_points_come_with_a_product(name: str):
    kernel, x = made(name), seeded(6, 4)
    operator = GradientOperator(kernel, Gradient().atoms(x))
    vectors = seeded(24, 3, seed=1)
    product, values = operator.product_and_values(vectors)
    assert_equal(product, operator.product(vectors))
    with torch.no_grad():
        cross = Process(None, kernel).covariance(Evaluation().atoms(x), operator.block)
    assert_equal(values, cross @ vectors)


def test_equation_11_of_the_paper():
    """G = σ⁻⁴[σ²AK + XQ - X∘(11ᵀQ)], in the paper's letters, X and A being n × l."""
    kernel = RBFKernel().double()
    sigma, x, a = kernel.lengthscale.item(), seeded(4, 6), seeded(4, 6, seed=1)
    gram = torch.exp(-torch.cdist(x.T, x.T).square() / (2 * sigma**2))
    products = x.T @ a
    q = gram * (products.T - products.diagonal()[:, None])
    g = sigma**-4 * (sigma**2 * a @ gram + x @ q - x * q.sum(0))
    operator = GradientOperator(kernel, Gradient().atoms(x.T.contiguous()))
    assert_equal(operator.product(a.T.reshape(-1, 1)), g.T.reshape(-1, 1))


def test_equation_7_of_the_paper():
    """⟨z_id, z_je⟩ = r(x_i·x_j + 1)^{r-2}[(r-1) x_ie x_jd + (x_i·x_j + 1) δ_de]."""
    kernel, x, power = PolynomialKernel(3).double(), seeded(5, 4), 3
    kernel.offset = 1.0
    base = x @ x.T + 1
    bends = torch.einsum("ie,jd,ij->idje", x, x, power * (power - 1) * base ** (power - 2))
    gram = bends + torch.einsum("ij,de->idje", power * base ** (power - 1), torch.eye(4).double())
    operator = GradientOperator(kernel, Gradient().atoms(x))
    vectors = seeded(20, 2, seed=1)
    assert_equal(operator.product(vectors), gram.reshape(20, 20) @ vectors)


@pytest.mark.parametrize("name", ["rbf", "matern 5/2", "cubic"])
def test_single_precision(name: str):
    kernel, x, vectors = made(name), seeded(20, 4) + 50 * (name != "cubic"), seeded(80, 3, seed=1)
    exact = GradientOperator(kernel, Gradient().atoms(x.float().double())).product(vectors)
    found = GradientOperator(kernel.float(), Gradient().atoms(x.float())).product(vectors.float())
    assert_equal(found, exact.float(), 2e-5)


def test_bad_input_is_told():
    rows, values = Gradient().atoms(seeded(3, 4)), Evaluation().atoms(seeded(3, 4))
    kernel, vectors = RBFKernel().double(), seeded(12, 1)
    with pytest.raises(ValueError, match="CosineKernel has no products with its derivatives"):
        gradient_product(CosineKernel().double(), rows, rows, vectors)
    with pytest.raises(ValueError, match="ProductKernel has no products"):
        gradient_product(RBFKernel() * RBFKernel(), rows, rows, vectors)
    with pytest.raises(ValueError, match="Neither block has derivatives"):
        gradient_product(kernel, values, values, seeded(3, 1))
    with pytest.raises(ValueError, match=r"12 rows in torch.float64 .* not torch.float64 of shape \(11, 1\)"):
        gradient_product(kernel, rows, rows, seeded(11, 1))
    with pytest.raises(ValueError, match=r"not torch\.float32"):
        GradientOperator(kernel, rows).product(vectors.float())
    mixed = (Evaluation() + DirectionalDerivative(V)).atoms(seeded(3, 4))
    with pytest.raises(ValueError, match="not rows that mix them"):
        gradient_product(kernel, mixed, rows, vectors)
    with pytest.raises(ValueError, match="without batch dimensions"):
        gradient_product(RBFKernel(batch_shape=torch.Size([2])).double(), rows, rows, vectors)
