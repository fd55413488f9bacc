"""Latent values f and hyperparameters θ together, p(θ) N(f; m_θ, K_θ) p(y | f, θ), and their samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.exact import check_rows
from orbitwise.inference.linear_algebra import cholesky, standard_normal
from orbitwise.inference.sampling.chains import Chains
from orbitwise.inference.sampling.elliptical import by_group
from orbitwise.inference.sampling.posterior import MixturePosterior, SampledPosterior
from orbitwise.inference.sampling.proposal import Approximation, approximate
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process, Rows

Build = Callable[[Tensor], tuple[Process, Rows, Likelihood]]
"""Process, rows and likelihood for hyperparameters θ [p]; they may be the same objects with other values."""


class Prior(NamedTuple):
    """The Gaussian of f for some θ, N(offset, lower lowerᵀ), and the likelihood."""

    lower: Float[Tensor, "n n"]
    offset: Float[Tensor, " n"]
    likelihood: Likelihood


@final
@dataclass(eq=False)
class HierarchicalModel:
    """A Gaussian process whose hyperparameters θ are sampled together with its values f at the rows.

    `build(θ)` returns process, rows and likelihood, and `log_prior(θ)` the log hyperprior. With the `targets`
    they define the density p(θ) N(f; m_θ, K_θ) p(y | f, θ). `names` are the names of the entries of θ.

    Rows may depend on θ (bounds of a frozen orbit), and so may the likelihood (its scale). θ is
    unconstrained: use logarithms of positive parameters, and include the Jacobian in `log_prior`.
    """

    build: Build
    targets: Float[Tensor, "n c"]
    log_prior: Callable[[Tensor], Tensor]
    names: Sequence[str] = ()

    @torch.no_grad()
    def covariance(self, theta: Float[Tensor, " p"]) -> tuple[Tensor, Tensor, Likelihood]:
        """K and m of the rows, and the likelihood."""
        process, rows, likelihood = self.build(theta)
        check_rows(rows, self.targets)
        return process.covariance(rows), process.mean(rows), likelihood

    def prior(self, theta: Float[Tensor, " p"]) -> Prior | None:
        """The Gaussian of f for θ, or None if its covariance cannot be factorised."""
        covariance, offset, likelihood = self.covariance(theta)
        try:
            return Prior(cholesky(covariance).lower, offset, likelihood)
        except ValueError:
            return None

    def log_hyperprior(self, theta: Float[Tensor, " p"]) -> float:
        """log p(θ), or minus infinity if it is not a number."""
        with torch.no_grad():
            value = torch.as_tensor(self.log_prior(theta)).sum().item()
        return value if value == value else -torch.inf

    @torch.no_grad()
    def log_likelihood(
        self, f: Float[Tensor, "k n c"], likelihood: Likelihood
    ) -> Float[Tensor, "k c"] | Float[Tensor, " k"]:
        """log p(y | f), per output if outputs are independent."""
        return by_group(likelihood.log_density(f, self.targets).sum(-2), likelihood)


@final
@dataclass(frozen=True)
class LatentChains:
    """Samples of θ as chains, the f of each, and the fraction of accepted proposals of θ."""

    parameters: Chains
    latent: Float[Tensor, "k t n c"]
    acceptance: float = 1.0

    def posterior(self, model: HierarchicalModel, num_parts: int = 100) -> MixturePosterior:
        """g given y, averaged over `num_parts` samples of θ and f, evenly spaced in the chains.

        The result predicts as any posterior does, with the uncertainty of the hyperparameters included.
        """
        thetas, latent = self.parameters.pooled, self.latent.flatten(0, 1)
        if not 1 <= num_parts <= len(thetas):
            raise ValueError(f"num_parts must be between 1 and the {len(thetas)} samples, not {num_parts}.")
        picked = torch.linspace(0, len(thetas) - 1, num_parts).round().long()
        parts = []
        with torch.no_grad():
            for index in picked.tolist():
                process, rows, likelihood = model.build(thetas[index])
                # `build` may return the same modules again, with other values
                process, likelihood = copy.deepcopy(process), copy.deepcopy(likelihood)
                parts.append(SampledPosterior(process, rows, latent[index][None, None], likelihood))
        return MixturePosterior(parts)


@runtime_checkable
class Chain(Protocol):
    """A Markov chain of θ and f [1 n c]."""

    theta: Tensor
    f: Tensor

    def step(self) -> bool:
        """Update both; returns whether θ moved."""
        ...


C = TypeVar("C", bound=Chain)


def run_chains(
    chains: Iterable[C], num_samples: int, burn_in: int, thin: int
) -> tuple[list[C], Float[Tensor, "k t p"], Float[Tensor, "k t n c"], int]:
    """Run the chains; keeps every `thin`-th θ and f after `burn_in` steps, and how often θ moved."""
    done, thetas, latents, moves = [], [], [], 0
    for chain in chains:
        kept = []
        for step in range(burn_in + num_samples * thin):
            moved = chain.step()
            moves += moved and step >= burn_in
            if step >= burn_in and (step - burn_in) % thin == thin - 1:
                kept.append((chain.theta, chain.f[0]))
        thetas.append(torch.stack([theta for theta, _ in kept]))
        latents.append(torch.stack([f for _, f in kept]))
        done.append(chain)
    return done, torch.stack(thetas), torch.stack(latents), moves


def start_approximation(
    model: HierarchicalModel, theta: Float[Tensor, " p"]
) -> tuple[Approximation, Likelihood]:
    """The approximation of p(f | y, θ) at the start of a chain, where the density must not be zero."""
    covariance, offset, likelihood = model.covariance(theta)
    if model.log_hyperprior(theta) == -torch.inf:
        raise ValueError(
            f"The hyperprior has zero density at the start {theta.tolist()}: choose another start."
        )
    return approximate(covariance, offset, model.targets, likelihood), likelihood


def starts(
    start: Tensor, num_chains: int, spread: float, generator: torch.Generator | None
) -> Float[Tensor, "k p"]:
    """One start for each chain: those given, or the single one that was given plus noise."""
    if start.dim() == 2 and len(start) == num_chains:
        return start.detach().double()
    if start.dim() != 1:
        raise ValueError(
            f"start must be a vector [p] or one for each chain [{num_chains}, p], not {tuple(start.shape)}."
        )
    centre = start.detach().double()
    return centre + spread * standard_normal((num_chains, len(start)), centre, generator)
