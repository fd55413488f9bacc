"""How many inducing variables suffice: their number doubles until the evidence is bracketed (Talk; METHOD 3).

Hyperparameters are first learned from the exact evidence of some rows. Otherwise few inducing variables would
favour large noise and long lengthscales, for which few suffice, and learning would stay there. Then each
stage chooses inducing variables at the present hyperparameters, learns, chooses again and continues to learn.
Where so many are needed that exact evidence costs no more, hyperparameters are learned by that of all rows,
and stages choose inducing variables only. The search ends when doubling them gains nothing, or when a budget
is used up, and the certificate says which.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orbitwise.declarations import COUNT, RECORD, Stored, require
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Journal
from orbitwise.inference.optimise.orbit_search import MOST_DENSE
from orbitwise.inference.optimise.training import (
    DIFFERENCE,
    INTERRUPTED,
    TIME_IS_OVER,
    assign,
    curvature_of,
    gained_little,
    maximize,
    values_of,
)
from orbitwise.inference.optimise.watching import Callback, Phase, Reporter, announce
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.inference.stored_rows import atoms_in_blocks

FIRST = 512
LEAST = 32
USUAL_MOST = 2000
FAR = 1e4
"""Nats per target from which learning does not come back."""
EXACT_SHARE = 0.25
"""Of the rows: with so many inducing variables, the bound costs about as much as the exact evidence."""
LITTLE = 0.1
"""Nats that are not worth further iterations over the exact evidence of many rows."""
START_ROWS = 1024
START_PAIRS = 2**24
MANY_ROWS = 100_000
"""Of more rows than this, hyperparameters are learned from some."""
LEARN_ROWS, ROWS_PER_INDUCING = 2**15, 32
"""How many these are, at least and per inducing variable: of few rows, variables would say too much."""
FEW = 4
"""Iterations over all of many rows."""
SHARE = 0.05
HELD_SHARE = 0.1
"""Of the tolerance, where hyperparameters are held: more inducing variables then cost little."""
MEMORY = 50
REASONS = {
    "gap": "the evidence is bracketed within the tolerance",
    "gain": "twice the inducing variables gained less than the tolerance",
    "complete": "all rows that add information are inducing variables",
    "fixed": "the number of inducing variables was given",
    "max_inducing": "max_inducing was reached before the tolerance",
    "time_limit": "max_seconds was reached before the tolerance",
    "interrupted": "it was interrupted",
}


@final
class Stage(NamedTuple):
    """The bracket reached with a number of inducing variables, and the seconds and iterations until then."""

    num_inducing: int
    lower: float
    upper: float
    seconds: float
    iterations: int

    stored = Stored(
        {
            "num_inducing": COUNT,
            "lower": RECORD,
            "upper": RECORD,
            "seconds": RECORD,
            "iterations": COUNT,
        }
    )


@final
@dataclass(frozen=True)
class Certificate:
    """Bounds on the evidence at the learned hyperparameters: lower ≤ log p(y) ≤ upper, in nats.

    Both bounds allow for rounding (`orbitwise.inference.sparse.bounds`). `gap` is upper - lower. `tolerance`
    is the gap that was asked for, in nats per row, infinite if none was. `stopped` is why the search ended,
    and `reason` says it in words. `history` has one entry per stage.
    """

    lower: float
    upper: float
    num_inducing: int
    num_rows: int
    tolerance: float
    stopped: str
    history: list[Stage] = field(default_factory=list)

    stored = Stored(
        {
            "lower": RECORD,
            "upper": RECORD,
            "num_inducing": COUNT,
            "num_rows": COUNT,
            "tolerance": RECORD,
        }
    )

    def __post_init__(self) -> None:
        for each in (self, *self.history):
            if each.lower > each.upper:
                raise ValueError(
                    f"A certificate brackets the evidence, but its lower end {each.lower!r} is above the "
                    f"upper one {each.upper!r}: take both from one bracket."
                )

    def check_parts(self) -> None:
        """Raise a ValueError unless the reason for stopping is one of `REASONS`."""
        require(self.stopped in REASONS, "an unknown reason")

    @property
    def gap(self) -> float:
        """upper - lower, in nats."""
        return self.upper - self.lower

    @property
    def is_met(self) -> bool:
        """Whether the bracket is as narrow as requested, and no budget cut the search short.

        With too few inducing variables, learning prefers hyperparameters for which they suffice: the bracket
        is then narrow, but the evidence is not the best.
        """
        cut_short = self.stopped in ("max_inducing", "time_limit", "interrupted")
        return not cut_short and self.gap <= self.tolerance * self.num_rows

    @property
    def reason(self) -> str:
        """Why it ended, in words."""
        return REASONS[self.stopped]

    def shifted(self, nats: float) -> Certificate:
        """The certificate for targets in other units, whose log density differs by a constant."""
        history = [each._replace(**_shifted(each, nats)) for each in self.history]
        return replace(self, **_shifted(self, nats), history=history)

    def __str__(self) -> str:
        if math.isinf(self.gap):
            return "log p(y) is not bracketed after stochastic steps: pass the rows to partial_fit again"
        bracket = (
            f"{self.lower:,.1f} ≤ log p(y) ≤ {self.upper:,.1f} with {self.num_inducing} inducing variables; "
            f"gap {self.gap / self.num_rows:.2g} nats per row"
        )
        if math.isinf(self.tolerance):
            return bracket
        met = "met" if self.is_met else "not met"
        return f"{bracket}, {self.tolerance:g} asked for ({met}): {self.reason}"


@dataclass
class Budget:
    """Limits of the search: inducing variables, seconds, and L-BFGS iterations per stage.

    `max_inducing` of None is `USUAL_MOST`, or as many as there are where exact evidence can be had.
    """

    max_inducing: int | None = None
    max_seconds: float | None = None
    max_iterations: int = 100
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.max_seconds is not None and self.seconds > self.max_seconds


class Outcome(NamedTuple):
    """The certificate, the bound after every iteration, and whether the last stage converged."""

    certificate: Certificate
    history: list[float]
    converged: bool


def learn(
    model: SparseModel,
    tolerance: float,
    budget: Budget,
    generator: torch.Generator,
    num_inducing: int | None = None,
    selection: str = "auto",
    moves: bool = True,
    callback: Reporter | Callback | None = None,
    journal: Journal | None = None,
) -> Outcome:
    """Learn hyperparameters and, unless it is given, the number of inducing variables that suffices.

    If the budget is too small for the tolerance, and `moves` allows it, points of g are learned in the end.
    With a `journal`, stages of a fit that was killed are replayed: everything is repeated except the
    evaluations.
    """
    reporter = callback if isinstance(callback, Reporter) else Reporter(callback)
    learner = _Learner(model, tolerance, budget, generator, num_inducing, selection, reporter, journal)
    return learner.run(moves)


def certify(model: SparseModel, refine: bool | None = None) -> Certificate:
    """The certificate of a model with its present inducing variables."""
    bracket = model.bracket(refine)
    return Certificate(*bracket, model.num_inducing, model.num_rows, math.inf, "fixed")


def warm_up(
    model: SparseModel,
    max_iterations: int,
    generator: torch.Generator,
    journal: Journal | None = None,
    is_over: Callable[[], bool] | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Learn from the exact evidence of a few random rows, which costs little."""
    width = model.observations.num_atoms
    count = min(START_ROWS, max(64, math.isqrt(START_PAIRS) // width), model.num_rows)
    order = torch.randperm(model.num_rows, generator=generator, device=generator.device)[:count]
    objective = _exact_evidence(model, model.observations.take(order.to(model.observations.x.device)))

    def check(step: int, bound: float) -> None:
        if reporter is not None:
            reporter.check()

    announce(reporter, Phase("first hyperparameters"))
    learned = list(model.parameters())
    processes = model.observations.processes
    maximize(
        objective,
        learned,
        max_iterations,
        callback=check,
        journal=journal,
        is_over=is_over,
        processes=processes,
    )


def _exact_evidence(model: SparseModel, rows: Observations) -> exact.ExactEvidence:
    """The exact evidence of some rows under a model, whose functional is that of the rows."""
    return exact.ExactEvidence(LatentModel(model.process, Evaluation(), model.likelihood), (rows,))


@final
@dataclass
class _Learner:
    """The stages of `learn`, their brackets, and the bound after every iteration."""

    model: SparseModel
    tolerance: float
    budget: Budget
    generator: torch.Generator
    num_inducing: int | None
    selection: str
    reporter: Reporter
    journal: Journal | None
    stages: list[Stage] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    stopped: str = ""
    converged: bool = False
    holds: bool = False

    @property
    def is_given(self) -> bool:
        """Whether the number of inducing variables was given."""
        return self.num_inducing is not None

    @property
    def has_exact(self) -> bool:
        """Whether the exact evidence of all rows can be had, and is wanted."""
        model = self.model
        is_small = model.num_rows * model.observations.num_atoms <= exact.EXACT_POINTS
        is_usual = model.bound_name == "tight" and not model.learns_inducing
        return is_small and is_usual and not self.is_given and self.budget.max_iterations > 0

    def run(self, moves: bool) -> Outcome:
        """Double the number of inducing variables until it suffices, or the budget is used up."""
        model, budget = self.model, self.budget
        most, wanted = _most(model), self.num_inducing or budget.max_inducing
        limit = min(wanted or (most if self.has_exact else USUAL_MOST), most)
        if budget.max_iterations > 0:
            learned = [each for each in model.parameters() if each is not model.raw_inducing]
            start = values_of(learned)
            warm_up(model, budget.max_iterations, self.generator, self.journal, budget.is_over, self.reporter)
            if self.is_given and self._is_worse_than_noise(limit):
                # exact evidence led to rapid changes that so few inducing variables cannot follow
                assign(learned, start)
        count = limit
        if not self.is_given:
            chosen = model.choose(min(FIRST, limit), self.selection, self.generator, self.tolerance / 2)
            count = max(len(chosen.inducing), min(LEAST, limit))
        while not self.stopped:
            if self.has_exact and not self.holds and count >= EXACT_SHARE * model.num_rows:
                self._learn_exactly()
            is_complete = self._stage(count)
            # the gain of a stage that was cut short is not informative
            self.stopped = self.stopped or self._reason(count, limit, is_complete)
            count = min(2 * count, limit)
        if self.stopped == "max_inducing" and moves and not self.is_many and model.free_inducing():
            # More would help, but are not allowed: learn where to put those that there are.
            self.stopped = ""
            self._maximize(model, budget.max_iterations, self._worth)
            self.stopped = self.stopped or "max_inducing"
            self._note_stage()
        last = self.stages[-1]
        certificate = Certificate(
            last.lower,
            last.upper,
            last.num_inducing,
            model.num_rows,
            self.tolerance,
            self.stopped,
            self.stages,
        )
        return Outcome(certificate, self.history, self.converged)

    @torch.no_grad()
    def _is_worse_than_noise(self, count: int) -> bool:
        """Whether targets without any function have far more evidence than the bound by so many variables."""
        model = self.model
        chosen = model.choose(count, self.selection, torch.Generator(self.generator.device).manual_seed(0))
        model.place_inducing(chosen.inducing)
        rows = model.observations
        means = [model.process.mean(block) for _, block in atoms_in_blocks(rows.functional, rows.x)]
        residual = rows.targets - torch.cat(means)[:, None]
        weight = rows.weights()[:, None]
        variance = (weight * residual.square()).mean()
        log_weight = 0.5 * residual.shape[1] * weight.log().sum()
        noise = log_weight - 0.5 * residual.numel() * (1 + math.log(2 * math.pi * float(variance)))
        return float(model.bound()) < float(noise) - FAR * residual.numel()

    def _reason(self, count: int, limit: int, is_complete: bool) -> str:
        """Why the search ends after a stage; empty if it continues."""
        if self.is_given:
            return "fixed"
        last, nats = self.stages[-1], self.tolerance * self.model.num_rows
        is_narrow = last.upper - last.lower <= nats
        if self.holds and last.upper - last.lower <= HELD_SHARE * nats:
            return "gap"
        if not self.holds and len(self.stages) > 1 and last.lower - self.stages[-2].lower <= nats:
            # A narrow bracket does not suffice: learning prefers hyperparameters that need few variables.
            return "gap" if is_narrow else "gain"
        if self.budget.is_over():
            return "time_limit"
        if count >= _most(self.model) or (is_complete and (self.holds or len(self.stages) > 1)):
            return "gap" if is_narrow else "complete"
        return "max_inducing" if count >= limit else ""

    def _stage(self, count: int) -> bool:
        """Choose, learn, choose again, continue to learn; True if no candidates are left."""
        if self.holds:
            is_complete = self._place(count, keep=False)
            self._note_stage()
            return is_complete
        is_complete, most = False, self.budget.max_iterations
        announce(self.reporter, Phase("learning", most, count**2, num_inducing=count))
        # The first turn only finds the hyperparameters for the second choice. Points that are learned need no
        # second choice, which would cost L-BFGS its memory.
        first = 0 if self.model.learns_inducing else most // 3
        for turn, share in enumerate([first, most - first] if first else [most]):
            is_complete = self._place(count, keep=turn > 0)
            if self.is_many and share > 0:
                self._learn_from_some(share, is_last=turn > 0 or not first)
            else:
                self._maximize(self.model, share, 0.0 if self.is_given else self._worth)
            if self.stopped:
                self.converged = False
                break
        self._note_stage()
        return is_complete

    @property
    def is_many(self) -> bool:
        """Whether there are so many rows that hyperparameters are learned from some of them."""
        return self.model.num_rows > MANY_ROWS and self.model.bound_name != "cg"

    def _some(self) -> SparseModel:
        """The model of some of the rows, with the present inducing variables; kernel and noise are shared."""
        model, rows = self.model, self.model.observations
        count = max(LEARN_ROWS, ROWS_PER_INDUCING * model.num_inducing)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:count]
        held = model.held_inducing()
        if model.domain == "f":
            order = torch.cat([held.cpu(), order[~torch.isin(order, held.cpu())]])
            held = torch.arange(len(held), device=held.device)
        part = replace(rows.take(order.to(rows.x.device)), processes=rows.processes)
        settings = (model.bound_name, model.domain, model.learns_inducing)
        some = SparseModel(model.process, part, model.likelihood, *settings)
        some.place_inducing(held)
        return some

    def _learn_from_some(self, max_iterations: int, is_last: bool) -> None:
        """Learn from some of the rows, and in the end take a few steps with all, by the curvature found.

        The best values for n of N rows lose about ½ p N/n nats of all, with p of them: next to nothing.
        """
        some = self._some()
        share = self.model.num_rows / some.num_rows
        self._maximize(some, max_iterations, self._worth / share, share)
        if self.model.domain == "g" and some.learns_inducing:
            self.model.place_inducing(some.held_inducing())
        learned = [each for each in self.model.parameters() if each.requires_grad]
        if self.stopped or not is_last or sum(each.numel() for each in learned) > MOST_DENSE:
            return
        converged = self.converged
        curvature = share * curvature_of(some, learned, DIFFERENCE)
        self._maximize(self.model, min(FEW, max_iterations), self._worth, curvature=curvature)
        self.converged = self.converged or converged

    def _note_stage(self) -> None:
        bracket = self.model.bracket()
        seconds, iterations = self.budget.seconds, len(self.history)
        self.stages.append(Stage(self.model.num_inducing, *bracket, seconds, iterations))

    @property
    def _worth(self) -> float:
        """Nats that are not worth further iterations."""
        return SHARE * self.tolerance * self.model.num_rows

    def _learn_exactly(self) -> None:
        """Learn hyperparameters by the exact evidence of all rows, and hold them from now on."""
        announce(self.reporter, Phase("learning from all rows", self.budget.max_iterations))
        objective = _exact_evidence(self.model, self.model.observations)
        self._maximize(objective, self.budget.max_iterations, min(LITTLE, self._worth))
        self.holds = True

    def _maximize(
        self,
        objective: nn.Module | exact.ExactEvidence,
        max_iterations: int,
        worth: float,
        share: float = 1.0,
        curvature: NDArray[np.float64] | None = None,
    ) -> None:
        """Run L-BFGS, until a few iterations gain less than is worth it, and record how it ended.

        With a `share`, the objective is that of one in so many rows; a `curvature` takes the place of L-BFGS.
        """
        has_settled = False

        def settled(values: list[float]) -> bool:
            nonlocal has_settled
            self.history.append(share * values[-1])
            self.reporter(len(self.history), share * values[-1])
            has_settled = worth > 0 and gained_little(values, worth)
            return has_settled

        own = objective if isinstance(objective, nn.Module) else self.model
        training = maximize(
            objective,
            list(own.parameters()),
            max_iterations,
            stop=settled if curvature is None else None,
            memory=MEMORY,
            # conjugate gradients start where the last evaluation ended, so a replay cannot leave theirs out
            journal=None if self.model.bound_name == "cg" else self.journal,
            is_over=self.budget.is_over,
            curvature=curvature,
            tolerance=worth,
            processes=self.reporter.processes,
        )
        self.converged = has_settled or training.has_settled
        reasons = {INTERRUPTED: "interrupted", TIME_IS_OVER: "time_limit"}
        self.stopped = reasons.get(training.message, "")

    def _place(self, count: int, keep: bool) -> bool:
        """Choose inducing variables; with `keep`, the old ones stay if they give a better bound."""
        model, chosen = self.model, self.model.choose(count, self.selection, self.generator)
        if not keep:
            model.place_inducing(chosen.inducing)
            return chosen.is_complete
        held = model.held_inducing()
        with torch.no_grad():
            before = (self._some() if self.is_many else model).bound()
            model.place_inducing(chosen.inducing)
            if not bool((self._some() if self.is_many else model).bound() > before):
                model.place_inducing(held)
        return chosen.is_complete


def _shifted(bracket: Certificate | Stage, nats: float) -> dict[str, float]:
    """Both bounds in other units, widened by the rounding errors of the constant and the sums."""
    below, above = (
        4 * sys.float_info.epsilon * (abs(nats) + abs(end)) for end in (bracket.lower, bracket.upper)
    )
    return {"lower": bracket.lower + nats - below, "upper": bracket.upper + nats + above}


def _most(model: SparseModel) -> int:
    """The most useful inducing variables: one per row for values of f, or one per atom for points of g."""
    return model.num_rows * (1 if model.domain == "f" else model.observations.num_atoms)
