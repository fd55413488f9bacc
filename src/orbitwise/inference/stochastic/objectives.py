"""Bounds at the best q(v), maximised over hyperparameters: of other likelihoods, and of batches of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.training import log_prior
from orbitwise.inference.sparse.posterior import Whitened
from orbitwise.inference.stochastic import nonconjugate
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.inference.stochastic.variational import natural_step

BATCHES = 4
"""Batches of rows that the objective of a stochastic fit takes."""


@final
@dataclass
class NonconjugateBound:
    """The bound at the best q of a likelihood that is not quadratic in f, on frozen rows, plus hyperpriors.

    The search for q always begins at `start`, so that the same parameters have the same bound.
    """

    model: LatentModel
    observations: Observations
    inducing: Tensor
    start: Whitened | None = None

    def best(self) -> nonconjugate.FittedQ:
        """The best q at the present parameters, and its bound."""
        return nonconjugate.fit_q(self.model, self.observations, self.inducing, self.start)

    def __call__(self) -> Tensor:
        prior, (q, value) = log_prior(self.model.process), self.best()
        if not torch.is_grad_enabled():
            return self.observations.targets.new_tensor(value) + prior
        # the slope of the best bound is that at the best q (envelope theorem)
        return nonconjugate.bound_at(self.model, self.observations, self.inducing, q) + prior


@final
@dataclass
class StochasticBound:
    """The stochastic bound on some rows, evenly spread and scaled to all, from the same draws at every call.

    q is the best one, given these rows, for the kernel and the orbit of the moment. With q held, the bound
    would be far more curved than the evidence, and errors of ranges too small. They still leave out how much
    the choice of rows and draws matters.
    """

    trainer: StochasticTrainer

    def __call__(self) -> Tensor:
        trainer = self.trainer
        state, kept, model = trainer.generator.get_state(), trainer.q, trainer.model
        count, device = len(trainer.observations), trainer.observations.x.device
        index = torch.arange(0, count, -(-count // (BATCHES * trainer.batch_size)), device=device)
        scale = count / len(index)
        try:
            if isinstance(kept, Whitened):
                with torch.no_grad():
                    terms, some = trainer.bound_on(index), trainer.observations.take(index)
                    step = (terms, some.targets, scale, 1.0, some.weight)
                    trainer.q = natural_step(model.likelihood, kept, *step)
                trainer.generator.set_state(state)
            # the slope of the best bound is that at the best q (envelope theorem)
            return scale * trainer.bound_on(index).data - trainer.q.divergence() + log_prior(model.process)
        finally:
            trainer.q = kept
            trainer.generator.set_state(state)
