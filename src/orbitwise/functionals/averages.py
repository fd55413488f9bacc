"""Averages of g: over orbits, which make f invariant (LIM eq. 6 to 8), and over Gaussians around inputs.

The latter are exact with kernels whose Gaussian averages are known in closed form (RKHS eq. 10).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from orbitwise.functionals.atoms import Atoms, exact_atoms
from orbitwise.functionals.functional import Functional, check_matrix
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


@final
class LocalAverage(Functional):
    """∫ g(τ) N(τ; x, width² I) dτ - g(x): zero where g is as its surroundings are on average (RKHS eq. 10).

    It serves RBF, polynomial, linear and constant kernels, their scalings and sums; for others there is
    `average_minus_value` of an orbit.
    """

    def __init__(self, width: float) -> None:
        super().__init__()
        if not 0 < width < math.inf:
            raise ValueError(f"The width of a local average must be positive and finite, not {width}.")
        self.width = float(width)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        atoms = exact_atoms(x[:, None, :].expand(-1, 2, -1), x.new_tensor([1.0, -1.0]).expand(len(x), 2))
        return replace(atoms, blur=x.new_tensor([self.width**2, 0.0]))


def average_minus_value(orbit: Orbit) -> Functional:
    """The local average minus the value, ∫ g(τ) p(τ given x) dτ - g(x), for any orbit and any kernel."""
    return OrbitAverage(orbit) - Evaluation()
