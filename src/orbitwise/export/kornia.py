"""A learned orbit for kornia: our own module, or its `RandomAffine` and `RandomElasticTransform`.

kornia's `RandomAffine` turns clockwise, shears to the left, about the same centre, in degrees; shifts are
symmetric fractions of the width and height.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.export.builtin import (
    LOST_MEAN,
    Builtin,
    described,
    group_of,
    library,
    measure,
    measure_group,
    tried,
)
from orbitwise.export.calls import Call, make
from orbitwise.export.faithful import OrbitTransform, image_shape_of
from orbitwise.export.moves import Draw, Moves, uniform_strength
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import Orbit


@overload
def to_kornia(
    orbit: Orbit,
    *,
    faithful: Literal[True] = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    generator: torch.Generator | None = None,
) -> OrbitTransform: ...
@overload
def to_kornia(
    orbit: Orbit,
    *,
    faithful: Literal[False],
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> Builtin: ...
def to_kornia(
    orbit: Orbit,
    *,
    faithful: bool = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    generator: torch.Generator | None = None,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> OrbitTransform | Builtin:
    """The orbit as a module for batches [B, C, H, W], or with `faithful=False` kornia's nearest transform.

    The module draws from `generator` and needs no kornia; its error is zero. The error of the nearest
    transform is measured on `images`, by default on a standard picture, with `num_draws` draws.
    """
    if faithful:
        return OrbitTransform(orbit, image_shape, fill, generator)
    augmentation = library("kornia.augmentation")
    shape = image_shape_of(orbit, image_shape)
    transform = make(kornia_call(orbit, shape, fill), augmentation)
    tried(lambda image: transform(image[None])[0], shape)
    if isinstance(orbit, FiniteOrbit):
        names = ("identity", *group_of(orbit, shape))
        return Builtin(
            transform, *measure_group(names, lambda x: transform(x[None])[0], shape, images, num_draws), []
        )
    source, moves, differences = described(orbit)
    affine, elastic = make(_affine(moves, fill), augmentation), make(_elastic(moves, fill), augmentation)

    def apply(image: Tensor, draw: Draw) -> Tensor:
        moved = image[None]
        if affine is not None:
            parameters = _parameters(draw, moves)
            matrix = affine.compute_transformation(moved, parameters, affine.flags)
            moved = affine.apply_transform(moved, parameters, affine.flags, matrix)
        if elastic is not None and draw.noise is not None:
            moved = elastic.apply_transform(moved, {"noise": draw.noise[None].to(moved)}, elastic.flags)
        return moved[0]

    if any(moves.mean_shift):
        differences.append(LOST_MEAN.format(*moves.mean_shift))
    if moves.shear != (0.0, 0.0) and moves.scale_x != (1.0, 1.0):
        differences.append("the content is sheared before it is scaled, not after")
    if elastic is not None and fill:
        differences.append("a displacement repeats the image's border where it should read `fill`")
    error, extent = measure(source, apply, moves, images, fill, num_draws)
    return Builtin(transform, error, extent, differences)


def kornia_call(orbit: Orbit, shape: tuple[int, int, int], fill: float = 0.0) -> Call:
    """kornia's nearest transform of an orbit, which needs no kornia to be written down."""
    if isinstance(orbit, FiniteOrbit):
        return _sequence(_symmetries(group_of(orbit, shape)))
    _, moves, _ = described(orbit)
    return _sequence([part for part in (_affine(moves, fill), _elastic(moves, fill)) if part is not None])


def _affine(moves: Moves, fill: float) -> Call | None:
    if not moves.is_affine:
        return None
    _, height, width = moves.image_shape
    half_x, half_y = ((high - low) / 2 for low, high in (moves.shift_x, moves.shift_y))
    return Call(
        "RandomAffine",
        options={
            "degrees": (-moves.angle[1], -moves.angle[0]),
            "translate": (half_x / width, half_y / height),
            "scale": (*moves.scale_x, *moves.scale_y),
            "shear": (-moves.shear[1], -moves.shear[0]),
            "resample": "bilinear",
            "align_corners": False,
            "padding_mode": "fill" if fill else "zeros",
            "fill_value": fill if fill else None,
            "p": 1.0,
        },
    )


def _elastic(moves: Moves, fill: float) -> Call | None:
    if not moves.amplitude:
        return None
    _, height, width = moves.image_shape
    radius = math.ceil(4 * moves.smoothness)
    # displacements are in units of half the image
    strength = 2 * uniform_strength(moves.amplitude, moves.smoothness, radius)
    return Call(
        "RandomElasticTransform",
        options={
            "kernel_size": (2 * radius + 1, 2 * radius + 1),
            "sigma": (moves.smoothness, moves.smoothness),
            "alpha": (strength / width, strength / height),
            "align_corners": False,
            "resample": "bilinear",
            "padding_mode": "border" if fill else "zeros",
            "p": 1.0,
        },
    )


def _parameters(draw: Draw, moves: Moves) -> dict[str, Tensor]:
    """What `RandomAffine` would have drawn."""
    _, height, width = moves.image_shape
    mean_x, mean_y = moves.mean_shift
    return {
        "translations": torch.tensor([[draw.shift_x - mean_x, draw.shift_y - mean_y]]),
        "center": torch.tensor([[(width - 1) / 2, (height - 1) / 2]]),
        "scale": torch.tensor([[draw.scale_x, draw.scale_y]]),
        "angle": torch.tensor([-draw.angle]),
        "shear_x": torch.tensor([-draw.shear]),
        "shear_y": torch.zeros(1),
    }


def _symmetries(group: tuple[str, ...]) -> list[Call]:
    """Independent flips, after a quarter turn where there are any."""
    turns = "turn_90" in group
    # `times` is drawn evenly and rounded, so that half a turn beyond each end makes -1, 0, 1 and 2 alike
    parts = [Call("RandomRotation90", options={"times": (-1.5, 2.5), "p": 1.0})] if turns else []
    if "flip_horizontal" in group:
        parts.append(Call("RandomHorizontalFlip", options={"p": 0.5}))
    if "flip_vertical" in group and not turns:
        parts.append(Call("RandomVerticalFlip", options={"p": 0.5}))
    return parts


def _sequence(parts: list[Call]) -> Call:
    return parts[0] if len(parts) == 1 else Call("ImageSequential", tuple(parts))
