"""A learned orbit for torchvision's v2 pipelines: our own module, or `RandomAffine` and `ElasticTransform`.

torchvision's `RandomAffine` turns clockwise, shears to the left, about the same centre, in degrees, takes the
nearest pixel unless told otherwise, has one scale for both axes, and rounds shifts to whole pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.export.builtin import (
    LOST_MEAN,
    WHOLE_PIXELS,
    Builtin,
    described,
    group_of,
    library,
    measure,
    measure_group,
    tried,
)
from orbitwise.export.calls import Call, Constant, make
from orbitwise.export.faithful import OrbitTransform, image_shape_of
from orbitwise.export.moves import Draw, Moves, uniform_strength
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit
from orbitwise.orbits.ranges import Interval


@overload
def to_torchvision(
    orbit: Orbit,
    *,
    faithful: Literal[True] = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    generator: torch.Generator | None = None,
) -> OrbitTransform: ...
@overload
def to_torchvision(
    orbit: Orbit,
    *,
    faithful: Literal[False],
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> Builtin: ...
def to_torchvision(
    orbit: Orbit,
    *,
    faithful: bool = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    generator: torch.Generator | None = None,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> OrbitTransform | Builtin:
    """The orbit as a module for v2 pipelines, or with `faithful=False` torchvision's nearest transform.

    The module draws from `generator`, for every image of a batch by itself, and needs no torchvision; its
    error is zero. The error of the nearest transform is measured on `images`, by default on a standard
    picture, with `num_draws` draws.
    """
    if faithful:
        return OrbitTransform(orbit, image_shape, fill, generator)
    v2 = library("torchvision.transforms.v2")
    shape = image_shape_of(orbit, image_shape)
    transform = make(torchvision_call(orbit, shape, fill), v2)
    tried(transform, shape)
    if isinstance(orbit, FiniteOrbit):
        names = ("identity", *group_of(orbit, shape))
        return Builtin(transform, *measure_group(names, transform, shape, images, num_draws), [])
    source, moves, differences = described(orbit)
    scale, scale_at = one_scale(moves)
    affine, elastic = make(_affine(moves, scale, fill), v2), make(_elastic(moves, fill), v2)

    def apply(image: Tensor, draw: Draw) -> Tensor:
        moved = image
        if affine is not None:
            moved = affine.transform(moved, _parameters(draw, moves, scale_at(draw)))
        if elastic is not None and draw.noise is not None:
            moved = elastic.transform(moved, {"displacement": _displacement(draw.noise, elastic, v2)})
        return moved

    if moves.scale_x != (1.0, 1.0) or moves.scale_y != (1.0, 1.0):
        differences.append("both axes have one scale instead of one each")
    differences += _differences(moves, elastic, fill)
    error, extent = measure(source, apply, moves, images, fill, num_draws)
    return Builtin(transform, error, extent, differences)


def torchvision_call(orbit: Orbit, shape: tuple[int, int, int], fill: float = 0.0) -> Call:
    """torchvision's nearest transform of an orbit, which needs no torchvision to be written down."""
    if isinstance(orbit, FiniteOrbit):
        return _sequence(_symmetries(group_of(orbit, shape)))
    _, moves, _ = described(orbit)
    scale, _ = one_scale(moves)
    return _sequence(
        [part for part in (_affine(moves, scale, fill), _elastic(moves, fill)) if part is not None]
    )


def one_scale(moves: Moves) -> tuple[Interval, Callable[[Draw], float]]:
    """The range of one scale that is nearest to the two of an orbit, and the scale that goes with a draw.

    With z = log scale_x + log scale_y, E[(s - log scale_x)² + (s - log scale_y)²] is least for s that rises
    with z; where s is uniform, of half-width h about E[z]/2, that is h = 3/2 E[r z] with the rank r of z.
    """
    logs = [(math.log(low), math.log(high)) for low, high in (moves.scale_x, moves.scale_y)]
    even = (2 * torch.arange(101, dtype=torch.float64) + 1) / 101 - 1
    x, y = ((high - low) / 2 * even for low, high in logs)
    z = (x[:, None] + y).flatten().sort().values
    rank = (2 * torch.arange(len(z), dtype=torch.float64) + 1) / len(z) - 1
    half = 1.5 * float((rank * z).mean())
    middle = sum(low + high for low, high in logs) / 4
    first, last = math.exp(middle - half), math.exp(middle + half)

    def at(draw: Draw) -> float:
        # the places of the draw between its bounds, which are linear in the factors
        places = [
            0.0 if low == high else 2 * (value - low) / (high - low) - 1
            for value, (low, high) in ((draw.scale_x, moves.scale_x), (draw.scale_y, moves.scale_y))
        ]
        value = sum((high - low) / 2 * place for (low, high), place in zip(logs, places, strict=True))
        below, not_above = (float(torch.searchsorted(z, value, right=right)) for right in (False, True))
        place = (below + not_above) / len(z) - 1 if half else 0.0
        return (first + last) / 2 + (last - first) / 2 * place

    return (first, last), at


def _affine(moves: Moves, scale: Interval, fill: float) -> Call | None:
    if not moves.is_affine:
        return None
    _, height, width = moves.image_shape
    half_x, half_y = ((high - low) / 2 for low, high in (moves.shift_x, moves.shift_y))
    return Call(
        "RandomAffine",
        options={
            "degrees": [-moves.angle[1], -moves.angle[0]],
            "translate": (half_x / width, half_y / height),
            "scale": scale,
            "shear": [-moves.shear[1], -moves.shear[0]],
            "interpolation": Constant("InterpolationMode.BILINEAR"),
            "fill": fill if fill else None,
        },
    )


def _parameters(draw: Draw, moves: Moves, scale: float) -> dict[str, Any]:
    """What `RandomAffine` would have drawn."""
    mean_x, mean_y = moves.mean_shift
    shifts = [round(draw.shift_x - mean_x), round(draw.shift_y - mean_y)]
    return {"angle": -draw.angle, "translate": shifts, "scale": scale, "shear": (-draw.shear, 0.0)}


def _elastic(moves: Moves, fill: float) -> Call | None:
    radius = _radius(moves.smoothness)
    if not moves.amplitude or radius >= min(moves.image_shape[1:]):
        return None
    strength = 2 * uniform_strength(moves.amplitude, moves.smoothness, radius)
    options = {"alpha": strength, "sigma": moves.smoothness, "fill": fill if fill else None}
    return Call("ElasticTransform", options=options)


def _radius(smoothness: float) -> int:
    """That of torchvision's own kernel, whose noise is mirrored as far as that."""
    return (int(8 * smoothness + 1) | 1) // 2


def _displacement(noise: Tensor, elastic: Any, v2: Any) -> Tensor:
    """What `ElasticTransform` would have made of this noise."""
    size = 2 * _radius(elastic.sigma[0]) + 1
    smooth = v2.functional.gaussian_blur(noise[:, None], [size, size], list(elastic.sigma))[:, 0]
    height, width = noise.shape[-2:]
    strengths = torch.tensor([elastic.alpha[0] / width, elastic.alpha[1] / height])
    return (smooth * strengths.to(smooth)[:, None, None]).permute(1, 2, 0)[None]


def _differences(moves: Moves, elastic: Any, fill: float) -> list[str]:
    found = []
    if any(moves.mean_shift):
        found.append(LOST_MEAN.format(*moves.mean_shift))
    if moves.shift_x != (0.0, 0.0) or moves.shift_y != (0.0, 0.0):
        found.append(WHOLE_PIXELS)
    if moves.amplitude and elastic is None:
        needed = _radius(moves.smoothness) + 1
        found.append(f"the displacement is left out: its smoothing needs images of {needed} pixels or more")
    if fill:
        found.append("pixels half outside the image are mixed with `fill` twice")
    return found


def _symmetries(group: tuple[str, ...]) -> list[Call]:
    """Independent flips, after a quarter turn where there are any."""
    turns = "turn_90" in group
    quarter = [Call("RandomRotation", ((angle, angle),)) for angle in (0, 90, 180, 270)]
    parts = [Call("RandomChoice", (quarter,))] if turns else []
    if "flip_horizontal" in group:
        parts.append(Call("RandomHorizontalFlip", options={"p": 0.5}))
    if "flip_vertical" in group and not turns:
        parts.append(Call("RandomVerticalFlip", options={"p": 0.5}))
    return parts


def _sequence(parts: list[Call]) -> Call:
    return Call("Compose", (parts,)) if len(parts) > 1 else parts[0] if parts else Call("Identity")
