"""The no-U-turn sampler of Hoffman and Gelman 2014, through pyro, for any differentiable log density.

Hyperparameters are few and their density is expensive; NUTS uses its gradient and needs no tuning. pyro draws
from torch's global random state, which is saved and restored here. The vectors are small and stay on the CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.sampling.chains import Chains

NAME = "theta"
SPREAD = 0.1
"""Deviation of the noise added to the starts of chains if all share one start."""


def nuts(
    log_density: Callable[[Tensor], Tensor],
    start: Float[Tensor, " p"] | Float[Tensor, "k p"],
    num_samples: int = 500,
    *,
    num_warmup: int = 300,
    num_chains: int = 4,
    seed: int = 0,
    names: Sequence[str] = (),
    target_acceptance: float = 0.8,
    max_tree_depth: int = 10,
    progress: bool = False,
) -> Chains:
    """Samples of exp(log_density) over unconstrained vectors [p], one chain after the other.

    `start` is one start for all chains, to which a little noise is added, or one for each. The first
    `num_warmup` samples adapt step size and mass matrix, and are dropped. The density is taken to be zero
    where it cannot be computed, for example because a covariance matrix cannot be factorised. The same seed
    gives the same samples.

    A higher `target_acceptance` leads to smaller steps, which helps if trajectories diverge. A trajectory has
    at most 2^`max_tree_depth` steps. `names` are those of the entries, for tables and warnings; `progress`
    shows a bar. `warn_if_unmixed()` of the result warns if the chains did not mix.
    """
    try:
        pyro, kernels = importlib.import_module("pyro"), importlib.import_module("pyro.infer.mcmc")
    except ImportError as error:
        raise ImportError('NUTS needs pyro: pip install "orbitwise[bayes]".') from error
    if num_samples < 1 or num_warmup < 0 or num_chains < 1:
        raise ValueError(
            f"num_samples={num_samples} and num_chains={num_chains} must be at least 1, and "
            f"num_warmup={num_warmup} at least 0."
        )
    if start.dim() == 2 and len(start) != num_chains:
        raise ValueError(f"{num_chains} chains need one start each, not {len(start)} in all.")
    count = 0

    def potential(point: dict[str, Tensor]) -> Tensor:
        nonlocal count
        count += 1
        return -_density_or_nothing(log_density, point[NAME])

    generator = torch.Generator().manual_seed(seed)
    samples, divergent = [], 0
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), pyro.validation_enabled(False):
        for place in _starts(log_density, start.detach().cpu(), num_chains, generator):
            chain_seed = int(torch.randint(2**62, (), generator=generator))
            torch.default_generator.manual_seed(chain_seed)
            kernel = kernels.NUTS(
                potential_fn=potential,
                target_accept_prob=target_acceptance,
                max_tree_depth=max_tree_depth,
                full_mass=True,
            )
            point = {NAME: place.clone()}
            kernel.initial_params = point
            kernel.setup(num_warmup)
            steps, kept = range(num_warmup + num_samples), []
            for step in track(steps, "sampling") if progress else steps:
                point = kernel.sample(point)
                if step == num_warmup - 1:
                    kernel.end_warmup()
                if step >= num_warmup:
                    kept.append(point[NAME].detach().clone())
            samples.append(torch.stack(kept))
            divergent += len(kernel.diagnostics()["divergences"])
            kernel.cleanup()
    return Chains(torch.stack(samples), tuple(names), num_evaluations=count, num_divergent=divergent)


def _starts(
    log_density: Callable[[Tensor], Tensor], start: Tensor, num_chains: int, generator: torch.Generator
) -> Tensor:
    """The start of each chain, which must have a density above zero."""
    places = start
    if start.dim() == 1:
        noise = torch.randn(num_chains, len(start), generator=generator, dtype=torch.float64)
        places = start + SPREAD * noise.to(start)
        # noise may lead to a point without density; then the start itself is used
        places = torch.stack(
            [each if _density_or_nothing(log_density, each).isfinite() else start for each in places]
        )
    for each in places:
        if not _density_or_nothing(log_density, each).isfinite():
            raise ValueError(
                f"The log density is not finite at the start {[round(v, 4) for v in each.tolist()]}: begin "
                "where it can be computed, such as at the learned hyperparameters."
            )
    return places


def _density_or_nothing(log_density: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """The log density; minus infinity with zero gradient if it cannot be computed."""
    try:
        value = log_density(theta).cpu()
        if bool(value.isfinite()):
            return value
    except NOT_COMPUTABLE:
        pass
    return (0 * theta).sum() - torch.inf
