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
NEGLIGIBLE = 0.01
"""So many iterations that gained less than this many nats in all would gain nothing worth having."""

FLAT = 0.1
"""A slope, in nats for a step of one in a raw parameter, below which there is nothing worth climbing."""

TIME_IS_OVER = "time is over"
"""The message of a training that was cut short by `is_over`."""


class _TimeIsOverError(Exception):
    """No evaluation may begin any more."""


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
        last = self.history[-1 - SETTLED :]
        return self.converged or (len(last) > SETTLED and last[-1] - last[0] < NEGLIGIBLE)


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
    starts, interrupted = [], False
    try:
        for start in range(1 + num_restarts):
            if start and is_over is not None and is_over():
                best.converged, best.message = False, TIME_IS_OVER
                break
            noise = (
                torch.randn(len(origin), generator=generator, dtype=torch.float64).numpy() if start else 0.0
            )
            outcome, point, interrupted = _run(
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
            if interrupted:
                break
    finally:
        if journal is not None:
            journal.sync()
    assign_flat(parameters, best_point)
    best.starts = starts
    if not np.isfinite(best.value):
        if interrupted:
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
) -> tuple[Training, np.ndarray, bool]:
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

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best_point, failure, latest, accepted, has_begun
        assign_flat(parameters, point)
        found = None if journal is None else journal.recall(point)
        if found is None:
            if has_begun and is_over is not None and is_over():
                raise _TimeIsOverError
            found = evaluate(objective, parameters)
            found = found._replace(value=-found.value, gradient=-found.gradient)
            if journal is not None:
                journal.add(point, found)
        has_begun = True
        if found.failure:
            failure = found.failure
            return refused(point)
        latest = _Visit(point.copy(), found.value, found.gradient)
        accepted = latest if accepted is None else accepted
        if -found.value > best_value:
            best_value, best_point = -found.value, point.copy()
        return found.value, found.gradient.copy()

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
    except KeyboardInterrupt:
        return Training(best_value, False, "interrupted", history), best_point, True
    except _TimeIsOverError:
        return Training(best_value, False, TIME_IS_OVER, history), best_point, False
    if not np.isfinite(best_value):
        return Training(best_value, False, failure, history), best_point, False
    # A line search that finds nothing better where the slope is negligible has met rounding, not trouble.
    is_flat = str(result.message).startswith("ABNORMAL") and float(np.abs(result.jac).max()) < FLAT
    return (
        Training(best_value, bool(result.success) or is_flat, str(result.message), history),
        best_point,
        False,
    )


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
