import copy
import pickle
import unittest

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Functional,
    Gradient,
    OrbitAverage,
    OrbitSum,
)
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import FunctionalKernel, Process
from orbitwise.transforms import Scaling, coordinate_permutations


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def any_width() -> Functional:
    """An average of x and 1.35·x, for inputs of any width."""
    return OrbitAverage(FiniteOrbit(Scaling(), elements=torch.tensor([[0.0], [0.3]])))


def permuted(width: int = 3) -> Functional:
    return OrbitAverage(FiniteOrbit(coordinate_permutations(width)))


def sums(x: Tensor) -> Tensor:
    return torch.stack([x.sum(-1), x.square().sum(-1)], dim=-1)


class TestRadialBasis(BaseKernelTestCase, unittest.TestCase):
    """GPyTorch's own suite."""

    def create_kernel_no_ard(self, active_dims=None, **options) -> Kernel:
        return FunctionalKernel(RBFKernel(**options), any_width(), active_dims=active_dims)

    def create_kernel_ard(self, num_dims: int, active_dims=None, **options) -> Kernel:
        return FunctionalKernel(
            RBFKernel(ard_num_dims=num_dims, **options), any_width(), active_dims=active_dims
        )


class TestNormalised(BaseKernelTestCase, unittest.TestCase):
    """GPyTorch's own suite, for a scaled Matérn kernel with unit variance everywhere."""

    def create_kernel_no_ard(self, active_dims=None, **options) -> Kernel:
        base = ScaleKernel(MaternKernel(nu=1.5, **options), **options)
        return FunctionalKernel(base, any_width(), normalize=True, active_dims=active_dims)

    def create_kernel_ard(self, num_dims: int, active_dims=None, **options) -> Kernel:
        base = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=num_dims, **options), **options)
        return FunctionalKernel(base, any_width(), normalize=True, active_dims=active_dims)


class TestGeneral(BaseKernelTestCase, unittest.TestCase):
    """GPyTorch's own suite, for a base kernel that Orbitwise has no formula for."""

    def create_kernel_no_ard(self, active_dims=None, **options) -> Kernel:
        return FunctionalKernel(PeriodicKernel(**options), any_width(), active_dims=active_dims)

    def create_kernel_ard(self, num_dims: int, active_dims=None, **options) -> Kernel:
        return FunctionalKernel(
            PeriodicKernel(ard_num_dims=num_dims, **options), any_width(), active_dims=active_dims
        )


@torch.no_grad()
def test_it_is_the_covariance_of_the_process():
    base, x, y = ScaleKernel(RBFKernel()).double(), seeded(4, 3), seeded(5, 3, seed=1)
    kernel, process = FunctionalKernel(base, permuted()), Process(None, base)
    rows, columns = (kernel.functional.atoms(points) for points in (x, y))
    torch.testing.assert_close(kernel(x, y).to_dense(), process.covariance(rows, columns))
    torch.testing.assert_close(kernel(x).to_dense(), process.covariance(rows))
    torch.testing.assert_close(kernel(x, diag=True), process.variance(rows))
    torch.testing.assert_close(
        kernel(x, y[:4], diag=True), process.covariance(rows, columns)[:, :4].diagonal()
    )


@torch.no_grad()
def test_broadcast_batches():
    kernel = FunctionalKernel(RBFKernel(batch_shape=torch.Size([2, 1])).double(), permuted())
    kernel.base_kernel.lengthscale = torch.tensor([0.5, 1.5]).reshape(2, 1, 1, 1)
    x, y = seeded(4, 5, 3), seeded(6, 3, seed=1)
    matrix = kernel(x, y).to_dense()
    assert matrix.shape == (2, 4, 5, 6)
    torch.testing.assert_close(matrix[1, 2], kernel[1, 0](x[2], y).to_dense())
    assert kernel(x, diag=True).shape == (2, 4, 5)


@torch.no_grad()
def test_the_diagonal_costs_the_diagonal(evaluations: list[int]):
    x = seeded(30, 3)
    one_sided = FunctionalKernel(RBFKernel().double(), permuted())
    two_sided = FunctionalKernel(RBFKernel(ard_num_dims=3).double(), permuted())
    for kernel, cost in ((one_sided, 30 * 6), (two_sided, 30 * 36)):
        evaluations.clear()
        kernel(x, diag=True)
        assert sum(evaluations) == cost
        evaluations.clear()
        kernel(x).diagonal()
        assert sum(evaluations) == cost


@torch.no_grad()
def test_base_kernels_and_active_dimensions():
    x = seeded(4, 3)
    outer = FunctionalKernel(RBFKernel().double(), permuted(2), active_dims=[2, 0])
    torch.testing.assert_close(
        outer(x).to_dense(), FunctionalKernel(RBFKernel().double(), permuted(2))(x[:, [2, 0]]).to_dense()
    )
    # The active dimensions of the base kernel are those of the moved points.
    inner = FunctionalKernel(ScaleKernel(RBFKernel(active_dims=[0])).double(), permuted())
    moved = inner.functional.atoms(x).points[..., :1]
    slow = inner.base_kernel.base_kernel.double()(moved.flatten(0, 1).expand(-1, 3)).to_dense()
    slow = inner.base_kernel.outputscale * slow.reshape(4, 6, 4, 6).mean((1, 3))
    torch.testing.assert_close(inner(x).to_dense(), slow)


def test_derivatives_and_features_are_functionals_too():
    v = torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64)
    for functional in (DirectionalDerivative(v) @ permuted(), FeatureMap(sums), Evaluation()):
        kernel = FunctionalKernel(RBFKernel().double(), functional)
        x = seeded(4, 3)
        matrix = kernel(x).to_dense()
        torch.testing.assert_close(kernel(x, diag=True), matrix.diagonal())
        batch = kernel(torch.stack([x, x + 1])).to_dense()
        torch.testing.assert_close(batch[0], matrix)


def test_it_is_one_kernel_among_others():
    functional = FunctionalKernel(RBFKernel(), permuted())
    total = (ScaleKernel(functional) + RBFKernel()).double()
    x = seeded(4, 3)
    expected = total.kernels[0].outputscale * functional(x).to_dense() + total.kernels[1](x).to_dense()
    torch.testing.assert_close(total(x).to_dense(), expected)


def test_priors_and_constraints_of_the_base_kernel_are_kept():
    base = RBFKernel(
        lengthscale_prior=GammaPrior(3.0, 6.0), lengthscale_constraint=gpytorch.constraints.Interval(0.1, 2.0)
    )
    kernel = FunctionalKernel(base, permuted())
    priors = [(name, prior) for name, _, prior, _, _ in kernel.named_priors()]
    assert [name for name, _ in priors] == ["base_kernel.lengthscale_prior"]
    assert [name for name, _ in kernel.named_constraints()] == ["base_kernel.raw_lengthscale_constraint"]
    kernel.base_kernel.lengthscale = 1.5
    with pytest.raises(
        RuntimeError, match="Attempting to manually set a parameter value that is out of bounds"
    ):
        kernel.base_kernel.lengthscale = 3.0


def test_learnable_bounds_are_parameters_of_the_kernel():
    orbit = SampledOrbit(Scaling(), -0.5, 0.5).freeze(6, torch.Generator().manual_seed(0))
    kernel = FunctionalKernel(RBFKernel(), OrbitAverage(orbit)).double()
    bounds = [parameter for name, parameter in kernel.named_parameters() if name.startswith("functional.")]
    assert bounds
    gradients = torch.autograd.grad(kernel(seeded(4, 3)).to_dense().sum(), bounds)
    assert all(bool((gradient != 0).any()) for gradient in gradients)


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, kernel: Kernel) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = kernel

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def trained(kernel: Kernel, x: Tensor, y: Tensor) -> tuple[ExactGP, list[float]]:
    model = ExactGP(x, y, kernel).double().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


def test_it_trains_in_an_exact_gp_and_predicts_symmetric_functions_better():
    def truth(x: Tensor) -> Tensor:
        return x.square().sum(-1) + (3 * x).sin().prod(-1)

    x, test = seeded(25, 3).tanh(), seeded(40, 3, seed=1).tanh()
    errors = {}
    for name, functional in (("invariant", permuted()), ("plain", Evaluation())):
        model, losses = trained(ScaleKernel(FunctionalKernel(RBFKernel(), functional)), x, truth(x))
        assert losses[-1] < losses[0] - 0.1
        with torch.no_grad():
            prediction = model(test).mean
            errors[name] = float((prediction - truth(test)).square().mean().sqrt())
            if name == "invariant":
                torch.testing.assert_close(model(test[:, [2, 0, 1]]).mean, prediction, rtol=1e-8, atol=1e-8)
    assert errors["invariant"] < 0.8 * errors["plain"]


def test_drawn_functionals_are_refused():
    for orbit in (
        SampledOrbit(Scaling(), -0.5, 0.5),
        FiniteOrbit(coordinate_permutations(3), num_samples=2),
    ):
        kernel = FunctionalKernel(RBFKernel().double(), OrbitAverage(orbit))
        with pytest.raises(ValueError, match="Freeze the orbit first"):
            kernel(seeded(4, 3)).to_dense()
        with pytest.raises(ValueError, match="Freeze the orbit first"):
            kernel(seeded(4, 3), diag=True)


def test_clear_errors():
    kernel = FunctionalKernel(RBFKernel().double(), Gradient())
    with pytest.raises(ValueError, match="DirectionalDerivative, not Gradient"):
        kernel(seeded(4, 3)).to_dense()
    kernel = FunctionalKernel(RBFKernel().double(), permuted())
    with (
        pytest.warns(DeprecationWarning, match="last_dim_is_batch"),
        pytest.raises(ValueError, match="last_dim_is_batch"),
    ):
        kernel(seeded(4, 3), diag=True, last_dim_is_batch=True)
    with pytest.raises(ValueError, match="permutes 3 coordinates, but the inputs have 2"):
        kernel(seeded(4, 2)).to_dense()


def test_it_is_copied_and_pickled_with_what_it_knows():
    kernel = FunctionalKernel(
        RBFKernel().double(), OrbitSum(FiniteOrbit(coordinate_permutations(3))), one_sided=True
    )
    x = seeded(4, 3)
    expected = kernel(x).to_dense()
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(twin(x).to_dense(), expected)
        twin.base_kernel.lengthscale = 0.1
        assert not torch.equal(twin(x).to_dense(), expected)
    # The process that it keeps is no module: parameters count once, and a new base kernel is used.
    assert [name for name, _ in kernel.named_parameters()] == ["base_kernel.raw_lengthscale"]
    kernel.base_kernel = MaternKernel(nu=1.5).double()
    assert not torch.allclose(kernel(x).to_dense(), expected)


def test_an_assertion_is_checked_once(evaluations: list[int]):
    kernel = FunctionalKernel(PeriodicKernel().double(), permuted(), one_sided=True)
    x = seeded(4, 3)
    costs = []
    for _ in range(3):
        evaluations.clear()
        kernel(x).to_dense()
        costs.append(sum(evaluations))
    assert costs[0] > costs[1] == costs[2] == 16 * 6
    with pytest.raises(ValueError, match="one_sided='auto'"):
        FunctionalKernel(RBFKernel(active_dims=[0]).double(), permuted(), one_sided=True)(x).to_dense()
