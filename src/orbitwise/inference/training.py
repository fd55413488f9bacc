"""Training by L-BFGS: a deterministic objective of a module's parameters, with restarts and a history.

scipy's L-BFGS-B works on one flat vector of doubles; a step into a region where the objective fails is refused by an
infinite value, so the line search backs off instead of stopping with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from gpytorch.module import Module
from scipy.optimize import minimize
from torch import Tensor, nn


@dataclass
class Training:
    """The best objective found, whether it converged, and the objective after every iteration of the best start."""

    value: float
    converged: bool
    message: str
    history: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)


def maximize(
    objective: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    max_iterations: int = 200,
    num_restarts: int = 0,
    spread: float = 1.0,
    generator: torch.Generator | None = None,
    callback: Callable[[int, float], None] | None = None,
) -> Training:
    """Maximise `objective()` over the parameters, which are left at the best point found.

    The first start is where the parameters are; each restart adds normal noise of standard deviation `spread`. An
    interruption (Ctrl-C) keeps the best point so far.
    """
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not parameters or max_iterations == 0:
        with torch.no_grad():
            value = float(objective())
        return Training(value, True, "nothing to learn", [value], [value])
    origin = _flat(parameters)
    best: Training | None = None
    best_point = origin
    starts = []
    for start in range(1 + num_restarts):
        noise = torch.randn(len(origin), generator=generator, dtype=torch.float64).numpy() if start else 0.0
        outcome, point, interrupted = _run(objective, parameters, origin + spread * noise, max_iterations, callback)
        starts.append(outcome.value)
        if best is None or outcome.value > best.value:
            best, best_point = outcome, point
        if interrupted:
            break
    _assign(parameters, best_point)
    best.starts = starts
    if not np.isfinite(best.value):
        raise ValueError("The evidence could not be computed at any start; check the scale of inputs and targets.")
    return best


def log_prior(*modules: Module) -> Tensor | float:
    """The log density of all hyperpriors that were registered on GPyTorch modules."""
    total: Tensor | float = 0.0
    for module in modules:
        for _, owner, prior, closure, _ in module.named_priors():
            total = total + prior.log_prob(closure(owner)).sum()
    return total


def _run(
    objective: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    start: np.ndarray,
    max_iterations: int,
    callback: Callable[[int, float], None] | None,
) -> tuple[Training, np.ndarray, bool]:
    best_value, best_point = -np.inf, start
    history: list[float] = []

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_value, best_point
        _assign(parameters, point)
        try:
            value = objective()
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        except (ValueError, torch.linalg.LinAlgError):
            return np.inf, np.zeros_like(point)
        flat = np.concatenate(
            [
                (np.zeros(p.numel()) if g is None else g.detach().double().cpu().numpy().ravel())
                for p, g in zip(parameters, gradients, strict=True)
            ]
        )
        value = value.detach()
        if not np.isfinite(float(value)) or not np.isfinite(flat).all():
            return np.inf, np.zeros_like(point)
        if float(value) > best_value:
            best_value, best_point = float(value), point.copy()
        return -float(value), -flat

    def record(_: np.ndarray) -> None:
        history.append(best_value)
        if callback is not None:
            callback(len(history), best_value)

    try:
        result = minimize(
            negative, start, jac=True, method="L-BFGS-B", callback=record, options={"maxiter": max_iterations}
        )
    except KeyboardInterrupt:
        return Training(best_value, False, "interrupted", history), best_point, True
    return Training(best_value, bool(result.success), str(result.message), history), best_point, False


def _flat(parameters: list[nn.Parameter]) -> np.ndarray:
    return np.concatenate([p.detach().double().cpu().numpy().ravel() for p in parameters])


def _assign(parameters: list[nn.Parameter], point: np.ndarray) -> None:
    offset = 0
    with torch.no_grad():
        for parameter in parameters:
            size = parameter.numel()
            values = torch.from_numpy(point[offset : offset + size].copy()).reshape(parameter.shape)
            parameter.copy_(values.to(parameter))
            offset += size
