"""The three engines behind one call: exact for few rows, collapsed for some, stochastic for many.

Each takes a latent model, observations and settings, maximises an objective over kernel, noise and orbit, and
returns the posterior with rows frozen for prediction. Objectives are small objects, not closures, so that
fitted estimators can be pickled.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.learned_ranges import LEAST_NOISE, check_exact_cost, learn_orbit, widen_zeros
from orbitwise.estimators.rungs import Rungs, in_single_precision
from orbitwise.functionals.averages import evenly_drawn, freeze_functional, is_drawn
from orbitwise.functionals.functional import Functional
from orbitwise.inference.calibration import NoiseOfLabels
from orbitwise.inference.exact import EXACT_POINTS, ExactEvidence
from orbitwise.inference.fit_result import FitResult, LearnedRanges
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Progress
from orbitwise.inference.optimise.cost import users_level
from orbitwise.inference.optimise.orbit_search import MOST_DENSE
from orbitwise.inference.optimise.training import (
    DIFFERENCE,
    INTERRUPTED,
    Training,
    assign,
    curvature_of,
    gained_little,
    maximize,
    values_of,
    why_cut_short,
)
from orbitwise.inference.optimise.watching import Phase, Reporter, announce
from orbitwise.inference.sparse.climb import COMPLETE, GIVEN, Climb, Climbed, Half, Limits, Place, climb
from orbitwise.inference.sparse.inducing import random_orbit_points
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.inference.stochastic.objectives import NonconjugateBound, StochasticBound
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.inference.stored_rows import Inputs, held_rows
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood

Tilts = Literal["remembered", "recognition"]
EngineName = Literal["exact", "collapsed", "variational"]
Engine = Literal["auto", "exact", "collapsed", "variational"]
ENGINES = ("auto", "exact", "collapsed", "variational")
EXACT_ROWS = 1500
COLLAPSED_ROWS = 5000
START_ROWS, GROWTH = 1000, 3
"""Rows on which hyperparameters are learned first, where all of them are many, and by how much they grow."""
USUAL_ITERATIONS = 20
"""Iterations over many rows after which hyperparameters usually stand still."""
LITTLE = 0.1
"""Nats that are not worth further iterations over many rows."""
LITTLE_PER_TARGET = 1e-4
"""The same for a bound on frozen nodes of many rows, whose choice matters far more."""
LEARNED_WITH = 500
"""Hyperparameters are learned with at most this many inducing points."""
FIRST_STEPS, MOST_STEPS = 400, 3000
"""The most stochastic steps with half of the inducing points, and with all of them, where None is given."""
NODES, PREDICTION_NODES = 16, 64
"""Nodes of a drawn orbit while a sparse engine learns, and in the end."""
MOST_REPEATED = 16
"""The largest weights in single precision: they divide the noise of their rows."""
LEARNED = 2.0
"""Nats of KL[q ‖ prior] below which a fit learned next to nothing: noise alone explains the targets."""
RESTART_SPREAD = 0.5
"""Deviation of random starts from the first, in raw parameters."""


@final
@dataclass(frozen=True)
class FitSettings:
    """What engines need in addition to model and observations; each uses the settings that concern it.

    `num_nodes` of None lets exact inference double the nodes of a drawn orbit, up to `max_nodes`. With
    `is_resumed` it begins at the present parameters, on `num_nodes`. `num_steps` of None lets stochastic
    inference take steps until learning settles. `num_inducing` of None lets sparse inference find out how
    many inducing points are enough. `labels` are the classes if targets are one-hot codes.
    """

    generator: torch.Generator
    num_nodes: int | None = None
    max_nodes: int | None = None
    max_seconds: float | None = None
    max_iterations: int = 200
    num_restarts: int = 0
    num_inducing: int | None = 500
    num_steps: int | None = None
    batch_size: int = 256
    tilts: Tilts = "remembered"
    is_resumed: bool = False
    reporter: Reporter = field(default_factory=Reporter)
    progress: Progress | None = None
    max_memory: float | None = None
    labels: Tensor | None = None
    noise_of_labels: NoiseOfLabels = "evidence"

    def starts(self) -> torch.Generator:
        """A generator of random starts, on the CPU wherever the data are, seeded by the fit's own."""
        seed = int(torch.randint(2**31, (1,), generator=self.generator, device=self.generator.device))
        return torch.Generator().manual_seed(seed)

    def maximize(
        self,
        objective: Callable[[], Tensor],
        model: LatentModel,
        stop: Callable[[list[float]], bool] | None = None,
        curvature: NDArray[np.float64] | None = None,
        tolerance: float = LITTLE,
    ) -> Training:
        """`training.maximize` over all that is learned; no steps if the fit must end."""
        training = maximize(
            objective,
            model.learned,
            0 if self.reporter.is_over() else self.max_iterations,
            self.num_restarts,
            RESTART_SPREAD,
            generator=self.starts(),
            callback=self.reporter,
            stop=stop,
            journal=None if self.progress is None else self.progress.journal,
            is_over=self.reporter.is_over,
            processes=self.reporter.processes,
            curvature=curvature,
            tolerance=tolerance,
        )
        if training.message == INTERRUPTED:
            self.reporter.stopped = INTERRUPTED
        return training

    def learned_with(self, most: int) -> int:
        """The number of inducing points with which hyperparameters are learned, of at most `most`."""
        return min(LEARNED_WITH if self.num_inducing is None else min(self.num_inducing, LEARNED_WITH), most)


def check_engine(engine: str, likelihood: Likelihood) -> None:
    """Raise a ValueError where there is no engine of this name, or it does not take the likelihood."""
    if engine not in ENGINES:
        raise ValueError(f"inference must be 'auto', 'exact', 'collapsed' or 'variational', not {engine!r}.")
    if engine == "exact" and not isinstance(likelihood, Gaussian):
        raise ValueError(
            "Exact inference needs Gaussian noise: use likelihood='one_hot' for classes or 'gaussian' for "
            "numbers, or inference='collapsed'."
        )


def engine_for(num_rows: int, exact_serves: bool = True, num_points: int | None = None) -> EngineName:
    """The engine of "auto": by the number of rows, and exact only if the exact engine takes these data.

    `num_points` counts the points of g in all rows; None if they are drawn.
    """
    is_small = num_rows <= EXACT_ROWS or (num_points is not None and num_points <= EXACT_POINTS)
    if is_small and exact_serves:
        return "exact"
    return "collapsed" if num_rows <= COLLAPSED_ROWS else "variational"


def num_points(functional: Functional, x: Inputs) -> int | None:
    """The number of points of g in all rows; None if an orbit is drawn."""
    if is_drawn(functional):
        return None
    with torch.no_grad():
        return len(x) * functional.atoms(x[:1]).points.shape[-2]


def run_engine(
    engine: EngineName, model: LatentModel, observations: tuple[Observations, ...], settings: FitSettings
) -> FitResult:
    """What this engine finds; only the exact one takes observations of other functionals."""
    if engine == "exact":
        found = fit_exact(model, observations, settings)
    else:
        (first,) = observations
        found = (fit_collapsed if engine == "collapsed" else fit_variational)(model, first, settings)
    stopped = settings.reporter.stopped
    return replace(found, stopped=stopped, converged=found.converged and not stopped)


def fit_exact(model: LatentModel, observations: tuple[Observations, ...], settings: FitSettings) -> FitResult:
    """Exact evidence; the ranges of drawn orbits are searched for on nodes that double.

    The standard error covers the choice of the nodes: their spread, and what the last doubling gained.
    """
    x = held_rows(observations[0].x)
    search: LearnedRanges | None = None
    error, converged, history = 0.0, False, []
    if model.is_drawn:
        search = learn_orbit(
            lambda functional, precision: ExactEvidence(model.at(functional), observations, precision),
            model.functional,
            model.process,
            [model],
            _floors(model, observations),
            x,
            settings.num_nodes,
            settings.max_nodes,
            settings.max_iterations,
            settings.max_seconds,
            settings.reporter,
            None if settings.progress is None else settings.progress.journal,
            settings.num_restarts,
            settings.starts(),
            is_noisy=_is_noisy(model, observations),
            is_resumed=settings.is_resumed,
        )
        converged, history = search.found.is_converged(len(x)), search.found.history
        error = search.found.node_error
    else:
        # many rows start from the answer of some, and settle soon
        steps = (
            settings.max_iterations
            if len(x) <= EXACT_ROWS
            else min(settings.max_iterations, USUAL_ITERATIONS)
        )
        num_others = sum(len(each.targets) for each in observations[1:])
        check_exact_cost(model.process, model.functional, x, steps, False, num_others)
    objective = ExactEvidence(model if search is None else model.at(search.functional), observations)
    # without iterations, the objective would only repeat the factorisation that the posterior needs
    if search is None and settings.max_iterations > 0:
        announce(settings.reporter, Phase("learning", settings.max_iterations * (1 + settings.num_restarts)))
        training, settled = _learn_exact(objective, settings)
        converged, history = settled, training.history
    with torch.no_grad():
        posterior, noise = objective.posterior(), model.noise
        value = float(posterior.evidence().value + observations[0].merged_term(noise))
    return FitResult(
        posterior,
        objective.model.functional,
        value,
        "exact",
        error,
        converged,
        objective,
        model.learned,
        history,
        search,
        noise=float(noise),
    )


def _learn_exact(objective: ExactEvidence, settings: FitSettings) -> tuple[Training, bool]:
    """Hyperparameters by the evidence of all rows, and whether they converged.

    Many rows start from the answer of some of them, which costs next to nothing and is near theirs. The
    curvature there, in proportion to the rows, replaces the first steps of an ascent that knows nothing.
    """
    model, (first, *others) = objective.model, objective.observations
    if len(first) <= EXACT_ROWS:
        training = settings.maximize(objective, model)
        return training, training.has_settled
    curvature: NDArray[np.float64] | None = None
    is_dense = sum(each.numel() for each in model.learned) <= MOST_DENSE
    for count, following in pairwise([*_row_counts(len(first)), len(first)]):
        some = first.take(_some_of(len(first), count, first.x.device))
        part = ExactEvidence(model, (some, *others))
        settings.maximize(part, model, curvature=curvature)
        settings = replace(settings, num_restarts=0)
        if is_dense:
            curvature = following / count * curvature_of(part, model.learned, DIFFERENCE)
    training = settings.maximize(objective, model, None if is_dense else _is_enough, curvature)
    return training, training.has_settled or _is_enough(training.history)


def _is_enough(history: list[float]) -> bool:
    return gained_little(history, LITTLE)


def _some_of(num_rows: int, count: int, device: torch.device) -> Tensor:
    """The places of some rows, the same for every seed, and more of them hold the fewer."""
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0))
    return order[:count].sort().values.to(device)


def _row_counts(num_rows: int) -> Iterator[int]:
    """Numbers of rows to learn with before all: each three times the one before, up to half of all."""
    count = START_ROWS
    yield count
    while 2 * GROWTH * count <= num_rows:
        count *= GROWTH
        yield count


def _floors(model: LatentModel, observations: tuple[Observations, ...]) -> dict[torch.nn.Parameter, float]:
    """The least raw values of learned noise, in proportion to the size of what is observed."""
    noises = [each for each in (model.likelihood, *model.others) if isinstance(each, Gaussian)]
    return {
        noise.raw_noise: math.log(LEAST_NOISE * rows.size)
        for noise, rows in zip(noises, observations, strict=True)
        if noise.raw_noise.requires_grad
    }


def _is_noisy(model: LatentModel, observations: tuple[Observations, ...]) -> bool:
    """Whether the noise of every row is so large that single precision suffices in the search for ranges."""
    is_fixed = isinstance(model.likelihood, Gaussian) and model.likelihood.is_fixed
    least = float(model.noise) / observations[0].size if is_fixed else LEAST_NOISE
    heaviest = float(observations[0].weights().max())
    return len(observations) == 1 and least / heaviest >= LEAST_NOISE / MOST_REPEATED


def fit_collapsed(model: LatentModel, observations: Observations, settings: FitSettings) -> FitResult:
    """The collapsed bound on frozen rows; nodes and inducing points are chosen again after a first round.

    Inducing points are chosen by `SparseModel.place_best`, at the hyperparameters of the moment. What is
    reported is the bound of the orbit itself at the best q on more nodes.
    With tilts, learning and coordinate ascent of the tilts take turns: each raises the same bound.
    A likelihood that is not quadratic in f has its q searched for instead. Many rows have their first round
    with some of them, which ends near the answer of all, and at nearly the same curvature per row.
    Half of the inducing points may explain so little that noise alone explains the targets better, and
    hyperparameters do not come back from there, because f without variance has no slopes. So where half of
    them learned next to nothing, all of them learn once more from the first start, and the better one stays.
    """
    widen_zeros(model.functional)
    is_quadratic, generator = model.likelihood.is_quadratic, settings.generator
    num_nodes = NODES if settings.num_nodes is None else settings.num_nodes
    most = _most(model, observations, num_nodes)
    num_inducing = settings.learned_with(most)
    turns = 3 if model.likelihood.needs_tilt else 1
    if is_quadratic:
        settings = replace(settings, max_iterations=max(1, settings.max_iterations // turns))
    start, history = values_of(model.learned), []
    half_inducing, has_learned = None, True
    found: CollapsedRound | None = None
    curvature: NDArray[np.float64] | None = None
    some = _some_rows(model, observations)
    rounds = [(max(1, num_inducing // part), max(2, num_nodes // part)) for part in (2, 1)]
    phases = [
        Phase(
            "learning", turns * settings.max_iterations, each * nodes, each, nodes if model.is_drawn else None
        )
        for each, nodes in rounds
    ]
    for part, (size, nodes) in zip((2, 1), rounds, strict=True):
        tilt, state = None if found is None else found.tilt, generator.get_state()
        announce(settings.reporter, *phases[-part:])
        seen = some if part == 2 else observations
        found = _learn_collapsed(model, seen, settings, nodes, size, tilt, curvature)
        history += found.history
        settings = replace(settings, num_restarts=0)
        if settings.reporter.stopped:
            break  # what was learned with half of them is the best so far
        if part == 2:
            if some is not observations:
                share = len(observations) / len(some)
                curvature = share * curvature_of(found.objective, model.learned, DIFFERENCE)
            half_inducing, has_learned = found.inducing, found.divergence() >= LEARNED
        elif not has_learned:
            # the other start, with the same draws
            here = values_of(model.learned)
            assign(model.learned, start)
            again = replace(settings, generator=torch.Generator(generator.device).set_state(state))
            other = _learn_collapsed(model, observations, again, nodes, size, holds_noise=True)
            if other.training.value > found.training.value:
                found, history = other, history + other.history
            else:
                assign(model.learned, here)
    assert found is not None
    announce(settings.reporter, Phase("best q and its bound", num_inducing=len(found.inducing)))
    final = freeze_functional(model.functional, max(num_nodes, PREDICTION_NODES), generator)
    settled, objective = found.training.has_settled, found.objective
    learned = Learned(found.inducing, found.tilt, settled, objective, history, half_inducing)
    return _finished(model, observations, final, learned, most, settings)


def _some_rows(model: LatentModel, observations: Observations) -> Observations:
    """The rows of the first round: some of many, if few parameters are learned, and without tilts."""
    is_dense = sum(each.numel() for each in model.learned) <= MOST_DENSE
    is_quadratic = model.likelihood.is_quadratic and not model.likelihood.needs_tilt
    if len(observations) < 2 * START_ROWS or not is_dense or not is_quadratic:
        return observations
    return observations.take(_some_of(len(observations), START_ROWS, observations.x.device))


class CollapsedRound(NamedTuple):
    """What a round of learning found: the objective with its inducing points and tilts, and how it went."""

    objective: SparseModel | NonconjugateBound
    inducing: Tensor
    tilt: Tensor | None
    training: Training
    history: list[float]

    @torch.no_grad()
    def divergence(self) -> float:
        """KL[q ‖ prior] of the best q, which is next to nothing if nothing was learned."""
        if isinstance(self.objective, NonconjugateBound):
            return float(self.objective.best().q.divergence())
        posterior = self.objective.posterior()
        assert isinstance(posterior, SparsePosterior)
        return float(posterior.q.divergence())


def _learn_collapsed(
    model: LatentModel,
    observations: Observations,
    settings: FitSettings,
    num_nodes: int,
    num_inducing: int,
    tilt: Tensor | None = None,
    curvature: NDArray[np.float64] | None = None,
    holds_noise: bool = False,
) -> CollapsedRound:
    """Choose nodes and inducing points at the present hyperparameters, and learn.

    A guess at the `curvature` of the bound saves iterations. With `holds_noise` the kernel learns alone
    first, so that noise cannot take over before the kernel has found what it can explain.
    """
    likelihood, generator = model.likelihood, settings.generator
    frozen = model.at(freeze_functional(model.functional, num_nodes, generator))
    if likelihood.is_quadratic:
        rows = in_single_precision(model, observations).through(frozen.functional)
        objective = SparseModel(frozen.process, rows, frozen.likelihood, tilt=tilt)
        objective.place_best(num_inducing, generator)
    else:
        inducing = random_orbit_points(frozen.functional, observations.x, num_inducing, generator)
        objective = NonconjugateBound(frozen, observations, inducing)
        objective.start = objective.best().q
    if holds_noise:
        noises = [each for each in likelihood.parameters() if each.requires_grad]
        likelihood.requires_grad_(False)
        settings.maximize(objective, model)
        for each in noises:
            each.requires_grad_(True)

    worth = LITTLE_PER_TARGET * observations.targets.numel()

    def is_enough(history: list[float]) -> bool:
        return len(observations) > EXACT_ROWS and gained_little(history, worth)

    runs: list[Training] = []
    for _ in range(3 if likelihood.needs_tilt else 1):
        if isinstance(objective, SparseModel):
            objective.improve_tilt()
        stop = is_enough if curvature is None else None
        runs.append(settings.maximize(objective, model, stop, curvature, worth))
        settings = replace(settings, num_restarts=0)
    training = replace(runs[-1], converged=runs[-1].converged or is_enough(runs[-1].history))
    history = [value for run in runs for value in run.history]
    if isinstance(objective, SparseModel):
        return CollapsedRound(objective, objective.held_inducing(), objective.tilt, training, history)
    return CollapsedRound(objective, objective.inducing, tilt, training, history)


def fit_variational(model: LatentModel, observations: Observations, settings: FitSettings) -> FitResult:
    """The stochastic bound; inducing points double once; the best q is found at the end.

    Draws are Sobol sets: the q of random ones is biased enough to lead kernel and orbit astray.
    Without `num_steps` each half of the learning continues until it settles, up to `FIRST_STEPS` and
    `MOST_STEPS`. It has converged if it settled with all inducing points. A likelihood that is not quadratic
    in f takes rows frozen at nodes.
    """
    widen_zeros(model.functional)
    generator, num_steps = settings.generator, settings.num_steps
    rows = evenly_drawn(model.functional)
    if not model.likelihood.is_quadratic:
        rows = freeze_functional(model.functional, NODES, generator)
    trainer: StochasticTrainer | None = None
    settled, half_inducing, start = False, None, values_of(model.learned)
    most = _most(model, observations, NODES)
    lengths = (FIRST_STEPS, MOST_STEPS)
    if num_steps is not None:
        lengths = (num_steps - num_steps // 3, num_steps // 3)

    def tilts_of(trainer: StochasticTrainer) -> Tensor | None:
        return trainer.memory.recall(torch.arange(len(observations), device=observations.x.device))[1]

    phases = [
        Phase("stochastic steps", steps, num_inducing=max(1, settings.learned_with(most) // part))
        for part, steps in zip((2, 1), lengths, strict=True)
    ]
    for part, steps in zip((2, 1), lengths, strict=True):
        size = max(1, settings.learned_with(most) // part)
        announce(settings.reporter, *phases[-part:])
        inducing = random_orbit_points(model.functional, observations.x, size, generator)
        if trainer is None:
            parts = (model.at(rows), observations, inducing, generator, settings.batch_size)
            trainer = StochasticTrainer(*parts, tilt=settings.tilts)
        else:
            trainer.replace_inducing(inducing)
        slots = None if settings.progress is None else settings.progress.slots
        settled = trainer.run(
            steps, min(40, steps // 3), settings.reporter, until_settled=num_steps is None, slots=slots
        )
        if trainer.history.interrupted:
            settings.reporter.stopped = settings.reporter.stopped or INTERRUPTED
            break  # Ctrl-C keeps what was learned
        if part == 2 and trainer.history.smoothed:  # none where a killed fit resumes behind this half
            half_inducing = trainer.inducing.detach()
            if float(trainer.q.divergence()) < LEARNED:
                assign(model.learned, start)  # noise alone explained the targets; see `fit_collapsed`
    assert trainer is not None
    announce(settings.reporter, Phase("best q and its bound", num_inducing=len(trainer.inducing)))
    final = freeze_functional(model.functional, PREDICTION_NODES, generator)
    held, history = trainer.inducing.detach(), trainer.history.smoothed
    objective = StochasticBound(trainer)
    learned = Learned(held, tilts_of(trainer), settled, objective, history, half_inducing)
    return _finished(model, observations, final, learned, most, settings)


class Learned(NamedTuple):
    """What a sparse engine learned: its inducing points and tilts, whether it settled, and how it went.

    `half_inducing` are the points of the first half of learning, if it was finished.
    """

    inducing: Tensor
    tilt: Tensor | None
    converged: bool
    objective: SparseModel | NonconjugateBound | StochasticBound
    history: list[float]
    half_inducing: Tensor | None


def _most(model: LatentModel, observations: Observations, num_nodes: int) -> int:
    """The most inducing points that are of use: one per row, or per node of its orbit."""
    return len(observations) * (num_nodes if model.is_drawn else 1)


def _finished(
    model: LatentModel,
    observations: Observations,
    final: Functional,
    learned: Learned,
    most: int,
    settings: FitSettings,
) -> FitResult:
    """The posterior by as many inducing points as are wanted, or as are enough, hyperparameters held."""
    generator, reporter = settings.generator, settings.reporter
    seed = int(torch.randint(2**31, (1,), generator=_copy(generator), device=generator.device))
    rungs = Rungs(model, observations, final, seed, settings.labels, settings.noise_of_labels, learned.tilt)
    rungs = replace(rungs, max_memory=settings.max_memory)
    of_evidence = rungs.of_evidence()
    base = of_evidence.as_learned(learned.inducing)
    half = None if learned.half_inducing is None else Half.of(of_evidence.at_points(learned.half_inducing))
    if isinstance(learned.objective, StochasticBound):
        learned.objective.trainer.q = base.posterior.q
    size, wanted = settings.learned_with(most), settings.num_inducing
    # on orbits there are more points than rows, but a rung of many more than rows is dear and gains little
    top = max(size, min(most, len(observations))) if wanted is None else min(wanted, most)
    noise = float(model.noise.detach()) if isinstance(model.likelihood, Gaussian) else None
    result = FitResult(
        base.posterior,
        final,
        base.bound,
        "lower bound",
        math.inf,
        learned.converged,
        learned.objective,
        model.learned,
        learned.history,
        noise=noise,
        held_rows=base.held,
        climbed=Climbed(size, GIVEN if wanted is not None else COMPLETE),
        evidence_noise=noise,
    )
    rungs = rungs.at_best_lengthscales(learned.inducing, reporter)
    is_of_evidence = rungs.process is model.process
    if top <= size and is_of_evidence:
        return _with_bound(result, of_evidence, base, half, generator)
    if not is_of_evidence:
        first = rungs.at_points(learned.inducing)
    elif rungs.labels is None or base.held is None or base.noise is None:
        first = base
    else:
        first = rungs.of_held(base.held, learned.inducing, base.noise)
    if top > size:
        found = _climbed(rungs, first, size, top, settings)
        result = _predicting(replace(result, climbed=found.climbed), found.found)
    else:
        found = None
        result = _predicting(result, first)
    if found is None or found.found is first:
        return _with_bound(result, of_evidence, base, half, generator)
    place, before, climbed = found
    inducing, kept = place.posterior.inducing, place if is_of_evidence else None
    # many points take gigabytes, so rows that predict are given up before others are held
    del found, first, place
    reporter.begin(Phase("evidence", num_inducing=climbed.num_inducing))
    try:
        if kept is None:
            # the evidence is that of its own lengthscales, by as many points
            before = Half.of(of_evidence.at_points(before.inducing))
            kept = of_evidence.at_points(inducing)
        return _with_bound(result, of_evidence, kept, before, generator)
    except (KeyboardInterrupt, MemoryError, RuntimeError, *NOT_COMPUTABLE) as error:
        reason = why_cut_short(error)
        if not reason and not isinstance(error, NOT_COMPUTABLE):
            raise
        reason = reason or str(error)
    if reason == INTERRUPTED:
        reporter.stopped = INTERRUPTED
        return result
    _warn_of_fewer_points(climbed.num_inducing, size, reason)
    return _with_bound(result, of_evidence, base, half, generator)


def _climbed(rungs: Rungs, first: Place, size: int, top: int, settings: FitSettings) -> Climb:
    """The rung with `top` points if they are wanted, or the last one that is worth its points."""
    if settings.num_inducing is not None:
        half = Half.of(rungs.at(top // 2) if top // 2 > size else first)
        return Climb(rungs.at(top), half, Climbed(top, GIVEN))
    limits = Limits(settings.reporter, settings.max_memory, rungs.observations.x.device)
    return climb(first, size, rungs.at, top, rungs.size, limits, rungs.is_density)


def _with_bound(
    result: FitResult, rungs: Rungs, place: Place, half: Half | None, generator: torch.Generator
) -> FitResult:
    """The fit with the bound at a place, of the model's own functional.

    Bounds of the same frozen rows differ as those of all draws do, so one of half as many points needs none.
    """
    bound = rungs.bound(place, PREDICTION_NODES, generator)
    return replace(
        result,
        log_evidence=bound.mean,
        standard_error=bound.standard_error,
        half_bound=None if half is None else bound.mean + half.bound - place.bound,
        evidence_noise=place.noise,
    )


def _warn_of_fewer_points(num_inducing: int, size: int, reason: str) -> None:
    """Warn that the evidence is that of fewer inducing points than predictions use."""
    warnings.warn(
        f"log_evidence_ is the lower bound with {size:,} inducing points, although predictions use "
        f"{num_inducing:,}, because the bound with {num_inducing:,} could not be computed ({reason}). Do not "
        "compare it with bounds of other numbers of points. A smaller num_inducing or max_memory gives both "
        "the same number.",
        ConvergenceWarning,
        stacklevel=users_level(sys._getframe()),
    )


def _predicting(result: FitResult, place: Place) -> FitResult:
    """The fit with the posterior of a place, at the noise that predicts, and each row predicted from others.

    The rows themselves are not held any more.
    """
    held, noise, posterior = place.held, place.noise, place.posterior
    assert held is not None
    if place.label_noise is not None and place.label_noise != noise:
        noise = place.label_noise
        q = held.optimum(noise)
        posterior = SparsePosterior(posterior.process, posterior.inducing, q, posterior.lower)
    left_out = place.left_out
    if left_out is None:
        left_out = held.leave_one_out(1.0 if noise is None else noise)
    predicting = replace(result, posterior=posterior, noise=noise, label_noise=place.label_noise)
    return replace(predicting, held_rows=None, left_out=left_out)


def _copy(generator: torch.Generator) -> torch.Generator:
    """A generator in the same state; drawing from it does not change the given one."""
    return torch.Generator(generator.device).set_state(generator.get_state())
