"""Transforms t_α: how inputs can be moved."""

from orbitwise.transforms.deformations import TangentDeformation
from orbitwise.transforms.images import AffineWarp, flips, quarter_turns
from orbitwise.transforms.intensities import Intensity
from orbitwise.transforms.permutations import (
    SignedPermutations,
    block_permutations,
    coordinate_permutations,
    cyclic_shifts,
    exchange_permutations,
    negation,
    sign_changes,
)
from orbitwise.transforms.signals import TimeShift, TimeWarp
from orbitwise.transforms.transform import Transform
from orbitwise.transforms.vectors import LinearMaps, Rotation, Scaling, Translation, turns

__all__ = [
    "AffineWarp",
    "Intensity",
    "LinearMaps",
    "Rotation",
    "Scaling",
    "SignedPermutations",
    "TangentDeformation",
    "TimeShift",
    "TimeWarp",
    "Transform",
    "Translation",
    "block_permutations",
    "coordinate_permutations",
    "cyclic_shifts",
    "exchange_permutations",
    "flips",
    "negation",
    "quarter_turns",
    "sign_changes",
    "turns",
]
