"""The search for the ranges of an orbit: several starts on few nodes, then refined while the nodes double.

On few nodes the evidence is that of another model, so ranges are believed only when other nodes would not
have moved them (METHOD 11). The search screens starts of natural size on few nodes, then doubles the nodes,
each time trying again what had become zero. It ends where the last doubling gained next to nothing and other
nodes find the same ranges, at the most nodes, or when time is over. In the end the ranges are learned again
on other nodes, half as many: how far they move is the error that the choice of nodes leaves.
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

OTHERS = 3
"""Sets of other nodes on which the answer is tried, and learned again."""

AGAIN = 12
"""Evaluations that may be taken to learn the ranges again on other nodes."""

MOST_DENSE = 30
"""Coordinates up to which curvature is a matrix of differences; L-BFGS serves more."""

ROUGHLY, FINELY = 1.0, 0.2
"""Nats that may be left to gain on few nodes, and in the end."""

DOUBLING, PER_ROW = 0.02, 0.06
"""Nats a row that the last doubling of the nodes may have gained where no more nodes are needed, and by which
the evidence may differ on other nodes where the answer counts as converged."""

HALF_AS_MANY = 0.5
"""The variance that the choice of nodes leaves, in parts of that of half as many: at worst the law of plain
draws."""

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
    """How far learning again on other nodes moved the coordinates."""
    gain: float = math.inf
    """What the last doubling of the nodes gained."""

    def is_converged(self, num_rows: int) -> bool:
        """Whether the ascent settled, and the evidence at its end is about the same on other nodes."""
        apart = max((abs(other - self.value) for other in self.others), default=math.inf)
        return self.has_settled and apart <= PER_ROW * num_rows

    @property
    def node_variance(self) -> Vector:
        """The variance of the coordinates that the choice of nodes leaves."""
        if not self.shifts:
            return np.zeros_like(self.point)
        return HALF_AS_MANY * np.mean(np.square(self.shifts), axis=0)

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

    def run(self) -> Found:
        """Search, and leave the parameters at the answer."""
        given = self.coordinates.point()
        found: Found | None = None
        nodes, message, interrupted = min(FIRST_NODES, self.max_nodes), "", False
        try:
            summits = self._screen(nodes, given)
            while True:
                is_last = nodes >= self.max_nodes
                found = self._judged(found, max(summits, key=lambda each: each.value), nodes)
                if is_last or (self._is_answer(found) and not self.is_given):
                    message = "the most nodes were used" if is_last else "other nodes agree"
                    break
                nodes = min(2 * nodes, self.max_nodes)
                summits = self._refine(summits, found, nodes)
        except (_OverError, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            message = "interrupted" if interrupted else "time is over"
            if self._best is not None and (found is None or self._best[2] != found.num_nodes):
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
        if not found.shifts or not found.is_converged(self.num_rows):
            return False
        moved = np.sqrt(found.node_variance)
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

    def _refine(self, summits: Sequence[Summit], found: Found, nodes: int) -> list[Summit]:
        """The best of the summits on more nodes, at first all of them; what is zero is tried again."""
        objective = self._objective(nodes)
        followed = summits if found.num_nodes == FIRST_NODES else summits[:1]
        refined, begun, count = [], time.monotonic(), self._count
        for summit in followed:
            start = self._lifted(summit.point)
            tolerance = FINELY if nodes >= self.max_nodes else ROUGHLY / 2
            refined.append(self._climb(objective, start, None, found.curvature, tolerance))
        refined.sort(key=lambda each: -each.value)
        self._record(nodes, [each.value for each in refined], count, begun)
        return refined

    def finished(self, found: Found) -> Found:
        """The answer, climbed to the last bit of a nat on its own nodes; the parameters are left there."""
        if not self.is_dense:
            return found
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
        most: int | None = None,
    ) -> Summit:
        box, most = self.coordinates.box, self.max_evaluations if most is None else most
        if not self.is_dense:
            return _climb_many(objective, start, self.coordinates, most, tolerance)
        begin = objective(start) if begin is None else begin
        if curvature is None:
            curvature = curvature_at(objective, start, box, begin[1])
        return climb(objective, start, box, curvature, most, tolerance, begin)

    def _judged(self, before: Found | None, summit: Summit, nodes: int) -> Found:
        """The summit with its curvature, and where it may be the answer with what other nodes say of it."""
        found = self._found(summit.point, nodes, summit.value, summit.has_settled, summit.gradient)
        found.gain = math.inf if before is None else summit.value - before.value
        found.curvature = summit.curvature if self.is_dense else None
        may_end = nodes >= self.max_nodes or found.gain <= DOUBLING * self.num_rows
        if may_end:
            found = self.finished(found)
            trials = [self._objective(nodes, 1 + other, sloped=False) for other in range(OTHERS)]
            found.others = [trial(found.point)[0] for trial in trials]
        if not self.is_dense:
            return found
        # a curvature on half the nodes costs a quarter, and is near enough
        few = nodes if nodes <= 2 * FIRST_NODES else nodes // 2
        curvature = curvature_at(self._objective(few), self._lifted(found.point), self.coordinates.box)
        found.curvature = made_positive(curvature)
        if may_end:
            for other in range(1, 1 + OTHERS):
                objective = self._objective(max(2, nodes // 2), other)
                again = self._climb(objective, found.point, None, found.curvature, ROUGHLY, AGAIN)
                found.shifts.append(again.point - found.point)
        return found

    def _record(self, nodes: int, values: Sequence[float], count: int, begun: float) -> None:
        seconds = time.monotonic() - begun
        self.stages.append(Stage(nodes, tuple(values), self._count - count, seconds))

    def _objective(self, nodes: int, scramble: int = 0, sloped: bool = True) -> Objective:
        """The objective by the coordinates, its evaluations counted and kept in the journal.

        Without `sloped` its gradient is not computed, and zero.
        """
        frozen = self.at_nodes(nodes, scramble)
        if self.journal is not None:
            self.journal.begin()
        highest = -math.inf

        def evaluate(point: Vector) -> tuple[float, Vector]:
            nonlocal highest
            kept = None if self.journal is None else self.journal.recall(point)
            if kept is None:
                self._stop_in_time()
                kept = self._evaluation(frozen, point, sloped)
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

    def _evaluation(self, frozen: Callable[[], Tensor], point: Vector, sloped: bool) -> Evaluation:
        self.coordinates.put(point)
        parameters = self.coordinates.parameters
        slopes: Any = [None] * len(parameters)
        try:
            with torch.set_grad_enabled(sloped):
                value = frozen()
            if sloped:
                slopes = torch.autograd.grad(value, parameters, allow_unused=True)
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
