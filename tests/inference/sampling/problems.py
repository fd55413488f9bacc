"""Small problems whose posteriors are known by dense sums, and the kernel that they share."""

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from orbitwise.functionals import Evaluation
from orbitwise.inference.sampling import HierarchicalModel
from orbitwise.likelihoods import Bernoulli, Laplace, Likelihood, Poisson, StudentT
from orbitwise.process import Process

POINTS = torch.tensor([[0.0], [0.7]], dtype=torch.float64)
PROBLEMS: dict[str, tuple[Likelihood, list[list[float]]]] = {
    "bernoulli": (Bernoulli(), [[1.0], [1.0]]),
    "poisson": (Poisson(), [[3.0], [0.0]]),
    "student": (StudentT(0.4, 3.0), [[-1.0], [2.5]]),
    "laplace": (Laplace(0.5), [[1.5], [-0.5]]),
}


class Bump(Kernel):
    """amplitude² exp(-½ distance²/lengthscale²), with numbers in place of parameters: quick to build."""

    def __init__(self, amplitude: float = 1.0, length: float = 1.0) -> None:
        super().__init__()
        self.amplitude, self.length = amplitude, length

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        if diag:
            return self.amplitude**2 * torch.exp(-0.5 * (x1 - x2).square().sum(-1) / self.length**2)
        return self.amplitude**2 * torch.exp(-0.5 * torch.cdist(x1, x2).square() / self.length**2)


def targets_of(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(PROBLEMS[name][1], dtype=dtype)


def grid_posterior(
    covariance: Tensor, likelihood: Likelihood, targets: Tensor, reach: float = 9.0, count: int = 241
) -> tuple[Tensor, Tensor, float]:
    """Values of two f on a grid [q 2], their posterior weights, and log p(y), by a dense sum."""
    deviation = covariance.diagonal().sqrt()
    axes = [torch.linspace(-reach, reach, count, dtype=torch.float64) * each for each in deviation]
    f = torch.cartesian_prod(*axes)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), covariance)
    logs = prior.log_prob(f) + likelihood.log_density(f[..., None], targets).sum((-1, -2)).detach()
    cell = math.log(math.prod((axis[1] - axis[0]).item() for axis in axes))
    return f, torch.softmax(logs, 0), (torch.logsumexp(logs, 0) + cell).item()


def amplitude_model(name: str) -> HierarchicalModel:
    """Two values and the logarithm of their amplitude, with a normal hyperprior."""
    likelihood, rows = PROBLEMS[name][0], Evaluation().atoms(POINTS)
    kernel = Bump()
    process = Process(None, kernel)
    unit = process.covariance(rows)

    def build(theta: Tensor):
        kernel.amplitude = theta[0].exp().item()
        return process, rows, likelihood

    def covariance(theta: Tensor):
        return (2 * theta[0]).exp() * unit, unit.new_zeros(2), likelihood

    model = HierarchicalModel(
        build, targets_of(name), lambda theta: -0.5 * theta.square().sum(), ("log amplitude",)
    )
    for each in (torch.tensor([0.0]), torch.tensor([0.7])):
        torch.testing.assert_close(model.covariance(each.double())[0], covariance(each.double())[0])
    # the same without a kernel: thousands of evaluations take less time
    model.covariance = covariance
    return model


def amplitude_posterior(name: str, count: int = 31) -> tuple[Tensor, Tensor, Tensor]:
    """The mean and deviation of θ, and the mean of f, of that model, by dense sums over θ and f."""
    model = amplitude_model(name)
    thetas = torch.linspace(-4, 4, count, dtype=torch.float64)
    logs, means = [], []
    for theta in thetas:
        covariance, _, likelihood = model.covariance(theta[None])
        f, weights, evidence = grid_posterior(covariance, likelihood, model.targets, count=161)
        logs.append(evidence - 0.5 * theta.square().item())
        means.append(weights @ f)
    weights = torch.softmax(torch.tensor(logs, dtype=torch.float64), 0)
    mean = weights @ thetas
    return mean, (weights @ (thetas - mean).square()).sqrt(), weights @ torch.stack(means)


def z_scores(samples: Tensor, truth: Tensor) -> Tensor:
    """(mean of the chains - truth)/standard error, with the error that their autocorrelation leaves."""
    from orbitwise.inference.sampling import standard_error

    return (samples.flatten(0, 1).double().mean(0) - truth) / standard_error(samples)
