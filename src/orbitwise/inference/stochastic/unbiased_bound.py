"""The bound at a q that frozen rows gave, from fresh draws of all rows, without bias (LIM 4.4, METHOD 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.functionals.averages import atoms_of_part, evenly_drawn
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.variational import BoundTerms, Memory, bound_terms
from orbitwise.orbits.nodes import Part

DRAWS = 64
"""Draws per row in one pass, in two independent Sobol sets."""
BATCH_SIZE = 128
DEGREES_OF_FREEDOM = 30
"""With these, the standard error itself is accurate to about an eighth."""


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

    Batches are drawn independently of each other, but rows of a batch need not be. So the variance of a pass
    is the sum of the variances of its batches, which are estimated over the passes. An error needs two
    passes; with None, there are enough passes for a reliable error.
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
        num_passes = 1 + math.ceil(DEGREES_OF_FREEDOM / len(batches))
    values = torch.stack([first, *(one_pass() for _ in range(num_passes - 1))])
    error = float((values.var(0).sum() / num_passes).sqrt()) if num_passes > 1 else math.nan
    return BoundEstimate(float(values.sum(1).mean()) - divergence, error)


@torch.no_grad()
def unbiased_bound(
    posterior: SparsePosterior,
    model: LatentModel,
    observations: Observations,
    slack_residual: Float[Tensor, " n"],
    tilt: Float[Tensor, "n c"] | None,
    generator: torch.Generator,
    num_passes: int | None = None,
) -> BoundEstimate:
    """The bound at the posterior's q on all rows; slack and tilts start as given and are updated by separate
    draws.

    The functional of the model is drawn and not frozen; the process is that of the posterior.
    """
    given = observations.through(model.functional)
    drawn, x, targets, weight = evenly_drawn(given.functional, DRAWS), given.x, given.targets, given.weight
    inducing, lower, q = posterior.inducing, posterior.lower, posterior.q
    memory = Memory(len(x), targets.shape[1], x.device)
    memory.residual, memory.seen = slack_residual.clone(), torch.ones_like(memory.seen)
    if tilt is not None:
        memory.square = tilt.square()
    batches = torch.arange(len(x), device=x.device).split(BATCH_SIZE)
    processes = given.processes

    def share_of(index: Tensor) -> BoundTerms:
        """The terms of those rows of a batch that are the share of this process."""
        part = Part.of(processes.share(len(index)), len(index))
        rows, mine = atoms_of_part(drawn, lambda some: x[index[some]], part, generator), index[part.rows]
        # exact rows find their own best slack and tilts
        slack, tilts = memory.recall(mine) if rows.is_drawn else (None, None)
        some = None if weight is None else weight[mine]
        known = (rows, targets[mine].double(), slack, tilts)
        return bound_terms(posterior.process, model.likelihood, q, inducing, lower, *known, weight=some)

    def terms(index: Tensor) -> BoundTerms:
        found = processes.together(lambda: share_of(index))
        return found._replace(data=processes.sum(found.data)[0])

    for index in batches:
        found = terms(index)
        if not found.projection.is_drawn:
            break
        memory.learn(index, found, processes)
    return average_passes(terms, batches, float(q.divergence()), num_passes)
