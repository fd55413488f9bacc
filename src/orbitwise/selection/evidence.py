"""The evidence of a model with its hyperparameters integrated out: log ∫ p(y | θ, H) p(θ | H) dθ.

The methods are Laplace's (a normal approximation at the mode), importance sampling from a Student-t around
the mode, bridge sampling (Meng and Wong 1996), and thermodynamic integration (Lartillot and Philippe 2006).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_lower
from orbitwise.inference.optimise.hyperparameters import Hyperparameters
from orbitwise.inference.optimise.training import Vector, finite_difference_hessian, maximize
from orbitwise.inference.sampling import StudentProposal, effective_sample_size, nuts, standard_error


def _log_densities(
    log_density: Callable[[Float[Tensor, " p"]], Float[Tensor, ""]], points: Float[Tensor, "q p"]
) -> Float[Tensor, " q"]:
    """The log density at every point in double precision, with -∞ in place of NaN."""
    with torch.no_grad():
        values = torch.stack([log_density(point) for point in points]).double()
    return torch.where(values.isnan(), -torch.inf, values)


STEP = 1e-4
FLATTEST = 1e-3
"""Below this curvature the mode is not a peak; smaller curvatures are raised to it."""


@final
@dataclass(frozen=True)
class LaplaceFit:
    """Laplace's approximation: the mode of z's posterior and its covariance, the inverse of -∂² log p(y, z).

    `is_peak` says whether the curvature is positive in all directions; otherwise the result is meaningless.
    """

    log_evidence: float
    mode: Float[Tensor, " p"]
    covariance: Float[Tensor, "p p"]
    converged: bool
    is_peak: bool

    @property
    def standard_error(self) -> float | None:
        """None, because the error of a normal approximation is unknown; 0 without hyperparameters."""
        return None if len(self.mode) else 0.0

    def proposal(self) -> StudentProposal:
        """A Student-t with this location and scale, whose heavy tails keep importance weights bounded."""
        return StudentProposal(self.mode, cholesky(self.covariance).lower, share=0.0)


def laplace(
    hyperparameters: Hyperparameters, max_iterations: int = 200, start: Float[Tensor, " p"] | None = None
) -> LaplaceFit:
    """Find the mode from `start`, by default from the present parameters, and the curvature there.

    The parameters of the modules do not change.
    """
    z = nn.Parameter((hyperparameters.vector() if start is None else start).double().clone())
    if not len(z):
        value = hyperparameters.log_density(z).item()
        return LaplaceFit(value, z.detach(), z.new_zeros(0, 0).detach(), True, True)
    training = maximize(lambda: hyperparameters.log_density(z), [z], max_iterations)
    mode = z.detach().clone()
    values, vectors = torch.linalg.eigh(-hessian(hyperparameters, mode))
    is_peak = bool(values[0] > FLATTEST)
    if not is_peak:
        warnings.warn(
            f"At the mode the curvature is {values[0].item():.3g} in one direction (converged: "
            f"{training.converged}), so the posterior of the hyperparameters has no peak there and "
            "Laplace's method cannot be trusted: use 'bridge' or 'importance', or stronger hyperpriors.",
            stacklevel=2,
        )
    values = values.clamp_min(FLATTEST)
    value = laplace_log_evidence(training.value, values)
    covariance = (vectors / values) @ vectors.mT
    return LaplaceFit(value, mode, (covariance + covariance.mT) / 2, training.converged, is_peak)


def laplace_log_evidence(log_joint: float, curvatures: Float[Tensor, " p"]) -> float:
    """log p(y, z*) + (p/2) log 2π - ½ Σ log λ, λ the eigenvalues of -∂² log p(y, z)/∂z² at the mode z*."""
    return log_joint + 0.5 * len(curvatures) * math.log(2 * math.pi) - 0.5 * curvatures.log().sum().item()


def hessian(hyperparameters: Hyperparameters, z: Float[Tensor, " p"]) -> Float[Tensor, "p p"]:
    """The second derivatives of the log density, by central differences of its gradient.

    They are not computed by automatic differentiation, because some backward passes of GPyTorch are not
    differentiable.
    """

    def gradient(point: Vector) -> Vector:
        free = torch.from_numpy(point).to(z).requires_grad_()
        return torch.autograd.grad(hyperparameters.log_density(free), free)[0].double().numpy()

    return torch.from_numpy(finite_difference_hessian(gradient, z.numpy(), STEP, central=True)).to(z)


LARGEST_SHAPE = 0.7
SMALLEST_SHARE = 0.01


@final
@dataclass(frozen=True)
class ImportanceSample:
    """Weighted samples of z's posterior, and the log evidence as the mean of their weights.

    Attributes
    ----------
    effective_size : float
        The number of equally weighted samples with the same precision.
    pareto_shape : float
        How heavy the tail of the weights is; above about 0.7 neither the estimate nor its error can be
        trusted.
    """

    log_evidence: float
    standard_error: float
    effective_size: float
    pareto_shape: float
    points: Float[Tensor, "q p"]
    weights: Float[Tensor, " q"]

    @property
    def is_degenerate(self) -> bool:
        """Whether the estimate is dominated by a few weights."""
        too_few = self.effective_size < max(10.0, SMALLEST_SHARE * len(self.points))
        return too_few or not self.pareto_shape <= LARGEST_SHAPE


def importance(
    hyperparameters: Hyperparameters,
    fit: LaplaceFit,
    num_samples: int = 1000,
    num_adaptations: int = 1,
    generator: torch.Generator | None = None,
) -> ImportanceSample:
    """Sample around a Laplace fit; each adaptation first matches the proposal to weighted samples.

    An adaptation uses a quarter of `num_samples` additional samples, which are discarded, so that the
    estimate stays unbiased.
    """
    if num_samples < 50:
        raise ValueError(f"num_samples={num_samples} is too few to judge the weights; take at least 50.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    proposal = fit.proposal()
    for _ in range(num_adaptations):
        points, logarithms = _weighted(hyperparameters, proposal, max(50, num_samples // 4), generator)
        proposal = proposal.matched(points, logarithms)
    points, logarithms = _weighted(hyperparameters, proposal, num_samples, generator)
    sample = summarise(points, logarithms)
    if sample.is_degenerate:
        warnings.warn(
            f"Importance weights are degenerate: {sample.effective_size:.0f} effective of {num_samples} "
            f"samples, Pareto shape {sample.pareto_shape:.2f} (at most {LARGEST_SHAPE} is safe). The log "
            "evidence and its error cannot be trusted: take more samples, or method='bridge'.",
            stacklevel=2,
        )
    return sample


def summarise(points: Float[Tensor, "q p"], logarithms: Float[Tensor, " q"]) -> ImportanceSample:
    """The estimate from points and the logarithms of their weights p(y, z)/q(z)."""
    count = len(logarithms)
    total = torch.logsumexp(logarithms, 0)
    if not bool(total.isfinite()):
        raise ValueError("No sample has a finite density: check the hyperpriors and the log evidence.")
    weights = (logarithms - total).exp()
    effective = 1 / weights.square().sum().item()
    # sd(w)/(w̄ √S), with Σw² = 1/ESS for weights of sum 1
    error = math.sqrt(max(0.0, count / effective - 1) / (count - 1))
    shape = pareto_shape(logarithms)
    return ImportanceSample((total - math.log(count)).item(), error, effective, shape, points, weights)


def pareto_shape(logarithms: Float[Tensor, " q"]) -> float:
    """The shape k of the generalised Pareto distribution of the largest weights.

    Weights with k ≥ ½ have an infinite variance.
    """
    count = len(logarithms)
    size = min(count // 5, math.ceil(3 * math.sqrt(count)))
    if size < 5:
        return math.inf
    ordered = (logarithms - logarithms.max()).exp().sort().values.double()
    tail = ordered[-size:] - ordered[-size - 1]
    if tail[-1] <= 1e-12 * ordered[-1]:
        return -math.inf  # all weights are equal
    # Zhang and Stephens: a posterior mean of b = -k/σ over a grid, then k = mean log(1 - b x)
    number = 30 + math.isqrt(size)
    quartile = tail[int(size / 4 + 0.5) - 1].clamp_min(1e-300)
    steps = torch.arange(1, number + 1, dtype=torch.float64)
    grid = 1 / tail[-1] + (1 - (number / (steps - 0.5)).sqrt()) / (3 * quartile)
    shapes = torch.log1p(-grid[:, None] * tail[None, :]).mean(-1)
    likelihood = size * ((-grid / shapes).log() - shapes - 1)
    b = (torch.softmax(likelihood, 0) * grid).sum()
    shape = torch.log1p(-b * tail).mean().item()
    # a weak prior around ½ stabilises small samples
    return (size * shape + 10 * 0.5) / (size + 10)


def _weighted(
    hyperparameters: Hyperparameters, proposal: StudentProposal, num_samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws of the proposal, and the logarithms of their weights p(y, z)/q(z)."""
    points = proposal.sample(num_samples, generator)
    return points, _log_densities(hyperparameters.log_density, points) - proposal.log_densities(points)


@final
@dataclass(frozen=True)
class BridgeEstimate:
    """log p(y), its standard error, and whether the iteration converged."""

    log_evidence: float
    standard_error: float
    converged: bool
    num_iterations: int


def bridge(
    log_density: Callable[[Float[Tensor, " p"]], Float[Tensor, ""]],
    samples: Float[Tensor, "chains n p"],
    generator: torch.Generator | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
) -> BridgeEstimate:
    """Estimate log ∫ exp(log_density) from samples of that density (Meng and Wong 1996).

    A normal proposal q has the moments of the first half of the samples. The other half is compared with as
    many draws of q by the optimal bridge, whose value r is found by iteration:
    r = E_q[p/(s₁p + s₂qr)] / E_p[q/(s₁p + s₂qr)], with shares s of the effective numbers of samples.
    """
    chains, count, size = samples.shape
    if count < 40:
        raise ValueError(f"Bridge sampling needs at least 40 samples per chain, not {count}.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    samples = samples.double()
    first, second = samples[:, : count // 2], samples[:, count // 2 :]
    # q = N(m, LLᵀ) has the moments of the first half
    mean, spread = first.flatten(0, 1).mean(0), torch.atleast_2d(first.flatten(0, 1).mT.cov(correction=0))
    lower = cholesky(spread + torch.diag(1e-6 * spread.diagonal().clamp_min(1e-12))).lower
    posterior = second.reshape(-1, size)
    noise = torch.randn(len(posterior), size, generator=generator, dtype=posterior.dtype)
    proposed = mean + noise @ lower.mT
    # l = log p(y, z) - log q(z) = log p(y, z) + ½|L⁻¹(z - m)|² + ½ p log 2π + log|L|, at both kinds of points
    constant = 0.5 * (size * math.log(2 * math.pi) + log_determinant(lower))
    at_posterior, at_proposed = (
        _log_densities(log_density, points)
        + 0.5 * solve_lower(lower, (points - mean).mT).square().sum(0)
        + constant
        for points in (posterior, proposed)
    )
    # if l is constant on a chain, its samples are as good as independent
    effective = effective_sample_size(at_posterior.reshape(chains, -1)).nan_to_num(nan=len(posterior)).item()
    share = torch.tensor(effective / (effective + len(proposed)), dtype=torch.float64)
    centre = at_posterior.median()
    estimate, change, step = torch.zeros((), dtype=torch.float64), math.inf, 0
    while change > tolerance and step < max_iterations:
        above = torch.logsumexp(at_proposed - centre - _mixed(at_proposed - centre, estimate, share), 0)
        below = torch.logsumexp(-_mixed(at_posterior - centre, estimate, share), 0)
        new = above - below + math.log(len(posterior) / len(proposed))
        change, estimate, step = (new - estimate).abs().item(), new, step + 1
    converged = change <= tolerance
    if not converged:
        warnings.warn(
            f"The bridge estimate still changes by {change:.2g} after {max_iterations} iterations: take more "
            "samples.",
            stacklevel=2,
        )
    # f₁ = p(z | y)/(s₁ p(z | y) + s₂ q) under q, and f₂ = q/(s₁ p(z | y) + s₂ q) under the posterior
    one = (at_proposed - centre - _mixed(at_proposed - centre, estimate, share)).exp() / estimate.exp()
    two = (-_mixed(at_posterior - centre, estimate, share)).exp()
    square = (one.var() / one.mean().square()).item() / len(one)
    error = standard_error(two.reshape(chains, -1)).nan_to_num(nan=0.0) / two.mean()
    square += error.square().item()
    return BridgeEstimate((estimate + centre).item(), math.sqrt(square), converged, step)


def _mixed(logarithm: Tensor, estimate: Tensor, share: Tensor) -> Tensor:
    """log(s₁ e^l + s₂ r)."""
    return torch.logaddexp(share.log() + logarithm, torch.log1p(-share) + estimate)


Sampler = Callable[[Callable[[Tensor], Tensor], Tensor, int, int], Tensor]
"""(log density, start, number of samples, seed) -> samples [chains, n, p]."""


@final
@dataclass(frozen=True)
class ThermodynamicEstimate:
    """log p(y), its standard error, and the curve E_β[log p(y | θ)] that was integrated."""

    log_evidence: float
    standard_error: float
    powers: Float[Tensor, " k"]
    means: Float[Tensor, " k"]


def thermodynamic(
    hyperparameters: Hyperparameters,
    sampler: Sampler,
    start: Float[Tensor, " p"],
    num_powers: int = 20,
    num_samples: int = 200,
    seed: int = 0,
) -> ThermodynamicEstimate:
    """Estimate log p(y) = ∫₀¹ E_β[log p(y | θ)] dβ under p(y | θ)^β p(θ), by the corrected trapezoidal rule.

    One chain is run for each power β, from the posterior (β = 1) down to the prior (β = 0); each starts where
    the previous one ended. Powers are dense near the prior, where the expectation changes most.
    """
    if num_powers < 3:
        raise ValueError(f"num_powers={num_powers} is too few for an integral; take at least 3.")
    powers = torch.linspace(0, 1, num_powers, dtype=torch.float64) ** 5
    means, variances, errors = [], [], []
    for step, power in enumerate(powers.flip(0).tolist()):

        def tempered(z: Tensor, power: float = power) -> Tensor:
            prior = hyperparameters.log_prior(z)
            return prior + power * hyperparameters.log_likelihood(z) if power else prior

        samples = sampler(tempered, start, num_samples, seed + step)
        start = samples[0, -1]
        chains = _log_densities(hyperparameters.log_likelihood, samples.flatten(0, 1))
        chains = chains.reshape(samples.shape[:2])
        if not bool(chains.isfinite().all()):
            raise ValueError(
                f"log p(y | θ) is not finite for samples at power {power:.2g}: the hyperpriors are so wide "
                "that it cannot be computed everywhere; narrow them, or use method='bridge'."
            )
        means.append(chains.mean().item())
        variances.append(chains.var().item())
        errors.append(standard_error(chains).nan_to_num(nan=0.0).item())
    mean, variance, error = (
        torch.tensor(each, dtype=torch.float64).flip(0) for each in (means, variances, errors)
    )
    gap = powers.diff()
    # Σ Δβ (E_k + E_{k+1})/2 - Σ Δβ² (V_{k+1} - V_k)/12
    value = (gap * (mean[1:] + mean[:-1]) / 2).sum() - (gap.square() * variance.diff() / 12).sum()
    weight = torch.cat([gap[:1], gap[1:] + gap[:-1], gap[-1:]]) / 2
    return ThermodynamicEstimate(value.item(), (weight * error).square().sum().sqrt().item(), powers, mean)


METHODS = ("laplace", "importance", "bridge", "thermodynamic")
Details = LaplaceFit | ImportanceSample | BridgeEstimate | ThermodynamicEstimate


@final
@dataclass(frozen=True)
class EvidenceEstimate:
    """log p(y | H) by one of the methods, the fit at the mode, and what the method returned.

    `samples` [chains, n, p] are draws from the posterior of z; None if the method took none.
    """

    method: str
    fit: LaplaceFit
    details: Details
    samples: Float[Tensor, "chains n p"] | None = None

    @property
    def log_evidence(self) -> float:
        """log p(y | H)."""
        return self.details.log_evidence

    @property
    def standard_error(self) -> float | None:
        """The standard error of the log evidence; None if the method has none."""
        return self.details.standard_error

    def resampled(self, num_samples: int, seed: int = 0) -> tuple[Float[Tensor, "q p"], NDArray[np.float64]]:
        """Distinct values of z from about `num_samples` draws of its posterior, and how often each was drawn.

        If the method took no draws, the only value is the mode.
        """
        if isinstance(self.details, ImportanceSample):
            # Systematic resampling: value i is picked ⌊S w_i⌋ or ⌈S w_i⌉ times.
            generator = torch.Generator().manual_seed(seed)
            offset = torch.rand((), generator=generator, dtype=torch.float64)
            places = (torch.arange(num_samples, dtype=torch.float64) + offset) / num_samples
            picked = torch.searchsorted(self.details.weights.cumsum(0), places)
            picked = picked.clamp_max(len(self.details.weights) - 1)
            index, counts = picked.unique(return_counts=True)
            return self.details.points[index], counts.numpy().astype(float)
        if self.samples is not None:
            draws = self.samples.flatten(0, 1)
            index = torch.linspace(0, len(draws) - 1, num_samples).round().long()
            return draws[index], np.ones(num_samples)
        return self.fit.mode[None], np.ones(1)


def integrate_evidence(
    hyperparameters: Hyperparameters,
    method: str = "importance",
    num_samples: int = 1000,
    seed: int = 0,
    sampler: Sampler | None = None,
    start: Tensor | None = None,
) -> EvidenceEstimate:
    """log p(y | H) by one of four methods; each starts at the mode that Laplace's method finds.

    `num_samples` is the number of draws of the proposal, of samples of all chains, or of samples per power.
    `sampler` draws from a log density: (log density, start, number, seed) -> [chains, n, p]. The default is
    NUTS, which needs the extra `bayes`, in coordinates in which the Laplace fit is a standard normal. The
    parameters of the modules do not change.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    with warnings.catch_warnings():
        if method != "laplace":
            # the other methods do not need the curvature
            warnings.simplefilter("ignore", category=UserWarning)
        fit = laplace(hyperparameters, start=start)
    if method == "laplace" or not len(fit.mode):
        return EvidenceEstimate(method, fit, fit)
    generator = torch.Generator().manual_seed(seed)
    if method == "importance":
        return EvidenceEstimate(
            method, fit, importance(hyperparameters, fit, num_samples, generator=generator)
        )
    if sampler is None:
        sampler = whitened_nuts(fit, num_chains=2 if method == "bridge" else 1)
    if method == "bridge":
        samples = sampler(hyperparameters.log_density, fit.mode, num_samples, seed)
        return EvidenceEstimate(method, fit, bridge(hyperparameters.log_density, samples, generator), samples)
    found = thermodynamic(hyperparameters, sampler, fit.mode, num_samples=num_samples, seed=seed)
    return EvidenceEstimate(method, fit, found)


def whitened_nuts(fit: LaplaceFit, num_chains: int = 2, num_warmup: int = 150) -> Sampler:
    """NUTS in coordinates u with z = z* + L u, L Lᵀ the covariance of a Laplace fit.

    It warns of chains that did not mix; the limit allows for the noise of R-hat with few samples.
    """
    lower = cholesky(fit.covariance).lower

    def sample(log_density: Callable[[Tensor], Tensor], start: Tensor, num_samples: int, seed: int) -> Tensor:
        def whitened(u: Tensor) -> Tensor:
            return log_density(fit.mode + lower @ u)

        first = torch.linalg.solve_triangular(lower, (start - fit.mode)[:, None], upper=False)[:, 0]
        count = -(-num_samples // num_chains)
        chains = nuts(whitened, first, count, num_warmup=num_warmup, num_chains=num_chains, seed=seed)
        chains.warn_if_unmixed(1.01 + 10 / count, min(50.0, count / 5))
        return fit.mode + chains.samples @ lower.mT

    return sample
