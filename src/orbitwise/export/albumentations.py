"""A learned orbit for albumentations: our own `ImageOnlyTransform`, or `Affine` and `ElasticTransform`.

albumentations' `Affine` turns counter-clockwise, shears to the left after it has turned, in degrees, and
moves by whole pixels; images are arrays [H, W, C].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, final, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orbitwise.export.builtin import (
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

LEAST_SMOOTHNESS = 1.0


@overload
def to_albumentations(
    orbit: Orbit,
    *,
    faithful: Literal[True] = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    probability: float = 1.0,
) -> Any: ...
@overload
def to_albumentations(
    orbit: Orbit,
    *,
    faithful: Literal[False],
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> Builtin: ...
def to_albumentations(
    orbit: Orbit,
    *,
    faithful: bool = True,
    image_shape: Sequence[int] | None = None,
    fill: float = 0.0,
    probability: float = 1.0,
    images: ArrayLike | Tensor | None = None,
    num_draws: int = 64,
) -> Any:
    """The orbit as an `ImageOnlyTransform`, or with `faithful=False` albumentations' nearest transform.

    The first draws from the random state of its pipeline, applies with `probability`, and its error is zero.
    The error of the nearest transform is measured on `images` [n, C, H, W], by default on a standard picture,
    with `num_draws` draws.
    """
    module = library("albumentations")
    shape = image_shape_of(orbit, image_shape)
    if faithful:
        own = OrbitTransform(orbit, image_shape, fill)
        tried(lambda image: _call(_faithful(own, 1.0, module), image), shape)
        return _faithful(own, probability, module)
    transform = make(albumentations_call(orbit, shape, fill), module)
    tried(lambda image: _call(transform, image), shape)
    if isinstance(orbit, FiniteOrbit):
        names = ("identity", *group_of(orbit, shape))
        return Builtin(
            transform, *measure_group(names, lambda x: _call(transform, x), shape, images, num_draws), []
        )
    source, moves, differences = described(orbit)
    elastic = make(_elastic(moves, fill), module)

    def apply(image: Tensor, draw: Draw) -> Tensor:
        if moves.is_affine:
            image = _call(make(_affine(_fixed(draw, moves), fill), module), image)
        if elastic is not None and draw.noise is not None:
            elastic.set_random_state(_Given(draw.noise), elastic.py_random)
            image = _call(elastic, image)
        return image

    error, extent = measure(source, apply, moves, images, fill, num_draws)
    differences += _differences(moves)
    return Builtin(transform, error, extent, differences)


def albumentations_call(orbit: Orbit, shape: tuple[int, int, int], fill: float = 0.0) -> Call:
    """albumentations' nearest transform of an orbit, which needs no albumentations to be written down."""
    if isinstance(orbit, FiniteOrbit):
        return _sequence(_symmetries(group_of(orbit, shape)))
    _, moves, _ = described(orbit)
    elastic = _elastic(moves, fill)
    parts = [_affine(moves, fill)] if moves.is_affine else []
    return _sequence([*parts, *([] if elastic is None else [elastic])])


def _faithful(transform: OrbitTransform, probability: float, module: Any) -> Any:
    """A shell of albumentations' own class, which exists only where the library does."""

    @final
    class OrbitImageTransform(module.ImageOnlyTransform):
        """Images [H, W, C] or [H, W] moved by draws of a learned orbit."""

        def __init__(self, p: float = 1.0) -> None:
            super().__init__(p=p)

        def get_params(self) -> dict[str, int]:
            return {"orbit_seed": int(self.random_generator.integers(2**31))}

        def apply(self, img: NDArray, orbit_seed: int = 0, **_: Any) -> NDArray:
            return transform(img, generator=torch.Generator().manual_seed(orbit_seed))

        def __reduce__(self) -> tuple[Any, ...]:
            # a class made in a function cannot be found by its name, as workers that are spawned need
            return _again, (transform, self.p)

    return OrbitImageTransform(p=probability)


def _again(transform: OrbitTransform, probability: float) -> Any:
    return _faithful(transform, probability, library("albumentations"))


@final
class _Given:
    """Stands in for a random generator whose next uniform numbers are these."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise.numpy()

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> NDArray:
        assert (low, high) == (-1, 1)
        return self.noise.reshape(size)


def whole(interval: Interval) -> tuple[int, int]:
    """The whole numbers, drawn evenly, that are nearest to an interval: n of them spread like a length n."""
    first, last = round(interval[0] + 0.5), round(interval[1] - 0.5)
    middle = round(sum(interval) / 2)
    return (first, last) if first <= last else (middle, middle)


def _fixed(draw: Draw, moves: Moves) -> Moves:
    """Ranges of nothing but this draw; a shift is the whole pixel at its place among those drawn."""
    shifts = []
    for value, interval in ((draw.shift_x, moves.shift_x), (draw.shift_y, moves.shift_y)):
        first, last = whole(interval)
        low, high = interval
        place = 0.5 if low == high else (value - low) / (high - low)
        shifts.append(float(min(first + int(place * (last - first + 1)), last)))
    values = (draw.angle, draw.scale_x, draw.scale_y, draw.shear, *shifts)
    angle, scale_x, scale_y, shear, shift_x, shift_y = ((value, value) for value in values)
    return Moves(moves.image_shape, angle, scale_x, scale_y, shear, shift_x, shift_y)


def _affine(moves: Moves, fill: float) -> Call:
    return Call(
        "Affine",
        options={
            "scale": {"x": moves.scale_x, "y": moves.scale_y},
            "translate_px": {"x": _pixels(moves.shift_x), "y": _pixels(moves.shift_y)},
            "rotate": moves.angle,
            "shear": {"x": (-moves.shear[1], -moves.shear[0]), "y": (0.0, 0.0)},
            "interpolation": Constant("INTER_LINEAR", "cv2"),
            "border_mode": Constant("BORDER_CONSTANT", "cv2"),
            "fill": fill,
            "keep_ratio": False,
            "balanced_scale": False,
            "p": 1.0,
        },
    )


def _pixels(interval: Interval) -> tuple[int, int]:
    low, high = interval
    return (round(low), round(low)) if low == high else whole(interval)


def _elastic(moves: Moves, fill: float) -> Call | None:
    if not moves.amplitude:
        return None
    smoothness = max(moves.smoothness, LEAST_SMOOTHNESS)
    return Call(
        "ElasticTransform",
        options={
            # OpenCV's own radius
            "alpha": uniform_strength(moves.amplitude, smoothness, (round(8 * smoothness + 1) | 1) // 2),
            "sigma": smoothness,
            "interpolation": Constant("INTER_LINEAR", "cv2"),
            "noise_distribution": "uniform",
            "border_mode": Constant("BORDER_CONSTANT", "cv2"),
            "fill": fill,
            "p": 1.0,
        },
    )


def _differences(moves: Moves) -> list[str]:
    found = []
    if moves.shift_x != (0.0, 0.0) or moves.shift_y != (0.0, 0.0):
        found.append(WHOLE_PIXELS)
    if moves.shear != (0.0, 0.0) and moves.angle != (0.0, 0.0):
        found.append("the content is turned before it is sheared, not after")
    if 0 < moves.smoothness < LEAST_SMOOTHNESS:
        found.append(f"the smoothness is {LEAST_SMOOTHNESS:g} pixel, the least there is")
    return found


def _symmetries(group: tuple[str, ...]) -> list[Call]:
    always = {"p": 1.0}
    if len(group) == 7:
        return [Call("D4", options=always)]
    if "turn_90" in group:
        return [Call("RandomRotate90", options=always)]
    flips = {"flip_horizontal": "HorizontalFlip", "flip_vertical": "VerticalFlip"}
    if len(group) == 1:
        return [Call(flips[group[0]], options={"p": 0.5})]
    # a pipeline may give both flips the same seed, so that one choice is made among all four elements
    alone = [Call(name, options=always) for name in flips.values()]
    both = Call("Sequential", (alone,), always)
    return [Call("OneOf", ([Call("NoOp", options=always), *alone, both],), always)]


def _sequence(parts: list[Call]) -> Call:
    return parts[0] if len(parts) == 1 else Call("Compose", (parts,))


def _call(transform: Any, image: Tensor) -> Tensor:
    """A transform of arrays [H, W, C] on a tensor [C, H, W]."""
    array = np.ascontiguousarray(image.numpy().transpose(1, 2, 0), dtype=np.float32)
    moved = transform(image=array)["image"]
    return torch.from_numpy(np.ascontiguousarray(moved.reshape(array.shape).transpose(2, 0, 1)))
