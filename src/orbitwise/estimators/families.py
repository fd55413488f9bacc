"""Families of data (images, signals, clouds of points, tables), and which invariance belongs to which.

An invariance moves data of its own family only: everything that takes one asks here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from orbitwise.estimators.invariances import NAMES, Family
from orbitwise.transforms.permutations import MAX_ELEMENTS

PLURALS: dict[str, str] = {
    "image": "images",
    "signal": "signals",
    "cloud": "clouds of points",
    "table": "tables",
}
LEAST_SIDE = 4
MOST_RATIO = 4
"""Of sides in pixels: what is smaller, or longer than this many times the short side less two, is a picture
only where it is said to be one. So 4 x 8 pixels are a picture, and 12 points of four coordinates are not."""
INSTEAD: dict[str, str] = {
    "image": 'an invariance of images, such as "rotation", "translation" or "flip", or an ImageOrbit',
    "signal": '"signal:shift" or "signal:warp", or a SignalOrbit(signal_shape=(channels, length), shift=1.0)',
    "cloud": '"cloud:rotation" or "cloud:permutation", or a PointCloudOrbit(num_points, num_dimensions, '
    "angle=0.5)",
    "table": 'rows of columns, with "permutation", "sign" or "cyclic"',
}


MOST_ALIKE = 4
"""Points of one kind in an example of kinds."""


def family_of(invariance: object) -> Family | None:
    """The family that an invariance moves; None where it moves rows of any kind, or is unknown."""
    if isinstance(invariance, str):
        return NAMES[invariance].family if invariance in NAMES else None
    found = own_shape(invariance)
    return None if found is None else found[0]


def own_shape(invariance: object) -> tuple[Family, tuple[int, ...]] | None:
    """The family of an orbit or functional, and the shape of one of its inputs, where it knows them."""
    for part in invariance.modules() if isinstance(invariance, nn.Module) else ():
        shape, signal = getattr(part, "image_shape", None), getattr(part, "signal_shape", None)
        if shape is not None:
            return "image", tuple(shape)
        if signal is not None:
            return "signal", tuple(signal)
        if hasattr(part, "num_points") and hasattr(part, "num_dimensions"):
            return "cloud", (part.num_points, part.num_dimensions)  # pyright: ignore
    return None


def input_shape(estimator: object) -> tuple[int, ...] | None:
    """The shape of one image, signal or cloud that an estimator was fitted to; None for plain rows."""
    for name in ("_image_shape", "_input_shape"):
        if getattr(estimator, name, None) is not None:
            return tuple(getattr(estimator, name))
    for name in ("invariance", "functional_"):
        own = own_shape(getattr(estimator, name, None))
        if own is not None:
            return own[1]
    return None


def check_family(invariance: object, family: Family) -> None:
    """Raise a ValueError where an invariance is not one of this family; rows of a table may be anything."""
    own = family_of(invariance)
    if own is None or own == family:
        return
    if family == "table" and not isinstance(invariance, str):
        return  # a row may be a signal or a cloud written one number after the other
    raise ValueError(
        f"{named(invariance)} is an invariance of {PLURALS[own]}, but these inputs are {PLURALS[family]}: "
        f"use {INSTEAD[family]}."
    )


def is_picture(dimensions: Sequence[int]) -> bool:
    """Whether inputs of two dimensions may be taken for pictures without asking."""
    short, long = sorted(dimensions)
    return short >= LEAST_SIDE and long <= MOST_RATIO * (short - 2)


def check_picture(invariance: object, dimensions: Sequence[int], ask: str | None = None) -> None:
    """Raise a ValueError where an invariance of images meets inputs that look like something else."""
    if len(dimensions) != 2 or is_picture(dimensions):
        return
    shape = tuple(int(size) for size in dimensions)
    said = f"image_shape={shape}" if ask is None else ask
    raise ValueError(
        f"{named(invariance)} is an invariance of images, but inputs of shape {shape} look like "
        f"{looks_like(shape)}. If they are pictures of {shape[0]} x {shape[1]} pixels, say {said}."
    )


def looks_like(dimensions: Sequence[int]) -> str:
    """What inputs of two dimensions that are no plausible picture may be, and what moves them."""
    first, second = dimensions
    cloud = (
        f"clouds of {first} points in {second} dimensions, which "
        f"PointCloudOrbit(num_points={first}, num_dimensions={second}, angle=0.5) moves"
    )
    channels, length = (first, second) if first <= second else (second, first)
    turned = "" if first <= second else " once they are (channels, length)"
    signal = (
        f"signals of {channels} channel{'s' if channels > 1 else ''} and {length} samples, which "
        f"SignalOrbit(signal_shape=({channels}, {length}), shift=1.0) moves{turned}"
    )
    return f"{cloud}, or {signal}" if second in (2, 3) else signal


def whole_points(invariance: str, dimensions: Sequence[int], estimator: str) -> str:
    """What an invariance of columns does, and lines of code that do so to whole points of [points, size]."""
    points, size = dimensions
    does, wanted, imported, made = {
        "cyclic": (
            "shifts single columns",
            f"shift whole points of {size} numbers each",
            "cyclic_shifts",
            f"cyclic_shifts({points}, {size})",
        ),
        "permutation": (
            "exchanges single columns",
            f"exchange whole points of {size} numbers each",
            "block_permutations",
            f"block_permutations({points}, {size})",
        ),
        "sign": (
            "changes the signs of single columns",
            "mirror an axis of all points at once",
            "SignedPermutations, negation, sign_changes",
            f"SignedPermutations(negation({points * size}).index[:1].repeat({2**size}, 1), "
            f"sign_changes({size}).sign.repeat(1, {points}), is_group=True)",
        ),
    }[invariance]
    if invariance == "permutation" and math.factorial(points) > MAX_ELEMENTS:
        # all orders are too many, but those of a few like points are not
        kinds = f"[0] * {MOST_ALIKE} + list(range(1, {points - MOST_ALIKE + 1}))"
        wanted = f"{wanted} that are of the same kind, here the first {MOST_ALIKE} (all have too many orders)"
        imported, made = "exchange_permutations", f"exchange_permutations({kinds}, {size})"
    return (
        f"{invariance!r} {does} of X [n_samples, n_features]. To {wanted}:\n\n"
        "    from orbitwise.orbits import FiniteOrbit\n"
        f"    from orbitwise.transforms import {imported}\n"
        f"    orbit = FiniteOrbit({made})\n"
        f"    {estimator}(invariance=orbit).fit(X.reshape(len(X), -1), y)\n"
    )


def named(invariance: object) -> str:
    """How a message speaks of an invariance."""
    return repr(invariance) if isinstance(invariance, str) else type(invariance).__name__
