"""Laplace's method: exact for normal posteriors, with Hessians that forgetful backward passes would spoil."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel
from torch import nn

from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.selection.evidence import hessian, laplace
from tests.selection.evidence_problems import Linear, SmallProcess, quadrature

X = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]


def test_a_normal_posterior_is_integrated_exactly():
    problem = Linear()
    found = laplace(problem.hyperparameters())
    assert found.log_evidence == pytest.approx(problem.exact(), abs=1e-5)
    assert found.is_peak
    precision = torch.eye(2) + problem.features.T @ problem.features / 0.09
    torch.testing.assert_close(found.covariance, torch.linalg.inv(precision), rtol=1e-6, atol=1e-8)
    assert problem.weight.tolist() == [0.0, 0.0]
    torch.testing.assert_close(found.proposal().lower @ found.proposal().lower.T, found.covariance)


def test_two_hyperparameters_come_near_to_quadrature():
    hyperparameters = SmallProcess().hyperparameters()
    found = laplace(hyperparameters)
    assert found.converged
    expected = quadrature(hyperparameters, found.mode, found.covariance)
    assert found.log_evidence == pytest.approx(expected, abs=0.15)
    # it is an approximation: were it equal, the quadrature would be one of the same normal
    assert abs(found.log_evidence - expected) > 1e-4


@pytest.mark.parametrize(
    "make", [RBFKernel, lambda: MaternKernel(0.5), lambda: MaternKernel(2.5), PeriodicKernel]
)
def test_second_derivatives_of_gpytorch_kernels_are_right(make):
    kernel = make().double()
    noise = 0.1 * torch.eye(6, dtype=torch.float64)

    def evidence() -> torch.Tensor:
        lower = torch.linalg.cholesky(kernel(X).to_dense() + noise)
        white = torch.linalg.solve_triangular(lower, torch.sin(5 * X), upper=False)
        return -0.5 * white.square().sum() - lower.diagonal().log().sum()

    hyperparameters = Hyperparameters(evidence, kernel)
    z = hyperparameters.vector() + 0.3
    found = hessian(hyperparameters, z)

    def gradient(point: torch.Tensor) -> torch.Tensor:
        point = point.clone().requires_grad_()
        return torch.autograd.grad(hyperparameters.log_density(point), point)[0]

    steps = 1e-5 * torch.eye(len(z), dtype=torch.float64)
    slow = torch.stack([(gradient(z + step) - gradient(z - step)) / 2e-5 for step in steps])
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-5)


def test_a_backward_pass_that_forgets_is_found_out():
    class Forgetful(torch.autograd.Function):
        """x², whose slope says that it does not depend on x."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(2 * x.detach())
            return x.square()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    module = nn.Module()
    module.a = nn.Parameter(torch.tensor([0.5, 0.2], dtype=torch.float64))
    hyperparameters = Hyperparameters(lambda: -Forgetful.apply(module.a).sum(), module)  # type: ignore
    # -2 of the evidence, -1/4 of the normal prior of deviation 2
    expected = -2.25 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(
        hessian(hyperparameters, hyperparameters.vector()), expected, atol=1e-6, rtol=0
    )


def test_a_mode_without_a_peak_is_warned_of():
    module = nn.Module()
    module.a = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    # a saddle where the search begins: cosh is flat there and outgrows the prior
    hyperparameters = Hyperparameters(lambda: module.a.square().sum().clamp_max(4.0), module)
    with pytest.warns(UserWarning, match="has no peak there"):
        found = laplace(hyperparameters)
    assert not found.is_peak


def test_without_hyperparameters_the_evidence_is_the_likelihood():
    module = RBFKernel().requires_grad_(False)
    found = laplace(Hyperparameters(lambda: torch.tensor(-3.5), module))
    assert found.log_evidence == -3.5
    assert len(found.mode) == 0
