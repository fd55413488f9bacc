"""Elliptical slice sampling of p(f | y) ∝ N(f; m, Σ) p(y | f), for any likelihood, and of single coordinates.

See Lecture 2.9 and Neal 2003.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import standard_normal
from orbitwise.inference.sampling.chains import check_counts
from orbitwise.likelihoods.likelihood import Likelihood

MAX_STEPS_OUT = 16
MAX_SLICE_SHRINKS = 100

Extra = TypeVar("Extra")
"""Results that were computed along with a density and are needed again."""


def slice_coordinates(
    log_density: Callable[[Tensor], tuple[float, Extra]],
    point: Float[Tensor, " p"],
    found: tuple[float, Extra],
    width: float,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, " p"], tuple[float, Extra], int]:
    """Update every coordinate once; returns the new point, `log_density` there, and the evaluations.

    An interval of length `width` around the point is extended until the density at both ends is below a
    random level. Then places in it are drawn; the interval is cut at each one below the level, and the first
    one above it is the new coordinate. The limit on extensions is divided between the ends at random, which
    detailed balance requires.
    """
    count = 0

    def trial_at(point: Tensor, i: int, place: float) -> tuple[Tensor, tuple[float, Extra]]:
        nonlocal count
        count += 1
        moved = point.clone()
        moved[i] = place
        return moved, log_density(moved)

    for i in range(len(point)):
        level = found[0] + math.log(uniform_number(generator))
        origin = point[i].item()

        low = origin - width * uniform_number(generator)
        high = low + width
        left = int(MAX_STEPS_OUT * uniform_number(generator))
        right = MAX_STEPS_OUT - 1 - left
        while left > 0 and trial_at(point, i, low)[1][0] > level:
            low, left = low - width, left - 1
        while right > 0 and trial_at(point, i, high)[1][0] > level:
            high, right = high + width, right - 1
        for _ in range(MAX_SLICE_SHRINKS):
            place = low + (high - low) * uniform_number(generator)
            moved, trial = trial_at(point, i, place)
            if trial[0] > level:
                point, found = moved, trial
                break
            low, high = (place, high) if place < origin else (low, place)
    return point, found, count


def uniform_number(generator: torch.Generator | None) -> float:
    """A uniform number between 0 and 1, never 0, so that it has a logarithm."""
    place = None if generator is None else generator.device
    return torch.rand((), generator=generator, device=place, dtype=torch.float64).item() or 1e-300


LogLikelihood = Callable[[Tensor], Tensor]
"""log p(y | f) of samples [k n c]: one number per sample [k], or one for every output [k c]."""
MAX_SHRINKS = 200
"""After so many shrinks the bracket of angles is far below rounding, and the state stays."""


def by_group(values: Float[Tensor, "k c"], likelihood: Likelihood) -> Tensor:
    """Log densities [k c] of all outputs, summed to [k] if the likelihood couples the outputs."""
    return values if likelihood.is_separable else values.sum(-1)


class Source(NamedTuple):
    """A Gaussian from which ellipses are drawn, and the log ratio of the target density to its density."""

    log_likelihood: LogLikelihood
    factor: Float[Tensor, "n r"] | Float[Tensor, "c n r"]
    mean: Float[Tensor, "n c"]


class EllipticalSamples(NamedTuple):
    """Samples of every chain, and the number of evaluations of the likelihood per chain."""

    samples: Float[Tensor, "k t n c"]
    num_evaluations: int


def elliptical_slice(
    log_likelihood: LogLikelihood,
    factor: Float[Tensor, "n r"] | Float[Tensor, "c n r"],
    num_samples: int,
    *,
    mean: Float[Tensor, "n c"] | None = None,
    num_outputs: int = 1,
    num_chains: int = 4,
    burn_in: int = 200,
    thin: int = 1,
    start: Float[Tensor, "k n c"] | None = None,
    generator: torch.Generator | None = None,
) -> EllipticalSamples:
    """Samples of the density N(f; mean, factor factorᵀ) exp(log_likelihood(f)), all chains at once.

    A state moves on the ellipse f cos φ + ν sin φ through itself and a draw ν of the Gaussian, to an angle at
    which the likelihood is above a random level (Murray, Adams and MacKay 2010). There is nothing to tune,
    and no step is rejected.

    `log_likelihood` takes the states of all chains [k n c] at once. Outputs are independent under the
    Gaussian, and share its covariance or have one factor each. With a log-likelihood [k c], one column per
    output, every output moves on a separate ellipse. Chains start at draws of the Gaussian unless `start` is
    given. The first `burn_in` samples are dropped, and `thin` updates are made for every sample kept.
    """
    check_counts(num_chains=num_chains)
    outputs = len(factor) if factor.dim() == 3 else num_outputs if mean is None else mean.shape[1]
    centre = factor.new_zeros(factor.shape[-2], outputs) if mean is None else mean
    if start is None:
        start = centre + gaussian_directions(factor, num_chains, outputs, generator)
    source = Source(log_likelihood, factor, centre)
    return alternate([source], start, num_samples, burn_in, thin, generator)


def alternate(
    sources: Sequence[Source],
    start: Float[Tensor, "k n c"],
    num_samples: int,
    burn_in: int = 200,
    thin: int = 1,
    generator: torch.Generator | None = None,
) -> EllipticalSamples:
    """Chains that take an ellipse of each source in turn; all sources must have the same target.

    One source may be close to the target, and another may cover its tails.
    """
    check_counts(num_samples=num_samples, thin=thin, burn_in=burn_in)
    f, outputs, kept = start.clone(), start.shape[-1], []
    values, count = checked_start(sources[0].log_likelihood, f), len(f)
    for step in range(burn_in + num_samples * thin):
        for source in sources:
            if len(sources) > 1:
                values, count = checked_start(source.log_likelihood, f), count + len(f)
            direction = gaussian_directions(source.factor, len(f), outputs, generator)
            f, values, evaluations = elliptical_step(
                f, values, direction, source.mean, source.log_likelihood, generator
            )
            count += evaluations
        if step >= burn_in and (step - burn_in) % thin == thin - 1:
            kept.append(f)
    return EllipticalSamples(torch.stack(kept, dim=1), count)


def elliptical_step(
    f: Float[Tensor, "k n c"],
    value: Float[Tensor, "k g"],
    direction: Float[Tensor, "k n c"],
    mean: Float[Tensor, "n c"],
    log_likelihood: LogLikelihood,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "k n c"], Float[Tensor, "k g"], int]:
    """One update of every chain: states, their log-likelihoods, and the number of evaluations.

    `direction` is a draw of the Gaussian without its mean; `value` is the log-likelihood of f, as
    `checked_start` gives it.
    """
    # log of a level drawn uniformly below the likelihood; an angle, and the bracket around it
    level = value + uniform(value, generator).log()
    angle = 2 * math.pi * uniform(value, generator)
    low, high = angle - 2 * math.pi, angle.clone()
    state, found, active, count = f.clone(), value.clone(), torch.ones_like(value, dtype=torch.bool), 0
    for _ in range(MAX_SHRINKS):
        chains = active.any(1).nonzero().squeeze(1)
        if not len(chains):
            break
        turn = angle[chains][:, None, :]
        # m + (f - m) cos φ + ν sin φ
        proposed = mean + (f[chains] - mean) * turn.cos() + direction[chains] * turn.sin()
        trial = _values(log_likelihood, proposed)
        count += len(chains)
        accepted = active[chains] & (trial > level[chains])
        state[chains] = torch.where(accepted[:, None, :], proposed, state[chains])
        found[chains] = torch.where(accepted, trial, found[chains])
        active[chains] &= ~accepted
        # shrink the bracket to the angle on its side, so that φ = 0, the state, stays inside
        low, high = torch.where(angle < 0, angle, low), torch.where(angle < 0, high, angle)
        angle = torch.where(active, low + (high - low) * uniform(value, generator), angle)
    return state, found, count


def gaussian_directions(
    factor: Tensor, num_chains: int, num_outputs: int, generator: torch.Generator | None
) -> Float[Tensor, "k n c"]:
    """Draws of N(0, factor factorᵀ) for every chain and output."""
    white = standard_normal((num_chains, factor.shape[-1], num_outputs), factor, generator)
    if factor.dim() == 2:
        return factor @ white
    return torch.einsum("cnr,krc->knc", factor, white)


def checked_start(log_likelihood: LogLikelihood, f: Float[Tensor, "k n c"]) -> Float[Tensor, "k g"]:
    """The log-likelihood [k, 1] or [k, c] where chains start, which must be finite."""
    value = _values(log_likelihood, f)
    if not bool(value.isfinite().all()):
        raise ValueError(
            "The log-likelihood is not finite where a chain starts: give a `start` [chains, n, outputs] "
            "at which it is, and check the targets."
        )
    return value


def uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers between 0 and 1, of the shape of `like`."""
    place = like.device if generator is None else generator.device
    return torch.rand(like.shape, generator=generator, device=place, dtype=like.dtype).to(like.device)


def _values(log_likelihood: LogLikelihood, f: Tensor) -> Tensor:
    value = log_likelihood(f)
    if value.shape not in ((len(f),), (len(f), f.shape[-1])):
        raise ValueError(
            f"log_likelihood must give one number per chain [{len(f)}], or one per output "
            f"[{len(f)}, {f.shape[-1]}], not shape {tuple(value.shape)}."
        )
    return value.reshape(len(f), -1)
