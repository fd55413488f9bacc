"""A learned orbit as JSON: plain numbers with their units and conventions, and no code.

Every entry that is read is checked, so that untrusted text gives either an orbit or a ValueError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from orbitwise.export.faithful import OrbitTransform, image_shape_of
from orbitwise.export.moves import orbit_of, symmetries_of
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.images import LIMITS, ImageOrbit
from orbitwise.orbits.orbit import Bounds, FrozenOrbit, Interval, Orbit, Widths

FORMAT = "orbitwise orbit"
VERSION = 1
MOST_TEXT = 1_000_000
MOST_PIXELS = 2**20
MOST_PLACES = 2**18
"""The most pixels of one channel of a tangent deformation, which has a parameter per pixel."""
MOST_STAGES = 8
UNITS = {
    "angle": "radians, counter-clockwise as seen on the screen",
    "log_scale_x": "natural logarithm of a factor, positive enlarges",
    "log_scale_y": "natural logarithm of a factor, positive enlarges",
    "shear": "pixels to the right for each pixel down",
    "shift_x": "half widths of the image, positive is right",
    "shift_y": "half heights of the image, positive is down",
    "thickness": "pixels that strokes grow on each side",
    "amplitude": "pixels, standard deviation of the displacement of every pixel",
    "smoothness": "pixels, width of the Gaussian that smooths white noise into the displacement",
}
CONVENTIONS = {
    "image": "channels first; x to the right, y down",
    "centre": "the middle of the image: ((width - 1) / 2, (height - 1) / 2) in pixels from 0",
    "order": "scale, shear, turn, shift; then the displacement is added to where a pixel is read",
    "draws": "every parameter uniform in its interval, displacements normal",
    "interpolation": "bilinear",
    "fill": "zero outside the image",
}


def to_json(orbit: Orbit, image_shape: Sequence[int] | None = None) -> str:
    """Write an orbit as JSON text.

    Parameters
    ----------
    orbit : Orbit
        An `ImageOrbit`, a `DeformationOrbit`, a `FiniteOrbit` of flips and quarter turns, a composition of
        these, or a frozen version of one of them.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width); needed only by a finite orbit.

    Returns
    -------
    str
        JSON text of the numbers with their units and conventions. Ranges that were learned to be zero are
        left out.

    Examples
    --------
    >>> from orbitwise.export import from_json, to_json
    >>> from orbitwise.orbits import ImageOrbit
    >>> text = to_json(ImageOrbit((1, 8, 8), {"shear": 0.25}))
    >>> from_json(text).learned()
    {'shear': (-0.25, 0.25)}
    """
    shape = image_shape_of(orbit, image_shape)
    text = json.dumps(
        {"format": FORMAT, "version": VERSION, "image_shape": list(shape)} | _written(orbit, shape), indent=1
    )
    # a trial move of an image ensures that the text can be used
    OrbitTransform(from_json(text))
    return text


def from_json(text: str | bytes | Mapping[str, Any]) -> Orbit:
    """Read the orbit that `to_json` wrote.

    Parameters
    ----------
    text : str, bytes or mapping
        The JSON text, or the mapping that a JSON parser returned. It may be untrusted: nothing in it is
        executed.

    Returns
    -------
    Orbit
        An orbit with the same draws and moves as the one that was written.

    Raises
    ------
    ValueError
        If the text does not describe an orbit, or an entry is out of range; the message names the entry.
    """
    data = _parsed(text)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(
            f"This is not an {FORMAT!r} of version {VERSION}, which orbitwise.export.to_json writes, but "
            f"{_short(data.get('format'))} of version {_short(data.get('version'))}."
        )
    sizes = data.get("image_shape")
    if not isinstance(sizes, list) or len(sizes) != 3 or not all(type(size) is int for size in sizes):
        raise ValueError(f"image_shape must be [channels, height, width], not {_short(sizes)}.")
    if min(sizes) < 1 or max(sizes) > MOST_PIXELS or math.prod(sizes) > MOST_PIXELS:
        raise ValueError(f"Images have between 1 and {MOST_PIXELS:,} pixels, not {_short(sizes)}.")
    return _read(data, (sizes[0], sizes[1], sizes[2]))


def _written(orbit: Orbit, shape: tuple[int, int, int]) -> dict[str, Any]:
    if isinstance(orbit, FrozenOrbit):
        return _written(orbit.source, shape)
    if isinstance(orbit, ComposedOrbit):
        return {
            "kind": "composed",
            "stages": [_written(stage, shape) for stage in orbit.stages if isinstance(stage, Orbit)],
        }
    if isinstance(orbit, FiniteOrbit):
        return {"kind": "finite", "elements": list(symmetries_of(orbit, shape))}
    if not isinstance(orbit, ImageOrbit | DeformationOrbit):
        raise ValueError(
            f"{type(orbit).__name__} has no JSON form; ImageOrbit, DeformationOrbit, a FiniteOrbit of flips "
            "and quarter turns, and compositions of these have one."
        )
    learned = orbit.learned()
    # a range that was learned to be zero is the same as one that was never asked for
    ranges = {name: pair for name, pair in orbit.bounds.intervals().items() if pair != (0.0, 0.0)}
    content: dict[str, Any] = {"kind": "image"}
    content |= {"intervals": {name: list(_inside(name, pair)) for name, pair in ranges.items()}}
    if orbit.deforms and learned["amplitude"][1] > 0:
        content |= {name: learned[name][1] for name in ("amplitude", "smoothness")}
    if isinstance(orbit, DeformationOrbit):
        clip = orbit.transform.clip
        content |= {"kind": "tangent", "tangent_width": orbit.transform.tangent_width}
        content |= {"clip": None if clip is None else list(clip)}
    written = {*ranges, *content}
    # a range around a centre other than zero may have no width left, and is then a fixed move
    learnable = [
        name for name in _learnable(orbit) if name in written and learned[name][0] != learned[name][1]
    ]
    content |= {"learnable": learnable, "two_sided": _chosen(orbit.bounds, orbit.bounds.shifts)}
    units = {name: unit for name, unit in UNITS.items() if name in written}
    return content | {"units": units, "conventions": CONVENTIONS}


def _read(data: Mapping[str, Any], shape: tuple[int, int, int]) -> Orbit:
    kind = data.get("kind")
    if kind == "composed":
        stages = data.get("stages")
        if not isinstance(stages, list) or not 0 < len(stages) <= MOST_STAGES:
            raise ValueError(f"stages must be a list of 1 to {MOST_STAGES} orbits, not {_short(stages)}.")
        if not all(isinstance(stage, Mapping) and stage.get("kind") != "composed" for stage in stages):
            raise ValueError("Every stage must be an orbit that is not itself composed.")
        return ComposedOrbit(*[_read(stage, shape) for stage in stages])
    if kind == "finite":
        return orbit_of(_names(data, "elements"), shape)
    if kind not in ("image", "tangent"):
        raise ValueError(f"kind must be 'image', 'tangent', 'finite' or 'composed', not {_short(kind)}.")
    intervals = data.get("intervals")
    if not isinstance(intervals, Mapping):
        raise ValueError(f"intervals must be an object of [low, high] by name, not {_short(intervals)}.")
    ranges = {name: _interval(name, pair) for name, pair in intervals.items()}
    amplitude, smoothness = _number(data, "amplitude", 0.0), _number(data, "smoothness", 4.0)
    learnable, two_sided = _names(data, "learnable"), _names(data, "two_sided")
    if kind == "image":
        return ImageOrbit(shape, ranges, amplitude, smoothness, learnable, two_sided)
    if not set(ranges) <= {"thickness"}:
        raise ValueError(
            f"A tangent deformation has the interval thickness only, not {_short(list(ranges))}."
        )
    if shape[1] * shape[2] > MOST_PLACES:
        raise ValueError(f"A tangent deformation of images has at most {MOST_PLACES:,} places, not {shape}.")
    clip = None if data.get("clip") is None else _interval("clip", data.get("clip"))
    width = _number(data, "tangent_width", 1.0)
    thickness = ranges.get("thickness", 0.0)
    return DeformationOrbit(shape, amplitude, smoothness, thickness, width, clip, learnable, two_sided)


def _parsed(text: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(text, str | bytes):
        if len(text) > MOST_TEXT:
            raise ValueError(
                f"An orbit is shorter than {MOST_TEXT:,} characters, but this text has {len(text):,}."
            )
        try:
            text = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"This is not JSON text: {error}.") from error
    if not isinstance(text, Mapping):
        raise ValueError(f"An orbit is a JSON object, not {_short(text)}.")
    return text


def _inside(name: str, interval: Interval) -> Interval:
    """The interval cut to its limit, which rounding may exceed slightly during learning."""
    middle, half = (interval[0] + interval[1]) / 2, (interval[1] - interval[0]) / 2
    most = LIMITS.get(name, math.inf) * (1 - 1e-12)
    return interval if half <= most else (middle - most, middle + most)


def _learnable(orbit: ImageOrbit | DeformationOrbit) -> list[str]:
    names = _chosen(orbit.bounds, orbit.bounds.moves)
    if isinstance(orbit, DeformationOrbit):
        return names + _chosen(orbit.widths, orbit.widths.moves)
    raw = {"amplitude": orbit.raw_amplitude, "smoothness": orbit.raw_smoothness}
    return names + [name for name, parameter in raw.items() if parameter.requires_grad]


def _chosen(part: Bounds | Widths, mask: Tensor) -> list[str]:
    return [name for name, chosen in zip(part.names, mask.tolist(), strict=True) if chosen]


def _names(data: Mapping[str, Any], key: str) -> list[str]:
    names = data.get(key, [])
    if not isinstance(names, list) or len(names) > 16 or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} must be a list of at most 16 names, not {_short(names)}.")
    return names


def _interval(name: str, pair: object) -> Interval:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"{_short(name)} must be an interval [low, high], not {_short(pair)}.")
    return _finite(name, pair[0]), _finite(name, pair[1])


def _number(data: Mapping[str, Any], key: str, default: float) -> float:
    return _finite(key, data.get(key, default))


def _finite(name: str, value: object) -> float:
    # Python counts True and False as numbers, and its integers may be too large for a float
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f"{_short(name)} must be a finite number, not {_short(value)}.")
    return float(value)


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 80 else text[:77] + "…"
