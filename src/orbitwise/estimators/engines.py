"""The three engines behind one call: exact for few rows, collapsed for some, stochastic for many.

Each learns kernel, noise and orbit by its evidence or bound, and returns the posterior with rows frozen for
prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from orbitwise.estimators.objectives import (
    Callback,
    CollapsedObjective,
    ExactObjective,
    Problem,
    StochasticObjective,
    noise_of,
)
from orbitwise.estimators.orbit_learning import LEAST_NOISE, Learned, announce_exact, learn_orbit
from orbitwise.functionals.freezing import freeze_functional
from orbitwise.functionals.functional import Functional
from orbitwise.inference import collapsed, exact
from orbitwise.inference.checkpoint import Progress
from orbitwise.inference.inducing import random_orbit_points
from orbitwise.inference.polish import Statistics, gather
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.stochastic import StochasticTrainer
from orbitwise.inference.variational import SparsePosterior
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process

Engine = Literal["auto", "exact", "collapsed", "variational"]
EXACT_ROWS = 1500
COLLAPSED_ROWS = 5000
PREDICTION_NODES = 64


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
    at_noise: Callable[[float], tuple[Any, Tensor]] | None = None
    """For Gaussian noise: the posterior and the leave-one-out means at another noise variance."""
    search: Learned | None = None
    """How the ranges of a drawn orbit were found."""
    half_bound: float | None = None
    """The bound that half as many inducing points reached."""


def progress_of(estimator: Any, engine: str, *parts: Any) -> Progress | None:
    """What a fit that starts from these parts leaves in the estimator's folder, if any, to go on from."""
    names = ("num_nodes", "max_nodes", "max_iterations", "num_restarts", "num_inducing", "num_steps")
    settings = {name: getattr(estimator, name) for name in (*names, "batch_size")}
    return Progress.of(estimator.checkpoint, engine, settings, *parts)


def choose_engine(engine: str, problem: Problem) -> Any:
    """The engine that `auto` stands for: by the number of rows, and exact only for Gaussian noise."""
    if engine not in ("auto", "exact", "collapsed", "variational"):
        raise ValueError(f"inference must be 'auto', 'exact', 'collapsed' or 'variational', not {engine!r}.")
    if engine == "exact" and not isinstance(problem.likelihood, Gaussian):
        raise ValueError(
            "Exact inference needs Gaussian noise: use likelihood='one_hot', or inference='collapsed'."
        )
    if engine != "auto":
        return engine
    return engine_for(len(problem.x), exact_serves=isinstance(problem.likelihood, Gaussian))


def engine_for(num_rows: int, exact_serves: bool = True) -> Any:
    """The engine for this many rows."""
    if num_rows <= EXACT_ROWS and exact_serves:
        return "exact"
    return "collapsed" if num_rows <= COLLAPSED_ROWS else "variational"


def fit_exact(
    problem: Problem,
    num_nodes: int | None,
    max_iterations: int,
    num_restarts: int = 0,
    callback: Callback | None = None,
    progress: Progress | None = None,
    max_nodes: int | None = None,
    max_seconds: float | None = None,
    is_resumed: bool = False,
) -> Fit:
    """Exact evidence; the ranges of drawn orbits are searched for on nodes that double.

    The standard error covers the choice of the nodes: their spread, and what the last doubling gained.
    With `is_resumed` the search goes on from the present parameters, on `num_nodes`.
    """
    search: Learned | None = None
    error = 0.0
    if problem.is_drawn:
        search = learn_orbit(
            lambda functional, precision: ExactObjective(problem, functional, precision),
            problem.functional,
            problem.process,
            problem.modules,
            {problem.likelihood.raw_noise: math.log(LEAST_NOISE)},  # pyright: ignore
            problem.x,
            num_nodes,
            max_nodes,
            max_iterations,
            max_seconds,
            callback,
            None if progress is None else progress.journal,
            is_resumed,
        )
        objective = ExactObjective(problem, search.functional)
        settled, history = search.found.is_converged(len(problem.x)), search.found.history
        error = search.found.node_error
    else:
        announce_exact(problem.process, problem.functional, problem.x, max_iterations, False)
        objective = ExactObjective(problem, problem.functional)
        training = problem.maximize(objective, max_iterations, num_restarts, callback, progress)
        settled, history = training.has_settled, training.history
    functional = objective.functional

    def at_noise(noise: float) -> tuple[Posterior, Tensor]:
        with torch.no_grad():
            variances = torch.full_like(problem.targets[:, 0], noise)
            rows = functional.atoms(problem.x)
            posterior = exact.condition(problem.process, rows, problem.targets, variances)
            return posterior, posterior.leave_one_out().mean

    with torch.no_grad():
        posterior, _ = at_noise(noise_of(problem.likelihood).item())
        value = float(posterior.evidence().value)  # pyright: ignore
    return Fit(posterior, functional, value, "exact", error, settled, objective, history, at_noise, search)


def fit_collapsed(
    problem: Problem,
    num_nodes: int | None,
    num_inducing: int,
    max_iterations: int,
    num_restarts: int = 0,
    callback: Callback | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The collapsed bound on frozen rows; nodes and inducing points are chosen again after a first round.

    With tilts, learning and coordinate ascent of the tilts take turns: each raises the same bound.
    """
    num_nodes = 16 if num_nodes is None else num_nodes
    num_inducing = min(num_inducing, len(problem.x) * (num_nodes if problem.is_drawn else 1))
    tilt = torch.ones_like(problem.targets) if problem.likelihood.needs_tilt else None
    turns = 1 if tilt is None else 3
    history: list[float] = []
    half_bound: float | None = None
    for part in (2, 1):
        functional = freeze_functional(problem.functional, max(2, num_nodes // part), problem.generator)
        inducing = random_orbit_points(functional, problem.x, max(1, num_inducing // part), problem.generator)
        objective = CollapsedObjective(problem, functional, inducing, tilt)
        for _ in range(turns):
            objective.improve_tilt()
            iterations = max(1, max_iterations // turns)
            training = problem.maximize(objective, iterations, num_restarts, callback, progress)
            history += training.history
            num_restarts = 0
        tilt = objective.tilt
        if part == 2:
            with torch.no_grad():
                half_bound = float(objective.bound())
    with torch.no_grad():
        columns = objective.columns()
        q = collapsed.optimal_q(columns, objective.quadratic(), problem.likelihood.shares_curvature)
        posterior = SparsePosterior(problem.process, inducing, q, columns.lower)
        value = float(objective.bound())
        at_noise = None
        if isinstance(problem.likelihood, Gaussian):
            statistics = Statistics(columns.columns, columns.residual, problem.targets)
            at_noise = _at_noise(problem.process, inducing, statistics, columns.lower)
    return Fit(
        posterior,
        functional,
        value,
        "lower bound",
        0.0,
        training.has_settled,
        objective,
        history,
        at_noise,
        half_bound=half_bound,
    )


def fit_variational(
    problem: Problem,
    num_inducing: int,
    num_steps: int,
    batch_size: int,
    callback: Callback | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The stochastic bound; inducing points double once; Gaussian noise is polished at the end."""
    process, functional, generator = problem.process, problem.functional, problem.generator
    trainer: StochasticTrainer | None = None
    settled, half_bound = False, None
    for part, steps in ((2, num_steps - num_steps // 3), (1, num_steps // 3)):
        size = max(1, num_inducing // part)
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
        slots = None if progress is None else progress.slots
        settled = trainer.run(steps, warm_up=min(40, steps // 3), callback=callback, slots=slots)
        if trainer.history.interrupted:
            break  # Ctrl-C keeps what was learned
        if part == 2 and trainer.history.smoothed:
            half_bound = trainer.history.smoothed[-1]
    frozen = freeze_functional(functional, PREDICTION_NODES, generator)
    points = trainer.inducing.detach()
    at_noise = None
    with torch.no_grad():
        if isinstance(problem.likelihood, Gaussian):
            statistics, lower = gather(process, frozen, points, problem.x, problem.targets, generator)
            at_noise = _at_noise(process, points, statistics, lower)
            posterior, _ = at_noise(noise_of(problem.likelihood).item())
            trainer.q = posterior.q
        else:
            posterior = SparsePosterior(process, points, trainer.q)
    estimate = trainer.estimate()
    return Fit(
        posterior,
        frozen,
        float(estimate.mean),
        "lower bound",
        float(estimate.standard_error),
        settled,
        StochasticObjective(trainer),
        trainer.history.smoothed,
        at_noise,
        half_bound=half_bound,
    )


def _at_noise(
    process: Process, inducing: Tensor, statistics: Statistics, lower: Tensor
) -> Callable[[float], tuple[SparsePosterior, Tensor]]:
    def at_noise(noise: float) -> tuple[SparsePosterior, Tensor]:
        posterior = SparsePosterior(process, inducing, statistics.optimum(noise), lower)
        return posterior, statistics.leave_one_out(noise).mean

    return at_noise
