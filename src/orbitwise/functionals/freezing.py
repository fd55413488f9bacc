"""Freezing: the same functional with the draws of its orbits fixed, for engines that need exact rows."""

from __future__ import annotations

import torch
from torch import nn

from orbitwise.functionals.averages import OrbitAverage, OrbitSum
from orbitwise.functionals.functional import Combination, Composition, Functional
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.frozen import FrozenOrbit, freeze
from orbitwise.orbits.orbit import DrawnOrbit, Orbit


def freeze_functional(
    functional: Functional, num_nodes: int, generator: torch.Generator | None = None
) -> Functional:
    """The functional with `num_nodes` fixed nodes for every drawn orbit; learnable bounds stay shared."""
    if isinstance(functional, OrbitAverage):
        return OrbitAverage(_freeze_orbit(functional.orbit, num_nodes, generator))
    if isinstance(functional, OrbitSum):
        return OrbitSum(_freeze_orbit(functional.average.orbit, num_nodes, generator))
    if isinstance(functional, Composition):
        parts = (
            freeze_functional(part, num_nodes, generator) for part in (functional.outer, functional.inner)
        )
        return Composition(*parts)
    if isinstance(functional, Combination):
        parts = [
            freeze_functional(part, num_nodes, generator)
            for part in functional.parts
            if isinstance(part, Functional)
        ]
        return Combination(parts, functional.factors)
    return functional


def learnable_orbits(functional: nn.Module) -> list[DrawnOrbit]:
    """The orbits with bounds to learn inside a functional, whether drawn afresh or frozen."""
    return [module for module in functional.modules() if isinstance(module, DrawnOrbit)]


def orbit_in(functional: nn.Module) -> Orbit | None:
    """The orbit that a functional averages over: one to learn where there is one, else any, say finite."""
    orbits = [module for module in functional.modules() if isinstance(module, Orbit)]
    return next(iter([*learnable_orbits(functional), *orbits]), None)


def drawn_form(orbit: Orbit) -> DrawnOrbit:
    """An orbit as one that draws: a frozen one by its source, a finite one by its elements."""
    if isinstance(orbit, FrozenOrbit):
        return orbit.source
    return orbit if isinstance(orbit, DrawnOrbit) else ComposedOrbit(orbit)


def is_drawn(functional: nn.Module) -> bool:
    """Whether the functional draws its rows at random; a frozen orbit inside it does not."""
    if isinstance(functional, FrozenOrbit):
        return False
    if isinstance(functional, Orbit) and functional.is_drawn:
        return True
    return any(is_drawn(part) for part in functional.children())


def _freeze_orbit(orbit: Orbit, num_nodes: int, generator: torch.Generator | None) -> Orbit:
    if isinstance(orbit, DrawnOrbit):
        like = next((p for p in orbit.parameters()), torch.zeros((), dtype=torch.float64))
        return freeze(orbit, num_nodes, generator, like, rule="sobol")
    if isinstance(orbit, FiniteOrbit) and orbit.is_drawn:
        return FiniteOrbit(orbit.transform, orbit.elements, orbit.weights)
    return orbit
