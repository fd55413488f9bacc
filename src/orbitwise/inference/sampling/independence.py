"""A fast sampler of f and θ: proposals come from an approximate posterior (Lecture 2.9).

For every θ a Gaussian q(f | θ) approximates p(f | y, θ), and its bound approximates the evidence. A Student-t
fitted to bound + log p(θ) proposes θ independently of the present state. The noise ε is fixed while θ
changes, and f is the transform of ε by q(· | θ), so f moves along with θ and does not hold it in place. The
Metropolis-Hastings ratio of

    w(θ, ε) = p(y | f) p(f | θ) p(θ) / (q(f | θ) r(θ)),   f = f_θ(ε),

corrects all approximations, and ε is updated by elliptical slices of N(0, I) and of the prior. So p(θ, f | y)
is exactly invariant. q must depend on θ alone; therefore every fit of it starts from the same sites.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import standard_normal
from orbitwise.inference.sampling.chains import Chains, check_counts
from orbitwise.inference.sampling.elliptical import (
    checked_start,
    elliptical_step,
    gaussian_directions,
    uniform_number,
)
from orbitwise.inference.sampling.latent import (
    HierarchicalModel,
    LatentChains,
    run_chains,
    start_approximation,
)
from orbitwise.inference.sampling.proposal import Approximation, StudentProposal, approximate, fit_proposal
from orbitwise.likelihoods.likelihood import Likelihood, Quadratic

FIT_TOLERANCE, SAMPLING_TOLERANCE = 1e-5, 1e-2
MAX_STEPS, MAX_DRAWS = 10, 100
"""A q that has not fully converged costs little acceptance; far from the mode more steps are wasted."""


@torch.no_grad()
def independence_sampler(
    model: HierarchicalModel,
    start: Float[Tensor, " p"],
    num_samples: int,
    *,
    num_chains: int = 4,
    burn_in: int = 20,
    thin: int = 1,
    num_draws: int = 50,
    proposal: StudentProposal | None = None,
    generator: torch.Generator | None = None,
) -> LatentChains:
    """Samples of (θ, f): each step proposes all of θ at once, and then updates f by two elliptical slices.

    The mode of the approximate posterior of θ is searched for from `start`; unless a `proposal` is given,
    three rounds of `num_draws` approximations determine it. The first `burn_in` steps of each chain are
    dropped, and of the others every `thin`-th is kept. `acceptance` of the result is the fraction of accepted
    proposals, which shows how good the approximation is.
    """
    check_counts(num_samples=num_samples, num_chains=num_chains, thin=thin, burn_in=burn_in)
    source = _Source(model, start.detach().double())
    if proposal is None:
        proposal = source.fit(num_draws, generator)
    begun = (_Chain(source, proposal, generator) for _ in range(num_chains))
    _, thetas, latents, accepted = run_chains(begun, num_samples, burn_in, thin)
    chains = Chains(thetas, tuple(model.names), source.num_likelihoods, source.num_factors)
    return LatentChains(chains, latents, accepted / (num_chains * num_samples * thin))


@final
class _Source:
    """q(f | θ) as a function of θ alone, and its number of evaluations."""

    def __init__(self, model: HierarchicalModel, start: Tensor) -> None:
        self.model, self.place = model, start
        q, _ = start_approximation(model, start)
        self.sites: Quadratic = q.sites
        self.num_likelihoods, self.num_factors = q.num_factorisations, q.num_factorisations

    def fit(self, num_draws: int, generator: torch.Generator | None) -> StudentProposal:
        """The proposal; later fits of q start from the sites at its mode."""

        def log_density(theta: Tensor) -> float:
            found = self.at(theta, FIT_TOLERANCE)
            return -math.inf if found is None else found[0].bound.item() + self.model.log_hyperprior(theta)

        proposal, mode = fit_proposal(log_density, self.place, num_draws, generator)
        found = self.at(mode, FIT_TOLERANCE)
        if found is None:
            raise ValueError(
                f"No approximation was found near the start {self.place.tolist()}: begin at hyperparameters "
                "that suit the data, and check the scale of inputs and targets."
            )
        self.sites, self.place = found[0].sites, mode
        return proposal

    def at(
        self, theta: Tensor, tolerance: float = SAMPLING_TOLERANCE
    ) -> tuple[Approximation, Likelihood] | None:
        """q(f | θ) and the likelihood, or None if the density is zero or cannot be computed."""
        if self.model.log_hyperprior(theta) == -torch.inf:
            return None
        try:
            covariance, offset, likelihood = self.model.covariance(theta)
            q = approximate(
                covariance, offset, self.model.targets, likelihood, self.sites, tolerance, MAX_STEPS
            )
        except ValueError:
            return None
        self.num_factors += q.num_factorisations
        self.num_likelihoods += q.num_factorisations
        return q, likelihood


@final
class _Chain:
    """One chain: θ with its q, and the noise [1 n c] that determines f."""

    def __init__(self, source: _Source, proposal: StudentProposal, generator: torch.Generator | None) -> None:
        self.source, self.proposal, self.generator = source, proposal, generator
        self.model = source.model
        self.theta, found = _first(source, proposal, generator)
        self.q, self.likelihood = found
        self.noise = standard_normal((1, *self.model.targets.shape), self.q.lower, generator)
        self.f, _ = self.q.values(self.noise)
        self.log_weight = self._log_weight(self.theta, self.q, self.likelihood)

    def step(self) -> bool:
        """Propose θ, then update the noise and f; returns whether θ was accepted."""
        moved = self.move_parameters()
        self.move_latent()
        return moved

    def move_parameters(self) -> bool:
        """Propose θ for fixed noise; returns whether it was accepted."""
        theta = self.proposal.draw(self.generator)
        found = self.source.at(theta)
        level = math.log(uniform_number(self.generator))
        if found is None:
            return False
        proposed = self._log_weight(theta, *found)
        if not level < proposed - self.log_weight:
            return False
        self.theta, (self.q, self.likelihood), self.log_weight = theta, found, proposed
        self.f, _ = self.q.values(self.noise)
        return True

    def move_latent(self) -> None:
        """Elliptical slices of ε under q, and of f under the prior, which covers tails that q misses."""
        outputs = self.noise.shape[-1]
        nothing = torch.zeros_like(self.noise[0])

        def corrected(noise: Tensor) -> Tensor:
            f, white = self.q.values(noise)
            return self._summed(f) + self._split(self.q.log_ratio(noise, white))

        direction = standard_normal(tuple(self.noise.shape), self.noise, self.generator)
        value = checked_start(corrected, self.noise)
        self.noise, _, first = elliptical_step(
            self.noise, value, direction, nothing, corrected, self.generator
        )
        f, _ = self.q.values(self.noise)
        direction = gaussian_directions(self.q.lower, 1, outputs, self.generator)
        centre = self.q.offset[:, None].expand_as(nothing)
        value = checked_start(self._summed, f)
        self.f, _, second = elliptical_step(f, value, direction, centre, self._summed, self.generator)
        self.noise = self.q.noise(self.f)
        self.source.num_likelihoods += first + second + 2
        self.log_weight = self._log_weight(self.theta, self.q, self.likelihood)

    def _summed(self, f: Tensor) -> Tensor:
        return self.model.log_likelihood(f, self.likelihood)

    def _split(self, ratio: Tensor) -> Tensor:
        return ratio if self.likelihood.is_separable else ratio.sum(-1)

    def _log_weight(self, theta: Tensor, q: Approximation, likelihood: Likelihood) -> float:
        """log w(θ, ε)."""
        f, white = q.values(self.noise)
        self.source.num_likelihoods += 1
        value = self.model.log_likelihood(f, likelihood).sum() + q.log_ratio(self.noise, white).sum()
        return value.item() + self.model.log_hyperprior(theta) - self.proposal.log_density(theta)


def _first(
    source: _Source, proposal: StudentProposal, generator: torch.Generator | None
) -> tuple[Tensor, tuple[Approximation, Likelihood]]:
    """A draw of the proposal with a density above zero."""
    for _ in range(MAX_DRAWS):
        theta = proposal.draw(generator)
        found = source.at(theta)
        if found is not None:
            return theta, found
    raise ValueError(
        f"None of {MAX_DRAWS} draws of the proposal has a density above zero: centre it on hyperparameters "
        "that "
        "suit the data, or let it be fitted (proposal=None)."
    )
