"""Recipes of transforms and orbits.

A learnable orbit is made with ranges that start anywhere, and then takes the ranges it had: all of them are
tensors of its bounds and widths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit, WeightedOrbit
from orbitwise.orbits.images import CropOrbit, ImageOrbit
from orbitwise.orbits.jitters import JitterOrbit
from orbitwise.orbits.mirrors import MirrorOrbit
from orbitwise.orbits.modules import ModuleOrbit
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Orbit
from orbitwise.orbits.patches import PatchOrbit
from orbitwise.orbits.sampled import SampledOrbit
from orbitwise.orbits.signals import SignalOrbit
from orbitwise.storage.recipes import SMALLEST, Field, Recipe, is_plain_numbers, require, table_of
from orbitwise.transforms.deformations import TangentDeformation
from orbitwise.transforms.images import AffineWarp
from orbitwise.transforms.intensities import Intensity
from orbitwise.transforms.permutations import SignedPermutations
from orbitwise.transforms.signals import TimeShift, TimeWarp
from orbitwise.transforms.transform import Transform
from orbitwise.transforms.vectors import LinearMaps, Rotation, Scaling, Translation

START = 0.01
PER_PAIR = 16
LONGEST = 1e12
"""Ranges are no longer, in whatever unit."""
SHAPE = Field(tuple, each=int, is_size=True)
SIZE = Field(int, is_size=True)
MOST_SAMPLES = 4096
"""Every row is moved so often at a prediction, and all pairs of its points are compared."""
DRAWS = {
    "num_samples": Field(int, least=1, most=MOST_SAMPLES),
    "num_groups": Field(int, least=1, most=MOST_SAMPLES),
    "draws": Field(str),
}
WIDTH = Field(float, least=SMALLEST, most=10_000)
"""A width in pixels."""
CLIP = Field((tuple, list, NoneType), each=(int, float))
SIGNAL = {"signal_shape": SHAPE, "boundary": Field(str)}
RANGES = ("bounds", "widths")
LIMITS = ("bounds.limit",)
NATURAL = Field(tuple, each=(int, float), least=SMALLEST, most=LONGEST, is_new=True)
"""How wide ranges ordinarily are; earlier versions did not store it."""
MODULE_ORBIT = (
    "ModuleOrbit moves inputs by a module of your own, which is code and cannot be stored; use one of "
    "Orbitwise's own orbits, or pickle the model, for yourself alone."
)


def _start(flag: str) -> Field:
    """A range that is on or off, as a flag of the orbit says."""
    return Field((int, float), lambda orbit: START if getattr(orbit, flag) else 0.0)


def _of(part: str, name: str, field: Field) -> Field:
    """A field that a part of the object knows."""
    return replace(field, read=lambda value: getattr(getattr(value, part), name))


def _image_orbit(**arguments: Any) -> ImageOrbit:
    return ImageOrbit(affine={}, **arguments)


def _sampled_orbit(**arguments: Any) -> SampledOrbit:
    return SampledOrbit(lower=0.0, upper=0.0, learnable=False, **arguments)


def _composed_orbit(stages: list[Orbit], **arguments: Any) -> ComposedOrbit:
    if any(isinstance(stage, ComposedOrbit) for stage in stages):
        raise ValueError("a composed orbit among the stages of another")
    return ComposedOrbit(*stages, **arguments)


def _cost_of_elements(arguments: Mapping[str, Any]) -> int:
    """All pairs of weighted elements are composed, to see whether weights multiply as elements do."""
    weights = arguments["weights"]
    return 0 if weights is None else PER_PAIR * weights.numel() ** 2


def _check_ranges(orbit: Any) -> None:
    for part in ("bounds", "widths"):
        ranges = getattr(orbit, part, None)
        if ranges is not None:
            ends = [end for interval in ranges.intervals().values() for end in interval]
            require(all(abs(end) <= LONGEST for end in ends), "a range that is not finite, or absurdly long")
            half = ranges.half_width if part == "bounds" else ranges.values
            require(is_plain_numbers(half.detach(), 0.0), "a range of negative length")
            require(len(ranges.natural) == len(ranges.names), "natural sizes of other ranges")


def _check_finite(orbit: FiniteOrbit) -> None:
    shape = orbit.image_shape
    if shape is not None:
        require(len(shape) == 3, "images of another shape than channels, height and width")
        # raises an error where the elements move rows of another width
        orbit.transform.check(torch.zeros(1, math.prod(shape), dtype=torch.float64))


def _check_frozen(orbit: FrozenOrbit) -> None:
    if orbit.nodes.shape[1] != orbit.source.num_noise:
        raise ValueError("nodes of another width than the orbit's noise")


ORBITS = table_of(
    Recipe(AffineWarp, {"image_shape": SHAPE}),
    Recipe(Intensity),
    Recipe(LinearMaps, {"matrices": Field(Tensor), "is_group": Field(bool)}),
    Recipe(Rotation, {"num_dimensions": SIZE}),
    Recipe(Scaling, {"num_dimensions": Field((int, NoneType), is_size=True)}),
    Recipe(SignedPermutations, {"index": Field(Tensor), "sign": Field(Tensor), "is_group": Field(bool)}),
    Recipe(
        TangentDeformation,
        {"image_shape": SHAPE, "tangent_width": WIDTH, "clip": CLIP},
        check=lambda transform: require(
            transform.clip is None or len(transform.clip) == 2, "a clip that is no interval"
        ),
    ),
    Recipe(TimeShift, SIGNAL),
    Recipe(TimeWarp, SIGNAL),
    Recipe(Translation, {"num_dimensions": SIZE}),
    Recipe(
        ComposedOrbit,
        {"stages": Field(list, lambda orbit: list(orbit.stages), each=Orbit), **DRAWS},
        _composed_orbit,
    ),
    Recipe(
        CropOrbit,
        {"image_shape": _of("warp", "image_shape", SHAPE), "log_zoom": _start("zooms"), **DRAWS},
        inner=RANGES,
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"bounds.natural": NATURAL, "widths.natural": NATURAL},
    ),
    Recipe(
        DeformationOrbit,
        {
            "image_shape": _of("transform", "image_shape", SHAPE),
            "amplitude": _start("deforms"),
            "tangent_width": _of("transform", "tangent_width", WIDTH),
            "clip": _of("transform", "clip", CLIP),
            **DRAWS,
        },
        inner=RANGES,
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"bounds.natural": NATURAL, "widths.natural": NATURAL},
    ),
    Recipe(
        FiniteOrbit,
        {
            "transform": Field(Transform),
            "elements": Field((Tensor, NoneType)),
            "weights": Field((Tensor, NoneType)),
            "num_samples": Field((int, NoneType), least=1, most=MOST_SAMPLES),
            "num_groups": Field(int, least=1, most=MOST_SAMPLES),
        },
        cost=_cost_of_elements,
        attributes={"image_shape": Field((tuple, NoneType), each=int, is_size=True, is_new=True)},
        check=_check_finite,
    ),
    Recipe(
        FrozenOrbit,
        {"source": Field(DrawnOrbit), "nodes": Field(Tensor), "weights": Field(Tensor)},
        check=_check_frozen,
    ),
    Recipe(
        ImageOrbit,
        {"image_shape": SHAPE, "amplitude": _start("deforms"), **DRAWS},
        _image_orbit,
        inner=("bounds",),
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"has_affine": Field(bool), "bounds.natural": NATURAL},
    ),
    Recipe(
        JitterOrbit,
        {
            "num_features": SIZE,
            "separate": Field(bool, lambda orbit: orbit.widths.names != ("jitter",)),
            **DRAWS,
        },
        inner=("widths",),
        check=_check_ranges,
        attributes={"widths.natural": NATURAL},
    ),
    Recipe(
        MirrorOrbit,
        {
            "centre": Field(list, lambda orbit: orbit.centre.tolist(), each=(int, float)),
            "columns": Field((tuple, NoneType), each=int, least=0),
            "is_odd": Field(bool),
        },
    ),
    Recipe(ModuleOrbit, never=MODULE_ORBIT),
    Recipe(
        PatchOrbit,
        {"image_shape": SHAPE, "patch_shape": Field(tuple, each=int, least=1), "stride": Field(int, least=1)},
    ),
    Recipe(
        PointCloudOrbit,
        {
            "num_points": SIZE,
            "num_dimensions": SIZE,
            "angle": _start("turns"),
            "jitter": _start("jitters"),
            **DRAWS,
        },
        inner=RANGES,
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"bounds.natural": NATURAL, "widths.natural": NATURAL},
    ),
    Recipe(
        SampledOrbit,
        {"transform": Field(Transform), "density": Field(str), **DRAWS},
        _sampled_orbit,
        inner=("bounds",),
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"bounds.natural": NATURAL},
    ),
    Recipe(
        SignalOrbit,
        {
            **SIGNAL,
            "shift": _start("has_delay"),
            "warp": _start("warps"),
            "jitter": _start("jitters"),
            **DRAWS,
        },
        inner=RANGES,
        infinite=LIMITS,
        check=_check_ranges,
        attributes={"bounds.natural": NATURAL, "widths.natural": NATURAL},
    ),
    Recipe(WeightedOrbit, {"orbit": Field(Orbit), "weighting": Field(str)}),
)
