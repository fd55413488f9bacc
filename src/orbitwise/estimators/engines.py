"""The three engines behind one call: exact for few rows, collapsed for some, stochastic for many.

Each learns kernel, noise and orbit by its evidence or bound and returns the posterior with rows frozen for prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.freezing import drawn_orbits, freeze_functional
from orbitwise.functionals.functional import Functional
from orbitwise.inference import collapsed, exact
from orbitwise.inference.inducing import random_orbit_points
from orbitwise.inference.polish import Statistics, gather
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.stochastic import StochasticTrainer
from orbitwise.inference.training import log_prior, maximize
from orbitwise.inference.variational import SparsePosterior
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process

Engine = Literal["auto", "exact", "collapsed", "variational"]
Callback = Callable[[int, float], None]
EXACT_ROWS = 1500
COLLAPSED_ROWS = 5000
EXACT_PAIRS = 6.5e7
PREDICTION_NODES = 64


@dataclass
class Problem:
    """What is to be learned from what: everything is changed in place by an engine."""

    process: Process
    functional: Functional
    likelihood: Likelihood
    x: Tensor
    targets: Tensor
    generator: torch.Generator

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is learned."""
        modules = (self.process, self.likelihood, self.functional)
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    @property
    def is_drawn(self) -> bool:
        """Whether rows would be drawn at random."""
        return bool(drawn_orbits(self.functional))


@dataclass
class Fit:
    """What an engine found."""

    posterior: Posterior
    functional: Functional
    log_evidence: float
    kind: str
    standard_error: float
    converged: bool
    objective: Callable[[], Tensor]
    history: list[float] = field(default_factory=list)
    held_out: Tensor | None = None


def choose_engine(engine: Engine, problem: Problem) -> Engine:
    """The engine that `auto` stands for: by the number of rows, and exact only for Gaussian noise."""
    if engine not in ("auto", "exact", "collapsed", "variational"):
        raise ValueError(f"inference must be 'auto', 'exact', 'collapsed' or 'variational', not {engine!r}.")
    if engine == "exact" and not isinstance(problem.likelihood, Gaussian):
        raise ValueError(
            "Exact inference needs Gaussian noise: use likelihood='one_hot', or inference='collapsed'."
        )
    if engine != "auto":
        return engine
    if len(problem.x) <= EXACT_ROWS and isinstance(problem.likelihood, Gaussian):
        return "exact"
    return "collapsed" if len(problem.x) <= COLLAPSED_ROWS else "variational"


def fit_exact(
    problem: Problem, num_nodes: int | None, max_iterations: int, callback: Callback | None = None
) -> Fit:
    """Exact evidence on frozen rows; with drawn orbits first on half the nodes, then on all of them."""
    count = len(problem.x)
    if num_nodes is None:
        num_nodes = max(4, min(64, 2 ** int(math.log2(math.sqrt(EXACT_PAIRS) / count))))
    rounds = [(max(2, num_nodes // 2), max_iterations), (num_nodes, max(1, max_iterations // 2))]
    history: list[float] = []

    def evidence_of(functional: Functional) -> Tensor:
        noise = problem.likelihood.noise[0].expand(count)
        rows = functional.atoms(problem.x)
        return exact.evidence(problem.process, rows, problem.targets, noise).value

    for nodes, iterations in rounds if problem.is_drawn else rounds[:1]:
        functional = freeze_functional(problem.functional, nodes, problem.generator)

        def objective(functional: Functional = functional) -> Tensor:
            return evidence_of(functional) + log_prior(problem.process)

        training = maximize(objective, problem.parameters, iterations, callback=callback)
        history += training.history
    with torch.no_grad():
        value = float(evidence_of(functional))
        posterior = exact.condition(
            problem.process,
            functional.atoms(problem.x),
            problem.targets,
            problem.likelihood.noise[0].expand(count),
        )
        error = 0.0
        if problem.is_drawn:
            fresh = [freeze_functional(problem.functional, num_nodes, problem.generator) for _ in range(2)]
            redrawn = torch.stack([torch.tensor(value), *(evidence_of(other).cpu() for other in fresh)])
            error = float(redrawn.std())
        held_out = posterior.leave_one_out().mean
    return Fit(posterior, functional, value, "exact", error, training.converged, objective, history, held_out)


def fit_collapsed(
    problem: Problem,
    num_nodes: int | None,
    num_inducing: int,
    max_iterations: int,
    callback: Callback | None = None,
) -> Fit:
    """The collapsed bound on frozen rows; nodes and inducing points are chosen again after a first round."""
    likelihood, shared = problem.likelihood, problem.likelihood.shares_curvature
    num_nodes = 16 if num_nodes is None else num_nodes
    num_inducing = min(num_inducing, len(problem.x) * (num_nodes if problem.is_drawn else 1))
    tilt = torch.ones_like(problem.targets) if likelihood.needs_tilt else None
    history: list[float] = []
    rounds = [
        (max(2, num_nodes // 2), max(1, num_inducing // 2), max_iterations),
        (num_nodes, num_inducing, max_iterations),
    ]
    for nodes, size, iterations in rounds:
        functional = freeze_functional(problem.functional, nodes, problem.generator)
        inducing = random_orbit_points(functional, problem.x, size, problem.generator)

        def columns_of(functional: Functional = functional, inducing: Tensor = inducing) -> collapsed.Columns:
            return collapsed.project_rows(problem.process, functional, inducing, problem.x)

        # With tilts, learning and coordinate ascent of the tilts take turns; each raises the same bound.
        for _ in range(1 if tilt is None else 3):
            if tilt is not None:
                with torch.no_grad():
                    tilt = collapsed.best_tilt(columns_of(), likelihood, problem.targets, tilt)

            def bound(tilt: Tensor | None = tilt) -> Tensor:
                return collapsed.collapsed_bound(
                    columns_of(), likelihood.quadratic(problem.targets, tilt), shared
                )

            def objective(bound: Callable[[], Tensor] = bound) -> Tensor:
                return bound() + log_prior(problem.process)

            turns = iterations if tilt is None else max(1, iterations // 3)
            training = maximize(objective, problem.parameters, turns, callback=callback)
            history += training.history
    with torch.no_grad():
        columns = columns_of()
        quadratic = likelihood.quadratic(problem.targets, tilt)
        q = collapsed.optimal_q(columns, quadratic, shared)
        posterior = SparsePosterior(problem.process, inducing, q, columns.lower)
        value = float(bound())
        held_out = _held_out(columns.columns, columns.residual, problem)
    return Fit(
        posterior, functional, value, "lower bound", 0.0, training.converged, objective, history, held_out
    )


def fit_variational(
    problem: Problem,
    num_inducing: int,
    num_steps: int,
    batch_size: int,
    callback: Callback | None = None,
) -> Fit:
    """The stochastic bound; the number of inducing points doubles once, and Gaussian noise is polished at the end."""
    process, functional, generator = problem.process, problem.functional, problem.generator
    sizes = [max(1, num_inducing // 2), num_inducing]
    trainer: StochasticTrainer | None = None
    for size, steps in zip(sizes, (num_steps - num_steps // 3, num_steps // 3), strict=True):
        inducing = random_orbit_points(functional, problem.x, size, generator)
        if trainer is None:
            trainer = StochasticTrainer(
                process,
                functional,
                problem.likelihood,
                problem.x,
                problem.targets,
                inducing,
                generator,
                batch_size,
            )
        else:
            trainer.replace_inducing(inducing)
        settled = trainer.run(steps, warm_up=min(40, steps // 3), callback=callback)
    frozen = freeze_functional(functional, PREDICTION_NODES, generator)
    points = trainer.inducing.detach()
    scale = len(problem.x) / trainer.batch_size

    def objective() -> Tensor:
        return scale * trainer.bound_on(trainer._next_batch()).data

    with torch.no_grad():
        values = torch.stack([objective() - trainer.q.divergence() for _ in range(20)])
        if isinstance(problem.likelihood, Gaussian):
            statistics, lower = gather(process, frozen, points, problem.x, problem.targets, generator)
            q = statistics.optimum(float(problem.likelihood.noise[0]))
            posterior = SparsePosterior(process, points, q, lower)
            held_out = statistics.leave_one_out(float(problem.likelihood.noise[0])).mean
        else:
            posterior, held_out = SparsePosterior(process, points, trainer.q), None
    error = float(values.std() / math.sqrt(len(values)))
    return Fit(
        posterior,
        frozen,
        float(values.mean()),
        "lower bound",
        error,
        settled,
        objective,
        trainer.history.smoothed,
        held_out,
    )


def _held_out(columns: Tensor, residual: Tensor, problem: Problem) -> Tensor | None:
    if not isinstance(problem.likelihood, Gaussian):
        return None
    return (
        Statistics(columns, residual, problem.targets).leave_one_out(float(problem.likelihood.noise[0])).mean
    )


def rows_of(functional: Functional, x: Tensor) -> Atoms:
    """The atoms of rows for prediction."""
    atoms = functional.atoms(x)
    assert isinstance(atoms, Atoms)
    return atoms
