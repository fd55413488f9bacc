"""Orbits A(x): which moves a function should not care about, and how far."""

from orbitwise.orbits.closure import closure
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Group, Orbit, OrbitPoints, Symmetry
from orbitwise.orbits.sampled import FrozenOrbit, SampledOrbit

__all__ = [
    "FiniteOrbit",
    "FrozenOrbit",
    "Group",
    "Orbit",
    "OrbitPoints",
    "SampledOrbit",
    "Symmetry",
    "closure",
]
