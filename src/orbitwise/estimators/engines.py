"""The three engines behind one call: exact for few rows, collapsed for some, stochastic for many.

Each maximises an objective over kernel, noise and orbit, and returns the posterior with rows frozen for
prediction. Objectives are small objects, not closures, so that fitted estimators can be pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from orbitwise.declarations import COUNT, Stored
from orbitwise.estimators.estimator import FIRST_STEPS, MOST_STEPS
from orbitwise.estimators.learned_ranges import (
    LEAST_NOISE,
    Learned,
    announce_exact,
    learn_orbit,
    widen_zeros,
)
from orbitwise.estimators.regression_model import Replicates
from orbitwise.functionals.averages import evenly_drawn, freeze_functional, is_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference import exact
from orbitwise.inference.optimise.checkpoints import Progress
from orbitwise.inference.optimise.training import Training, log_prior, maximize
from orbitwise.inference.posterior import Posterior
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.inference.sparse.inducing import random_orbit_points
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.sparse.totals import Observations
from orbitwise.inference.sparse.whitened import Whitened
from orbitwise.inference.stochastic import nonconjugate
from orbitwise.inference.stochastic.polish import Polished, polish
from orbitwise.inference.stochastic.trainer import BoundEstimate, StochasticTrainer
from orbitwise.inference.stochastic.variational import natural_step
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


@final
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

    stored = Stored({"width": COUNT, "outputs": COUNT}, build="of_no_rows")

    @classmethod
    def of_no_rows(
        cls, process: Process, functional: Functional, likelihood: Likelihood, width: int, outputs: int
    ) -> Problem:
        """A problem of no rows, from which a later fit resumes."""
        x, targets = (torch.zeros(0, size, dtype=torch.float64) for size in (width, outputs))
        return cls(process, functional, likelihood, x, targets, torch.Generator())

    @property
    def width(self) -> int:
        """The number of columns of the inputs."""
        return self.x.shape[1]

    @property
    def outputs(self) -> int:
        """The number of columns of the targets."""
        return self.targets.shape[1]

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


Tilts = Literal["remembered", "recognition"]
Engine = Literal["auto", "exact", "collapsed", "variational"]
EXACT_ROWS = 1500
COLLAPSED_ROWS = 5000
NODES, PREDICTION_NODES = 16, 64
"""Nodes of a drawn orbit while a sparse engine learns, and in the end."""
OTHERS = 3
"""Sets of other nodes by which the error of a bound on nodes is known."""


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
    certificate: Certificate | None = None
    """A bracket of the evidence, where rows are exact and noise is Gaussian."""


def progress_of(estimator: Any, engine: str, *parts: Any) -> Progress | None:
    """What a fit that starts from these parts leaves in the estimator's folder, if any, to go on from."""
    names = ("num_nodes", "max_nodes", "max_iterations", "num_restarts", "num_inducing", "num_steps")
    settings = {name: getattr(estimator, name) for name in (*names, "batch_size")}
    if getattr(estimator, "tilts", "remembered") != "remembered":
        settings["tilts"] = estimator.tilts
    return Progress.of(estimator.checkpoint, engine, settings, *parts)


def choose_engine(engine: str, problem: Problem) -> Any:
    """The engine that `auto` stands for: by the number of rows, and exact only for Gaussian noise."""
    if engine not in ("auto", "exact", "collapsed", "variational"):
        raise ValueError(f"inference must be 'auto', 'exact', 'collapsed' or 'variational', not {engine!r}.")
    if engine == "exact" and not isinstance(problem.likelihood, Gaussian):
        raise ValueError(
            "Exact inference needs Gaussian noise: use likelihood='one_hot' for classes or 'gaussian' for "
            "numbers, or inference='collapsed'."
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
            num_restarts,
            problem.starts(),
            is_resumed=is_resumed,
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

    Inducing points are chosen by `SparseModel.place_best`, at the hyperparameters of the moment. What is
    reported is the bound of the orbit itself at a q polished on more nodes.
    With tilts, learning and coordinate ascent of the tilts take turns: each raises the same bound.
    A likelihood that is not quadratic in f has its q searched for instead; see `fit_nonconjugate`.
    """
    if not problem.likelihood.is_quadratic:
        parts = (num_inducing, max_iterations, num_restarts, callback, progress)
        return fit_nonconjugate(problem, num_nodes, *parts)
    widen_zeros(problem.functional)
    num_nodes = NODES if num_nodes is None else num_nodes
    num_inducing = min(num_inducing, len(problem.x) * (num_nodes if problem.is_drawn else 1))
    tilt: Tensor | None = None
    turns = 3 if problem.likelihood.needs_tilt else 1
    history: list[float] = []
    half_bound: float | None = None
    for part in (2, 1):
        functional = freeze_functional(problem.functional, max(2, num_nodes // part), problem.generator)
        objective = problem.sparse_model(functional, tilt)
        objective.place_best(max(1, num_inducing // part), problem.generator)
        for _ in range(turns):
            objective.improve_tilt()
            iterations = max(1, max_iterations // turns)
            training = problem.maximize(objective, iterations, num_restarts, callback, progress)
            history += training.history
            num_restarts = 0
        tilt = objective.tilt
        if part == 2:
            half_bound = _half_bound(problem, objective.held_inducing(), tilt)
    frozen = freeze_functional(problem.functional, max(num_nodes, PREDICTION_NODES), problem.generator)
    polished = _polished(problem, frozen, objective.held_inducing(), tilt)
    return Fit(
        polished.posterior,
        frozen,
        *_reported(polished),
        training.has_settled,
        objective,
        history,
        _at_noise(problem, polished),
        half_bound=half_bound,
    )


def fit_nonconjugate(
    problem: Problem,
    num_nodes: int | None,
    num_inducing: int,
    max_iterations: int,
    num_restarts: int = 0,
    callback: Callback | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The bound at the best q of any likelihood, on frozen rows; points are chosen again after a first round.

    The bound is that of the average over the nodes, so its standard error says how much others differ.
    """
    widen_zeros(problem.functional)
    num_nodes = NODES if num_nodes is None else num_nodes
    num_inducing = min(num_inducing, len(problem.x) * (num_nodes if problem.is_drawn else 1))
    history: list[float] = []
    half_bound: float | None = None
    for part in (2, 1):
        functional = freeze_functional(problem.functional, max(2, num_nodes // part), problem.generator)
        inducing = random_orbit_points(functional, problem.x, max(1, num_inducing // part), problem.generator)
        objective = NonconjugateObjective(problem, functional, inducing)
        objective.start = objective.best().q
        training = problem.maximize(objective, max_iterations, num_restarts, callback, progress)
        history += training.history
        num_restarts = 0
        if part == 2:
            half_bound = _half_bound(problem, inducing, None)
    frozen = freeze_functional(problem.functional, max(num_nodes, PREDICTION_NODES), problem.generator)
    polished = _polished(problem, frozen, inducing, None)
    return Fit(
        polished.posterior,
        frozen,
        *_reported(polished),
        training.has_settled,
        objective,
        history,
        half_bound=half_bound,
    )


def fit_variational(
    problem: Problem,
    num_inducing: int,
    num_steps: int | None,
    batch_size: int,
    callback: Callback | None = None,
    progress: Progress | None = None,
    tilts: Tilts = "remembered",
) -> Fit:
    """The stochastic bound; inducing points double once; q is polished at the end.

    Draws are Sobol sets: the q of random ones is biased enough to lead kernel and orbit astray.
    Without `num_steps` each half of the learning goes on until it settles, up to `FIRST_STEPS` and
    `MOST_STEPS`. It has converged if it settled with all inducing points. A likelihood that is not quadratic
    in f takes rows frozen at nodes.
    """
    widen_zeros(problem.functional)
    process, functional, generator = problem.process, problem.functional, problem.generator
    rows = evenly_drawn(functional)
    if not problem.likelihood.is_quadratic:
        rows = freeze_functional(functional, NODES, generator)
    trainer: StochasticTrainer | None = None
    settled, half_bound = False, None
    lengths = (FIRST_STEPS, MOST_STEPS)
    if num_steps is not None:
        lengths = (num_steps - num_steps // 3, num_steps // 3)
    for part, steps in zip((2, 1), lengths, strict=True):
        size = max(1, num_inducing // part)
        inducing = random_orbit_points(functional, problem.x, size, generator)
        if trainer is None:
            trainer = StochasticTrainer(
                process,
                rows,
                problem.likelihood,
                problem.x,
                problem.targets,
                inducing,
                generator,
                batch_size,
                tilt=tilts,
                weight=problem.weight,
            )
        else:
            trainer.replace_inducing(inducing)
        slots = None if progress is None else progress.slots
        settled = trainer.run(
            steps, min(40, steps // 3), callback, until_settled=num_steps is None, slots=slots
        )
        if trainer.history.interrupted:
            break  # Ctrl-C keeps what was learned
        if part == 2 and trainer.history.smoothed:  # none where a killed fit goes on behind this half
            half_bound = _half_bound(problem, trainer.inducing.detach(), _tilt_of(problem, trainer))
    assert trainer is not None
    frozen = freeze_functional(functional, PREDICTION_NODES, generator)
    polished = _polished(problem, frozen, trainer.inducing.detach(), _tilt_of(problem, trainer))
    trainer.q = polished.posterior.q
    return Fit(
        polished.posterior,
        frozen,
        *_reported(polished),
        settled,
        StochasticObjective(trainer),
        trainer.history.smoothed,
        _at_noise(problem, polished),
        half_bound=half_bound,
    )


def _polished(problem: Problem, frozen: Functional, inducing: Tensor, tilt: Tensor | None) -> Polished:
    """The best q by frozen rows, and the bound of the problem's own functional at it.

    Drawn rows cannot tell the bound of a likelihood that is not quadratic in f. It is then that of the frozen
    rows, and bounds on other sets of as many nodes tell its error.
    """
    if not problem.likelihood.is_quadratic:
        best = NonconjugateObjective(problem, frozen, inducing).best()
        others = [
            freeze_functional(problem.functional, PREDICTION_NODES, problem.generator)
            for _ in range(OTHERS if problem.is_drawn else 0)
        ]
        bounds = [NonconjugateObjective(problem, each, inducing, best.q).best().bound for each in others]
        error = math.sqrt(sum((each - best.bound) ** 2 for each in bounds) / max(1, len(bounds)))
        posterior = SparsePosterior(problem.process, inducing, best.q)
        return Polished(posterior, None, BoundEstimate(best.bound, error))
    parts = (problem.likelihood, inducing, problem.x, problem.targets, problem.generator, tilt)
    polished = polish(problem.process, problem.functional, frozen, *parts, problem.weight)
    bound = polished.bound._replace(mean=polished.bound.mean + problem.scatter_term())
    return polished._replace(bound=bound)


def _half_bound(problem: Problem, inducing: Tensor, tilt: Tensor | None) -> float:
    """The bound with half of the inducing points, from draws of its own, so that the fit's stay the same."""
    generator = torch.Generator(problem.generator.device).manual_seed(0)
    aside = replace(problem, generator=generator)
    frozen = freeze_functional(problem.functional, PREDICTION_NODES, generator)
    return _polished(aside, frozen, inducing, tilt).bound.mean


def _tilt_of(problem: Problem, trainer: StochasticTrainer) -> Tensor | None:
    """The tilts that training remembers of all rows."""
    return trainer.memory.recall(torch.arange(len(problem.x), device=problem.x.device))[1]


def _reported(polished: Polished) -> tuple[float, str, float]:
    """The evidence of a sparse fit, its kind, and its standard error."""
    return polished.bound.mean, "lower bound", polished.bound.standard_error


def _at_noise(
    problem: Problem, polished: Polished
) -> Callable[[float], tuple[SparsePosterior, Tensor]] | None:
    posterior, statistics = polished.posterior, polished.statistics
    if statistics is None or not isinstance(problem.likelihood, Gaussian):
        return None

    def at_noise(noise: float) -> tuple[SparsePosterior, Tensor]:
        q = statistics.optimum(noise)
        other = SparsePosterior(problem.process, posterior.inducing, q, posterior.lower)
        return other, statistics.leave_one_out(noise).mean

    return at_noise
