"""The search for the ranges of an orbit: several starts on few nodes, then refined while the nodes double.

It works in `Coordinates` in which the evidence is easy to maximise, and also evaluates its answer on other
nodes (METHOD 11).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.inference.optimise.checkpoints import Evaluation, Journal
from orbitwise.inference.optimise.training import (
    TIME_IS_OVER,
    Box,
    Objective,
    Summit,
    TimeIsOverError,
    Vector,
    best_step,
    climb,
    climb_many,
    curvature_at,
    evaluate,
    positive_definite,
    recorded,
    why_cut_short,
)
from orbitwise.inference.optimise.watching import Callback, Phase, Reporter, announce
from orbitwise.orbits.orbit import ZERO, LearnedCentres, LearnedWidths

LEAST, NOTHING = 1e-6, 1e-5
"""The least squared width, where a slope can still be computed, and the one below which a range is set to
zero: a third of a per cent of its natural width moves nothing."""

FARTHEST = 14.0
"""How far the logarithm of a positive parameter may move: by a factor of 1,200,000 up or down."""

RETRIED = 0.05
"""The squared width at which a range that is zero is tried again: about a fifth of its natural width."""


@final
@dataclass(frozen=True)
class _Entries:
    """Some entries of one parameter, and how they are converted to coordinates.

    They are `widths` of ranges, `centres` of ranges, positive because of a `constraint`, or none of these.
    """

    parameter: nn.Parameter
    places: Tensor
    widths: LearnedWidths | None = None
    centres: LearnedCentres | None = None
    constraint: GreaterThan | None = None

    def from_raw(self, raw: Tensor) -> Tensor:
        """The coordinates of raw values."""
        if self.widths is not None:
            width = self.widths.width(raw)
            return (width / self.widths.natural).square() if self.widths.can_vanish else width.log()
        if self.centres is not None:
            return raw / self.centres.natural
        return raw if self.constraint is None else self._constrained(raw, self.constraint.transform).log()

    def to_raw(self, z: Tensor) -> Tensor:
        """The raw values at coordinates."""
        if self.widths is not None:
            return self.widths.raw(self.widths.natural * z.sqrt() if self.widths.can_vanish else z.exp())
        if self.centres is not None:
            return z * self.centres.natural
        return z if self.constraint is None else self._constrained(z.exp(), self.constraint.inverse_transform)

    def _constrained(self, values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The values transformed by a constraint, on its device and in the shape of the parameter."""
        shaped = values.reshape(self.parameter.shape).to(self.parameter.device)
        return change(shaped).double().cpu().reshape(-1)

    def ends(self, z: Tensor, least: float | None) -> tuple[Tensor, Tensor]:
        """The least and the greatest coordinates."""
        if self.widths is not None and self.widths.can_vanish:
            most = (self.widths.largest / self.widths.natural).square()
            return torch.full_like(z, LEAST), torch.maximum(most, z)
        if self.widths is not None:
            return z - FARTHEST / 8, z + FARTHEST / 8
        if self.constraint is not None:
            floor = self.constraint.lower_bound.detach().double().cpu()
            floor = (torch.zeros(self.parameter.shape, dtype=torch.float64) + floor).reshape(-1)
            low = torch.where(floor > 0, floor.log() + 1e-6, -torch.inf)
            return torch.minimum(torch.maximum(z - FARTHEST, low), z), z + FARTHEST
        return torch.full_like(z, -torch.inf if least is None else least), torch.full_like(z, torch.inf)


@final
class Coordinates:
    """All learned parameters of modules as one vector z in which the evidence is easy to maximise, with
    bounds.

    Entries are (width/natural width)² of ranges that may vanish, logarithms of other widths and of positive
    parameters, centres in units of the natural width, and all else as it is. `floors` are the least values of
    raw parameters, where there are any.
    """

    def __init__(
        self, modules: Sequence[nn.Module], floors: Mapping[nn.Parameter, float] | None = None
    ) -> None:
        self._entries = list(_entries_of(modules))
        least = {id(parameter): value for parameter, value in (floors or {}).items()}
        ends = [each.ends(each.from_raw(_raw(each)), least.get(id(each.parameter))) for each in self._entries]
        self.box = Box(_joined([low for low, _ in ends]), _joined([high for _, high in ends]))

    def __len__(self) -> int:
        return sum(len(each.places) for each in self._entries)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters, each once."""
        return list(dict.fromkeys(each.parameter for each in self._entries))

    @property
    def is_width(self) -> NDArray[np.bool_]:
        """Which coordinates are squares of widths that may vanish."""
        vanishing = [each.widths is not None and each.widths.can_vanish for each in self._entries]
        return np.repeat(np.array(vanishing, dtype=bool), [len(each.places) for each in self._entries])

    def point(self) -> Vector:
        """The vector at the present parameters."""
        return _joined([each.from_raw(_raw(each)) for each in self._entries])

    @torch.no_grad()
    def assign(self, point: Vector, above_zero: bool = False) -> None:
        """Set the parameters from the vector; a width that is next to nothing becomes exactly zero.

        With `above_zero`, such a width stays just above zero, where the objective has a slope.
        """
        for each, z in zip(self._entries, self._split(point), strict=True):
            raw = each.to_raw(z)
            if not above_zero and each.widths is not None and each.widths.can_vanish:
                raw = torch.where(z < NOTHING, ZERO, raw)
            each.parameter.view(-1)[each.places.to(each.parameter.device)] = raw.to(each.parameter)

    def evaluate(self, objective: Callable[[], Tensor], point: Vector, sloped: bool = True) -> Evaluation:
        """An objective of the modules at a point, with its gradient by the coordinates if it is `sloped`."""
        self.assign(point, above_zero=True)
        parameters = self.parameters
        found = evaluate(objective, parameters, sloped)
        if found.failure:
            return found
        each = torch.from_numpy(found.gradient).split([parameter.numel() for parameter in parameters])
        slopes = dict(zip(parameters, each, strict=True))
        parts = []
        for entries in self._entries:
            free = _raw(entries).requires_grad_()
            # dL/dz = (dL/draw) / (dz/draw)
            (seen,) = torch.autograd.grad(entries.from_raw(free).sum(), free)
            slope = slopes[entries.parameter][entries.places]
            parts.append(torch.where(slope == 0, 0.0, slope / seen))
        gradient = _joined(parts)
        if not np.isfinite(gradient).all():
            return Evaluation.failed("its gradient is not finite. Scale inputs and targets to 1.")
        return Evaluation(found.value, gradient)

    def _split(self, point: Vector) -> Sequence[Tensor]:
        vector = torch.from_numpy(np.array(point, dtype=np.float64))
        return vector.split([len(each.places) for each in self._entries])


def _raw(entries: _Entries) -> Tensor:
    return entries.parameter.detach().double().cpu().reshape(-1)[entries.places]


def _joined(parts: Sequence[Tensor]) -> Vector:
    return torch.cat([*parts, torch.zeros(0, dtype=torch.float64)]).numpy()


def _entries_of(modules: Sequence[nn.Module]) -> Iterable[_Entries]:
    """Every learned parameter once, with what its module knows about it."""
    known: dict[int, list[_Entries]] = {}
    for module in dict.fromkeys(each for root in modules for each in root.modules()):
        for each in getattr(module, "learned_widths", list)():
            found = _Entries(each.parameter, each.places, widths=each)
            known.setdefault(id(each.parameter), []).append(found)
        for each in getattr(module, "learned_centres", list)():
            found = _Entries(each.parameter, each.places, centres=each)
            known.setdefault(id(each.parameter), []).append(found)
        if isinstance(module, Module):
            for name, parameter in module._parameters.items():
                constraint = module.constraint_for_parameter_name(name)
                if parameter is not None and isinstance(constraint, GreaterThan) and constraint.enforced:
                    every = torch.arange(parameter.numel())
                    known.setdefault(id(parameter), [_Entries(parameter, every, constraint=constraint)])
    for parameter in dict.fromkeys(each for root in modules for each in root.parameters()):
        if parameter.requires_grad:
            yield from known.get(id(parameter), [_Entries(parameter, torch.arange(parameter.numel()))])


PER_ROW = 0.1
"""Nats per row by which the evidence of a converged answer may differ on other nodes."""

HALF_AS_MANY = 0.5
"""The variance due to the choice of nodes, relative to that with half as many: for plain draws, the worst
case, it halves."""


@final
@dataclass(frozen=True)
class Stage:
    """The result of the search on one number of nodes: the best value of every start, and the cost."""

    num_nodes: int
    values: tuple[float, ...]
    evaluations: int
    seconds: float


@final
@dataclass
class SearchResult:
    """The result of a search: the best point, its value, and how much both depend on the choice of nodes.

    `value` and `gradient` are those of the objective at the `point`, on `num_nodes` nodes. `message` says why
    the search ended, and `has_settled` whether its last ascent settled. `stages` has one entry for each
    number of nodes, and `history` the best value after every evaluation.

    `curvature` is the Hessian of minus the objective, made positive definite. It is computed at the `centre`,
    which is the point with ranges of zero made a little wider; the gradient there is `slope`. All three are
    None for more than `MOST_DENSE` coordinates, or if the search was cut short.

    `others` are the values of the objective on other sets of as many nodes. `shifts` are the changes of the
    point when it is learned again on other sets of half as many nodes. `gain` is the gain in the objective
    from the last doubling of the nodes.
    """

    point: Vector
    num_nodes: int
    value: float
    message: str
    stages: list[Stage]
    history: list[float]
    has_settled: bool
    gradient: Vector
    curvature: NDArray[np.float64] | None = None
    centre: Vector | None = None
    slope: Vector | None = None
    others: list[float] = field(default_factory=list)
    shifts: list[Vector] = field(default_factory=list)
    gain: float = math.inf

    def is_converged(self, num_rows: int) -> bool:
        """Whether the ascent settled, and the evidence at its end is about the same on other nodes."""
        return self.has_settled and bool(self.others) and self.spread <= PER_ROW * num_rows

    @property
    def spread(self) -> float:
        """The root mean square difference of the objective on other nodes, 0 without any."""
        return math.sqrt(np.mean(np.square(np.subtract(self.others, self.value)))) if self.others else 0.0

    @property
    def node_variance(self) -> Vector:
        """The variance of the coordinates due to the choice of nodes."""
        if not self.shifts:
            return np.zeros_like(self.point)
        return HALF_AS_MANY * np.mean(np.square(self.shifts), axis=0)

    @property
    def node_error(self) -> float:
        """How much the objective may differ on other nodes: the spread over sets, and the last gain."""
        doubling = self.gain if math.isfinite(self.gain) else 0.0
        return math.hypot(self.spread, doubling)


def covariance_of(found: SearchResult, coordinates: Coordinates) -> NDArray[np.float64]:
    """The covariance of the coordinates, from the curvature; coordinates at a bound have variance zero."""
    if found.curvature is None:
        raise ValueError(
            "The curvature is unknown: there are too many coordinates, or the search was cut short."
        )
    free = ~coordinates.box.at_bound(found.point, found.gradient)
    covariance = np.zeros_like(found.curvature)
    covariance[np.ix_(free, free)] = np.linalg.inv(found.curvature[np.ix_(free, free)])
    return covariance


FIRST_NODES = 16
"""The first number of nodes: fewer do not resolve the six dimensions of an affine map."""

FACTORS = (1.0, 0.5, 2.0)
"""The starts: all ranges natural, all half as wide, all twice as wide."""

FARTHEST_FACTOR = 4.0
"""Ranges of random starts differ from their natural size by at most this factor."""

OTHERS = 3
"""Sets of other nodes on which the answer is evaluated, and learned again."""

AGAIN = 12
"""Evaluations allowed for learning the ranges again on other nodes."""

MOST_DENSE = 30
"""The most coordinates for which the Hessian is computed by differences; L-BFGS is used for more."""

ROUGHLY, FINELY = 0.004, 0.0007
"""Nats per row that an ascent may leave ungained: on few nodes, and on the last ones."""

DOUBLING = 0.02
"""If doubling the nodes gained no more nats per row than this, no more nodes are needed."""

USED_UP = "the iterations were used up"
"""The message of a search whose last ascent used up its evaluations."""

ON_FIRST, ON_SECOND, ON_MORE = 95, 35, 24
"""Evaluations that a search needs on its first nodes, on twice as many, and on each larger number."""

AtNodes = Callable[[int, int], Callable[[], Tensor]]
"""(number of nodes, number of the scramble) → the objective on these nodes."""


def phases_of_search(num_nodes: int) -> list[Phase]:
    """The phases of a search for ranges that ends on `num_nodes`.

    An evaluation on n nodes costs about n² (METHOD 11), so a search spends most of its time in its last one.
    """
    nodes, steps = [min(FIRST_NODES, num_nodes)], [ON_FIRST, ON_SECOND]
    while nodes[-1] < num_nodes:
        nodes.append(min(2 * nodes[-1], num_nodes))
        steps.append(ON_MORE)
    costs = [(each / nodes[0]) ** 2 for each in nodes]
    return [
        Phase("search for ranges", count, cost, num_nodes=each)
        for each, count, cost in zip(nodes, steps, costs, strict=False)
    ]


@final
@dataclass
class _Best:
    """The best point on one number of nodes, and the first value that was computed on them."""

    point: Vector
    value: float
    first: float


@final
@dataclass(eq=False)
class OrbitSearch:
    """A search over the coordinates of a model whose objective can be had on any number of nodes.

    The search begins with several starts on few nodes (`_screen`). The best two results are followed to twice
    as many nodes, and then the best one (`_refine`), until neither more nodes nor other nodes change the
    result (`_assess`, `_is_final`). For every number of nodes, ranges that are zero are tried again a little
    wider.

    `at_nodes(number, scramble)` is the objective on so many nodes, of one of several sets. Nodes double up to
    `max_nodes`; with `is_given`, this number is always reached. `max_evaluations` limits each ascent, and
    `max_seconds` the whole search, after which the best point so far is kept. `num_starts` random starts,
    drawn from the generator, are added to those of natural size. `callback` is called with the number of
    every evaluation of an ascent and the best value so far on its nodes.
    """

    at_nodes: AtNodes
    coordinates: Coordinates
    num_rows: int
    max_nodes: int
    max_evaluations: int = 40
    max_seconds: float | None = None
    callback: Callback | None = None
    journal: Journal | None = None
    is_given: bool = False
    num_starts: int = 0
    generator: torch.Generator | None = None
    history: list[float] = field(default_factory=list, init=False)
    stages: list[Stage] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.is_dense = len(self.coordinates) <= MOST_DENSE
        self._roughly, self._finely = ROUGHLY * self.num_rows, FINELY * self.num_rows
        self._start, self._count = time.monotonic(), 0
        self._bests: dict[int, _Best] = {}
        self._failure = ""
        self._result: SearchResult | None = None
        # the evaluations before the present number of nodes, and when it began
        self._stage_start = (0, self._start)

    def run(self, is_resumed: bool = False) -> SearchResult:
        """Search, and leave the parameters at the answer.

        With `is_resumed` there is no screening: the search resumes from the present parameters, on
        `max_nodes` nodes, and keeps them if it finds nothing better.
        """
        given = self.coordinates.point()

        def double_nodes() -> str:
            nodes = self.max_nodes if is_resumed else min(FIRST_NODES, self.max_nodes)
            self._announce(nodes)
            summits = self._resume(nodes, given) if is_resumed else self._screen(nodes, given)
            while True:
                found = self._result = self._assess(self._result, summits[0], nodes)
                is_final = self._is_final(found)
                if nodes >= self.max_nodes or (is_final and not self.is_given):
                    message = "other nodes agree" if is_final else "the most nodes were used"
                    return message if found.has_settled else USED_UP
                nodes = min(2 * nodes, self.max_nodes)
                self._announce(nodes)
                summits = self._refine(summits, found, nodes)

        return self._complete(double_nodes, given)

    def _announce(self, nodes: int) -> None:
        announce(
            self.callback,
            *(each for each in phases_of_search(self.max_nodes) if (each.num_nodes or 0) >= nodes),
        )

    def finished(self, found: SearchResult) -> SearchResult:
        """Finish in this precision what a search in another precision found."""
        self._result = found

        def finish() -> str:
            self._finish(found, None)
            return found.message

        return self._complete(finish, found.point)

    def _complete(self, search: Callable[[], str], given: Vector) -> SearchResult:
        """The result of a search, or the best so far if it was cut short; the parameters are set to it."""
        try:
            message = search()
        except (TimeIsOverError, KeyboardInterrupt, MemoryError, RuntimeError) as error:
            message = why_cut_short(error)
            self._result = self._cut_short(self._result) if message else None
            if self._result is None:
                self.coordinates.assign(given)
                if message == TIME_IS_OVER:
                    raise ValueError(self._failure_message) from None
                raise
        finally:
            if self.journal is not None:
                self.journal.sync()
        assert self._result is not None
        self._result.message = message
        self.coordinates.assign(self._result.point)
        return self._result

    def _finish(self, found: SearchResult, begin: Evaluation | None) -> None:
        """Climb as far as possible on the present nodes, then take the last step that the quadratic model
        predicts.

        This step brings a range that is not needed to its lower bound, where it is zero.
        """
        objective = self._objective(found.num_nodes)
        begin = objective(found.point) if begin is None else begin
        summit = self._climb(objective, found.point, begin, found.curvature, self._finely)
        found.point, found.value, found.gradient = summit.point, summit.value, summit.gradient
        found.has_settled = summit.has_settled
        if not self.is_dense or not self.max_evaluations or not np.isfinite(summit.value):
            return
        step, promise = best_step(summit.point, summit.gradient, summit.curvature, self.coordinates.box, 1.0)
        if promise > 0:
            other = self.coordinates.box.clip(summit.point + step)
            after = objective(other)
            if not after.failure and after.value > found.value:
                found.point, found.value, found.gradient = other, after.value, after.gradient

    def _cut_short(self, found: SearchResult | None) -> SearchResult | None:
        """The best point so far: that on the most nodes if anything was gained there, else the one before."""
        nodes = max(self._bests, default=0)
        best = self._bests.get(nodes)
        if best is None or (found is not None and nodes > found.num_nodes and best.value <= best.first):
            return found
        if found is None or nodes > found.num_nodes:
            short = self._found(best.point, nodes, best.value, False, np.zeros_like(best.point))
            short.gain = math.inf if found is None else best.value - found.value
            if not self.stages or self.stages[-1].num_nodes != nodes:
                self._record(nodes, [best.value], *self._stage_start)
            return short
        if best.value > found.value:
            found.point, found.value, found.has_settled = best.point, best.value, False
        return found

    def _found(
        self, point: Vector, nodes: int, value: float, settled: bool, gradient: Vector
    ) -> SearchResult:
        return SearchResult(point, nodes, value, "", self.stages, self.history, settled, gradient)

    @property
    def _failure_message(self) -> str:
        return f"The objective could not be computed at any start: {self._failure}"

    def _is_final(self, found: SearchResult) -> bool:
        """Whether neither other nodes nor more of them would change evidence or ranges noticeably."""
        if not found.is_converged(self.num_rows) or found.gain > DOUBLING * self.num_rows:
            return False
        moved = np.sqrt(found.node_variance)
        known = 0.1 * np.maximum(found.point, RETRIED)
        if found.curvature is not None:
            # no further than the data leave open anyway
            known = np.maximum(known, np.sqrt(np.diag(covariance_of(found, self.coordinates))))
        return bool((moved <= known)[self.coordinates.is_width].all())

    def _screen(self, nodes: int, given: Vector) -> list[Summit]:
        """The best two of several starts on few nodes."""
        objective = self._objective(nodes)
        summits, self._stage_start = [], (self._count, time.monotonic())
        for start in (given, *self._starts(given)):
            summit = self._climb_widened(objective, start, None, self._roughly)
            if np.isfinite(summit.value):
                summits.append(summit)
        if not summits:
            self.coordinates.assign(given)
            raise ValueError(self._failure_message)
        summits.sort(key=lambda each: -each.value)
        self._record(nodes, [each.value for each in summits], *self._stage_start)
        first, *rest = summits
        # a second start is followed if it led elsewhere
        others = [each for each in rest if not np.allclose(each.point, first.point, rtol=0.2, atol=0.2)]
        return [first, *others[:1]]

    def _starts(self, given: Vector) -> list[Vector]:
        """Further starts: ranges of natural size where the given ones differ from it, and random ones."""
        is_width = self.coordinates.is_width
        natural = [np.where(is_width, factor**2, given) for factor in FACTORS]
        starts = [each for each in natural if not np.allclose(given, each, rtol=0.1)]
        for _ in range(self.num_starts):
            sizes = 2 * torch.rand(len(given), generator=self.generator, dtype=torch.float64).numpy() - 1
            moves = torch.randn(len(given), generator=self.generator, dtype=torch.float64).numpy()
            starts.append(np.where(is_width, FARTHEST_FACTOR ** (2 * sizes), given + 0.5 * moves))
        return starts

    def _resume(self, nodes: int, given: Vector) -> list[Summit]:
        """The summit above the given point, ranges of zero tried again; just the point for no evaluations."""
        objective, given = self._objective(nodes), self.coordinates.box.clip(given)
        self._stage_start = self._count, time.monotonic()
        if self.max_evaluations > 0:
            curvature = None
            if self.is_dense:
                curvature = curvature_at(
                    self._curvature_objective(nodes), self._widened(given), self.coordinates.box
                )
            summit = self._climb_widened(objective, given, curvature, self._finely)
        else:
            here = objective(given)
            curvature = np.eye(len(given))
            summit = Summit.failed(given) if here.failure else Summit(given, *here[:2], curvature, False)
        self._record(nodes, [summit.value], *self._stage_start)
        return [summit]

    def _curvature_objective(self, nodes: int) -> Objective:
        """The objective for curvatures: on half the nodes, which costs a quarter and is accurate enough."""
        return self._objective(nodes if nodes <= 2 * FIRST_NODES else nodes // 2, is_ascent=False)

    def _refine(self, summits: Sequence[Summit], found: SearchResult, nodes: int) -> list[Summit]:
        """The summits above the best point (at first above all) on more nodes, ranges of zero tried again."""
        objective = self._objective(nodes)
        followed = summits if found.num_nodes == FIRST_NODES else summits[:1]
        self._stage_start = self._count, time.monotonic()
        tolerance = self._finely if nodes >= self.max_nodes else self._roughly / 2
        refined = [
            self._climb_widened(objective, summit.point, found.curvature, tolerance) for summit in followed
        ]
        refined.sort(key=lambda each: -each.value)
        self._record(nodes, [each.value for each in refined], *self._stage_start)
        return refined

    def _widened(self, point: Vector) -> Vector:
        """The point with ranges of zero made a little wider, where they have a curvature."""
        widened = np.where(self.coordinates.is_width, np.maximum(point, RETRIED), point)
        return self.coordinates.box.clip(widened)

    def _climb_widened(
        self, objective: Objective, point: Vector, curvature: NDArray[np.float64] | None, tolerance: float
    ) -> Summit:
        """The summit above the point with ranges of zero made wider, or above the point itself."""
        point = self.coordinates.box.clip(point)
        start = self._widened(point)
        is_widened = bool((start != point).any())
        # first, so that a search that is cut short on these nodes knows what it had before
        begin = objective(point) if is_widened else None
        summit = self._climb(objective, start, None, curvature, tolerance)
        if begin is not None and not begin.failure and begin.value > summit.value:
            known = summit.curvature if np.isfinite(summit.value) else curvature
            summit = self._climb(objective, point, begin, known, tolerance)
        return summit

    def _climb(
        self,
        objective: Objective,
        start: Vector,
        begin: Evaluation | None,
        curvature: NDArray[np.float64] | None,
        tolerance: float,
        most: int | None = None,
    ) -> Summit:
        box, most = self.coordinates.box, self.max_evaluations if most is None else most
        if not self.is_dense:
            return climb_many(objective, start, box, most, tolerance, begin)
        begin = objective(start) if begin is None else begin
        if curvature is None and not begin.failure:
            curvature = curvature_at(objective, start, box, begin.gradient)
        curvature = np.eye(len(start)) if curvature is None else curvature
        return climb(objective, start, box, curvature, most, tolerance, begin)

    def _assess(self, before: SearchResult | None, summit: Summit, nodes: int) -> SearchResult:
        """The summit with its curvature and, if it may be the final result, its values on other nodes."""
        found = self._found(summit.point, nodes, summit.value, summit.has_settled, summit.gradient)
        found.gain = math.inf if before is None else summit.value - before.value
        found.curvature = summit.curvature if self.is_dense else None
        may_end = nodes >= self.max_nodes or found.gain <= DOUBLING * self.num_rows
        if may_end:
            self._finish(found, Evaluation(found.value, found.gradient))
            trials = [
                self._objective(nodes, 1 + other, is_ascent=False, sloped=False)(found.point)
                for other in range(OTHERS)
            ]
            found.others = [each.value for each in trials if not each.failure]
        if not self.is_dense:
            return found
        few = self._curvature_objective(nodes)
        found.centre = self._widened(found.point)
        found.slope = few(found.centre).gradient
        box = self.coordinates.box
        found.curvature = positive_definite(curvature_at(few, found.centre, box, found.slope))
        for other in range(1, 1 + OTHERS) if may_end else ():
            objective = self._objective(max(2, nodes // 2), other, is_ascent=False)
            again = self._climb(objective, box.clip(found.point), None, found.curvature, self._roughly, AGAIN)
            if np.isfinite(again.value):
                last, _ = best_step(again.point, again.gradient, again.curvature, box, 1.0)
                # with the last predicted step, except for ranges close to zero, whose slope means little
                is_sloped = ~self.coordinates.is_width | (again.point >= RETRIED)
                found.shifts.append(again.point + np.where(is_sloped, last, 0.0) - found.point)
        return found

    def _record(self, nodes: int, values: Sequence[float], count: int, begun: float) -> None:
        seconds = time.monotonic() - begun
        self.stages.append(Stage(nodes, tuple(values), self._count - count, seconds))

    def _objective(
        self, nodes: int, scramble: int = 0, is_ascent: bool = True, sloped: bool = True
    ) -> Objective:
        """The objective as a function of the coordinates; evaluations are counted and kept in the journal.

        Unless `is_ascent`, evaluations are not reported to the callback. Without `sloped`, gradients are 0
        instead of computed.
        """
        frozen = self.at_nodes(nodes, scramble)
        if self.journal is not None:
            self.journal.begin()
        highest = -math.inf

        def computed(point: Vector) -> Evaluation:
            is_over = self.max_seconds is not None and time.monotonic() - self._start > self.max_seconds
            if is_over and self._count > 0:
                raise TimeIsOverError
            if isinstance(self.callback, Reporter) and self._bests:
                self.callback.check()
            return self.coordinates.evaluate(frozen, point, sloped)

        def found_at(point: Vector) -> Evaluation:
            nonlocal highest
            kept = recorded(self.journal, point, lambda: computed(point))
            if kept.failure:
                self._failure = kept.failure
                return kept._replace(gradient=np.zeros_like(point))
            self._count += 1
            highest = max(highest, kept.value)
            if is_ascent:
                best = self._bests.setdefault(nodes, _Best(point.copy(), kept.value, kept.value))
                if kept.value > best.value:
                    best.point, best.value = point.copy(), kept.value
                self.history.append(highest)
                if self.callback is not None:
                    self.callback(len(self.history), highest)
            return kept

        return found_at
