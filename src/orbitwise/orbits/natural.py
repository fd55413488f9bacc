"""How wide ranges ordinarily are, by the kind of move: where a search starts, and the unit of its steps.

A range whose move is not named here is as wide as the user started it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orbitwise.transforms.images import AffineWarp, check_image_shape
from orbitwise.transforms.signals import TimeShift
from orbitwise.transforms.transform import Transform
from orbitwise.transforms.vectors import Rotation, Scaling

ANGLE = math.radians(15)
LOG_SCALE = 0.15
SHEAR = 0.15
AMPLITUDE = 0.5
"""Pixels that a smooth deformation moves by."""
THICKNESS = 0.25
"""Pixels that strokes grow or shrink by."""


def image_widths(image_shape: Sequence[int]) -> dict[str, float]:
    """Of moves of images: 15 degrees, 15 per cent, a shear of 0.15, one pixel."""
    _, height, width = check_image_shape(image_shape)
    return {
        "angle": ANGLE,
        "log_scale_x": LOG_SCALE,
        "log_scale_y": LOG_SCALE,
        "shear": SHEAR,
        "shift_x": min(0.5, 2 / width),
        "shift_y": min(0.5, 2 / height),
        "log_zoom": LOG_SCALE,
        "amplitude": AMPLITUDE,
        "thickness": THICKNESS,
    }


def signal_widths(length: int) -> dict[str, float]:
    """Of moves of signals: a sixteenth of the length, 15 per cent, and a 32nd for a delay that varies."""
    return {"shift": length / 16, "log_scale": LOG_SCALE, "warp": length / 32}


def widths_of(transform: Transform) -> dict[str, float]:
    """Of the parameters of a transform, where it is one whose parameters have an ordinary size."""
    if isinstance(transform, AffineWarp):
        return image_widths(transform.image_shape)
    if isinstance(transform, TimeShift):
        return signal_widths(transform.signal_shape[1])
    if isinstance(transform, Rotation):
        return dict.fromkeys(transform.parameter_names, ANGLE)
    if isinstance(transform, Scaling):
        return dict.fromkeys(transform.parameter_names, LOG_SCALE)
    return {}
