"""Greedy search over structures (after Duvenaud et al. 2013), with invariances among the steps.

All base kernels are fitted, then the best is grown: every neighbour is fitted for a few iterations from where
its parent stands, the most promising ones to the end from several starts, and the best becomes the next
parent while its score rises. At the end everything that the score does not need is taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
from joblib import Parallel, delayed

from orbitwise.kernels.spelling import Term
from orbitwise.selection.search.fitting import (
    Fitted,
    HypothesisModel,
    SearchProblem,
    anew,
    beside_a_line,
    fit,
    fresh,
    grown,
)
from orbitwise.selection.search.hypotheses import Claim, Hypothesis, claimed, neighbours, simplifications

Report = Callable[[str], None]
Option = tuple[Hypothesis, Callable[[], list[Hypothesis]]]
"""A hypothesis and its starts, which are made when it is known to be new."""
STEP_COST = 3.0
"""What a base kernel or a claim must gain to be believed: it is one of about twenty that were possible, and
log 20 is about 3 nats."""


@final
@dataclass(frozen=True)
class Effort:
    """How hard a search tries."""

    max_depth: int = 3
    screen_iterations: int = 15
    max_iterations: int = 150
    num_promising: int = 3
    num_restarts: int = 2
    n_jobs: int | None = None
    seed: int = 0


@final
@dataclass
class Search:
    """The state of a search: what was tried, and the best so far."""

    problem: SearchProblem
    bases: Sequence[Term]
    claims: Sequence[Claim]
    effort: Effort
    report: Report
    tried: dict[Any, Fitted] = field(default_factory=dict)
    screened: dict[Any, Fitted] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0

    def run(self) -> Fitted:
        """The best structure that was found."""
        x, y = self.problem.x, self.problem.y
        singles = [Hypothesis(base) for base in self.bases]
        best = self._advance([(each, partial(anew, each, None, x, y)) for each in singles], None)
        if best is None:
            raise TimeoutError(
                "The time limit passed before one kernel was fitted: allow more time, or fewer rows."
            )
        if self.claims:
            leaders = sorted(self.tried.values(), key=lambda each: -each.score)[:2]
            options = [one for each in leaders for one in claimed(each.hypothesis, self.claims)]
            best = _better_of(self._advance(self._started(options, y), best), best)
        return self.grow(best)

    def grow(self, best: Fitted) -> Fitted:
        """The best structure that can be reached from one that is fitted."""
        for _ in range(self.effort.max_depth):
            if self.problem.is_over():
                return best
            left = HypothesisModel(best.hypothesis, self.problem).residuals()
            options = neighbours(best.hypothesis, self.bases, self.claims)
            better = self._advance(self._started(options, left), best)
            if _better_of(better, best) is best:
                break
            best = _better_of(better, best)
        return self._simplified(best)

    def _simplified(self, best: Fitted) -> Fitted:
        """The structure without the parts that it does not need, and with those that serve better."""
        while not self.problem.is_over():
            # A smaller structure may have been tried before, but not from here.
            options = [(each, None) for each in simplifications(best.hypothesis)]
            smaller = self._started(options, self.problem.y)
            better = self._advance(smaller, best, again=True) if smaller else None
            if _better_of(better, best) is best:
                left = HypothesisModel(best.hypothesis, self.problem).residuals()
                options = neighbours(best.hypothesis, self.bases, self.claims, grows=False)
                better = self._advance(self._started(options, left), best)
            if _better_of(better, best) is best:
                return best
            best = _better_of(better, best)
        return best

    def _advance(
        self,
        options: Sequence[Option],
        best: Fitted | None,
        again: bool = False,
    ) -> Fitted | None:
        """The best of new hypotheses, given with their starts: all screened, the promising fitted in full."""
        new: dict[Any, list[Hypothesis]] = {}
        for hypothesis, starts in options:
            if (again or hypothesis.key not in self.tried) and not self.problem.is_over():
                new.setdefault(hypothesis.key, []).extend(starts())
        self.step += 1
        screened = self._fit_all(list(new.values()), self.effort.screen_iterations, "screened")
        for key, found in zip(new, screened, strict=True):
            if found is not None:
                self.screened[key] = found
        ranked = sorted(
            (key for key in new if key in self.screened), key=lambda key: -self.screened[key].score
        )
        promising = ranked[: self.effort.num_promising] if best is not None else ranked
        starts = [[self.screened[key].hypothesis, *self._restarts(key)] for key in promising]
        finished = self._fit_all(starts, self.effort.max_iterations, "fitted")
        for key, found in zip(promising, finished, strict=True):
            if found is not None and (key not in self.tried or found.score > self.tried[key].score):
                self.tried[key] = found
        known = [self.tried[key] for key in promising if key in self.tried]
        # where time ran out between the two rounds, the first one counts
        known = known or [self.screened[key] for key in ranked[:1]]
        return max(known, key=lambda each: each.score - STEP_COST * each.hypothesis.size, default=None)

    def _started(self, options: Iterable[tuple[Hypothesis, Term | None]], left: np.ndarray) -> list[Option]:
        """Hypotheses, given with what is new in them, with a way to make their starts."""
        return [(one, partial(self._starts, one, new, left)) for one, new in options]

    def _starts(self, hypothesis: Hypothesis, new: Term | None, left: np.ndarray) -> list[Hypothesis]:
        """From what the parent knows, and from the data, for the new term may be hidden in what it knows."""
        x, y = self.problem.x, self.problem.y
        lines = []
        if new is not None and new.name == "linear":
            lines = beside_a_line(hypothesis, new, x, y)
        return [*grown(hypothesis, new, x, y, left), *lines, *anew(hypothesis, new, x, y)]

    def _restarts(self, key: Any) -> list[Hypothesis]:
        hypothesis, x, y = self.screened[key].hypothesis, self.problem.x, self.problem.y
        seeds = [None, *(self.effort.seed + 7919 * number for number in range(1, self.effort.num_restarts))]
        return [fresh(hypothesis, x, y, seed) for seed in seeds[: self.effort.num_restarts]]

    def _fit_all(
        self, starts: Sequence[Sequence[Hypothesis]], iterations: int, stage: str
    ) -> list[Fitted | None]:
        found: list[Fitted | None] = []
        if self.effort.n_jobs in (None, 1):
            for each in starts:
                found.append(fit(each, self.problem, iterations))
                self._record(found[-1], stage)
        else:
            results: Any = Parallel(n_jobs=self.effort.n_jobs, return_as="generator")(
                delayed(fit)(each, self.problem, iterations) for each in starts
            )
            for each in results:
                found.append(each)
                self._record(each, stage)
        return found

    def _record(self, found: Fitted | None, stage: str) -> None:
        if found is None:
            return
        self.history.append(
            {
                "step": self.step,
                "stage": stage,
                "structure": str(found.hypothesis),
                "score": found.score,
                "log_likelihood": found.log_likelihood,
                "num_parameters": found.num_parameters,
                "seconds": found.seconds,
            }
        )
        best = max(row["score"] for row in self.history)
        left = self.problem.seconds_left()
        remaining = "" if math.isinf(left) else f", {max(left, 0):.0f} s left"
        self.report(
            f"step {self.step}: {len(self.history)} fits, best {best:,.1f}{remaining}: {found.hypothesis}"
        )


def _better_of(one: Fitted | None, best: Fitted) -> Fitted:
    """The better of two, every base kernel and every claim counted at its cost."""
    if (
        one is None
        or one.score - STEP_COST * one.hypothesis.size <= best.score - STEP_COST * best.hypothesis.size
    ):
        return best
    return one


def silent(_: str) -> None:
    """Report nothing."""


def chosen_rows(count: int, most: int, seed: int) -> np.ndarray:
    """The rows that a search looks at: all, or a random subset in the order of the data."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
