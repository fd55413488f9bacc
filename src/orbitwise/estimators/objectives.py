"""What is learned, and what engines maximise: exact evidence or the stochastic bound.

The collapsed bound is `orbitwise.inference.sparse.SparseModel`. Objectives are small objects, not closures,
so that fitted estimators can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orbitwise.estimators.replicates import Replicates
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference import exact, nonconjugate
from orbitwise.inference.checkpoint import Progress
from orbitwise.inference.sparse import SparseModel
from orbitwise.inference.stochastic import StochasticTrainer
from orbitwise.inference.totals import Observations
from orbitwise.inference.training import Training, log_prior, maximize
from orbitwise.inference.variational import natural_step
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process

Callback = Callable[[int, float], None]
BATCHES = 4
"""Batches of rows that the objective of a stochastic fit takes."""


def noise_of(likelihood: Likelihood) -> Tensor:
    """The one noise variance of a Gaussian likelihood."""
    if not isinstance(likelihood, Gaussian):
        raise ValueError(f"{type(likelihood).__name__} has no noise variance; use Gaussian noise.")
    return likelihood.noise[0]


@dataclass
class Problem:
    """What is to be learned from what: everything is changed in place by an engine.

    `replicates` has the weights of rows, and for Gaussian noise what merging equal rows left out of their
    targets; without it every row counts once.
    """

    process: Process
    functional: Functional
    likelihood: Likelihood
    x: Tensor
    targets: Tensor
    generator: torch.Generator
    replicates: Replicates | None = None

    @property
    def parts(self) -> tuple[object, ...]:
        """All that a fit depends on, beside its settings."""
        rows = () if self.replicates is None else (self.weight, self.replicates.scatter)
        return (self.process, self.functional, self.likelihood, self.x, self.targets, self.generator, *rows)

    @property
    def weight(self) -> Tensor | None:
        """How many repetitions each row stands for; None where every row counts once."""
        return None if self.replicates is None else torch.from_numpy(self.replicates.weight).to(self.x.device)

    def scatter_term(self) -> float:
        """-S/2σ², the share of the log likelihood that is due to targets around the means of equal rows."""
        if self.replicates is None or not self.replicates.scatter.any():
            return 0.0
        return -0.5 * float(self.replicates.scatter.sum()) / noise_of(self.likelihood).item()

    def sparse_model(self, functional: Functional, tilt: Tensor | None = None) -> SparseModel:
        """The collapsed bound of the rows of a frozen functional, before inducing points are placed."""
        rows = Observations(functional, self.x, self.targets, self.weight)
        merged = None if self.replicates is None else self.replicates.log_factor
        return SparseModel(self.process, rows, self.likelihood, merged=merged, tilt=tilt)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All modules with something to learn."""
        return (self.process, self.likelihood, self.functional)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is learned."""
        return [p for module in self.modules for p in module.parameters() if p.requires_grad]

    def maximize(
        self,
        objective: Callable[[], Tensor],
        max_iterations: int,
        num_restarts: int = 0,
        callback: Callback | None = None,
        progress: Progress | None = None,
    ) -> Training:
        """L-BFGS over all that is learned; restarts are drawn from the problem's own generator."""
        return maximize(
            objective,
            self.parameters,
            max_iterations,
            num_restarts,
            0.5,
            generator=self.starts(),
            callback=callback,
            journal=None if progress is None else progress.journal,
        )

    def starts(self) -> torch.Generator:
        """A generator of random starts, on the CPU wherever the problem is, seeded by the problem's own."""
        seed = int(torch.randint(2**31, (1,), generator=self.generator, device=self.generator.device))
        return torch.Generator().manual_seed(seed)

    @property
    def is_drawn(self) -> bool:
        """Whether rows would be drawn at random."""
        return is_drawn(self.functional)


@dataclass
class ExactObjective:
    """The exact evidence of a problem on frozen rows, of this precision, plus hyperpriors."""

    problem: Problem
    functional: Functional
    precision: torch.dtype = torch.float64

    def evidence(self) -> Tensor:
        """log p(y) at the present parameters."""
        problem = self.problem
        rows = self.functional.atoms(problem.x.to(self.precision))
        return exact.evidence(problem.process, rows, problem.targets, self.noise()).value

    def noise(self) -> Tensor:
        """The noise variance of every row."""
        return noise_of(self.problem.likelihood).expand(len(self.problem.x))

    def __call__(self) -> Tensor:
        return self.evidence() + log_prior(self.problem.process)


@dataclass
class NonconjugateObjective:
    """The bound at the best q of a likelihood that is not quadratic in f, on frozen rows, plus hyperpriors.

    The search for q always begins at `start`, so that the same parameters have the same bound.
    """

    problem: Problem
    functional: Functional
    inducing: Tensor
    start: Whitened | None = None

    def best(self) -> nonconjugate.Best:
        """The best q at the present parameters, and its bound."""
        problem = self.problem
        parts = (problem.likelihood, self.inducing, problem.x, problem.targets)
        return nonconjugate.best_of(problem.process, self.functional, *parts, self.start)

    def __call__(self) -> Tensor:
        problem, prior = self.problem, log_prior(self.problem.process)
        q, value = self.best()
        if not torch.is_grad_enabled():
            return problem.targets.new_tensor(value) + prior
        parts = (problem.likelihood, self.inducing, problem.x, problem.targets)
        # the slope of the best bound is that at the best q (envelope theorem)
        return nonconjugate.bound_at(problem.process, self.functional, *parts, q) + prior


@dataclass
class StochasticObjective:
    """The stochastic bound on some rows, evenly spread and scaled to all, from the same draws at every call.

    q is the best one, given these rows, for the kernel and the orbit of the moment. With q held, the bound
    would be far more curved than the evidence, and errors of ranges too small. They still leave out how much
    the choice of rows and draws matters.
    """

    trainer: StochasticTrainer

    def __call__(self) -> Tensor:
        trainer = self.trainer
        state, kept = trainer.generator.get_state(), trainer.q
        count = len(trainer.x)
        index = torch.arange(0, count, -(-count // (BATCHES * trainer.batch_size)), device=trainer.x.device)
        scale = count / len(index)
        try:
            if isinstance(kept, Whitened):
                with torch.no_grad():
                    terms, targets = trainer.bound_on(index), trainer.targets[index]
                    weight = trainer.weights_of(index)
                    trainer.q = natural_step(trainer.likelihood, kept, terms, targets, scale, 1.0, weight)
                trainer.generator.set_state(state)
            # the slope of the best bound is that at the best q (envelope theorem)
            return scale * trainer.bound_on(index).data - trainer.q.divergence() + log_prior(trainer.process)
        finally:
            trainer.q = kept
            trainer.generator.set_state(state)
