"""A Gaussian q(f) near p(f | y): the source from which exact samplers draw (Lecture 2.9).

q(f) ∝ N(f; m, K) exp(Σ -½λf² + ηf), with (λ, η) by natural-gradient steps on the variational bound, the same
expansions of likelihoods as in training. It is held for whitened values v, f = m + Lv and K = LLᵀ: q(v) has
the precision P = I + LᵀΛL = RRᵀ, never worse conditioned than the data make it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored, solve_lower
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic, expand, hermite
from orbitwise.process.process import Moments

NUM_NODES = 20
MAX_HALVINGS = 6


class Approximation(NamedTuple):
    """q(f) and the bound on log p(y) that it reaches; `sites` are the λ and η that define it."""

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
        """f and v of standard noise ε: v = mean + R⁻ᵀε, f = m + Lv, so that N(0, I) becomes q."""
        upper = self.precision_factor.mT.expand(len(noise), -1, -1, -1)
        spread = torch.linalg.solve_triangular(upper, noise.mT[..., None], upper=True)[..., 0]
        white = (self.white_mean + spread).mT
        return self.offset[:, None] + self.lower @ white, white

    def noise(self, f: Float[Tensor, "k n c"]) -> Float[Tensor, "k n c"]:
        """The ε that `values` makes f of: Rᵀ(L⁻¹(f - m) - mean)."""
        white = solve_lower(self.lower.expand(len(f), -1, -1), f - self.offset[:, None])
        return (self.precision_factor.mT @ (white.mT - self.white_mean)[..., None])[..., 0].mT

    def log_ratio(self, noise: Float[Tensor, "k n c"], white: Float[Tensor, "k n c"]) -> Float[Tensor, "k c"]:
        """log N(f; m, K) - log q(f) of every output, at the noise that made f and v."""
        squares = 0.5 * (noise.square() - white.square()).sum(-2)
        return squares - 0.5 * log_determinant(self.precision_factor)

    def factor(self) -> Float[Tensor, "c n n"]:
        """LR⁻ᵀ of every output, whose product with its transpose is the covariance of q(f)."""
        return solve_lower(self.precision_factor, self.lower.mT.expand_as(self.precision_factor)).mT

    def log_correction(
        self, likelihood: Likelihood, f: Float[Tensor, "k n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, "k c"]:
        """log p(y | f) + ½λf² - ηf of every output: what q leaves of the likelihood, up to a constant."""
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

    Steps end where one raises the bound by less than `tolerance` nats. Without a `start` the first q is the
    prior. The result is a function of the arguments alone, which samplers rely on.
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
    """The likelihood about moments of f; by quadrature where the library has a cruder bound of it."""
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
