"""The evidence by bridge sampling between posterior samples and a normal fitted to them (Meng and Wong 1996).

p(y) = E_q[h(z) p(y, z)] / E_post[h(z) q(z)] for any h; the best is h ∝ 1/(s₁ p(y, z)/p(y) + s₂ q(z)), which
contains the answer, so it is iterated. The normal is fitted to one half of every chain and the other half is
used, so that the same samples do not serve twice. Its error follows Frühwirth-Schnatter (2004), with the
correlation within chains taken into account by batch means.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.selection.proposals import Proposal


@final
@dataclass(frozen=True)
class BridgeEstimate:
    """log p(y), its standard error, and whether the iteration settled."""

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
    """The integral of exp(log_density), from samples of that density."""
    chains, count, size = samples.shape
    if count < 40:
        raise ValueError(f"Bridge sampling needs at least 40 samples a chain, not {count}.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    samples = samples.double()
    first, second = samples[:, : count // 2], samples[:, count // 2 :]
    proposal = Proposal.fitted(first.reshape(-1, size), freedom=math.inf)
    posterior = second.reshape(-1, size)
    proposed = proposal.sample(len(posterior), generator)
    with torch.no_grad():
        # l = log p(y, z) - log q(z), at both kinds of points
        at_posterior, at_proposed = (
            torch.stack([log_density(point) for point in points]).double() - proposal.log_density(points)
            for points in (posterior, proposed)
        )
    at_proposed = torch.where(at_proposed.isnan(), -torch.inf, at_proposed)
    effective = _effective_size(at_posterior.reshape(chains, -1))
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
            f"The bridge estimate still moves by {change:.2g} after {max_iterations} iterations.",
            stacklevel=2,
        )
    # f₁ = p(z | y)/(s₁ p(z | y) + s₂ q) under q, and f₂ = q/(s₁ p(z | y) + s₂ q) under the posterior
    one = (at_proposed - centre - _mixed(at_proposed - centre, estimate, share)).exp() / estimate.exp()
    two = (-_mixed(at_posterior - centre, estimate, share)).exp()
    square = (one.var() / one.mean().square()).item() / len(one)
    square += variance_of_mean(two.reshape(chains, -1)) / two.mean().square().item()
    return BridgeEstimate((estimate + centre).item(), math.sqrt(square), converged, step)


def _mixed(logarithm: Tensor, estimate: Tensor, share: Tensor) -> Tensor:
    """log(s₁ e^l + s₂ r)."""
    return torch.logaddexp(share.log() + logarithm, torch.log1p(-share) + estimate)


def variance_of_mean(chains: Float[Tensor, "chains n"]) -> float:
    """The variance of the mean of correlated samples, by batch means: batches of √n."""
    length = max(2, math.isqrt(chains.shape[1]))
    number = chains.shape[1] // length
    batches = chains[:, : number * length].reshape(-1, number, length).mean(-1).flatten()
    return batches.var().item() / len(batches)


def _effective_size(chains: Float[Tensor, "chains n"]) -> float:
    """How many independent samples the mean is worth."""
    plain = chains.var().item()
    return min(float(chains.numel()), plain / max(variance_of_mean(chains), 1e-300)) if plain else 1.0
