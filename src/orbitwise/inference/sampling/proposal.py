"""Proposals of exact samplers: a Gaussian q(f) close to p(f | y), and Student-t densities for θ.

Both are fitted to an approximate posterior (Lecture 2.9).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored, solve_lower
from orbitwise.inference.optimise.training import Vector, finite_difference_hessian
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, expand, hermite
from orbitwise.process.process import Moments

NUM_NODES = 20
MAX_HALVINGS = 6


class Approximation(NamedTuple):
    """A Gaussian q(f) close to p(f | y), and its bound on log p(y).

    q(f) ∝ N(f; m, LLᵀ) exp(ηf - ½λf²), where the `sites` are λ and η for every row and output. In terms of
    v = L⁻¹(f - m) it has the mean `white_mean` and the precision RRᵀ = I + LᵀΛL, whose Cholesky factor R is
    `precision_factor`. `moments` are those of f.
    """

    lower: Float[Tensor, "n n"]
    offset: Float[Tensor, " n"]
    sites: Quadratic
    white_mean: Float[Tensor, "c n"]
    precision_factor: Float[Tensor, "c n n"]
    moments: Moments
    bound: Float[Tensor, ""]
    num_factorisations: int
    converged: bool

    def values(self, noise: Float[Tensor, "k n c"]) -> tuple[Float[Tensor, "k n c"], Float[Tensor, "k n c"]]:
        """f and v for standard noise ε: v = mean + R⁻ᵀε, f = m + Lv, which maps N(0, I) to q."""
        upper = self.precision_factor.mT.expand(len(noise), -1, -1, -1)
        spread = torch.linalg.solve_triangular(upper, noise.mT[..., None], upper=True)[..., 0]
        white = (self.white_mean + spread).mT
        return self.offset[:, None] + self.lower @ white, white

    def noise(self, f: Float[Tensor, "k n c"]) -> Float[Tensor, "k n c"]:
        """The noise ε that `values` maps to f: Rᵀ(L⁻¹(f - m) - mean)."""
        white = solve_lower(self.lower.expand(len(f), -1, -1), f - self.offset[:, None])
        return (self.precision_factor.mT @ (white.mT - self.white_mean)[..., None])[..., 0].mT

    def log_ratio(self, noise: Float[Tensor, "k n c"], white: Float[Tensor, "k n c"]) -> Float[Tensor, "k c"]:
        """log N(f; m, K) - log q(f) of every output, from the noise of f, and v."""
        squares = 0.5 * (noise.square() - white.square()).sum(-2)
        return squares - 0.5 * log_determinant(self.precision_factor)

    def factor(self) -> Float[Tensor, "c n n"]:
        """LR⁻ᵀ of every output, whose product with its transpose is the covariance of q(f)."""
        return solve_lower(self.precision_factor, self.lower.mT.expand_as(self.precision_factor)).mT

    def log_correction(
        self, likelihood: Likelihood, f: Float[Tensor, "k n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "k c"]:
        """log p(y | f) + ½λf² - ηf of every output: log likelihood over sites, up to a constant."""
        sites = -0.5 * self.sites.curvature * f.square() + self.sites.slope * f
        return (likelihood.log_density(f, targets) - sites).sum(-2)


@torch.no_grad()
def approximate(
    covariance: Float[Tensor, "n n"],
    offset: Float[Tensor, " n"],
    targets: Float[Tensor, "n c"],
    likelihood: Likelihood,
    start: Quadratic | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 50,
) -> Approximation:
    """The variational Gaussian of f ~ N(offset, covariance) given the targets.

    Each step expands the log likelihood to second order under q, which gives new sites; the step is shortened
    if the bound would fall. The iteration ends when a step raises the bound by less than `tolerance` nats.
    Without a `start`, the first q is the prior. The result depends on the arguments alone, because samplers
    are exact only then.
    """
    lower = cholesky(covariance).lower
    nothing = torch.zeros_like(targets)
    sites = Quadratic(nothing, nothing, nothing) if start is None else start
    best, count = _posterior(lower, offset, targets, likelihood, sites), 2
    for _ in range(max_steps):
        wanted = expansion(likelihood, best.moments, targets).concave(best.moments.mean)
        rate, better = 1.0, None
        for _ in range(MAX_HALVINGS):
            mixed = [(1 - rate) * old + rate * new for old, new in zip(best.sites, wanted, strict=True)]
            trial, count = _posterior(lower, offset, targets, likelihood, Quadratic(*mixed)), count + 1
            if bool(trial.bound >= best.bound):
                better = trial
                break
            rate *= 0.5
        if better is None:
            return best._replace(num_factorisations=count)
        gain, best = (better.bound - best.bound).item(), better
        if gain < tolerance:
            return best._replace(num_factorisations=count, converged=True)
    return best._replace(num_factorisations=count)


def expansion(likelihood: Likelihood, moments: Moments, targets: Float[Tensor, "n c"]) -> Quadratic:
    """The expansion of the likelihood about moments of f; by quadrature for those with tilts."""
    if not likelihood.needs_tilt:
        return likelihood.expansion(moments, targets)
    nodes, weights = hermite(NUM_NODES, targets)

    def expected(mean: Tensor, variance: Tensor) -> Tensor:
        values = mean + variance.sqrt() * nodes[:, None, None]
        return (likelihood.log_density(values, targets) * weights[:, None, None]).sum(0)

    return expand(expected, moments)


def _posterior(
    lower: Tensor, offset: Tensor, targets: Tensor, likelihood: Likelihood, sites: Quadratic
) -> Approximation:
    curvature = sites.curvature.mT
    # P = I + LᵀΛL = RRᵀ,  P⁻¹Lᵀ(η - λm)
    identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    factor = cholesky(identity + lower.mT @ (curvature[..., None] * lower)).lower
    shift = (sites.slope.mT - curvature * offset) @ lower
    white_mean = solve_factored(factor, shift[..., None])[..., 0]
    mean = offset[:, None] + lower @ white_mean.mT
    variance = solve_lower(factor, lower.mT.expand_as(factor)).square().sum(-2).mT
    moments = Moments(mean, variance, mean.square() + variance)
    # KL = ½(tr P⁻¹ + |E v|² - n + log|P|), and tr P⁻¹ = n - Σ λ var f
    trace = -(sites.curvature * variance).sum()
    divergence = 0.5 * (trace + white_mean.square().sum() + log_determinant(factor).sum())
    bound = expansion(likelihood, moments, targets).expectation(moments).sum() - divergence
    return Approximation(lower, offset, sites, white_mean, factor, moments, bound, 0, False)


SLOPE_STEP, CURVATURE_STEP, FLAT = 0.01, 0.1, 0.02
"""Steps of differences for slopes and curvatures, and the slope that is small enough at a mode."""
FLATTEST = 0.04
"""The least curvature, which corresponds to a deviation of 5, wide for logarithms."""
WORST = 1e10
NUM_ROUNDS = 3
FEWEST_USEFUL = 10
"""The fewest effective draws per dimension for which moments are used."""


@final
@dataclass(frozen=True, eq=False)
class StudentProposal:
    """The Student-t t_ν(mean, L Lᵀ), with a fraction `share` of draws from one that is `widening` times as
    wide.

    L is `lower`, a Cholesky factor, and ν are the `degrees`, a whole number. Tails that are heavier than
    those of a posterior keep importance weights and Metropolis-Hastings ratios bounded:

        p(θ) = (1 - share)·t_ν(θ; mean, L Lᵀ) + share·t_ν(θ; mean, widening² L Lᵀ)
    """

    mean: Float[Tensor, " p"]
    lower: Float[Tensor, "p p"]
    degrees: int = 5
    share: float = 0.2
    widening: float = 3.0

    def draw(self, generator: torch.Generator | None = None) -> Float[Tensor, " p"]:
        """One draw: a normal draw divided by √(χ²/ν)."""
        place = None if generator is None else generator.device
        numbers = torch.randn(
            len(self.mean) + self.degrees, generator=generator, device=place, dtype=torch.float64
        )
        wide = torch.rand((), generator=generator, device=place, dtype=torch.float64).item() < self.share
        normal, rest = numbers.split([len(self.mean), self.degrees])
        # χ² of integer degrees is a sum of squares
        scale = (rest.square().sum() / self.degrees).sqrt() / (self.widening if wide else 1.0)
        return self.mean + self.lower @ (normal / scale).to(self.mean)

    def sample(self, num_draws: int, generator: torch.Generator | None = None) -> Float[Tensor, "q p"]:
        """Independent draws, one per row."""
        return torch.stack([self.draw(generator) for _ in range(num_draws)])

    def log_density(self, theta: Float[Tensor, " p"]) -> float:
        """The normalised log density at one point."""
        return self.log_densities(theta[None]).item()

    def log_densities(self, points: Float[Tensor, "q p"]) -> Float[Tensor, " q"]:
        """The normalised log density of every row: log((1 - s) t(θ) + s t(θ) widened), s the `share`."""
        # |L⁻¹(θ - m)|²
        squares = solve_lower(self.lower, (points - self.mean).mT).square().sum(0)
        width, degrees = len(self.mean), self.degrees
        constant = math.lgamma(0.5 * (degrees + width)) - math.lgamma(0.5 * degrees)
        constant -= 0.5 * width * math.log(math.pi * degrees) + self.lower.diagonal().log().sum().item()
        narrow, wide = (
            constant
            - width * math.log(scale)
            - 0.5 * (degrees + width) * torch.log1p(squares / (scale**2 * degrees))
            for scale in (1.0, self.widening)
        )
        share = squares.new_tensor(self.share)
        return torch.logaddexp(torch.log1p(-share) + narrow, share.log() + wide)

    def matched(self, draws: Float[Tensor, "q p"], log_weights: Float[Tensor, " q"]) -> StudentProposal:
        """The proposal with the moments of weighted draws; weights are flattened if few of them dominate."""
        log_weights, power = log_weights.nan_to_num(nan=-torch.inf), 1.0
        weights = torch.softmax(log_weights, dim=0)
        while weights.square().sum().reciprocal().item() < FEWEST_USEFUL * draws.shape[1]:
            power /= 2
            if power < 1e-3:
                return self
            weights = torch.softmax(power * log_weights, dim=0)
        mean = weights @ draws
        centred = draws - mean
        covariance = centred.mT @ (weights[:, None] * centred)
        # the scale matrix of a Student-t is its covariance times (ν - 2)/ν
        scale = (self.degrees - 2) / self.degrees
        return replace(self, mean=mean, lower=cholesky(scale * covariance).lower)


def fit_proposal(
    log_density: Callable[[Tensor], float],
    start: Float[Tensor, " p"],
    num_draws: int = 50,
    generator: torch.Generator | None = None,
) -> tuple[StudentProposal, Float[Tensor, " p"]]:
    """A proposal close to exp(log_density), from the curvature at the mode and weighted draws; and the mode.

    Only values of the density are used, so that any process may be built from θ. There are three rounds, each
    with `num_draws` draws of the last proposal. The mean and covariance of all draws so far, weighted by the
    ratio of the density to the mixture of proposals, give the next one, because they describe a skewed
    density better than the curvature at its mode does.
    """

    def negative(point: np.ndarray) -> float:
        value = log_density(torch.from_numpy(point.copy()))
        return -value if math.isfinite(value) else WORST

    settings = {"eps": SLOPE_STEP, "gtol": FLAT}
    mode = scipy.optimize.minimize(negative, start.double().cpu().numpy(), method="BFGS", options=settings).x

    def slope(point: Vector) -> Vector:
        steps = 0.5 * CURVATURE_STEP * np.eye(len(point))
        return np.array([negative(point + step) - negative(point - step) for step in steps]) / CURVATURE_STEP

    hessian = finite_difference_hessian(slope, mode, 0.5 * CURVATURE_STEP, central=True)
    values, vectors = np.linalg.eigh(hessian)
    covariance = (vectors / np.maximum(values, FLATTEST)) @ vectors.T
    place = torch.from_numpy(mode.copy())
    proposals = [StudentProposal(place, cholesky(torch.from_numpy(covariance)).lower)]
    draws: list[Tensor] = []
    logs: list[float] = []
    for _ in range(NUM_ROUNDS if num_draws else 0):
        new = [proposals[-1].draw(generator) for _ in range(num_draws)]
        draws, logs = draws + new, logs + [log_density(theta) for theta in new]
        points = torch.stack(draws)
        mixed = torch.logsumexp(torch.stack([each.log_densities(points) for each in proposals]), 0)
        proposals.append(proposals[0].matched(points, torch.tensor(logs, dtype=torch.float64) - mixed))
    return proposals[-1], place
