"""The bound of the integral itself at a given q, from fresh draws of all rows (LIM 4.4, METHOD 4).

Any q gives a valid bound, so q may be chosen by whatever is convenient, say by rows frozen at some nodes. The
bound of the frozen model is that of another model; the one estimated here is of the average over the whole
orbit, without bias, and comes with its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.averages import evenly_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference.projection import EstimatedProcess, Inducing, lower_rows
from orbitwise.inference.variational import BoundTerms, Memory, bound_terms
from orbitwise.inference.whitened import Whitened, WhitenedFactor
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process

DRAWS = 64
"""Draws of a row in one pass, in two halves that are Sobol sets of their own."""
LEAST_PASSES = 4
DEGREES_OF_FREEDOM = 30
"""The standard error itself is known to about an eighth of its size."""


class BoundEstimate(NamedTuple):
    """The bound on all data, averaged over fresh draws, and the standard error of that average."""

    mean: float
    standard_error: float


def average_passes(
    terms: Callable[[Int[Tensor, " _"]], BoundTerms],
    batches: Sequence[Int[Tensor, " _"]],
    divergence: float,
    num_passes: int | None = None,
) -> BoundEstimate:
    """The mean of passes over all batches, less KL; one pass where nothing is drawn.

    Batches are drawn independently of each other, rows of a batch need not be. So the variance of a pass is
    the sum of the variances of its batches, and each batch tells its own over the passes. An error needs two
    passes; None takes as many as make the error reliable.
    """
    is_drawn = False

    def one_pass() -> Float[Tensor, " b"]:
        nonlocal is_drawn
        values = []
        for index in batches:
            found = terms(index)
            is_drawn = is_drawn or found.projection.is_drawn
            values.append(found.data)
        return torch.stack(values)

    first = one_pass()
    if not is_drawn:
        return BoundEstimate(float(first.sum()) - divergence, 0.0)
    if num_passes is None:
        num_passes = max(LEAST_PASSES, 1 + math.ceil(DEGREES_OF_FREEDOM / len(batches)))
    values = torch.stack([first, *(one_pass() for _ in range(num_passes - 1))])
    error = float((values.var(0).sum() / num_passes).sqrt()) if num_passes > 1 else math.nan
    return BoundEstimate(float(values.sum(1).mean()) - divergence, error)


@torch.no_grad()
def unbiased_bound(
    process: Process | EstimatedProcess,
    functional: Functional,
    likelihood: Likelihood,
    q: Whitened | WhitenedFactor,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n c"],
    slack_residual: Float[Tensor, " n"],
    tilt: Float[Tensor, "n c"] | None,
    generator: torch.Generator,
    batch_size: int = 256,
    num_passes: int | None = None,
    weight: Float[Tensor, " n"] | None = None,
) -> BoundEstimate:
    """The bound of q on all rows, with slack and tilts from a pass of draws of its own, which start as given.

    `functional` is the one to report on, drawn and not frozen.
    """
    drawn, targets = evenly_drawn(functional, DRAWS), targets.double()
    memory = Memory(len(x), targets.shape[1], x.device)
    memory.residual, memory.seen = slack_residual.clone(), torch.ones_like(memory.seen)
    if tilt is not None:
        memory.square = tilt.square()
    batches = torch.arange(len(x), device=x.device).split(batch_size)

    def terms(index: Tensor) -> BoundTerms:
        rows = lower_rows(process, drawn, inducing, x[index], generator)
        # exact rows find their own best slack and tilts
        slack, tilts = memory.recall(index) if rows.is_drawn else (None, None)
        some = None if weight is None else weight[index]
        known = (rows, targets[index], slack, tilts)
        return bound_terms(process, likelihood, q, inducing, lower, *known, weight=some)

    for index in batches:
        found = terms(index)
        if not found.projection.is_drawn:
            break
        memory.learn(index, found)
    return average_passes(terms, batches, float(q.divergence()), num_passes)
