"""Orbits A(x): which moves a function should not care about, and how far."""

from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit, WeightedOrbit, closure
from orbitwise.orbits.images import CropOrbit, ImageOrbit
from orbitwise.orbits.jitters import JitterOrbit
from orbitwise.orbits.mirrors import MirrorOrbit
from orbitwise.orbits.modules import ModuleOrbit
from orbitwise.orbits.orbit import (
    Bounds,
    DrawnOrbit,
    FrozenOrbit,
    Group,
    Orbit,
    OrbitPoints,
    Symmetry,
    Widths,
    freeze,
)
from orbitwise.orbits.orders import OrderOrbit
from orbitwise.orbits.patches import PatchOrbit
from orbitwise.orbits.sampled import SampledOrbit
from orbitwise.orbits.signals import SignalOrbit

__all__ = [
    "Bounds",
    "ComposedOrbit",
    "CropOrbit",
    "DeformationOrbit",
    "DrawnOrbit",
    "FiniteOrbit",
    "FrozenOrbit",
    "Group",
    "ImageOrbit",
    "JitterOrbit",
    "MirrorOrbit",
    "ModuleOrbit",
    "Orbit",
    "OrbitPoints",
    "OrderOrbit",
    "PatchOrbit",
    "PointCloudOrbit",
    "SampledOrbit",
    "SignalOrbit",
    "Symmetry",
    "WeightedOrbit",
    "Widths",
    "closure",
    "freeze",
]
