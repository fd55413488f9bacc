"""Error bars of learned bounds from the curvature of the evidence at its maximum (Laplace)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

STEP = 0.02
LARGEST = 3.0
"""An error above this, in the raw parameter's units, says that the data do not determine it: cut off here."""


def parameter_errors(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    """The standard deviation of every entry of the parameters: √diag(H⁻¹), H the Hessian of -objective.

    The Hessian is a difference of gradients. A direction in which the evidence is flat or still rising gets
    an infinite error.
    """
    gradient = _gradient(objective, parameters)
    columns = []
    for parameter in parameters:
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            old = flat[i].clone()
            flat[i] = old + STEP
            columns.append(-(_gradient(objective, parameters) - gradient) / STEP)
            flat[i] = old
    hessian = torch.stack(columns)
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    variance = torch.where(values > 1e-9, values.clamp_min(1e-9).reciprocal(), torch.inf)
    weights = vectors.square()
    # A direction of infinite variance matters only to entries that take part in it.
    spread = torch.where(weights < 1e-8, torch.zeros_like(weights), weights * variance).sum(-1).sqrt()
    return [
        part.view_as(p)
        for part, p in zip(spread.split([p.numel() for p in parameters]), parameters, strict=True)
    ]


def expected_seconds(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> float:
    """How long `parameter_errors` will take: a gradient an entry, each about three times the objective."""
    start = time.perf_counter()
    with torch.no_grad():
        objective()
    count = sum(parameter.numel() for parameter in parameters)
    return 3 * (count + 1) * (time.perf_counter() - start)


def learned_errors(
    learned: Callable[[], Mapping[str, tuple[float, float]]],
    parameters: list[nn.Parameter],
    errors: list[Tensor],
) -> dict[str, float]:
    """The error of each learned range's upper end: each parameter moves one deviation to both sides."""
    squares = dict.fromkeys(learned(), 0.0)
    for parameter, error in zip(parameters, errors, strict=True):
        flat, spread = parameter.data.view(-1), error.reshape(-1).clamp_max(LARGEST)
        for i in range(flat.numel()):
            old = flat[i].clone()
            ends = []
            for sign in (1, -1):
                flat[i] = old + sign * spread[i].to(old)
                ends.append(learned())
            flat[i] = old
            for name in squares:
                squares[name] += ((ends[0][name][1] - ends[1][name][1]) / 2) ** 2
    return {name: value**0.5 for name, value in squares.items()}


def _gradient(objective: Callable[[], Tensor], parameters: list[nn.Parameter]) -> Tensor:
    gradients = torch.autograd.grad(objective(), parameters, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return torch.cat([part.reshape(-1).double().cpu() for part in parts])
