"""Batch after batch: the posterior of all rows seen, from sums that batches add to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orbitwise.estimators.replicates import merge
from orbitwise.functionals.functional import Functional
from orbitwise.inference.automatic import Certificate
from orbitwise.inference.bounds import best_q, common_bracket, safe_bracket
from orbitwise.inference.projection import Inducing, inducing_factor
from orbitwise.inference.sparse import SparseModel
from orbitwise.inference.stochastic import StochasticTrainer
from orbitwise.inference.totals import Observations, Totals, gather_totals
from orbitwise.inference.variational import SparsePosterior
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process


@dataclass(frozen=True)
class Stream:
    """What is held of the rows seen: their totals, or, after stochastic steps, a q(v) alone.

    `sources` are the inputs of inducing variables that are values of f, None where they are points of g.
    """

    process: Process
    functional: Functional
    likelihood: Gaussian
    inducing: Inducing
    sources: Tensor | None
    lower: Tensor
    totals: Totals | None
    merged: float
    num_rows: float
    q: Whitened | None = None
    age: int = 0

    @classmethod
    @torch.no_grad()
    def of(cls, model: SparseModel, num_rows: float) -> Stream:
        """The stream that a model starts whose bracket was just computed."""
        inducing = model.inducing
        lower, totals = inducing_factor(model.process, inducing), model.totals
        sources = None if model.chosen is None else model.observations.x[model.chosen]
        merged = float(model.taken_out())
        parts = (model.process, model.functional, model.likelihood)
        return cls(*parts, inducing, sources, lower, totals, merged, num_rows)

    @property
    def noise(self) -> Tensor:
        """σ² of a standardised target."""
        return self.likelihood.noise[0].detach()

    def posterior(self) -> SparsePosterior:
        """g given all rows seen."""
        if self.totals is None:
            return SparsePosterior(self.process, self.inducing, self.q, self.lower)  # pyright: ignore
        return SparsePosterior(self.process, self.inducing, best_q(self.totals, self.noise), self.lower)

    def certificate(self, tolerance: float) -> Certificate:
        """The bracket of all rows seen; unknown after stochastic steps."""
        count = len(self.lower)
        if self.totals is None:
            return Certificate(np.nan, np.nan, count, int(self.num_rows), tolerance, "fixed")
        bracket = common_bracket([safe_bracket(self.totals, self.noise)], self.merged, self.totals.count)
        return Certificate(*bracket, count, int(self.num_rows), tolerance, "fixed")


@torch.no_grad()
def observe(stream: Stream, x: Tensor, targets: Tensor, weight: Tensor) -> Stream:
    """The stream with more rows, at the same hyperparameters."""
    rows = merge(x.cpu().numpy(), targets.numpy(), weight.numpy())
    count = None if bool((rows.weight == 1).all()) else torch.from_numpy(rows.weight).to(x.device)
    observations = Observations(
        stream.functional, torch.from_numpy(rows.x).to(x), torch.from_numpy(rows.y).to(x), count
    )
    totals = gather_totals(stream.process, observations, stream.inducing, stream.lower, stream.noise)
    merged = float(rows.log_factor(stream.noise.cpu()))
    seen = float(weight.sum())
    if stream.totals is not None:
        totals, merged, seen = stream.totals.merge(totals), stream.merged + merged, stream.num_rows + seen
    return replace(stream, totals=totals, merged=merged, num_rows=seen, q=None)


def learn_from(estimator: Any, x: Tensor, targets: Tensor, num_rows: int | None) -> Stream:
    """Stochastic steps of hyperparameters and q on a batch that stands for `num_rows` rows."""
    stream: Stream = estimator._stream
    known = int(stream.num_rows) if num_rows is None else num_rows
    if known < len(x):
        raise ValueError(f"num_rows={num_rows} is less than the {len(x)} rows of the batch.")
    trainer = StochasticTrainer(
        stream.process,
        stream.functional,
        stream.likelihood,
        x,
        targets,
        stream.inducing if stream.sources is None else stream.sources,  # pyright: ignore
        torch.Generator(x.device).manual_seed(stream.age),
        estimator.batch_size,
        inducing_functional=None if stream.sources is None else stream.functional,
        num_rows=known,
    )
    trainer.q = stream.posterior().q
    # As if all batches until now had been averaged, so that the first step does not forget them.
    trainer.age = max(stream.age, known // max(1, estimator.batch_size))
    trainer.run(estimator.num_steps)
    with torch.no_grad():
        inducing = trainer.inducing_rows()
        inducing = inducing.detach() if isinstance(inducing, Tensor) else inducing
        lower = inducing_factor(stream.process, inducing)
    return replace(
        stream,
        inducing=inducing,
        lower=lower,
        totals=None,
        num_rows=float(known),
        q=trainer.q,
        age=trainer.age,
    )
