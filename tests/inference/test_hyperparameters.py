"""Hyperparameters as a vector: densities, Jacobians, gradients, exchanged parameters, and bad input."""

import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior
from scipy.stats import gamma
from torch import nn

from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.process import Process


class Problem:
    """A small exact Gaussian process with a likelihood's noise."""

    def __init__(self, dtype: torch.dtype = torch.float64, lengthscale_prior=None) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(9, 1, generator=generator, dtype=torch.float64).to(dtype)
        self.y = (6 * x).sin() + 0.1 * torch.randn(9, 1, generator=generator).to(dtype)
        kernel = ScaleKernel(RBFKernel(lengthscale_prior=lengthscale_prior))
        self.process = Process(None, kernel).to(dtype)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
        self.rows = Evaluation().atoms(x)

    def __call__(self) -> torch.Tensor:
        return exact.evidence(self.process, self.rows, self.y, self.likelihood.noise.expand(9)).value

    def hyperparameters(self, **arguments) -> Hyperparameters:
        return Hyperparameters(self, {"process": self.process, "likelihood": self.likelihood}, **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_density_is_likelihood_times_prior_times_jacobian(dtype: torch.dtype):
    problem = Problem(dtype, GammaPrior(2.0, 3.0))
    found = problem.hyperparameters(
        priors={"outputscale": LogNormalPrior(0.1, 0.7), "noise": NormalPrior(0.0, 2.0)}
    )
    assert found.names == [
        "process.kernel.outputscale",
        "process.kernel.base_kernel.lengthscale",
        "likelihood.noise_covar.noise",
    ]
    z = torch.tensor([0.3, -0.4, -1.1], dtype=dtype)
    density = found.log_density(z)
    assert density.dtype == dtype
    found.set(z)
    kernel, noise = problem.process.kernel, problem.likelihood.noise.item()
    scale, length = kernel.outputscale.item(), kernel.base_kernel.lengthscale.item()
    expected = problem().item()
    expected += gamma.logpdf(length, 2.0, scale=1 / 3)
    expected += -((math.log(scale) - 0.1) ** 2) / (2 * 0.49) - math.log(scale * 0.7 * math.sqrt(2 * math.pi))
    # a normal cut off below 1e-4, GPyTorch's least noise
    expected += -(noise**2) / 8 - math.log(
        2 * math.sqrt(2 * math.pi) * (0.5 - 1e-4 / (2 * math.sqrt(2 * math.pi)))
    )
    expected += torch.nn.functional.logsigmoid(z).sum().item()
    assert density.item() == pytest.approx(expected, abs=1e-7 if dtype == torch.float64 else 2e-4)
    torch.testing.assert_close(found.vector(), z)


def test_the_prior_of_z_integrates_to_one_for_every_kind_of_parameter():
    module = nn.Module()
    module.plain = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    kernels = [
        RBFKernel(),
        RBFKernel(lengthscale_constraint=gpytorch.constraints.Interval(0.2, 4.0)),
        RBFKernel(
            lengthscale_constraint=gpytorch.constraints.GreaterThan(0.3),
            lengthscale_prior=NormalPrior(0.4, 1.0),
        ),
        RBFKernel(lengthscale_constraint=gpytorch.constraints.LessThan(2.0)),
        module,
    ]
    for each in kernels:
        found = Hyperparameters(lambda: torch.zeros(()), each.double(), default_scale=0.5)
        grid = torch.linspace(-40, 40, 801, dtype=torch.float64)
        density = torch.stack([found.log_prior(z[None]) for z in grid]).exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-4)


def test_gradients_are_those_of_differences_and_second_ones_are_refused():
    found = Problem().hyperparameters()
    z = torch.tensor([0.2, -0.3, -1.5], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(found.log_density, z, eps=1e-5, atol=1e-6)
    # by automatic differentiation, they would miss terms
    with pytest.raises(RuntimeError, match="take differences of gradients"):
        torch.autograd.grad(found.log_density(z), z, create_graph=True)


def test_evaluating_leaves_the_modules_alone():
    problem = Problem()
    found, before = problem.hyperparameters(), problem().item()
    kept = [id(parameter) for parameter in problem.process.parameters()]
    found.log_density(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
    assert problem().item() == before
    assert [id(parameter) for parameter in problem.process.parameters()] == kept
    assert all(isinstance(parameter, nn.Parameter) for parameter in problem.process.parameters())


def test_where_the_evidence_fails_the_density_is_zero_with_a_flat_slope():
    module = nn.Module()
    module.plain = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def evidence() -> torch.Tensor:
        if module.plain.item() > 1:
            raise ValueError("far from positive definite")
        return -module.plain.square()

    found = Hyperparameters(evidence, module)
    z = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    value = found.log_density(z)
    assert value.item() == -math.inf
    assert torch.autograd.grad(value, z)[0].item() == 0.0
    assert module.plain.item() == 0.5


def test_default_priors_are_centred_where_the_parameters_were_when_built():
    problem = Problem()
    problem.process.kernel.base_kernel.lengthscale = 0.25
    found = problem.hyperparameters()
    found.set(torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64))
    median = found.priors["process.kernel.base_kernel.lengthscale"].cdf(torch.tensor(0.25).double())
    assert median.item() == pytest.approx(0.5, abs=1e-6)


def test_constrained_values_go_by_name():
    problem = Problem()
    found = problem.hyperparameters()
    z = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    values = found.constrained(z)
    assert values["process.kernel.base_kernel.lengthscale"].item() == pytest.approx(math.log1p(math.e))
    assert found.constrained()["process.kernel.outputscale"].item() == pytest.approx(math.log(2))
    assert found.dimension == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"priors": {"lengthscal": GammaPrior(1.0, 1.0)}},
            "Did you mean process.kernel.base_kernel.lengthscale",
        ),
        (
            {"priors": {"lengthscale": UniformPrior(0.0, 1.0)}},
            "constrain the parameter to the prior's support",
        ),
        ({"priors": {"noise": GammaPrior(torch.ones(2), torch.ones(2))}}, "shape"),
        ({"default_scale": 0.0}, "default_scale must be positive"),
    ],
)
def test_hyperpriors_that_do_not_fit_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Problem().hyperparameters(**arguments)


def test_bad_vectors_and_evidences_are_refused():
    problem = Problem()
    found = problem.hyperparameters()
    with pytest.raises(ValueError, match=r"3 hyperparameters, but the vector has shape \(2,\)"):
        found.log_density(torch.zeros(2))
    with pytest.raises(ValueError, match="NaN or infinite"):
        found.set(torch.tensor([0.0, math.nan, 0.0]))
    with pytest.raises(ValueError, match="scalar tensor"):
        Hyperparameters(lambda: torch.zeros(2), problem.process)
    with pytest.raises(ValueError, match="log evidence is nan"):
        Hyperparameters(lambda: torch.tensor(math.nan), problem.process)
    with pytest.raises(ValueError, match="density of the hyperpriors is zero at the present values"):
        problem.hyperparameters(priors={"lengthscale": GammaPrior(1e4, 1e-300)})


def test_parameters_reached_by_another_way_are_noticed():
    kernel = RBFKernel().double()
    loose = kernel.raw_lengthscale
    with pytest.raises(ValueError, match="uses lengthscale through modules that were not passed"):
        Hyperparameters(lambda: -loose.square().sum(), kernel)
