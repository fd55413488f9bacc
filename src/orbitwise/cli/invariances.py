"""Invariances as they are written on the command line: names, and which columns or points are exchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orbitwise.cli.data import Data
from orbitwise.cli.errors import CommandError, nearest
from orbitwise.estimators.invariances import (
    CANDIDATES,
    NAMES,
    NO_INVARIANCE,
    Inputs,
    Invariance,
    check_family,
    check_picture,
    find,
    is_of_images,
    is_picture,
    looks_like,
    names_for,
    orbit_of,
    usual_candidates,
)
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.transforms.permutations import exchange_permutations

IMAGE_CANDIDATES = CANDIDATES["image"]
KNOWN = (NO_INVARIANCE, *names_for("average"), "permutation:A,B,…")
OF_COLUMNS = [name for name in names_for("average") if NAMES[name].family in ("table", None)]


def candidates(wanted: Sequence[str], data: Data) -> list[str]:
    """The invariances to compare: those that are wanted, else those that suit the form of the data."""
    if not wanted:
        if has_images([], data):
            return list(IMAGE_CANDIDATES)
        if data.encoder is not None:
            # codes of words do not change places with numbers
            return [NO_INVARIANCE]
        if data.kinds is not None:
            return [NO_INVARIANCE, "permutation"]
        return list(usual_candidates(data.X.shape[1:] if data.shape is None else data.shape))
    if any(is_of_images(name) for name in wanted):
        # inputs cannot be pictures for one candidate and points for another
        for name in wanted if data.shape is not None else ():
            check_family(_base(name), "image")
    return list(dict.fromkeys(wanted))


def has_images(names: Sequence[str], data: Data) -> bool:
    """Whether inputs with dimensions are meant as images, rather than as points that change places."""
    if data.is_image or any(is_of_images(name) for name in names):
        return True
    if any(_base(name) in OF_COLUMNS for name in names) or data.kinds is not None:
        return False
    return data.shape is not None and len(data.shape) == 2 and is_picture(data.shape)


def not_images(data: Data) -> str:
    """A note on inputs with two dimensions that are not taken for images, empty for all others."""
    if data.shape is None or len(data.shape) != 2 or has_images([], data):
        return ""
    height, width = data.shape
    return (
        f"inputs of {height} x {width} numbers are not taken for images, because they look like "
        f"{looks_like(data.shape)}. If they are images, add {_ask(data.shape)}."
    )


def parse(name: str, data: Data) -> Invariance:
    """The invariance of a name: one that estimators know, or a permutation of some columns or points.

    `permutation:a,b,c` exchanges the columns a, b and c. For inputs [points, coordinates] it exchanges
    points, by their numbers from 0; plain `permutation` then exchanges all points of the same kind.
    """
    if name == NO_INVARIANCE:
        return None
    base, _, rest = (name, "", "") if name in NAMES else name.partition(":")
    if base not in NAMES:
        raise CommandError(f"there is no invariance {name!r}; {nearest(base, KNOWN)}")
    if rest and base != "permutation":
        raise CommandError(f"{name!r}: only permutation takes names after a colon, {base} does not")
    family = find(base, "average").family
    if family in ("signal", "cloud"):
        # an orbit already, because estimators are not told the shape of an input
        shape = None if data.is_image else data.shape
        return orbit_of(base, Inputs(data.X.shape[1], shape))
    if is_of_images(base) and data.shape is None:
        raise CommandError(f"{name} moves images; give the shape of the images with --image-shape HxW")
    if is_of_images(base) and data.shape is not None:
        if not data.is_image:
            check_picture(base, data.shape, _ask(data.shape))
        # quarter turns of images that are not square are refused before anything is learned
        orbit_of(base, Inputs(data.X.shape[1], data.form.image_shape))
    points = data.shape is not None and len(data.shape) == 2 and not data.is_image
    if base in OF_COLUMNS and data.shape is not None and not (points and base == "permutation"):
        is_cloud = points and not is_picture(data.shape)
        check_family(base, "cloud" if is_cloud else "image")
    if base == "permutation" and points and not rest and data.kinds is None:
        return orbit_of("cloud:permutation", Inputs(data.X.shape[1], data.shape))
    if base == "permutation" and (rest or points):
        return _exchanges(rest, data, points)
    return base


def _exchanges(rest: str, data: Data, points: bool) -> FiniteOrbit:
    shape = data.shape if points and data.shape is not None else (data.X.shape[1],)
    size = math.prod(shape[1:])
    names = [str(i) for i in range(shape[0])] if data.columns is None else list(data.columns)
    if rest:
        chosen = [part.strip() for part in rest.split(",")]
        for part in chosen:
            if part not in names:
                what = "point" if points else "column"
                raise CommandError(f"permutation:{rest}: there is no {what} {part!r}; {nearest(part, names)}")
        labels = ["same" if name in chosen else f"alone {name}" for name in names]
    else:
        labels = [0] * len(names) if data.kinds is None else data.kinds.tolist()
    return FiniteOrbit(exchange_permutations(labels, size))


def _ask(shape: Sequence[int]) -> str:
    return f"--image-shape {'x'.join(map(str, shape))}"


def _base(name: str) -> str:
    return name.partition(":")[0]
