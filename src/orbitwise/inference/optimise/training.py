"""Maximising an objective of parameters, and Hessians by differences of its gradients.

`maximize` runs L-BFGS over the parameters of modules, with restarts and a history. `climb` takes quasi-Newton
steps inside a trust region and a box, which needs fewer evaluations when there are few coordinates.
`climb_many` runs L-BFGS in the same box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.optimise.checkpoints import Evaluation, Journal
from orbitwise.inference.optimise.hyperpriors import log_prior as log_prior
from orbitwise.inference.processes import ALONE, Processes

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]
"""The gradient at a point; not finite where it cannot be computed."""

SETTLED = 5
"""An ascent has settled when this many iterations together gained next to nothing."""

NEGLIGIBLE = 0.01
"""A gain, in nats, that is not worth further iterations."""

FLAT = 0.1
"""A slope below this, in nats per unit of a raw parameter, is not worth following."""

TIME_IS_OVER = "time is over"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "memory ran out"
CUT_SHORT = (TIME_IS_OVER, INTERRUPTED, OUT_OF_MEMORY)
"""The messages of optimisations that were cut short and kept the best point so far."""


class TimeIsOverError(Exception):
    """The time limit has passed, so no further evaluation is started."""


def why_cut_short(error: BaseException) -> str:
    """The message for an optimisation that this error cut short; empty if the error is a genuine fault."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, TimeIsOverError):
        return TIME_IS_OVER
    # torch raises a plain RuntimeError where the memory of the processor is used up
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return OUT_OF_MEMORY if is_memory or "can't allocate memory" in str(error) else ""


def gained_little(values: Sequence[float], worth: float) -> bool:
    """Whether the last iterations raised the best value by less than `worth` in all."""
    last = values[-1 - SETTLED :]
    return len(last) > SETTLED and last[-1] - last[0] < worth


def recorded(
    journal: Journal | None,
    point: np.ndarray,
    compute: Callable[[], Evaluation],
    processes: Processes = ALONE,
) -> Evaluation:
    """The evaluation at a point, from the journal, or computed and added to the journal.

    Of several processes, the first has the journal.
    """
    found = processes.from_first(None if journal is None else journal.recall(point))
    if found is None:
        found = processes.from_first(compute())
        if journal is not None:
            journal.add(point, found)
    return found


@dataclass
class Training:
    """How maximising an objective ended.

    `value` is the best objective. `converged` is whether L-BFGS itself stopped there, and `message` is why it
    stopped. `history` holds the best value after each iteration of the winning start, and `starts` the best
    value of each start.
    """

    value: float
    converged: bool
    message: str
    history: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    @property
    def has_settled(self) -> bool:
        """Whether it converged, or ended by itself after iterations that gained next to nothing."""
        if self.message in CUT_SHORT:
            return False
        return self.converged or gained_little(self.history, NEGLIGIBLE)


def maximize(
    objective: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    max_iterations: int = 200,
    num_restarts: int = 0,
    spread: float = 1.0,
    generator: torch.Generator | None = None,
    callback: Callable[[int, float], None] | None = None,
    stop: Callable[[list[float]], bool] | None = None,
    memory: int = 10,
    journal: Journal | None = None,
    is_over: Callable[[], bool] | None = None,
    curvature: NDArray[np.float64] | None = None,
    tolerance: float = NEGLIGIBLE,
    processes: Processes = ALONE,
) -> Training:
    """Maximise `objective()` over the parameters, which are left at the best point found.

    The first start is where the parameters are; each restart adds normal noise of deviation `spread`. An
    interruption (Ctrl-C) keeps the best point so far. `stop` is called with the best values after each
    iteration and ends the run by returning True. `memory` is the number of steps that L-BFGS remembers. With
    a `journal`, a run that was killed is replayed and resumes; objective and start must be the same as
    before. `is_over` is called before every evaluation but the first, also within a line search. Once it
    returns True, the best point so far is kept and the message is `TIME_IS_OVER`.

    With a `curvature`, a guess at the Hessian of minus the objective, `climb` is used instead of L-BFGS. It
    ends when it expects to gain less than `tolerance`; from a good guess, it needs a third of the steps.

    If several `processes` share the objective, all of them take the steps of the first.
    """
    if max_iterations < 0 or num_restarts < 0:
        raise ValueError(
            f"max_iterations={max_iterations} and num_restarts={num_restarts} must be at least 0."
        )
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not parameters or max_iterations == 0:
        with torch.no_grad():
            value = float(objective())
        message = "no iterations asked for" if parameters else "nothing to learn"
        return Training(value, not parameters, message, [value], [value])

    def after(history: list[float]) -> None:
        if callback is not None:
            callback(len(history), history[-1])
        if stop is not None and stop(history):
            raise StopIteration

    def ascend(start: Vector) -> tuple[Training, Vector]:
        def at(point: Vector) -> Evaluation:
            def computed() -> Evaluation:
                if ascent.has_begun and is_over is not None and is_over():
                    raise TimeIsOverError
                return evaluate(objective, parameters)

            point = processes.from_first(point)
            assign_flat(parameters, point)
            return recorded(journal, point, computed, processes)

        ascent = _Ascent(at, after)
        if journal is not None:
            journal.begin()
        try:
            if curvature is None:
                result = ascent.run(start, maxiter=max_iterations, maxcor=memory)
                # A line search that finds nothing better where the slope is negligible has met rounding.
                is_flat = str(result.message).startswith("ABNORMAL") and np.abs(result.jac).max() < FLAT
                message, converged = str(result.message), bool(result.success or is_flat)
            else:
                converged = ascent.climb(start, curvature, max_iterations, tolerance)
                message = "little is left to gain" if converged else "the iterations were used up"
        except (KeyboardInterrupt, TimeIsOverError) as error:
            message, converged = why_cut_short(error), False
        if ascent.best is None:
            message = message if message in CUT_SHORT else ascent.failure
            return Training(-np.inf, False, message, ascent.history), start
        return Training(ascent.best.value, converged, message, ascent.history), ascent.best.point

    origin = flat_values(parameters)
    try:
        best, best_point = ascend(origin)
        starts = [best.value]
        while len(starts) <= num_restarts and best.message != INTERRUPTED:
            if is_over is not None and is_over():
                best.converged, best.message = False, TIME_IS_OVER
                break
            noise = torch.randn(len(origin), generator=generator, dtype=torch.float64).numpy()
            outcome, point = ascend(origin + spread * noise)
            starts.append(outcome.value)
            if outcome.value > best.value:
                best, best_point = outcome, point
            if outcome.message == INTERRUPTED:
                break
    finally:
        if journal is not None:
            journal.sync()
    assign_flat(parameters, best_point)
    best.starts = starts
    if not np.isfinite(best.value):
        if best.message == INTERRUPTED:
            raise KeyboardInterrupt
        raise ValueError(f"The objective could not be computed at any start: {best.message}")
    return best


class _Visit(NamedTuple):
    """A point that was evaluated, with the objective and its gradient there."""

    point: Vector
    value: float
    gradient: Vector


@final
class _Ascent:
    """One ascent on a flat vector, by scipy's L-BFGS-B or by `climb`, and the best point that was evaluated.

    Where the objective fails, the line search of L-BFGS is given a linear rise from the last accepted point,
    so that it backs off. An infinite value would end it, because its interpolation would give NaN.
    """

    def __init__(
        self, objective: Callable[[Vector], Evaluation], after: Callable[[list[float]], None] | None = None
    ) -> None:
        self.best: _Visit | None = None
        self.history: list[float] = []
        """The best value after every iteration; `after` is called with it."""
        self.failure = ""
        self.has_begun = False
        self._objective, self._after = objective, after
        self._latest: _Visit | None = None
        self._accepted: _Visit | None = None

    def run(
        self, start: Vector, bounds: NDArray[np.float64] | None = None, **options: float
    ) -> scipy.optimize.OptimizeResult:
        """Minimise the negative objective; the options are passed on to scipy."""
        return scipy.optimize.minimize(
            self._negative,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            callback=self._iterated,
            options=options,
        )

    def climb(
        self, start: Vector, curvature: NDArray[np.float64], max_evaluations: int, tolerance: float
    ) -> bool:
        """Take quasi-Newton steps; whether they ended because little is left to gain."""

        def after_each(point: Vector) -> Evaluation:
            found = self._seen(point)
            self._iterated(point)
            return found

        box = Box(np.full_like(start, -np.inf), np.full_like(start, np.inf))
        begin = self._seen(start)
        try:
            return climb(after_each, start, box, curvature, max_evaluations, tolerance, begin).has_settled
        except StopIteration:
            return False

    def _seen(self, point: Vector) -> Evaluation:
        """The evaluation at a point, and the best so far kept."""
        found = self._objective(point)
        self.has_begun = True
        if found.failure:
            self.failure = found.failure
            return found
        self._latest = _Visit(point.copy(), found.value, found.gradient)
        if self.best is None or found.value > self.best.value:
            self.best = self._latest
        return found

    def _negative(self, point: Vector) -> tuple[float, Vector]:
        found, accepted = self._seen(point), self._accepted
        if found.failure:
            if accepted is None:
                return np.inf, np.zeros_like(point)
            # f₀ + |∇f₀·(x - x₀)|, with the slope -∇f₀: a finite hill on the way down
            rise = abs(float(accepted.gradient @ (point - accepted.point)))
            return -accepted.value + rise, accepted.gradient.copy()
        self._accepted = self._latest if accepted is None else accepted
        return -found.value, -found.gradient

    def _iterated(self, _: Vector) -> None:
        self._accepted = self._latest
        self.history.append(-np.inf if self.best is None else self.best.value)
        if self._after is not None:
            self._after(self.history)


def evaluate(
    objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter], with_gradient: bool = True
) -> Evaluation:
    """An objective at the present parameters with its gradient as one flat vector, or why it failed.

    Without `with_gradient` the gradient is not computed but set to 0.
    """
    slopes: Sequence[Tensor | None] = [None] * len(parameters)
    try:
        with torch.set_grad_enabled(with_gradient):
            value = objective()
        if with_gradient:
            slopes = torch.autograd.grad(value, parameters, allow_unused=True)
    except NOT_COMPUTABLE as error:
        return Evaluation.failed(str(error) or type(error).__name__)
    each = [
        torch.zeros(p.numel(), dtype=torch.float64) if g is None else g.detach().double().cpu().reshape(-1)
        for p, g in zip(parameters, slopes, strict=True)
    ]
    gradient = torch.cat([*each, torch.zeros(0, dtype=torch.float64)]).numpy()
    number = float(value.detach())
    if not np.isfinite(number) or not np.isfinite(gradient).all():
        return Evaluation.failed(
            f"it is {number} there, or its gradient is not finite. Check the scale of inputs and targets."
        )
    return Evaluation(number, gradient)


def flat_values(parameters: Sequence[nn.Parameter]) -> np.ndarray:
    """All entries of the parameters, in double precision, as one vector."""
    return np.concatenate([p.detach().double().cpu().numpy().ravel() for p in parameters])


def values_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Copies of the values of parameters."""
    return [parameter.detach().clone() for parameter in parameters]


@torch.no_grad()
def assign(parameters: Iterable[nn.Parameter], values: Iterable[Tensor]) -> None:
    """Set parameters to these values."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def assign_flat(parameters: Sequence[nn.Parameter], point: np.ndarray) -> None:
    """Set all entries of the parameters from one vector."""
    offset = 0
    with torch.no_grad():
        for parameter in parameters:
            size = parameter.numel()
            values = torch.from_numpy(point[offset : offset + size].copy()).reshape(parameter.shape)
            parameter.copy_(values.to(parameter))
            offset += size


FLATTEST = 1e-3
"""Smaller curvatures, in nats for a unit step, are raised to this: steps still leave the trust region."""

STEEPEST = 1e12
"""The largest ratio of two curvatures: beyond it, rounding would make the smaller one negative."""


def finite_difference_hessian(
    gradient: Gradient,
    point: Vector,
    steps: Vector | float,
    at_point: Vector | None = None,
    central: bool = False,
) -> NDArray[np.float64]:
    """The symmetric Hessian at `point`, by differences of `gradient` over `steps`, one per coordinate.

    `at_point` is the gradient at the point, if it is already known. The row of a coordinate whose step is 0,
    or whose gradient is not finite, is zero before the matrix is made symmetric.
    """
    point = np.asarray(point, dtype=np.float64)
    steps = np.broadcast_to(np.asarray(steps, dtype=np.float64), point.shape)
    rows = np.zeros((len(point), len(point)))
    if not central and at_point is None:
        at_point = gradient(point)
    for j in np.flatnonzero(steps):
        ahead, behind = point.copy(), point.copy()
        ahead[j] += steps[j]
        behind[j] -= steps[j] if central else 0.0
        first = gradient(ahead)
        other = at_point if at_point is not None and not central else gradient(behind)
        difference = (first - other) / (ahead[j] - behind[j])
        if np.isfinite(difference).all():
            rows[j] = difference
    return (rows + rows.T) / 2


def positive_definite(curvature: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix with the moduli of its eigenvalues, so that steps lead away from saddle points."""
    values, vectors = np.linalg.eigh(curvature)
    least = max(FLATTEST, float(np.max(np.abs(values), initial=0.0)) / STEEPEST)
    return (vectors * np.maximum(np.abs(values), least)) @ vectors.T


def standard_errors(curvature: NDArray[np.float64]) -> Vector:
    """√diag(C⁻¹) of the Hessian C of minus a log density, infinite along directions that are flat or rise.

    Such a direction makes the errors infinite only for the coordinates that take part in it.
    """
    values, vectors = np.linalg.eigh(curvature)
    variance = np.where(values > 1e-9, 1 / np.maximum(values, 1e-9), np.inf)
    weights = np.square(vectors)
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.where(weights < 1e-8, 0.0, weights * variance).sum(-1))


def curvature_of(
    objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter], step: float, central: bool = False
) -> NDArray[np.float64]:
    """The Hessian of minus an objective at the present parameters, by differences of gradients over `step`.

    Entries of a coordinate are zero where the objective cannot be computed a step away. Parameters are left
    as they were.
    """
    here = flat_values(parameters)
    first = None if central else evaluate(objective, parameters)
    if first is not None and first.failure:
        raise ValueError(first.failure)

    def fall(point: Vector) -> Vector:
        assign_flat(parameters, point)
        found = evaluate(objective, parameters)
        return np.full_like(point, np.nan) if found.failure else -found.gradient

    try:
        known = None if first is None else -first.gradient
        return finite_difference_hessian(fall, here, step, known, central)
    finally:
        assign_flat(parameters, here)


Objective = Callable[[Vector], Evaluation]
"""What is maximised, as a function of a vector."""

DIFFERENCE = 0.03
"""The step of differences of gradients, in units of each coordinate."""

LARGEST_RADIUS, SMALLEST_RADIUS = 4.0, 1e-3


@final
@dataclass(frozen=True)
class Box:
    """The least and the greatest value of every coordinate.

    It also defines the unit step of each coordinate, in which trust regions and differences are measured.
    """

    lower: Vector
    upper: Vector

    def clip(self, point: Vector) -> Vector:
        """The nearest point of the box."""
        return np.clip(point, self.lower, self.upper)

    def at_bound(self, point: Vector, gradient: Vector) -> NDArray[np.bool_]:
        """Which coordinates are at a bound, with the gradient pointing out of the box."""
        at_low, at_high = point <= self.lower + 1e-9, point >= self.upper - 1e-9
        return (at_low & (gradient < 0)) | (at_high & (gradient > 0))

    def unit(self, point: Vector) -> Vector:
        """A unit step: one, or the coordinate itself where that is larger."""
        return np.maximum(1.0, np.abs(point)) * (self.upper > self.lower)


@final
@dataclass(frozen=True)
class Summit:
    """Where an ascent ended: the point, the value and the gradient there.

    `curvature` is the last estimate of the Hessian of minus the objective, empty after L-BFGS. `has_settled`
    is whether next to nothing more could be gained there.
    """

    point: Vector
    value: float
    gradient: Vector
    curvature: NDArray[np.float64]
    has_settled: bool

    @classmethod
    def failed(cls, point: Vector) -> Summit:
        """The result of an ascent whose start cannot be evaluated."""
        return cls(point, -np.inf, np.zeros_like(point), np.zeros((0, 0)), False)


def curvature_at(
    objective: Objective, point: Vector, box: Box, gradient: Vector | None = None
) -> NDArray[np.float64]:
    """The Hessian of minus the objective, by differences of gradients, one evaluation per coordinate.

    Steps are `DIFFERENCE` units and change sign where they would leave the box. `gradient` is the gradient at
    the point, if it is known.
    """
    steps = DIFFERENCE * box.unit(point)
    steps = np.where(point + steps > box.upper, -steps, steps)
    steps = box.clip(point + steps) - point

    def fall(at: Vector) -> Vector:
        found = objective(box.clip(at))
        return np.full_like(at, np.nan) if found.failure else -found.gradient

    return finite_difference_hessian(fall, point, steps, None if gradient is None else -gradient)


def climb(
    objective: Objective,
    start: Vector,
    box: Box,
    curvature: NDArray[np.float64],
    max_evaluations: int,
    tolerance: float,
    begin: Evaluation | None = None,
) -> Summit:
    """Maximise from `start` until the model predicts a gain below `tolerance`, or evaluations are used up.

    The model is the quadratic f + gᵀd - ½dᵀCd. Each step d maximises it within the box and a trust region,
    which grows where the predicted gain was reached and shrinks where it was not. C is updated by BFGS and
    starts as `curvature`, the Hessian of minus the objective or a guess at it. `begin` is the evaluation at
    the start, if it is known.
    """
    point = box.clip(start)
    begin = objective(point) if begin is None else begin
    if begin.failure:
        return Summit.failed(point)
    value, gradient, _ = begin
    curvature = positive_definite(curvature)
    radius, promise, used = 1.0, np.inf, 0
    while True:
        step, promise = best_step(point, gradient, curvature, box, 1.0)
        if promise < tolerance or used >= max_evaluations or radius < SMALLEST_RADIUS:
            break
        if radius != 1.0:
            step, hoped = best_step(point, gradient, curvature, box, radius)
        else:
            hoped = promise
        other = box.clip(point + step)
        found = objective(other)
        used += 1
        gain = -np.inf if found.failure else found.value - value
        length = float(np.max(np.abs(step) / np.maximum(box.unit(point), 1e-300)))
        if not found.failure:
            curvature = _updated(curvature, other - point, gradient - found.gradient)
            ratio = gain / hoped
            if ratio < 0.25:
                radius = max(0.25, min(0.5, ratio)) * length if ratio > 0 else 0.25 * length
            elif ratio > 0.75 and length > 0.9 * radius:
                radius = min(2 * radius, LARGEST_RADIUS)
        else:
            radius = 0.25 * length
        if gain > 0:
            point, value, gradient = other, found.value, found.gradient
    return Summit(point, value, gradient, curvature, promise < tolerance)


def climb_many(
    objective: Objective,
    start: Vector,
    box: Box,
    max_evaluations: int,
    tolerance: float,
    begin: Evaluation | None = None,
) -> Summit:
    """Like `climb`, by L-BFGS-B, for so many coordinates that a matrix of curvatures would be too large."""
    point = box.clip(start)
    first = objective(point) if begin is None else begin
    if first.failure:
        return Summit.failed(point)
    ascent = _Ascent(lambda other: objective(other) if ascent.has_begun else first)
    bounds = np.stack([box.lower, box.upper], axis=1)
    ftol = 0.1 * tolerance / max(1.0, abs(first.value))
    result = ascent.run(point, bounds, maxfun=max_evaluations, ftol=ftol, gtol=0.0)
    assert ascent.best is not None
    has_settled = bool(result.success) or gained_little([first.value, *ascent.history], tolerance)
    return Summit(*ascent.best, np.zeros((0, 0)), has_settled)


def best_step(
    point: Vector, gradient: Vector, curvature: NDArray[np.float64], box: Box, radius: float
) -> tuple[Vector, float]:
    """The step that maximises gᵀd - ½dᵀCd within the box and the trust region, and the gain it predicts."""
    reach = radius * box.unit(point)
    low, high = np.maximum(box.lower - point, -reach), np.minimum(box.upper - point, reach)
    free = high - low > 0
    step = np.zeros_like(point)
    if not free.any():
        return step, 0.0
    within = curvature[np.ix_(free, free)]
    # ½|Lᵀd - L⁻¹g|² with C = LLᵀ
    try:
        factor = np.linalg.cholesky(within)
    except np.linalg.LinAlgError:  # rounding has made the updated matrix indefinite
        factor = np.linalg.cholesky(positive_definite(within))
    aim = np.linalg.solve(factor, gradient[free])
    step[free] = scipy.optimize.lsq_linear(factor.T, aim, (low[free], high[free]), method="bvls").x
    return step, float(gradient @ step - 0.5 * step @ curvature @ step)


def _updated(curvature: NDArray[np.float64], step: Vector, fall: Vector) -> NDArray[np.float64]:
    """BFGS with Powell's damping: the matrix stays positive; `fall` is how much the gradient fell."""
    image = curvature @ step
    model, seen = float(step @ image), float(step @ fall)
    if model <= 0:
        return curvature
    share = 1.0 if seen >= 0.2 * model else 0.8 * model / (model - seen)
    fall = share * fall + (1 - share) * image
    return curvature - np.outer(image, image) / model + np.outer(fall, fall) / float(step @ fall)
