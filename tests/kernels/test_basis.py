"""Linear models as kernels: the weights' own covariance, the weight-space posterior, limits and refusals."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.priors import GammaPrior
from torch import nn

from orbitwise import InvariantGPRegressor
from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.kernels import BasisKernel, BumpBasis, FourierBasis, PolynomialBasis
from orbitwise.process import Process

X = torch.linspace(-1.3, 1.1, 7, dtype=torch.float64)[:, None]
TWO = torch.stack([X[:, 0], X[:, 0].square() - 0.3], dim=-1)
BASES = {
    "polynomial": PolynomialBasis(3),
    "fourier": FourierBasis(2, period=2.5),
    "bumps": BumpBasis(torch.linspace(-1, 1, 5)[:, None], width=0.4),
}


def slow_features(name: str, x: float) -> list[float]:
    if name == "polynomial":
        return [x**i for i in range(4)]
    if name == "fourier":
        waves = [2 * math.pi * j * x / 2.5 for j in (1, 2)]
        return [1.0, *(part for wave in waves for part in (math.cos(wave), math.sin(wave)))]
    return [math.exp(-((x - c) ** 2) / (2 * 0.4**2)) for c in torch.linspace(-1, 1, 5).tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BASES)
def test_covariances_are_sums_over_weights(name: str, dtype: torch.dtype):
    kernel = BasisKernel(BASES[name]).to(dtype)
    kernel.variance = 0.7
    found = kernel(X.to(dtype), X[:3].to(dtype)).to_dense()
    rows = [slow_features(name, x) for x in X[:, 0].tolist()]
    slow = [[0.7 * sum(a * b for a, b in zip(one, two, strict=True)) for two in rows[:3]] for one in rows]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(slow, dtype=dtype), rtol=tolerance, atol=tolerance)
    diagonal = kernel(X.to(dtype), diag=True)
    torch.testing.assert_close(diagonal, kernel(X.to(dtype)).to_dense().diagonal())


def test_separate_variances_and_geometric_ones():
    separate = BasisKernel(PolynomialBasis(2), "separate", num_features=3).double()
    separate.variance = torch.tensor([1.0, 0.5, 0.25])
    geometric = BasisKernel(PolynomialBasis(2), "geometric").double()
    geometric.ratio = 2.0
    torch.testing.assert_close(geometric(X).to_dense(), separate(X).to_dense())
    geometric.ratio, geometric.variance = 3.0, 2.0
    powers = torch.cat([X**i for i in range(3)], -1)
    expected = (powers * torch.tensor([2.0, 2 / 3, 2 / 9], dtype=torch.float64)) @ powers.T
    torch.testing.assert_close(geometric(X).to_dense(), expected)


@pytest.mark.parametrize("basis", [PolynomialBasis(2), FourierBasis(2)])
def test_degrees_count_features_of_several_columns(basis):
    features = basis(TWO)
    assert len(basis.degrees(2)) == features.shape[-1]
    # with a large ratio only the constant is left
    kernel = BasisKernel(basis, "geometric").double()
    kernel.ratio = 1e12
    torch.testing.assert_close(
        kernel(TWO).to_dense(), torch.ones(7, 7, dtype=torch.float64), atol=1e-9, rtol=0
    )


def test_columns_of_polynomials_are_powers_of_single_columns():
    expected = torch.stack([torch.ones(7), TWO[:, 0], TWO[:, 1], TWO[:, 0] ** 2, TWO[:, 1] ** 2], -1)
    torch.testing.assert_close(PolynomialBasis(2)(TWO), expected.double())


def test_the_process_equals_the_posterior_of_the_weights():
    noise, generator = 0.3, torch.Generator().manual_seed(1)
    y = torch.randn(7, 1, generator=generator, dtype=torch.float64)
    kernel = BasisKernel(PolynomialBasis(3)).double()
    kernel.variance = 0.7
    rows = Evaluation().atoms(X)
    posterior = exact.condition(Process(None, kernel), rows, y, torch.full((7,), noise).double())
    phi = PolynomialBasis(3)(X)
    precision = torch.eye(4) / 0.7 + phi.T @ phi / noise
    mean = torch.linalg.solve(precision, phi.T @ y / noise)
    new = torch.linspace(-2, 2, 5, dtype=torch.float64)[:, None]
    found = posterior.row_moments(Evaluation().atoms(new))
    features = PolynomialBasis(3)(new)
    torch.testing.assert_close(found.mean, features @ mean)
    variance = (features @ torch.linalg.inv(precision) * features).sum(-1)
    torch.testing.assert_close(found.variance, variance)


def test_dense_bumps_make_an_rbf_kernel_of_lengthscale_root_two():
    width = 0.3
    centres = torch.linspace(-8, 8, 1601, dtype=torch.float64)[:, None]
    kernel = BasisKernel(BumpBasis(centres, width)).double()
    # Σ_j Δ φ_j(x) φ_j(x′) → √π l exp(-|x - x′|²/4l²)
    kernel.variance = 0.01 / (math.sqrt(math.pi) * width)
    rbf = RBFKernel().double()
    rbf.lengthscale = torch.tensor(math.sqrt(2) * width, dtype=torch.float64)
    torch.testing.assert_close(kernel(X).to_dense(), rbf(X).to_dense(), rtol=0, atol=1e-10)


def test_functions_and_modules_are_bases_and_modules_are_learned():
    kernel = BasisKernel(lambda x: torch.cat([x, x**2], -1)).double()
    assert kernel(X).to_dense().shape == (7, 7)
    network = nn.Sequential(nn.Linear(1, 4), nn.Tanh()).double()
    learned = BasisKernel(network).double()
    assert {name for name, _ in learned.named_parameters()} >= {"basis.0.weight", "raw_variance"}
    learned(X).to_dense().sum().backward()
    assert network[0].weight.grad is not None


def test_an_estimator_learns_the_ratio():
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(40, 1, generator=rng, dtype=torch.float64) - 1
    y = (1 - x + 0.1 * torch.randn(40, 1, generator=rng, dtype=torch.float64))[:, 0]
    kernel = BasisKernel(PolynomialBasis(6), "geometric", ratio_prior=GammaPrior(1.1, 0.01))
    model = InvariantGPRegressor(kernel, normalize_y=False).fit(x.numpy(), y.numpy())
    assert model.kernel_.ratio.item() > 2.5
    assert abs(model.predict([[0.5]])[0] - 0.5) < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolynomialBasis(-1), "order must not be negative"),
        (lambda: FourierBasis(2, period=0.0), "must be positive"),
        (lambda: BumpBasis(X, width=-1.0), "width must be positive"),
        (lambda: BasisKernel(PolynomialBasis(2), "round"), "'isotropic', 'separate' or 'geometric'"),
        (lambda: BasisKernel(PolynomialBasis(2), "separate"), "needs num_features"),
        (
            lambda: BasisKernel(PolynomialBasis(2), ratio_prior=GammaPrior(1.0, 1.0)),
            "takes a ratio",
        ),
        (lambda: BasisKernel(PolynomialBasis(2), "separate", 5).double()(X).to_dense(), "the basis made 3"),
        (lambda: BasisKernel(lambda x: x.sum(0))(X).to_dense(), "keep all dimensions but the last"),
        (lambda: BasisKernel(PolynomialBasis(1)).ratio, "no attribute 'ratio'"),
    ],
)
def test_bad_input_is_refused(make, message: str):
    with pytest.raises((ValueError, AttributeError), match=message):
        make()
