"""Orbits A(x): which moves a function should not care about, and how far."""

from orbitwise.orbits.bounds import Bounds
from orbitwise.orbits.closure import closure
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.frozen import FrozenOrbit, freeze
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import DrawnOrbit, Group, Orbit, OrbitPoints, Symmetry
from orbitwise.orbits.sampled import SampledOrbit

__all__ = [
    "Bounds",
    "DrawnOrbit",
    "FiniteOrbit",
    "FrozenOrbit",
    "Group",
    "ImageOrbit",
    "Orbit",
    "OrbitPoints",
    "SampledOrbit",
    "Symmetry",
    "closure",
    "freeze",
]
