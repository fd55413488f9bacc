"""The most similar built-in transform of a library, with its error measured on pictures.

A transform of a library is described by a `Call`, which makes the transform if the library is installed, and
can also be written as Python source.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.export.faithful import OrbitTransform, image_shape_of
from orbitwise.export.moves import SYMMETRIES, Draw, Moves, moves_of, orbit_of, place_of, symmetries_of
from orbitwise.orbits.deformations import DeformationOrbit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.orbit import FrozenOrbit, Orbit

TWO_WARPS = "the displacement is a second warp after the affine one, so pixels are interpolated twice"
UNIFORM_FIELD = (
    "the displacement is smoothed uniform noise, not normal noise, and weaker or stronger at the edges"
)
EVEN_SCALES = "scales are drawn uniformly as factors, not as logarithms"
EVEN_SHEAR = "the shear is drawn uniformly as an angle, not as a slope"
NO_THICKNESS = "strokes neither grow nor shrink"
WARPED = "the image is read at moved places, not changed along its own tangents"
LOST_MEAN = "ranges of shifts are symmetric, so a mean shift of ({:+.2g}, {:+.2g}) pixels is lost"
WHOLE_PIXELS = "shifts are whole pixels"
GROUPS: tuple[tuple[str, ...], ...] = (
    ("flip_horizontal",),
    ("flip_vertical",),
    ("flip_horizontal", "flip_vertical", "turn_180"),
    ("turn_90", "turn_180", "turn_270"),
    tuple(name for name in SYMMETRIES if name != "identity"),
)
"""Groups of flips and quarter turns, without the identity, from which libraries draw."""


@final
@dataclass(frozen=True)
class Constant:
    """A constant of this name in the library's module, or in another `module`."""

    name: str
    module: str | None = None


@final
@dataclass(frozen=True)
class Call:
    """A class of the library with its arguments: numbers, text, calls, and lists of these."""

    name: str
    arguments: tuple[object, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


def make(value: object, module: object) -> Any:
    """The object that a call describes, made from the classes of a module."""
    if isinstance(value, Call):
        given = [make(each, module) for each in value.arguments]
        return getattr(module, value.name)(*given, **make(dict(value.options), module))
    if isinstance(value, Constant):
        source = module if value.module is None else importlib.import_module(value.module)
        return attrgetter(value.name)(source)
    if isinstance(value, dict):
        return {name: make(each, module) for name, each in value.items()}
    return type(value)(make(each, module) for each in value) if isinstance(value, list | tuple) else value


def code(value: object, module: str) -> str:
    """The Python expression for the same object, if `module` is the name of the library's module."""
    if isinstance(value, Call):
        given = [code(each, module) for each in value.arguments]
        given += [f"{name}={code(each, module)}" for name, each in value.options.items()]
        return f"{module}.{value.name}({', '.join(given)})"
    if isinstance(value, Constant):
        return f"{value.module or module}.{value.name}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {code(each, module)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(code(each, module) for each in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value)


def modules_of(value: object) -> set[str]:
    """The modules that a call needs besides the library's."""
    if isinstance(value, Constant):
        return set() if value.module is None else {value.module}
    parts: Sequence[object] = ()
    if isinstance(value, Call):
        parts = [*value.arguments, *value.options.values()]
    elif isinstance(value, list | tuple):
        parts = value
    return set().union(*(modules_of(each) for each in parts))


@final
class Builtin(NamedTuple):
    """A built-in transform of a library, and how it differs from the orbit.

    `error` is the root mean square difference between pictures moved by the transform and by the orbit with
    the same draws, relative to the pictures. Compare it with `extent`, the same for moved and unmoved
    pictures. `differences` describes the causes of the error.
    """

    transform: Callable[..., Any]
    error: float
    extent: float
    differences: list[str]


class Library(ABC):
    """An augmentation library: its transforms nearest to affine maps, displacements and symmetries."""

    name: str
    module: str
    statement: str
    """The import statement of `module`; its last word is the name of the module in the file."""

    @abstractmethod
    def affine(self, moves: Moves, fill: float) -> Call:
        """The affine map with parameters drawn from these ranges."""

    @abstractmethod
    def elastic(self, moves: Moves, fill: float) -> Call | None:
        """The displacement of every pixel, or None if the library has none that is as smooth."""

    @abstractmethod
    def quarter_turn(self) -> Call:
        """One of the four quarter turns, with equal probabilities."""

    @abstractmethod
    def chain(self, parts: list[Call]) -> Call:
        """Several transforms one after the other."""

    @abstractmethod
    def differences(self, moves: Moves, fill: float) -> list[str]:
        """How this library differs from an orbit with these ranges, beyond what all libraries do."""

    @abstractmethod
    def at_draw(self, module: ModuleType, moves: Moves, fill: float) -> Callable[[Tensor, Draw], Tensor]:
        """A function that moves an image by the library's transforms with the parameters of a draw."""

    def symmetries(self, group: Sequence[str]) -> list[Call]:
        """Independent flips, after a quarter turn if the group has one."""
        has_turns = "turn_90" in group
        parts = [self.quarter_turn()] if has_turns else []
        if "flip_horizontal" in group:
            parts.append(Call("RandomHorizontalFlip", options={"p": 0.5}))
        if "flip_vertical" in group and not has_turns:
            parts.append(Call("RandomVerticalFlip", options={"p": 0.5}))
        return parts

    def moved(self, transform: Callable[..., Any], image: Float[Tensor, "c h w"]) -> Tensor:
        """An image moved by a transform of this library, which may need images in another form."""
        return transform(image)

    def load(self) -> ModuleType:
        """The module of the library, or an ImportError that says how to install it."""
        try:
            return importlib.import_module(self.module)
        # torchvision raises these where its operators do not fit the build of torch
        except (ImportError, RuntimeError, OSError) as error:
            raise ImportError(
                f"This export needs {self.name}, which cannot be imported ({error}): "
                'pip install "orbitwise[export]", or use to_torchvision(orbit), a module of plain torch.'
            ) from error

    def call(self, orbit: Orbit, shape: tuple[int, int, int], fill: float = 0.0) -> Call:
        """The call of the most similar transform; the library need not be installed."""
        if isinstance(orbit, FiniteOrbit):
            parts = self.symmetries(group_of(orbit, shape))
        else:
            _, moves, _ = described(orbit)
            found = (self.affine(moves, fill) if moves.is_affine else None, self.elastic(moves, fill))
            parts = [part for part in found if part is not None]
        return parts[0] if len(parts) == 1 else self.chain(parts)

    def nearest(
        self,
        orbit: Orbit,
        image_shape: Sequence[int] | None,
        fill: float,
        images: ArrayLike | Tensor | None,
        num_draws: int,
    ) -> Builtin:
        """The most similar transform of an orbit, with its measured error."""
        module, shape = self.load(), image_shape_of(orbit, image_shape)
        transform = make(self.call(orbit, shape, fill), module)
        self.try_out(transform, shape)
        if isinstance(orbit, FiniteOrbit):
            names = ("identity", *group_of(orbit, shape))
            found = measure_group(names, lambda x: self.moved(transform, x), shape, images, num_draws)
            return Builtin(transform, *found, [])
        source, moves, differences = described(orbit)
        found = measure(source, self.at_draw(module, moves, fill), moves, images, fill, num_draws)
        return Builtin(transform, *found, differences + self.differences(moves, fill))

    def try_out(self, transform: Callable[..., Any], image_shape: Sequence[int]) -> None:
        """Move the standard picture once, and raise a ValueError if the result is not a picture."""
        image = picture(image_shape)
        with torch.random.fork_rng(devices=[]):
            moved = torch.as_tensor(self.moved(transform, image))
        if moved.shape != image.shape or not bool(moved.isfinite().all()):
            raise ValueError(
                f"The exported transform was run on an image of shape {tuple(image.shape)} and gave shape "
                f"{tuple(moved.shape)} or numbers that are not finite: use faithful=True."
            )


def picture(image_shape: Sequence[int]) -> Float[Tensor, "c h w"]:
    """The standard picture: a slanted F and a dot, without symmetries, and almost zero at the border."""
    channels, height, width = image_shape
    y, x = torch.meshgrid(
        (2 * torch.arange(height) + 1) / height - 1, (2 * torch.arange(width) + 1) / width - 1, indexing="ij"
    )
    stem, bars = ((-0.25, -0.6), (-0.4, 0.6)), (((-0.25, -0.6), (0.5, -0.5)), ((-0.3, 0.0), (0.15, 0.05)))
    strokes = (stem, *bars, ((0.4, 0.45), (0.4, 0.45)))
    ink = torch.stack([torch.exp(-0.5 * (_apart(x, y, *stroke) / 0.13).square()) for stroke in strokes])
    return ink.amax(0).expand(channels, -1, -1).clone()


def measure(
    orbit: ImageOrbit | DeformationOrbit,
    apply: Callable[[Float[Tensor, "c h w"], Draw], Tensor],
    moves: Moves,
    images: ArrayLike | Tensor | None,
    fill: float,
    num_draws: int,
) -> tuple[float, float]:
    """Error and extent: `apply` moves an image by a built-in transform with the parameters of a `Draw`."""
    generator = torch.Generator().manual_seed(0)
    own = OrbitTransform(orbit, fill=fill).orbit.cpu()

    def squares(image: Tensor) -> tuple[float, float]:
        flat = (image - fill).reshape(1, -1)
        noise = own.noise((1, 1), generator, flat)
        ours = own.move(flat, noise).reshape(image.shape) + fill
        theirs = apply(image, moves.at(*place_of(orbit, noise[0, 0])))
        return float((theirs - ours).square().mean()), float((ours - image).square().mean())

    return _relative(squares, pictures(images, moves.image_shape), fill, num_draws)


def measure_group(
    names: Sequence[str],
    transform: Callable[[Float[Tensor, "c h w"]], Tensor],
    image_shape: tuple[int, int, int],
    images: ArrayLike | Tensor | None,
    num_draws: int,
) -> tuple[float, float]:
    """Error and extent of a random flip or turn; a draw is compared with the nearest element."""
    orbit = orbit_of(names, image_shape)

    def squares(image: Tensor) -> tuple[float, float]:
        elements = orbit.points(image.reshape(1, -1)).points[0]
        distances = (elements - transform(image).reshape(1, -1)).square().mean(-1)
        return float(distances.min()), float((elements - elements[:1]).square().mean())

    return _relative(squares, pictures(images, image_shape), 0.0, num_draws)


def _relative(
    squares: Callable[[Tensor], tuple[float, float]], images: Tensor, fill: float, num_draws: int
) -> tuple[float, float]:
    """The root mean squares over many draws, relative to the images, which are moved in turn."""
    apart, moved, size = 0.0, 0.0, 0.0
    for number in range(num_draws):
        image = images[number % len(images)]
        first, second = squares(image)
        apart, moved = apart + first, moved + second
        size += float((image - fill).square().mean())
    if size == 0:
        raise ValueError(
            "The error is relative to the images, but all their pixels equal `fill`: pass other images."
        )
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
    """The member of GROUPS that equals a finite orbit, or a ValueError."""
    names = symmetries_of(orbit, image_shape)
    for group in GROUPS:
        if set(names) == {"identity", *group} and len(names) == len(group) + 1:
            return group
    raise ValueError(
        f"No library has a transform that draws evenly from {', '.join(names)}: use faithful=True."
    )


def described(orbit: Orbit) -> tuple[ImageOrbit | DeformationOrbit, Moves, list[str]]:
    """The orbit, its ranges, and the differences that the transforms of all libraries have in common."""
    orbit = orbit.source if isinstance(orbit, FrozenOrbit) else orbit
    moves, differences = moves_of(orbit), []
    assert isinstance(orbit, ImageOrbit | DeformationOrbit)
    if not (moves.is_affine or moves.amplitude):
        raise ValueError("Libraries have no equivalent of the moves of this orbit: use faithful=True.")
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
    """The distance of every pixel to a stroke."""
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    length = max(along_x**2 + along_y**2, 1e-12)
    part = (((x - start[0]) * along_x + (y - start[1]) * along_y) / length).clamp(0, 1)
    return torch.hypot(x - start[0] - part * along_x, y - start[1] - part * along_y)
