"""The no-U-turn sampler of Hoffman and Gelman 2014, through pyro, for any differentiable log density.

Hyperparameters are few and their density is dear: NUTS uses its gradient and needs no tuning. pyro draws from
torch's global random state; it is forked here and left as it was. Vectors are tiny and stay on the CPU.
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
"""Deviation of the noise that parts the starts of chains where one start was given for all."""


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

    `start` is where all chains begin, parted by a little noise, or a place for each. The first `num_warmup`
    samples adapt step size and mass matrix, and are dropped. Where the density cannot be computed, such as a
    covariance matrix that cannot be factorised, it counts as zero. The same seed gives the same samples.

    A higher `target_acceptance` takes smaller steps, which helps where trajectories diverge, and a trajectory
    has at most 2^`max_tree_depth` steps. `names` are those of the entries, for tables and warnings;
    `progress` shows a bar. Ask the result whether it mixed: `chains.warn_if_unmixed()`.
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
        raise ValueError(f"{num_chains} chains need as many starts, not {len(start)}.")
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
    """Where each chain begins, with a density above zero."""
    places = start
    if start.dim() == 1:
        noise = torch.randn(num_chains, len(start), generator=generator, dtype=torch.float64)
        places = start + SPREAD * noise.to(start)
        # noise may lead out of where there is a density; the start itself is the way back
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
    """The log density; minus infinity, with a slope of zero, where it cannot be computed."""
    try:
        value = log_density(theta).cpu()
        if bool(value.isfinite()):
            return value
    except NOT_COMPUTABLE:
        pass
    return (0 * theta).sum() - torch.inf
