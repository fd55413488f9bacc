"""Wide networks equal random networks of width 1,000 and the arc-cosine formula, and serve every engine."""

import math
import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import ScaleKernel

import orbitwise
from orbitwise.estimators import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.functionals import OrbitAverage
from orbitwise.kernels import WideNetworkKernel
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import negation
from tests.kernels.finite_networks import FiniteNetwork

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def points(count: int, dims: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("activation", "depth", "residual", "variances"),
    [("relu", 3, False, (1.8, 0.2)), ("erf", 2, False, (2.0, 0.3)), ("relu", 3, True, (0.7, 0.1)),
     ("erf", 3, True, (1.0, 0.1))],
)  # fmt: skip
def test_random_networks_of_width_1000(
    activation: str, depth: int, residual: bool, variances: tuple[float, float]
):
    x = points(4, 5)
    kernel = WideNetworkKernel(depth, activation, *variances, residual=residual).double()
    with torch.no_grad():
        expected = kernel(x).to_dense()
    network = FiniteNetwork(depth, activation, residual, *variances)
    mean, error = network.estimate(x[:, :, None, None])
    assert ((mean - expected) / error).abs().max() < 4
    # and they would tell a kernel that is 3 % off
    assert ((mean - 1.03 * expected) / error).abs().max() > 4


def test_the_arc_cosine_recursion_by_another_hand():
    x = points(6, 4).numpy()
    weight, bias, depth = 1.7, 0.4, 4
    gram = bias + weight * x @ x.T / 4
    for _ in range(depth):
        root = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        theta = np.arctan2(np.sqrt(np.maximum(root**2 - gram**2, 0)), gram)
        gram = bias + weight * root / (2 * np.pi) * (np.sin(theta) + (np.pi - theta) * np.cos(theta))
    kernel = WideNetworkKernel(depth, "relu").double()
    kernel.weight_variance, kernel.bias_variance = weight, bias
    with torch.no_grad():
        found = kernel(torch.from_numpy(x)).to_dense().numpy()
        paired = kernel(torch.from_numpy(x), torch.from_numpy(x[::-1].copy()), diag=True).numpy()
    # the diagonal of this recursion loses half its digits in √(k k′ - covariance²)
    off = ~np.eye(6, dtype=bool)
    assert np.abs(found - gram)[off].max() < 1e-10
    assert np.abs(found - gram).max() < 1e-7
    assert np.abs(paired - found[np.arange(6), np.arange(6)[::-1]]).max() < 1e-12


def test_one_hidden_layer_of_erf_is_williams_kernel():
    x = points(5, 3)
    kernel = WideNetworkKernel(1, "erf").double()
    kernel.weight_variance, kernel.bias_variance = 1.3, 0.2
    inner = 0.2 + 1.3 * x @ x.T / 3
    own = 1 + 2 * inner.diagonal()
    formula = 0.2 + 1.3 * 2 / math.pi * torch.asin(2 * inner / (own[:, None] * own[None, :]).sqrt())
    with torch.no_grad():
        assert torch.allclose(kernel(x).to_dense(), formula, rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("residual", [False, True])
def test_gradients_and_positive_definiteness(activation: str, residual: bool):
    kernel = WideNetworkKernel(2, activation, residual=residual).double()
    x, y = points(3, 4).requires_grad_(), points(2, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (x, y))

    def by_variances(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        kernel.raw_weight_variance.data, kernel.raw_bias_variance.data = weight.data, bias.data
        return kernel._covariance(x.detach(), x.detach(), weight.exp(), bias.exp())

    raw = [torch.full((1, 1), v, dtype=torch.float64, requires_grad=True) for v in (0.3, -1.0)]
    assert torch.autograd.gradcheck(by_variances, raw)
    many = torch.cat([points(30, 3), points(30, 3), torch.zeros(1, 3, dtype=torch.float64)])
    with torch.no_grad():
        gram = kernel(many).to_dense()
    assert torch.linalg.eigvalsh(gram)[0] > -1e-12 * gram.diagonal().max()


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_single_precision_at_any_scale(activation: str, scale: float, bias: float):
    x = scale * torch.cat([points(5, 4), torch.zeros(1, 4, dtype=torch.float64)])
    x = torch.cat([x, x[:2]])
    kernel = WideNetworkKernel(3, activation, bias_variance=bias)
    single = x.float().requires_grad_()
    gram = kernel(single).to_dense()
    slopes = torch.autograd.grad(gram.sum(), [single, *kernel.parameters()])
    assert gram.dtype == torch.float32
    assert all(bool(part.isfinite().all()) for part in (gram, *slopes))
    with torch.no_grad():
        double = kernel.double()(x).to_dense()
    # at such slopes erf is a step, which feels the square root of rounding
    tolerance = 2e-3 if activation == "erf" and scale > 1 else 1e-5
    assert torch.allclose(gram.detach().double(), double, rtol=tolerance, atol=1e-6 * double.max().item())


def test_parameters_follow_single_precision_points():
    x = points(4, 3)
    with torch.no_grad():
        assert WideNetworkKernel(2).double()(x.float()).to_dense().dtype == torch.float32


def test_batches_and_active_columns():
    x = points(6, 4).reshape(2, 3, 4)
    kernel = WideNetworkKernel(2, batch_shape=torch.Size([2]), active_dims=(2, 0)).double()
    kernel.weight_variance = torch.tensor([1.0, 3.0])
    with torch.no_grad():
        gram, own = kernel(x).to_dense(), kernel(x, diag=True)
        for i, weight in enumerate((1.0, 3.0)):
            single = WideNetworkKernel(2, weight_variance=weight).double()
            assert torch.allclose(gram[i], single(x[i][:, [2, 0]]).to_dense(), rtol=1e-7)
        assert torch.allclose(own, gram.diagonal(dim1=-1, dim2=-2))


def test_columns_as_batches_are_refused():
    with pytest.raises(ValueError, match="last_dim_is_batch=True has no meaning"):
        WideNetworkKernel().forward(points(3, 2), points(3, 2), last_dim_is_batch=True)


def test_an_orbit_average_is_a_double_sum():
    x, kernel = points(5, 3), WideNetworkKernel(2, "relu").double()
    functional = OrbitAverage(FiniteOrbit(negation(3)))
    with torch.no_grad():
        atoms = functional.atoms(x)
        process = Process(None, kernel)
        gram, variance = process.covariance(atoms), process.variance(atoms)
        slow = torch.zeros(5, 5, dtype=torch.float64)
        for i in range(5):
            for j in range(5):
                for a in (1.0, -1.0):
                    for b in (1.0, -1.0):
                        slow[i, j] += kernel(a * x[i : i + 1], b * x[j : j + 1]).to_dense()[0, 0] / 4
    assert torch.allclose(gram, slow, rtol=1e-12)
    assert torch.allclose(variance, slow.diagonal(), rtol=1e-12)


def even_problem() -> tuple[np.ndarray, np.ndarray]:
    """An even function of two columns."""
    x = points(60, 2).numpy()
    return x, np.abs(x[:, 0]) - 0.5 * x[:, 0] * x[:, 1]


def test_regressors_learn_its_variances_and_come_back_from_a_file(tmp_path):
    x, y = even_problem()
    kernel = WideNetworkKernel(2, "relu")
    model = InvariantGPRegressor(kernel, FiniteOrbit(negation(2)), max_iterations=15, random_state=0)
    model.fit(x, y)
    assert model.kernel_.weight_variance.item() != pytest.approx(2.0, abs=1e-3)
    other = points(50, 2, 5).numpy()
    truth = np.abs(other[:, 0]) - 0.5 * other[:, 0] * other[:, 1]
    assert np.sqrt(np.mean((model.predict(other) - truth) ** 2)) < 0.25 * truth.std()
    assert np.allclose(model.predict(other), model.predict(-other), atol=1e-8)
    orbitwise.save(model, tmp_path / "model")
    assert np.array_equal(orbitwise.load(tmp_path / "model").predict(other), model.predict(other))


def test_the_certified_sparse_engine_takes_it():
    x, y = even_problem()
    kernel = ScaleKernel(WideNetworkKernel(2, "erf"))
    model = SparseGPRegressor(kernel, FiniteOrbit(negation(2)), max_iterations=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    certificate = model.certificate_
    assert certificate.lower <= certificate.upper
    assert certificate.num_inducing <= len(x)


def test_a_classifier_with_a_learned_orbit():
    model = InvariantGPClassifier(
        WideNetworkKernel(1), "rotation", image_shape=(4, 4), num_nodes=4, max_iterations=2, random_state=0
    )
    images = np.random.default_rng(0).uniform(size=(20, 16))
    model.fit(images, images[:, 0] > images[:, 5])
    assert math.isfinite(model.log_evidence_)
    assert set(model.predict(images)) <= {False, True}
    assert model.orbit_.learned()["angle"][1] > 0
