"""The search for the ranges of an orbit: several starts on few nodes, then refined while the nodes double.

On few nodes the evidence is that of another model, so ranges are believed only when other nodes would not
have moved them (METHOD 11). The search screens starts of natural size on few nodes, then doubles the nodes,
each time trying again what had become zero. It ends where other nodes of the same number promise next to
nothing and the last doubling gained next to nothing, at the most nodes, or when time is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from orbitwise.inference.ascent import (
    Objective,
    Summit,
    Vector,
    best_step,
    climb,
    curvature_at,
    made_positive,
)
from orbitwise.inference.coordinates import RETRIED, Coordinates
from orbitwise.inference.journal import Evaluation, Journal

FIRST_NODES = 16
"""Fewer decide nothing in the six dimensions of an affine map."""

FACTORS = (1.0, 0.5, 2.0)
"""The starts: all ranges natural, all half as wide, all twice as wide."""

OTHERS = 2
"""Sets of other nodes on which the answer is tried."""

MOST_DENSE = 30
"""Coordinates up to which curvature is a matrix of differences; L-BFGS serves more."""

ROUGHLY, FINELY = 1.0, 0.1
"""Nats that may be left to gain on few nodes, and on the most."""

PER_ROW = 0.02
"""Nats a row that the evidence may still gain on other nodes where the answer counts as converged."""

AtNodes = Callable[[int, int], Callable[[], Tensor]]
"""The objective on so many nodes, of the scramble of this number."""

Callback = Callable[[int, float], None]


class _OverError(Exception):
    """Time is over, or Ctrl-C was pressed."""


@final
@dataclass(frozen=True)
class Stage:
    """What was tried on one number of nodes: the best of every start, and what it cost."""

    num_nodes: int
    values: tuple[float, ...]
    evaluations: int
    seconds: float


@final
@dataclass
class Found:
    """The answer of a search: where, how good, and what other nodes say of it."""

    point: Vector
    num_nodes: int
    value: float
    message: str
    stages: list[Stage]
    history: list[float]
    has_settled: bool
    gradient: Vector
    curvature: NDArray[np.float64] | None = None
    """The Hessian of minus the objective, made positive."""
    others: list[float] = field(default_factory=list)
    """The objective on other sets of as many nodes."""
    shifts: list[Vector] = field(default_factory=list)
    """How far other nodes would move the coordinates."""
    regret: float = math.inf
    """What other nodes promise to gain."""
    gain: float = math.inf
    """What the last doubling of the nodes gained."""

    def is_converged(self, num_rows: int) -> bool:
        """Whether the ascent settled, and other nodes promise next to nothing."""
        return self.has_settled and self.regret <= PER_ROW * num_rows

    @property
    def node_error(self) -> float:
        """How far the objective on any other nodes may be away: the spread over sets, and the last gain."""
        spread = [other - self.value for other in self.others]
        doubling = self.gain if math.isfinite(self.gain) else 0.0
        return math.hypot(np.sqrt(np.mean(np.square(spread))) if spread else 0.0, doubling)


@final
class OrbitSearch:
    """A search over the coordinates of a model whose objective can be had on any number of nodes.

    Nodes double up to `max_nodes`; with `is_given` these are always reached. `max_evaluations` are those of
    one ascent, and `max_seconds` those of all, after which the best so far is kept.
    """

    def __init__(
        self,
        at_nodes: AtNodes,
        coordinates: Coordinates,
        num_rows: int,
        max_nodes: int,
        max_evaluations: int = 40,
        max_seconds: float | None = None,
        callback: Callback | None = None,
        journal: Journal | None = None,
        is_given: bool = False,
    ) -> None:
        self.at_nodes, self.coordinates, self.num_rows = at_nodes, coordinates, num_rows
        self.max_nodes, self.max_evaluations = max_nodes, max_evaluations
        self.max_seconds, self.callback, self.journal = max_seconds, callback, journal
        self.is_given = is_given
        self.is_dense = len(coordinates) <= MOST_DENSE
        self.history: list[float] = []
        self.stages: list[Stage] = []
        self._start = time.monotonic()
        self._count = 0
        self._best: tuple[Vector, float, int] | None = None
        self._failure = ""

    def run(self, is_resumed: bool = False) -> Found:
        """Search, and leave the parameters at the answer.

        With `is_resumed` nothing is screened: the search goes on from the present parameters, on the most
        nodes, and keeps them where it finds nothing better.
        """
        given = self.coordinates.point()
        found: Found | None = None
        nodes, message, interrupted = min(FIRST_NODES, self.max_nodes), "", False
        nodes = self.max_nodes if is_resumed else nodes
        try:
            summits = self._resume(nodes, given) if is_resumed else self._screen(nodes, given)
            while True:
                is_last = nodes >= self.max_nodes
                found = self._judged(found, max(summits, key=lambda each: each.value), nodes)
                if is_last or (self._is_answer(found) and not self.is_given):
                    message = "the most nodes were used" if is_last else "other nodes agree"
                    found = self.finished(found)
                    break
                nodes = min(2 * nodes, self.max_nodes)
                summits = self._refine(summits, found, nodes)
        except (_OverError, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            message = "interrupted" if interrupted else "time is over"
            # what was tried on fewer nodes than the answer has, for a curvature, is no answer
            if self._best is not None and (found is None or self._best[2] > found.num_nodes):
                point, value, on = self._best
                found = self._found(point, on, value, False, np.zeros_like(point))
        finally:
            if self.journal is not None:
                self.journal.sync()
        if found is None:
            self.coordinates.assign(given)
            raise KeyboardInterrupt if interrupted else ValueError(self._trouble)
        found.message = message
        self.coordinates.assign(found.point)
        return found

    def _found(self, point: Vector, nodes: int, value: float, settled: bool, gradient: Vector) -> Found:
        return Found(point, nodes, value, "", self.stages, self.history, settled, gradient)

    @property
    def _trouble(self) -> str:
        return f"The objective could not be computed at any start: {self._failure}"

    def _is_answer(self, found: Found) -> bool:
        """Whether neither other nodes nor more of them would move evidence or ranges noticeably."""
        if not found.is_converged(self.num_rows) or found.gain > PER_ROW * self.num_rows:
            return False
        moved = np.sqrt(np.mean(np.square(found.shifts), axis=0))
        # no further than the data leave open anyway
        errors = np.sqrt(np.diag(covariance_of(found, self.coordinates)))
        known = np.maximum(errors, 0.1 * np.maximum(found.point, RETRIED))
        return bool((moved <= known)[self.coordinates.is_width].all())

    def _screen(self, nodes: int, given: Vector) -> list[Summit]:
        """The best two of several starts on few nodes."""
        is_width, box = self.coordinates.is_width, self.coordinates.box
        starts = [np.where(is_width, factor**2, given) for factor in FACTORS]
        if not any(np.allclose(given, start, rtol=0.1) for start in starts):
            starts.insert(0, np.where(is_width, np.maximum(given, RETRIED), given))
        starts = starts if is_width.any() else [given]
        objective = self._objective(nodes)
        summits, begun, count = [], time.monotonic(), self._count
        for start in starts:
            start = box.clip(start)
            value, gradient = objective(start)
            if not np.isfinite(value):
                continue
            summits.append(self._climb(objective, start, (value, gradient), None, ROUGHLY))
        if not summits:
            raise ValueError(self._trouble)
        summits.sort(key=lambda each: -each.value)
        self._record(nodes, [each.value for each in summits], count, begun)
        first, *rest = summits
        # a second start is followed where it leads elsewhere
        others = [each for each in rest if not np.allclose(each.point, first.point, rtol=0.2, atol=0.2)]
        return [first, *others[:1]]

    def _resume(self, nodes: int, given: Vector) -> list[Summit]:
        """The given point, and where an ascent leads that tries again what is zero there."""
        objective = self._objective(nodes)
        begun, count, given = time.monotonic(), self._count, self.coordinates.box.clip(given)
        summits = [Summit(given, *objective(given), np.zeros((0, 0)), math.inf, False, ())]
        if self.max_evaluations > 0:
            start = self._lifted(given)
            curvature = self._curvature(start, nodes) if self.is_dense else None
            summits.append(self._climb(objective, start, None, curvature, ROUGHLY))
        self._record(nodes, [each.value for each in summits], count, begun)
        return summits

    def _refine(self, summits: Sequence[Summit], found: Found, nodes: int) -> list[Summit]:
        """The best of the summits on more nodes, at first all of them; what is zero is tried again."""
        objective = self._objective(nodes)
        followed = summits if found.num_nodes == FIRST_NODES else summits[:1]
        refined, begun, count = [], time.monotonic(), self._count
        for summit in followed:
            start = self._lifted(summit.point)
            refined.append(self._climb(objective, start, None, found.curvature, ROUGHLY / 2))
        refined.sort(key=lambda each: -each.value)
        self._record(nodes, [each.value for each in refined], count, begun)
        return refined

    def finished(self, found: Found) -> Found:
        """The answer, climbed to the last tenth of a nat on its own nodes; the parameters are left there."""
        objective = self._objective(found.num_nodes)
        begin = found.value, found.gradient
        summit = self._climb(objective, found.point, begin, found.curvature, FINELY)
        found.point, found.value, found.gradient = summit.point, summit.value, summit.gradient
        found.has_settled = summit.has_settled
        self.coordinates.assign(found.point)
        return found

    def _lifted(self, point: Vector) -> Vector:
        """The point with ranges that are zero a little wider, where they have a curvature."""
        return np.where(self.coordinates.is_width, np.maximum(point, RETRIED), point)

    def _climb(
        self,
        objective: Objective,
        start: Vector,
        begin: tuple[float, Vector] | None,
        curvature: NDArray[np.float64] | None,
        tolerance: float,
    ) -> Summit:
        box = self.coordinates.box
        if not self.is_dense:
            return _climb_many(objective, start, self.coordinates, self.max_evaluations, tolerance)
        begin = objective(start) if begin is None else begin
        if curvature is None:
            curvature = curvature_at(objective, start, box, begin[1])
        return climb(objective, start, box, curvature, self.max_evaluations, tolerance, begin)

    def _judged(self, before: Found | None, summit: Summit, nodes: int) -> Found:
        """The summit with what other nodes of the same number say of it."""
        found = self._found(summit.point, nodes, summit.value, summit.has_settled, summit.gradient)
        found.gain = math.inf if before is None else summit.value - before.value
        if not self.is_dense:
            return found
        found.curvature = made_positive(self._curvature(self._lifted(summit.point), nodes))
        for other in range(1, 1 + OTHERS):
            value, gradient = self._objective(nodes, other)(summit.point)
            step, gain = best_step(summit.point, gradient, found.curvature, self.coordinates.box, 1.0)
            found.others.append(value)
            found.shifts.append(step)
            found.regret = gain / OTHERS + (found.regret if other > 1 else 0.0)
        return found

    def _curvature(self, point: Vector, nodes: int) -> NDArray[np.float64]:
        """On half the nodes, which costs a quarter and is near enough."""
        few = nodes if nodes <= 2 * FIRST_NODES else nodes // 2
        return curvature_at(self._objective(few), point, self.coordinates.box)

    def _record(self, nodes: int, values: Sequence[float], count: int, begun: float) -> None:
        seconds = time.monotonic() - begun
        self.stages.append(Stage(nodes, tuple(values), self._count - count, seconds))

    def _objective(self, nodes: int, scramble: int = 0) -> Objective:
        """The objective by the coordinates, its evaluations counted and kept in the journal."""
        frozen = self.at_nodes(nodes, scramble)
        if self.journal is not None:
            self.journal.begin()
        highest = -math.inf

        def evaluate(point: Vector) -> tuple[float, Vector]:
            nonlocal highest
            kept = None if self.journal is None else self.journal.recall(point)
            if kept is None:
                self._stop_in_time()
                kept = self._evaluation(frozen, point)
                if self.journal is not None:
                    self.journal.add(point, kept)
            if kept.failure:
                self._failure = kept.failure
                return -math.inf, np.zeros_like(point)
            self._count += 1
            highest = max(highest, kept.value)
            if scramble == 0:
                if kept.value == highest:
                    self._best = point.copy(), highest, nodes
                self.history.append(highest)
                if self.callback is not None:
                    self.callback(len(self.history), highest)
            return kept.value, kept.gradient

        return evaluate

    def _stop_in_time(self) -> None:
        is_over = self.max_seconds is not None and time.monotonic() - self._start > self.max_seconds
        if is_over and self._count > 0:
            raise _OverError

    def _evaluation(self, frozen: Callable[[], Tensor], point: Vector) -> Evaluation:
        self.coordinates.put(point)
        parameters = self.coordinates.parameters
        try:
            value = frozen()
            slopes: Any = torch.autograd.grad(value, parameters, allow_unused=True)
        except (ValueError, torch.linalg.LinAlgError) as error:  # pyright: ignore[reportPrivateImportUsage]
            return Evaluation(math.nan, np.zeros(0), str(error) or type(error).__name__)
        gradient = self.coordinates.gradient(dict(zip(parameters, slopes, strict=True)), point)
        number = float(value.detach())
        if not math.isfinite(number) or not np.isfinite(gradient).all():
            failure = f"it is {number} there, or its gradient is not finite. Scale inputs and targets to 1."
            return Evaluation(math.nan, np.zeros(0), failure)
        return Evaluation(number, gradient)


def _climb_many(
    objective: Objective, start: Vector, coordinates: Coordinates, max_evaluations: int, tolerance: float
) -> Summit:
    """L-BFGS-B, for many coordinates."""
    history: list[float] = []
    steepest = 1.0

    def negative(point: Vector) -> tuple[float, Vector]:
        nonlocal steepest
        value, gradient = objective(point)
        if not np.isfinite(value):
            return (-history[-1] if history else 0.0) + steepest, np.zeros_like(point)
        steepest = max(steepest, abs(value))
        history.append(max(value, history[-1] if history else value))
        return -value, -gradient

    ends = np.stack([coordinates.box.lower, coordinates.box.upper], axis=1)
    result = minimize(
        negative,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=ends,
        options={
            "maxfun": max_evaluations,
            "ftol": tolerance / max(1.0, abs(history[-1] if history else 1.0)) / 10,
        },
    )
    value, gradient = objective(np.asarray(result.x))
    return Summit(
        np.asarray(result.x),
        value,
        gradient,
        np.zeros((0, 0)),
        math.nan,
        bool(result.success),
        tuple(history),
    )


def covariance_of(found: Found, coordinates: Coordinates) -> NDArray[np.float64]:
    """The covariance of the coordinates by curvature; what is held at a bound does not vary."""
    if found.curvature is None:
        raise ValueError("There is no curvature: too many coordinates, or the search was cut short.")
    free = ~coordinates.box.held(found.point, found.gradient)
    covariance = np.zeros_like(found.curvature)
    covariance[np.ix_(free, free)] = np.linalg.inv(found.curvature[np.ix_(free, free)])
    return covariance
