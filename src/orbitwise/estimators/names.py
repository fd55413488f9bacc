"""Short names of invariances, and what else `invariance=` may be: an orbit or a functional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.orbits.closure import closure
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.natural import image_widths
from orbitwise.orbits.orbit import Orbit
from orbitwise.transforms import (
    SignedPermutations,
    coordinate_permutations,
    cyclic_shifts,
    flips,
    negation,
    quarter_turns,
    sign_changes,
)

Invariance = str | Orbit | Functional | None

OF_COLUMNS: dict[str, Callable[[int], SignedPermutations]] = {
    "cyclic": cyclic_shifts,
    "negation": negation,
    "permutation": coordinate_permutations,
    "sign": sign_changes,
}
AFFINE_NAMES = {
    "affine": ("angle", "log_scale_x", "log_scale_y", "shear", "shift_x", "shift_y"),
    "rotation": ("angle",),
    "scaling": ("log_scale_x", "log_scale_y"),
    "shear": ("shear",),
    "translation": ("shift_x", "shift_y"),
}


def image_orbit(parts: Sequence[str], image_shape: Sequence[int]) -> ImageOrbit:
    """The learnable orbit of the named parts; it starts with ranges of natural size."""
    names = [name for part in parts if part != "deformation" for name in AFFINE_NAMES[part]]
    natural = image_widths(image_shape)
    amplitude = natural["amplitude"] if "deformation" in parts else 0.0
    start = {name: natural[name] for name in names}
    return ImageOrbit(image_shape, start, amplitude, smoothness=min(image_shape[-2:]) / 6)


OF_IMAGES: dict[str, Callable[[Sequence[int]], Orbit]] = {
    **{name: partial(image_orbit, (name,)) for name in (*AFFINE_NAMES, "deformation")},
    "affine+deformation": partial(image_orbit, ("affine", "deformation")),
    "rotation+deformation": partial(image_orbit, ("rotation", "deformation")),
    "flip": lambda shape: FiniteOrbit(flips(shape)),
    "quarter_turn": lambda shape: FiniteOrbit(quarter_turns(shape)),
    "flip+quarter_turn": lambda shape: closure(flips(shape), quarter_turns(shape)),
}


MOVED = ("differences", "moves", "tangent")
"""Invariances of kernel machines that belong to images."""


def is_of_images(invariance: object) -> bool:
    """Whether a name means images, so that the shape of an image must be known."""
    return isinstance(invariance, str) and (invariance in OF_IMAGES or invariance in MOVED)


def functional_of(
    invariance: object, num_features: int, image_shape: Sequence[int] | None = None
) -> Functional:
    """The functional L with f(x) = L_x g that an `invariance` argument stands for."""
    if invariance is None:
        return Evaluation()
    if isinstance(invariance, Functional):
        return invariance
    if isinstance(invariance, Orbit):
        return OrbitAverage(invariance)
    if not isinstance(invariance, str):
        raise TypeError(
            f"invariance must be None, a name, an orbit or a functional, not {type(invariance).__name__}."
        )
    if invariance in OF_COLUMNS:
        return OrbitAverage(FiniteOrbit(OF_COLUMNS[invariance](num_features)))
    if invariance in OF_IMAGES:
        if image_shape is None:
            raise ValueError(
                f"invariance={invariance!r} is one of images: pass image_shape=(height, width), "
                "or X with image dimensions."
            )
        return OrbitAverage(OF_IMAGES[invariance](image_shape))
    if invariance.lower() == "none":
        raise ValueError(f"invariance={invariance!r} is no name; for no invariance pass None itself.")
    known = sorted([*OF_COLUMNS, *OF_IMAGES])
    close = get_close_matches(invariance, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"Unknown invariance {invariance!r}; known names are {', '.join(known)}.{hint}")
