"""Alternating Gibbs sampling of f and θ, the lecture's example of a slow sampler (Lecture 2.9).

p(f | y, θ) by elliptical slices and p(θ | f) ∝ N(f; m_θ, K_θ) p(θ) by slices. Both are exact, but f
determines θ almost completely, because amplitude and roughness can be inferred from f much better than from
y; so θ changes slowly. `whiten` fixes v = L_θ⁻¹(f - m_θ) instead of f, which helps if the data are weak and
hurts if they are informative.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import log_determinant, solve_lower, standard_normal
from orbitwise.inference.sampling.chains import Chains, check_counts
from orbitwise.inference.sampling.elliptical import (
    checked_start,
    elliptical_step,
    gaussian_directions,
    slice_coordinates,
)
from orbitwise.inference.sampling.latent import (
    HierarchicalModel,
    LatentChains,
    Prior,
    run_chains,
    start_approximation,
    starts,
)


@torch.no_grad()
def gibbs(
    model: HierarchicalModel,
    start: Float[Tensor, " p"] | Float[Tensor, "k p"],
    num_samples: int,
    *,
    num_chains: int = 4,
    burn_in: int = 200,
    thin: int = 1,
    num_latent: int = 1,
    width: float = 1.0,
    whiten: bool = False,
    spread: float = 0.5,
    generator: torch.Generator | None = None,
) -> LatentChains:
    """Samples of (θ, f): in turn `num_latent` elliptical updates of f, and one slice of every entry of θ.

    `width` is the first interval of a slice, about the posterior deviation of an entry of θ. Chains that
    start from a single `start` are separated by noise of deviation `spread`, because chains with the same
    start may only seem to agree. The first `burn_in` steps of each chain are dropped, and of the others every
    `thin`-th is kept. With `whiten` θ moves while v = L_θ⁻¹(f - m_θ) is held instead of f.
    """
    check_counts(num_samples=num_samples, num_chains=num_chains, thin=thin, burn_in=burn_in)
    begun = (
        _Chain(model, place, whiten, num_latent, width, generator)
        for place in starts(start, num_chains, spread, generator)
    )
    done, thetas, latents, _ = run_chains(begun, num_samples, burn_in, thin)
    costs = sum(each.num_likelihoods for each in done), sum(each.num_factors for each in done)
    return LatentChains(Chains(thetas, tuple(model.names), *costs), latents)


@final
class _Chain:
    """One chain: θ, the Gaussian of f for it, f [1 n c], and the number of evaluations."""

    def __init__(
        self,
        model: HierarchicalModel,
        theta: Tensor,
        whiten: bool,
        num_latent: int,
        width: float,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.theta, self.whiten, self.generator = model, theta, whiten, generator
        self.num_latent, self.width = num_latent, width
        q, likelihood = start_approximation(model, theta)
        self.prior = Prior(q.lower, q.offset, likelihood)
        noise = standard_normal((1, *model.targets.shape), q.lower, generator)
        self.f = q.values(noise)[0]
        self.num_likelihoods, self.num_factors = 0, q.num_factorisations

    def step(self) -> bool:
        """Update f by elliptical slices and then θ by slices; returns True because θ always moves."""
        self.move_latent()
        self.move_parameters()
        return True

    def move_latent(self) -> None:
        """Elliptical updates of f given θ."""

        def log_likelihood(f: Tensor) -> Tensor:
            return self.model.log_likelihood(f, self.prior.likelihood)

        value = checked_start(log_likelihood, self.f)
        self.num_likelihoods += 1
        outputs, centre = self.f.shape[-1], self._offset(self.prior)
        for _ in range(self.num_latent):
            direction = gaussian_directions(self.prior.lower, 1, outputs, self.generator)
            self.f, value, count = elliptical_step(
                self.f, value, direction, centre, log_likelihood, self.generator
            )
            self.num_likelihoods += count

    def move_parameters(self) -> None:
        """One slice of every entry of θ, given f or given v."""
        white = solve_lower(self.prior.lower, self.f[0] - self._offset(self.prior))

        def density(theta: Tensor) -> tuple[float, Prior | None]:
            """log p(θ) p(f | θ) p(y | f, θ) for fixed f, or for fixed v, whose density is constant."""
            hyperprior = self.model.log_hyperprior(theta)
            prior = self.model.prior(theta) if hyperprior > -torch.inf else None
            self.num_factors += 1
            if prior is None:
                return -torch.inf, None
            self.num_likelihoods += 1
            if self.whiten:
                f, gaussian = (self._offset(prior) + prior.lower @ white)[None], 0.0
            else:
                f, residual = self.f, solve_lower(prior.lower, self.f[0] - self._offset(prior))
                determinant = self.f.shape[-1] * log_determinant(prior.lower)
                gaussian = -0.5 * (residual.square().sum() + determinant).item()
            value = self.model.log_likelihood(f, prior.likelihood).sum().item()
            return hyperprior + gaussian + value, prior

        here = density(self.theta)
        self.theta, (_, prior), _ = slice_coordinates(density, self.theta, here, self.width, self.generator)
        # points without a density are never accepted
        self.prior = self.prior if prior is None else prior
        if self.whiten:
            self.f = (self._offset(self.prior) + self.prior.lower @ white)[None]

    def _offset(self, prior: Prior) -> Tensor:
        return prior.offset[:, None].expand_as(self.model.targets)
