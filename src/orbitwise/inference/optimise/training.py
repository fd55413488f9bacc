"""Training by L-BFGS: a deterministic objective of a module's parameters, with restarts and a history.

scipy's L-BFGS-B works on one flat vector of doubles. Where the objective fails, the line search is shown the
slope of the last accepted point turned upwards, so it backs off. An infinite value would end it there,
because its interpolation then gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.optimise.checkpoints import Evaluation, Journal
from orbitwise.inference.optimise.hyperpriors import log_prior as log_prior

SETTLED = 5
"""So many iterations that gained next to nothing in all have settled."""

NEGLIGIBLE = 0.01
"""Nats that are not worth further iterations."""

FLAT = 0.1
"""A slope, in nats for a step of one in a raw parameter, below which there is nothing worth climbing."""

TIME_IS_OVER = "time is over"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "memory ran out"
CUT_SHORT = (TIME_IS_OVER, INTERRUPTED, OUT_OF_MEMORY)
"""The messages of optimisations that were cut short, and kept the best so far."""


class TimeIsOverError(Exception):
    """No evaluation may begin any more."""


def why_cut_short(error: BaseException) -> str:
    """The message of an optimisation that this error cut short; empty where the error is a fault."""
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


def recorded(journal: Journal | None, point: np.ndarray, compute: Callable[[], Evaluation]) -> Evaluation:
    """What a journal recalls of a point, or what is computed there now, which the journal then keeps."""
    found = None if journal is None else journal.recall(point)
    if found is None:
        found = compute()
        if journal is not None:
            journal.add(point, found)
    return found


@dataclass
class Training:
    """The best objective, whether it converged, the history of that start, and the best of each start."""

    value: float
    converged: bool
    message: str
    history: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    @property
    def has_settled(self) -> bool:
        """Whether it converged, or ended where iterations gained next to nothing any more."""
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
) -> Training:
    """Maximise `objective()` over the parameters, which are left at the best point found.

    The first start is where the parameters are; each restart adds normal noise of deviation `spread`. An
    interruption (Ctrl-C) keeps the best point so far. `stop` is shown the best values after each iteration,
    and ends the run where it says so. `memory` counts the steps that L-BFGS remembers. With a `journal`, a
    run that was killed is replayed and resumes; objective and start must be those that it was begun with.
    `is_over` is asked before every evaluation but the first, also within a line search: where it says so,
    the best point so far is kept and the message is `TIME_IS_OVER`.
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
    origin = flat_values(parameters)
    best, best_point = Training(-np.inf, False, ""), origin
    starts: list[float] = []
    try:
        for start in range(1 + num_restarts):
            if start and is_over is not None and is_over():
                best.converged, best.message = False, TIME_IS_OVER
                break
            noise = (
                torch.randn(len(origin), generator=generator, dtype=torch.float64).numpy() if start else 0.0
            )
            outcome, point = _run(
                objective,
                parameters,
                origin + spread * noise,
                max_iterations,
                callback,
                stop,
                memory,
                journal,
                is_over,
            )
            starts.append(outcome.value)
            if outcome.value > best.value or start == 0:
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
    """A point that L-BFGS-B tried, with the value and the gradient of what it minimises."""

    point: np.ndarray
    value: float
    gradient: np.ndarray


def _run(
    objective: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    start: np.ndarray,
    max_iterations: int,
    callback: Callable[[int, float], None] | None,
    stop: Callable[[list[float]], bool] | None,
    memory: int,
    journal: Journal | None,
    is_over: Callable[[], bool] | None,
) -> tuple[Training, np.ndarray]:
    best_value, best_point, failure = -np.inf, start, ""
    has_begun = False
    latest: _Visit | None = None
    accepted: _Visit | None = None
    history: list[float] = []
    if journal is not None:
        journal.begin()

    def refused(point: np.ndarray) -> tuple[float, np.ndarray]:
        if accepted is None:
            return np.inf, np.zeros_like(point)
        # f₀ + |∇f₀·(x - x₀)|, with the slope -∇f₀: a finite hill on the way down
        rise = abs(float(accepted.gradient @ (point - accepted.point)))
        return accepted.value + rise, -accepted.gradient

    def computed() -> Evaluation:
        if has_begun and is_over is not None and is_over():
            raise TimeIsOverError
        return evaluate(objective, parameters)

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best_point, failure, latest, accepted, has_begun
        assign_flat(parameters, point)
        found = recorded(journal, point, computed)
        has_begun = True
        if found.failure:
            failure = found.failure
            return refused(point)
        latest = _Visit(point.copy(), -found.value, -found.gradient)
        accepted = latest if accepted is None else accepted
        if found.value > best_value:
            best_value, best_point = found.value, point.copy()
        return latest.value, latest.gradient.copy()

    def record(_: np.ndarray) -> None:
        nonlocal accepted
        accepted = latest
        history.append(best_value)
        if callback is not None:
            callback(len(history), best_value)
        if stop is not None and stop(history):
            raise StopIteration

    try:
        result = minimize(
            negative,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=record,
            options={"maxiter": max_iterations, "maxcor": memory},
        )
    except (KeyboardInterrupt, TimeIsOverError) as error:
        return Training(best_value, False, why_cut_short(error), history), best_point
    if not np.isfinite(best_value):
        return Training(best_value, False, failure, history), best_point
    # A line search that finds nothing better where the slope is negligible has met rounding, not trouble.
    is_flat = str(result.message).startswith("ABNORMAL") and float(np.abs(result.jac).max()) < FLAT
    return Training(best_value, bool(result.success) or is_flat, str(result.message), history), best_point


def evaluate(
    objective: Callable[[], Tensor], parameters: Sequence[nn.Parameter], with_gradient: bool = True
) -> Evaluation:
    """An objective at the present parameters with its gradient as one flat vector, or why it failed.

    Without `with_gradient` the gradient is not computed, and 0.
    """
    nothing = np.zeros(0)
    gradients: Sequence[Tensor | None] = [None] * len(parameters)
    try:
        with torch.set_grad_enabled(with_gradient):
            value = objective()
        if with_gradient:
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    except NOT_COMPUTABLE as error:
        return Evaluation(np.nan, nothing, str(error) or type(error).__name__)
    flat = np.concatenate(
        [
            nothing,
            *(
                (np.zeros(p.numel()) if g is None else g.detach().double().cpu().numpy().ravel())
                for p, g in zip(parameters, gradients, strict=True)
            ),
        ]
    )
    number = float(value.detach())
    if not np.isfinite(number) or not np.isfinite(flat).all():
        failure = (
            f"it is {number} there, or its gradient is not finite. Check the scale of inputs and targets."
        )
        return Evaluation(np.nan, nothing, failure)
    return Evaluation(number, flat)


def flat_values(parameters: Sequence[nn.Parameter]) -> np.ndarray:
    """All entries of the parameters, in double precision, as one vector."""
    return np.concatenate([p.detach().double().cpu().numpy().ravel() for p in parameters])


def assign_flat(parameters: Sequence[nn.Parameter], point: np.ndarray) -> None:
    """Put the parameters where the vector of all their entries says."""
    offset = 0
    with torch.no_grad():
        for parameter in parameters:
            size = parameter.numel()
            values = torch.from_numpy(point[offset : offset + size].copy()).reshape(parameter.shape)
            parameter.copy_(values.to(parameter))
            offset += size
