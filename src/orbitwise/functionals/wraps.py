"""Wrapping a column around a circle: f repeats itself exactly, with a period that is learned."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from orbitwise.functionals.atoms import Atoms, exact_atoms
from orbitwise.functionals.functional import Functional, check_matrix


@final
class Wrap(Functional):
    """f(x) = g(x with column c wound around a circle of circumference p): f(x + p e_c) = f(x) for any kernel.

    The column becomes two, (p/2π)(cos 2πx_c/p, sin 2πx_c/p), in its place: g lives on one column more. Close
    by, distances on the circle are those of x, so lengthscales keep their meaning. With an RBF kernel of that
    column it is the periodic kernel. All shifts by p form a group that no sum over an orbit can exhaust.
    """

    def __init__(self, period: float, column: int = 0, learnable: bool = True) -> None:
        super().__init__()
        if not 0 < period < math.inf:
            raise ValueError(f"The period of Wrap must be positive and finite, not {period}.")
        if column < 0:
            raise ValueError(f"The column of Wrap is counted from 0, so it cannot be {column}.")
        self.column = column
        self.log_period = nn.Parameter(
            torch.tensor(math.log(period), dtype=torch.float64), requires_grad=learnable
        )

    @property
    def period(self) -> Tensor:
        """The present period p."""
        return self.log_period.exp()

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        if self.column >= x.shape[1]:
            raise ValueError(f"Wrap turns column {self.column}, but the inputs have width {x.shape[1]}.")
        radius = self.period.to(x) / (2 * math.pi)
        angle = x[:, self.column] / radius
        circle = radius * torch.stack([angle.cos(), angle.sin()], 1)
        points = torch.cat([x[:, : self.column], circle, x[:, self.column + 1 :]], 1)
        return exact_atoms(points[:, None, :], torch.ones_like(points[:, :1]))

    def __repr__(self) -> str:
        return f"Wrap(period={self.period.item():.6g}, column={self.column})"
