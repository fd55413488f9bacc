"""Problems whose evidence is known: a conjugate linear model, and a Gaussian process by quadrature."""

import gpytorch
import torch
from gpytorch.priors import NormalPrior
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.kernels import log_positive

NOISE = 0.3


class Linear(nn.Module):
    """y = Φw + noise with w ~ N(0, I): its weights play the part of hyperparameters."""

    def __init__(self, width: int = 2, count: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.features = torch.randn(count, width, generator=generator, dtype=torch.float64)
        self.y = torch.randn(count, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def forward(self) -> Tensor:
        return Normal(self.features @ self.weight, NOISE).log_prob(self.y).sum()

    def exact(self) -> float:
        covariance = self.features @ self.features.T + NOISE**2 * torch.eye(len(self.y))
        return MultivariateNormal(torch.zeros_like(self.y), covariance).log_prob(self.y).item()

    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self, self, {"weight": NormalPrior(0.0, 1.0)})


class SmallProcess(gpytorch.Module):
    """A Gaussian process with a lengthscale and a noise variance, written out."""

    def __init__(self, count: int = 10) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        self.squares = (x - x.T).square()
        self.y = torch.sin(6 * x[:, 0]) + 0.2 * torch.randn(count, generator=generator, dtype=torch.float64)
        for name, start in (("lengthscale", 0.5), ("noise", 0.1)):
            raw = torch.tensor(start, dtype=torch.float64).log()
            self.register_parameter(f"raw_{name}", nn.Parameter(raw))
            self.register_constraint(f"raw_{name}", log_positive())

    def forward(self) -> Tensor:
        lengthscale = self.raw_lengthscale_constraint.transform(self.raw_lengthscale)
        noise = self.raw_noise_constraint.transform(self.raw_noise)
        covariance = torch.exp(-0.5 * self.squares / lengthscale**2) + noise * torch.eye(len(self.y))
        lower, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed):
            raise ValueError("not positive definite")
        mean = torch.zeros_like(self.y)
        return MultivariateNormal(mean, scale_tril=lower, validate_args=False).log_prob(self.y)

    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self, self, default_scale=1.0)


def quadrature(hyperparameters: Hyperparameters, mode: Tensor, covariance: Tensor, size: int = 25) -> float:
    """log ∫∫ exp(log density) by the trapezium rule, eight deviations to each side."""
    lower = torch.linalg.cholesky(covariance)
    grid = torch.linspace(-8, 8, size, dtype=torch.float64)
    with torch.no_grad():
        values = [hyperparameters.log_density(mode + lower @ torch.stack([a, b])) for a in grid for b in grid]
    step = (grid[1] - grid[0]).log() * 2 + lower.diagonal().log().sum()
    return (torch.logsumexp(torch.stack(values), 0) + step).item()


def gaussian_sampler(log_density, start: Tensor, num_samples: int, seed: int) -> Tensor:
    """Independent samples of a normal density, found from its gradient and Hessian."""
    zero = torch.zeros_like(start).requires_grad_()
    (gradient,) = torch.autograd.grad(log_density(zero), zero)
    hessian = torch.autograd.functional.hessian(log_density, zero.detach())
    covariance = torch.linalg.inv(-hessian)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, num_samples // 2, len(start), generator=generator, dtype=torch.float64)
    return covariance @ gradient + noise @ torch.linalg.cholesky(covariance).T
