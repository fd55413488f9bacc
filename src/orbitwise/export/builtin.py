"""The nearest built-in equivalent of an orbit, and how near it is: an error measured on pictures."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.export.faithful import OrbitTransform
from orbitwise.export.moves import Draw, Moves, moves_of, place_of
from orbitwise.export.symmetries import NAMES, names_of, orbit_of
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import FrozenOrbit, Orbit

TWO_WARPS = "the displacement is a second warp after the affine one, so pixels are interpolated twice"
UNIFORM_FIELD = "the displacement is smoothed uniform noise, not normal, and weaker or stronger at the edges"
EVEN_SCALES = "scales are drawn evenly in factors, not in logarithms"
EVEN_SHEAR = "the shear is drawn evenly in degrees, not in slopes"
NO_THICKNESS = "strokes neither grow nor shrink"
WARPED = "the image is read at moved places, not changed along its own tangents"
LOST_MEAN = "ranges of shifts are symmetric, so that a mean shift of ({:+.2g}, {:+.2g}) pixels is lost"
WHOLE_PIXELS = "shifts are whole pixels"
GROUPS: tuple[tuple[str, ...], ...] = (
    ("flip_horizontal",),
    ("flip_vertical",),
    ("flip_horizontal", "flip_vertical", "turn_180"),
    ("turn_90", "turn_180", "turn_270"),
    tuple(name for name in NAMES if name != "identity"),
)
"""Groups of flips and quarter turns, without the identity, that libraries draw from."""


@final
class Builtin(NamedTuple):
    """A library's own transform, and what it does not share with the orbit.

    `error` is the root mean square distance between a picture moved by the transform and by the orbit, where
    both draw alike, relative to the picture; `extent` is that between moved and unmoved pictures: what an
    `error` is small beside. `differences` says in words where it comes from.
    """

    transform: Any
    error: float
    extent: float
    differences: list[str]


def library(name: str) -> Any:
    """The module of this name, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(name)
    # torchvision raises these where its operators do not fit the build of torch
    except (ImportError, RuntimeError, OSError) as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"This export needs {package}, which cannot be imported ({error}): "
            'pip install "orbitwise[export]", or use to_torchvision(orbit), a module of plain torch.'
        ) from error


def picture(image_shape: Sequence[int]) -> Float[Tensor, "c h w"]:
    """The standard picture: a slanted F and a dot, without any symmetry, almost zero at the border."""
    channels, height, width = image_shape
    y, x = torch.meshgrid(
        (2 * torch.arange(height) + 1) / height - 1, (2 * torch.arange(width) + 1) / width - 1, indexing="ij"
    )
    stem, bars = ((-0.25, -0.6), (-0.4, 0.6)), (((-0.25, -0.6), (0.5, -0.5)), ((-0.3, 0.0), (0.15, 0.05)))
    strokes = (stem, *bars, ((0.4, 0.45), (0.4, 0.45)))
    ink = torch.stack([torch.exp(-0.5 * (_apart(x, y, *stroke) / 0.13).square()) for stroke in strokes])
    return ink.amax(0).expand(channels, -1, -1).clone()


def tried(transform: Callable[[Float[Tensor, "c h w"]], Any], image_shape: Sequence[int]) -> None:
    """Have a transform move the standard picture once; a ValueError where it does not give a picture back."""
    image = picture(image_shape)
    with torch.random.fork_rng(devices=[]):
        moved = torch.as_tensor(transform(image))
    if moved.shape != image.shape or not bool(moved.isfinite().all()):
        raise ValueError(
            f"The exported transform was run on an image of shape {tuple(image.shape)} and gave shape "
            f"{tuple(moved.shape)} or numbers that are not finite: use faithful=True."
        )


def measure(
    orbit: ImageOrbit | DeformationOrbit,
    apply: Callable[[Float[Tensor, "c h w"], Draw], Tensor],
    moves: Moves,
    images: ArrayLike | Tensor | None,
    fill: float,
    num_draws: int,
) -> tuple[float, float]:
    """Error and extent: `apply` moves an image by a built-in transform with the parameters of a `Draw`."""
    rows = pictures(images, moves.image_shape)
    generator = torch.Generator().manual_seed(0)
    own = OrbitTransform(orbit, fill=fill).orbit.cpu()
    apart, moved, size = 0.0, 0.0, 0.0
    for number in range(num_draws):
        image = rows[number % len(rows)]
        flat = (image - fill).reshape(1, -1)
        noise = own.noise((1, 1), generator, flat)
        ours = own.move(flat, noise).reshape(image.shape) + fill
        theirs = apply(image, moves.at(*place_of(orbit, noise[0, 0])))
        apart += float((theirs - ours).square().mean())
        moved += float((ours - image).square().mean())
        size += float((image - fill).square().mean())
    if size == 0:
        raise ValueError("The error is relative to the images, but all their pixels are `fill`: give others.")
    return math.sqrt(apart / size), math.sqrt(moved / size)


def measure_group(
    names: Sequence[str],
    transform: Callable[[Float[Tensor, "c h w"]], Tensor],
    image_shape: tuple[int, int, int],
    images: ArrayLike | Tensor | None,
    num_draws: int,
) -> tuple[float, float]:
    """Error and extent of a random flip or turn: the distance of each draw to the nearest element."""
    rows = pictures(images, image_shape)
    orbit = orbit_of(names, image_shape)
    apart, moved, size = 0.0, 0.0, 0.0
    for number in range(num_draws):
        image = rows[number % len(rows)]
        elements = orbit.points(image.reshape(1, -1)).points[0]
        distances = (elements - transform(image).reshape(1, -1)).square().mean(-1)
        apart += float(distances.min())
        moved += float((elements - elements[:1]).square().mean())
        size += float(image.square().mean())
    if size == 0:
        raise ValueError("The error is relative to the images, but all their pixels are zero: give others.")
    return math.sqrt(apart / size), math.sqrt(moved / size)


def pictures(
    images: ArrayLike | Tensor | None, image_shape: tuple[int, int, int]
) -> Float[Tensor, "n c h w"]:
    """The images to measure on, in float32: those given, or the standard picture."""
    if images is None:
        return picture(image_shape)[None]
    given = torch.as_tensor(images if isinstance(images, Tensor) else np.asarray(images)).detach().cpu()
    if given.numel() == 0 or given.numel() % math.prod(image_shape):
        raise ValueError(
            f"images must be [n, C, H, W] with {image_shape}, not of shape {tuple(given.shape)}."
        )
    return given.float().reshape(-1, *image_shape)


def group_of(orbit: FiniteOrbit, image_shape: tuple[int, int, int]) -> tuple[str, ...]:
    """The one of GROUPS that a finite orbit is, or a ValueError."""
    names = names_of(orbit, image_shape)
    for group in GROUPS:
        if set(names) == {"identity", *group} and len(names) == len(group) + 1:
            return group
    raise ValueError(
        f"No library draws evenly from {', '.join(names)} with a transform of its own: use faithful=True."
    )


def described(orbit: Orbit) -> tuple[ImageOrbit | DeformationOrbit, Moves, list[str]]:
    """The orbit, its ranges, and the differences that every library's built-in transforms share."""
    orbit = orbit.source if isinstance(orbit, FrozenOrbit) else orbit
    moves, differences = moves_of(orbit), []
    assert isinstance(orbit, ImageOrbit | DeformationOrbit)
    if not (moves.is_affine or moves.amplitude):
        raise ValueError("This orbit has no move that a library knows: use faithful=True.")
    if moves.scale_x[0] < moves.scale_x[1] or moves.scale_y[0] < moves.scale_y[1]:
        differences.append(EVEN_SCALES)
    if moves.shear[0] < moves.shear[1]:
        differences.append(EVEN_SHEAR)
    if moves.amplitude:
        differences.append(UNIFORM_FIELD)
        differences += [TWO_WARPS] if moves.is_affine else []
    if isinstance(orbit, DeformationOrbit):
        differences.append(WARPED)
        differences += [NO_THICKNESS] if orbit.bounds.intervals() else []
    return orbit, moves, differences


def _apart(x: Tensor, y: Tensor, start: tuple[float, float], end: tuple[float, float]) -> Tensor:
    """The distance of every place to a stroke."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    length = max(along_x**2 + along_y**2, 1e-12)
    part = (((x - start[0]) * along_x + (y - start[1]) * along_y) / length).clamp(0, 1)
    return torch.hypot(x - start[0] - part * along_x, y - start[1] - part * along_y)
