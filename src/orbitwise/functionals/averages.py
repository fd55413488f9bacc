"""Averages and sums of g over orbits: the functionals that make f invariant (LIM eq. 6 to 8)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.orbits.orbit import Orbit


@final
class OrbitAverage(Functional):
    """f(x) = mean of g over the orbit of x (times the elements' weights, if any), or over its density."""

    def __init__(self, orbit: Orbit) -> None:
        super().__init__()
        self.orbit = orbit

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        drawn = self.orbit.points(x, generator)
        zeros = torch.zeros_like(drawn.draw)
        return Atoms(drawn.points, drawn.weights, None, zeros, drawn.draw, drawn.groups, drawn.symmetry)


@final
class OrbitSum(Functional):
    """f(x) = Σ g over the elements of a finite orbit of x (LIM eq. 6)."""

    def __init__(self, orbit: Orbit) -> None:
        super().__init__()
        if orbit.size is None:
            raise ValueError("Only a finite orbit has a sum; use OrbitAverage for a density.")
        self.average = OrbitAverage(orbit)
        self.size = orbit.size

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        return self.average.lower(x, generator).scale(float(self.size))


def average_minus_value(orbit: Orbit) -> Functional:
    """The local average minus the value, ∫ g(τ) p(τ given x) dτ - g(x)."""
    return OrbitAverage(orbit) - Evaluation()
