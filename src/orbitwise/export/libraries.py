"""A learned orbit for torchvision, kornia and albumentations: exactly, or by their most similar transforms.

All libraries turn and shear in degrees about the same centre, but they differ in signs, order, units and
interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, TypedDict, Unpack, final, overload

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from orbitwise.export.faithful import OrbitTransform
from orbitwise.export.moves import Draw, Moves, uniform_strength
from orbitwise.export.nearest import LOST_MEAN, WHOLE_PIXELS, Builtin, Call, Constant, Library, make
from orbitwise.orbits.orbit import Interval, Orbit

ImageTransform = Callable[..., dict[str, Any]]
"""A transform of albumentations, which takes images by keyword and returns a dictionary."""
LEAST_SMOOTHNESS = 1.0
"""The smallest smoothness of albumentations' displacements, in pixels."""


@final
class Torchvision(Library):
    """torchvision's v2 transforms.

    `RandomAffine` turns clockwise, shears to the left, takes the nearest pixel by default, has one scale for
    both axes, and rounds shifts to whole pixels.
    """

    name = "torchvision"
    module = "torchvision.transforms.v2"
    statement = "from torchvision.transforms import v2"

    def affine(self, moves: Moves, fill: float) -> Call:
        """`RandomAffine`."""
        scale, _ = one_scale(moves)
        return Call(
            "RandomAffine",
            options={
                "degrees": [-moves.angle[1], -moves.angle[0]],
                "translate": moves.relative_shifts,
                "scale": scale,
                "shear": [-moves.shear[1], -moves.shear[0]],
                "interpolation": Constant("InterpolationMode.BILINEAR"),
                "fill": fill if fill else None,
            },
        )

    def elastic(self, moves: Moves, fill: float) -> Call | None:
        """`ElasticTransform`, which mirrors its noise at the border over the radius of its kernel."""
        radius = _radius(moves.smoothness)
        if not moves.amplitude or radius >= min(moves.image_shape[1:]):
            return None
        strength = 2 * uniform_strength(moves.amplitude, moves.smoothness, radius)
        options = {"alpha": strength, "sigma": moves.smoothness, "fill": fill if fill else None}
        return Call("ElasticTransform", options=options)

    def quarter_turn(self) -> Call:
        """One of four rotations."""
        turns = [Call("RandomRotation", ((angle, angle),)) for angle in (0, 90, 180, 270)]
        return Call("RandomChoice", (turns,))

    def chain(self, parts: list[Call]) -> Call:
        """`Compose`."""
        return Call("Compose", (parts,)) if parts else Call("Identity")

    def differences(self, moves: Moves, fill: float) -> list[str]:
        """One scale for both axes, whole pixels, a lost mean shift, and perhaps no displacement."""
        found = []
        if moves.scale_x != (1.0, 1.0) or moves.scale_y != (1.0, 1.0):
            found.append("both axes have one scale instead of one each")
        if any(moves.mean_shift):
            found.append(LOST_MEAN.format(*moves.mean_shift))
        if moves.has_shifts:
            found.append(WHOLE_PIXELS)
        if moves.amplitude and self.elastic(moves, fill) is None:
            needed = _radius(moves.smoothness) + 1
            found.append(
                f"the displacement is left out: its smoothing needs images of {needed} pixels or more"
            )
        if fill:
            found.append("pixels half outside the image are mixed with `fill` twice")
        return found

    def at_draw(self, module: ModuleType, moves: Moves, fill: float) -> Callable[[Tensor, Draw], Tensor]:
        """The affine map and the displacement, with the parameters of a draw."""
        affine = make(self.affine(moves, fill), module) if moves.is_affine else None
        elastic, (_, scale_at) = make(self.elastic(moves, fill), module), one_scale(moves)
        mean_x, mean_y = moves.mean_shift

        def apply(image: Tensor, draw: Draw) -> Tensor:
            if affine is not None:
                shifts = [round(draw.shift_x - mean_x), round(draw.shift_y - mean_y)]
                drawn = {"angle": -draw.angle, "translate": shifts, "scale": scale_at(draw)}
                image = affine.transform(image, drawn | {"shear": (-draw.shear, 0.0)})
            if elastic is not None and draw.noise is not None:
                size = 2 * _radius(elastic.sigma[0]) + 1
                blur = module.functional.gaussian_blur
                smooth = blur(draw.noise[:, None], [size, size], list(elastic.sigma))[:, 0]
                height, width = draw.noise.shape[-2:]
                strengths = torch.tensor([elastic.alpha[0] / width, elastic.alpha[1] / height])
                field = (smooth * strengths.to(smooth)[:, None, None]).permute(1, 2, 0)[None]
                image = elastic.transform(image, {"displacement": field})
            return image

        return apply


def one_scale(moves: Moves) -> tuple[Interval, Callable[[Draw], float]]:
    """The range of the single scale that is nearest to the two scales of an orbit, and the scale for a draw.

    With z = log scale_x + log scale_y, E[(s - log scale_x)² + (s - log scale_y)²] is smallest if s increases
    with z. If s is uniform with half-width h around E[z]/2, the best h is 3/2 E[r z], where r is the rank of
    z.
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
        # the positions of the draw between its bounds, which are linear in the factors
        places = [
            0.0 if low == high else 2 * (value - low) / (high - low) - 1
            for value, (low, high) in ((draw.scale_x, moves.scale_x), (draw.scale_y, moves.scale_y))
        ]
        value = sum((high - low) / 2 * place for (low, high), place in zip(logs, places, strict=True))
        below, not_above = (float(torch.searchsorted(z, value, right=right)) for right in (False, True))
        place = (below + not_above) / len(z) - 1 if half else 0.0
        return (first + last) / 2 + (last - first) / 2 * place

    return (first, last), at


def _radius(smoothness: float) -> int:
    """The radius of the kernel by which torchvision smooths displacements."""
    return (int(8 * smoothness + 1) | 1) // 2


@final
class Kornia(Library):
    """kornia's augmentations of batches [B, C, H, W].

    `RandomAffine` turns clockwise and shears to the left; shifts are symmetric fractions of width and height.
    """

    name = "kornia"
    module = "kornia.augmentation"
    statement = "from kornia import augmentation"

    def affine(self, moves: Moves, fill: float) -> Call:
        """`RandomAffine`."""
        return Call(
            "RandomAffine",
            options={
                "degrees": (-moves.angle[1], -moves.angle[0]),
                "translate": moves.relative_shifts,
                "scale": (*moves.scale_x, *moves.scale_y),
                "shear": (-moves.shear[1], -moves.shear[0]),
                "resample": "bilinear",
                "align_corners": False,
                "padding_mode": "fill" if fill else "zeros",
                "fill_value": fill if fill else None,
                "p": 1.0,
            },
        )

    def elastic(self, moves: Moves, fill: float) -> Call | None:
        """`RandomElasticTransform`, whose displacements are in units of half the image."""
        if not moves.amplitude:
            return None
        _, height, width = moves.image_shape
        radius = math.ceil(4 * moves.smoothness)
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

    def quarter_turn(self) -> Call:
        """`RandomRotation90`."""
        # `times` is uniform and rounded; half a turn beyond each end makes -1, 0, 1 and 2 equally likely
        return Call("RandomRotation90", options={"times": (-1.5, 2.5), "p": 1.0})

    def chain(self, parts: list[Call]) -> Call:
        """`ImageSequential`."""
        return Call("ImageSequential", tuple(parts))

    def differences(self, moves: Moves, fill: float) -> list[str]:
        """A lost mean shift, another order of moves, and the border."""
        found = []
        if any(moves.mean_shift):
            found.append(LOST_MEAN.format(*moves.mean_shift))
        if moves.shear != (0.0, 0.0) and moves.scale_x != (1.0, 1.0):
            found.append("the content is sheared before it is scaled, not after")
        if moves.amplitude and fill:
            found.append("the displacement repeats the image's border outside the image, instead of `fill`")
        return found

    def moved(self, transform: Callable[..., Any], image: Float[Tensor, "c h w"]) -> Tensor:
        """An image moved as a batch of one."""
        return transform(image[None])[0]

    def at_draw(self, module: ModuleType, moves: Moves, fill: float) -> Callable[[Tensor, Draw], Tensor]:
        """The affine map and the displacement, with the parameters of a draw."""
        affine = make(self.affine(moves, fill), module) if moves.is_affine else None
        elastic = make(self.elastic(moves, fill), module)
        _, height, width = moves.image_shape
        mean_x, mean_y = moves.mean_shift

        def apply(image: Tensor, draw: Draw) -> Tensor:
            moved = image[None]
            if affine is not None:
                drawn = {
                    "translations": torch.tensor([[draw.shift_x - mean_x, draw.shift_y - mean_y]]),
                    "center": torch.tensor([[(width - 1) / 2, (height - 1) / 2]]),
                    "scale": torch.tensor([[draw.scale_x, draw.scale_y]]),
                    "angle": torch.tensor([-draw.angle]),
                    "shear_x": torch.tensor([-draw.shear]),
                    "shear_y": torch.zeros(1),
                }
                matrix = affine.compute_transformation(moved, drawn, affine.flags)
                moved = affine.apply_transform(moved, drawn, affine.flags, matrix)
            if elastic is not None and draw.noise is not None:
                moved = elastic.apply_transform(moved, {"noise": draw.noise[None].to(moved)}, elastic.flags)
            return moved[0]

        return apply


@final
class Albumentations(Library):
    """albumentations' transforms of arrays [H, W, C].

    `Affine` turns counter-clockwise, shears to the left after it has turned, and moves by whole pixels.
    """

    name = "albumentations"
    module = "albumentations"
    statement = "import albumentations"

    def affine(self, moves: Moves, fill: float) -> Call:
        """`Affine`."""
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

    def elastic(self, moves: Moves, fill: float) -> Call | None:
        """`ElasticTransform`."""
        if not moves.amplitude:
            return None
        smoothness = max(moves.smoothness, LEAST_SMOOTHNESS)
        opencv_radius = (round(8 * smoothness + 1) | 1) // 2
        return Call(
            "ElasticTransform",
            options={
                "alpha": uniform_strength(moves.amplitude, smoothness, opencv_radius),
                "sigma": smoothness,
                "interpolation": Constant("INTER_LINEAR", "cv2"),
                "noise_distribution": "uniform",
                "border_mode": Constant("BORDER_CONSTANT", "cv2"),
                "fill": fill,
                "p": 1.0,
            },
        )

    def quarter_turn(self) -> Call:
        """`RandomRotate90`."""
        return Call("RandomRotate90", options={"p": 1.0})

    def symmetries(self, group: Sequence[str]) -> list[Call]:
        """One transform that draws all elements with equal probabilities."""
        always = {"p": 1.0}
        if len(group) == 7:
            return [Call("D4", options=always)]
        if "turn_90" in group:
            return [self.quarter_turn()]
        flips = {"flip_horizontal": "HorizontalFlip", "flip_vertical": "VerticalFlip"}
        if len(group) == 1:
            return [Call(flips[group[0]], options={"p": 0.5})]
        # one choice among all four elements, because a pipeline may give two flips the same seed
        alone = [Call(name, options=always) for name in flips.values()]
        both = Call("Sequential", (alone,), always)
        return [Call("OneOf", ([Call("NoOp", options=always), *alone, both],), always)]

    def chain(self, parts: list[Call]) -> Call:
        """`Compose`."""
        return Call("Compose", (parts,))

    def differences(self, moves: Moves, fill: float) -> list[str]:
        """Whole pixels, another order of moves, and the smallest smoothness."""
        found = []
        if moves.has_shifts:
            found.append(WHOLE_PIXELS)
        if moves.shear != (0.0, 0.0) and moves.angle != (0.0, 0.0):
            found.append("the content is turned before it is sheared, not after")
        if 0 < moves.smoothness < LEAST_SMOOTHNESS:
            found.append(f"the smoothness is {LEAST_SMOOTHNESS:g} pixel, the smallest possible")
        return found

    def moved(self, transform: Callable[..., Any], image: Float[Tensor, "c h w"]) -> Tensor:
        """An image moved as an array [H, W, C]."""
        array = np.ascontiguousarray(image.numpy().transpose(1, 2, 0), dtype=np.float32)
        moved = transform(image=array)["image"]
        return torch.from_numpy(np.ascontiguousarray(moved.reshape(array.shape).transpose(2, 0, 1)))

    def at_draw(self, module: ModuleType, moves: Moves, fill: float) -> Callable[[Tensor, Draw], Tensor]:
        """An affine map made for the draw, and the displacement by its noise."""
        elastic = make(self.elastic(moves, fill), module)

        def apply(image: Tensor, draw: Draw) -> Tensor:
            if moves.is_affine:
                image = self.moved(make(self.affine(_fixed(draw, moves), fill), module), image)
            if elastic is not None and draw.noise is not None:
                elastic.set_random_state(_GivenNoise(draw.noise), elastic.py_random)
                image = self.moved(elastic, image)
            return image

        return apply


@final
class _GivenNoise:
    """A random generator whose next uniform numbers are given."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise.numpy()

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> NDArray:
        assert (low, high) == (-1, 1)
        return self.noise.reshape(size)


def whole(interval: Interval) -> tuple[int, int]:
    """The range of whole numbers nearest to an interval: n numbers spread like an interval of length n."""
    first, last = round(interval[0] + 0.5), round(interval[1] - 0.5)
    middle = round(sum(interval) / 2)
    return (first, last) if first <= last else (middle, middle)


def _fixed(draw: Draw, moves: Moves) -> Moves:
    """Ranges that contain only this draw; shifts become the whole pixels at the same positions."""
    shifts = []
    for value, interval in ((draw.shift_x, moves.shift_x), (draw.shift_y, moves.shift_y)):
        first, last = whole(interval)
        low, high = interval
        place = 0.5 if low == high else (value - low) / (high - low)
        shifts.append(float(min(first + int(place * (last - first + 1)), last)))
    values = (draw.angle, draw.scale_x, draw.scale_y, draw.shear, *shifts)
    angle, scale_x, scale_y, shear, shift_x, shift_y = ((value, value) for value in values)
    return Moves(moves.image_shape, angle, scale_x, scale_y, shear, shift_x, shift_y)


def _pixels(interval: Interval) -> tuple[int, int]:
    low, high = interval
    return (round(low), round(low)) if low == high else whole(interval)


LIBRARIES: Mapping[str, Library] = {each.name: each for each in (Albumentations(), Kornia(), Torchvision())}


@final
class DrawOptions(TypedDict, total=False):
    """The options of a module that moves images by the orbit itself."""

    image_shape: Sequence[int] | None
    fill: float
    generator: torch.Generator | None


@final
class ShellOptions(TypedDict, total=False):
    """The options of albumentations' transform that moves images by the orbit itself."""

    image_shape: Sequence[int] | None
    fill: float
    probability: float


@final
class NearestOptions(TypedDict, total=False):
    """The options of a library's most similar transform, whose error is measured."""

    image_shape: Sequence[int] | None
    fill: float
    images: ArrayLike | Tensor | None
    num_draws: int


@overload
def to_torchvision(
    orbit: Orbit, *, faithful: Literal[True] = True, **options: Unpack[DrawOptions]
) -> OrbitTransform: ...
@overload
def to_torchvision(
    orbit: Orbit, *, faithful: Literal[False], **options: Unpack[NearestOptions]
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
    """Give an orbit as a module for torchvision's v2 pipelines.

    Parameters
    ----------
    orbit : Orbit
        A learned orbit, such as `orbit_` of a fitted estimator.
    faithful : bool, default=True
        True gives the orbit itself, which moves images exactly as the model does and does not need
        torchvision. False gives the most similar transform of torchvision, with its measured error.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width); needed only if the orbit does not know it.
    fill : float, default=0.0
        The pixel value outside the image.
    generator : torch.Generator, default=None
        The generator of draws, one per image of a batch; None takes torch's global generator.
    images : array-like [n, C, H, W], default=None
        The images on which the error of the most similar transform is measured; None takes a standard
        picture.
    num_draws : int, default=64
        The number of draws over which the error is measured.

    Returns
    -------
    OrbitTransform or Builtin
        With `faithful=False` a `Builtin`: the transform, its error, and how it differs from the orbit.

    Examples
    --------
    >>> import torch
    >>> from orbitwise.export import to_torchvision
    >>> from orbitwise.orbits import ImageOrbit
    >>> augment = to_torchvision(ImageOrbit((1, 8, 8), {"angle": 0.3}))
    >>> augment(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 1, 8, 8])
    """
    if faithful:
        return OrbitTransform(orbit, image_shape, fill, generator)
    return LIBRARIES["torchvision"].nearest(orbit, image_shape, fill, images, num_draws)


@overload
def to_kornia(
    orbit: Orbit, *, faithful: Literal[True] = True, **options: Unpack[DrawOptions]
) -> OrbitTransform: ...
@overload
def to_kornia(orbit: Orbit, *, faithful: Literal[False], **options: Unpack[NearestOptions]) -> Builtin: ...
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
    """Give an orbit as a module for batches [B, C, H, W], as kornia's augmentations are.

    Parameters
    ----------
    orbit : Orbit
        A learned orbit, such as `orbit_` of a fitted estimator.
    faithful : bool, default=True
        True gives the orbit itself, which moves images exactly as the model does and does not need
        kornia. False gives the most similar transform of kornia, with its measured error.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width); needed only if the orbit does not know it.
    fill : float, default=0.0
        The pixel value outside the image.
    generator : torch.Generator, default=None
        The generator of draws, one per image of a batch; None takes torch's global generator.
    images : array-like [n, C, H, W], default=None
        The images on which the error of the most similar transform is measured; None takes a standard
        picture.
    num_draws : int, default=64
        The number of draws over which the error is measured.

    Returns
    -------
    OrbitTransform or Builtin
        With `faithful=False` a `Builtin`: the transform, its error, and how it differs from the orbit.
    """
    if faithful:
        return OrbitTransform(orbit, image_shape, fill, generator)
    return LIBRARIES["kornia"].nearest(orbit, image_shape, fill, images, num_draws)


@overload
def to_albumentations(
    orbit: Orbit, *, faithful: Literal[True] = True, **options: Unpack[ShellOptions]
) -> ImageTransform: ...
@overload
def to_albumentations(
    orbit: Orbit, *, faithful: Literal[False], **options: Unpack[NearestOptions]
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
) -> ImageTransform | Builtin:
    """Give an orbit as an `ImageOnlyTransform` of albumentations.

    Parameters
    ----------
    orbit : Orbit
        A learned orbit, such as `orbit_` of a fitted estimator.
    faithful : bool, default=True
        True gives the orbit itself, which moves images exactly as the model does; draws come from the random
        state of the pipeline. False gives the most similar transform of albumentations, with its measured
        error.
    image_shape : tuple of int, default=None
        (height, width) or (channels, height, width); needed only if the orbit does not know it.
    fill : float, default=0.0
        The pixel value outside the image.
    probability : float, default=1.0
        The probability that an image is moved.
    images : array-like [n, C, H, W], default=None
        The images on which the error of the most similar transform is measured; None takes a standard
        picture.
    num_draws : int, default=64
        The number of draws over which the error is measured.

    Returns
    -------
    ImageOnlyTransform or Builtin
        With `faithful=False` a `Builtin`: the transform, its error, and how it differs from the orbit.
    """
    library = LIBRARIES["albumentations"]
    if not faithful:
        return library.nearest(orbit, image_shape, fill, images, num_draws)
    module, own = library.load(), OrbitTransform(orbit, image_shape, fill)
    library.try_out(_faithful(own, 1.0, module), own.image_shape)
    return _faithful(own, probability, module)


def _faithful(transform: OrbitTransform, probability: float, module: ModuleType) -> ImageTransform:
    """The orbit as an `ImageOnlyTransform`; the class is made here because the library is optional."""

    @final
    class OrbitImageTransform(module.ImageOnlyTransform):
        """Images [H, W, C] or [H, W] moved by draws of a learned orbit."""

        def __init__(self, p: float = 1.0) -> None:
            super().__init__(p=p)

        def get_params(self) -> dict[str, int]:
            return {"orbit_seed": int(self.random_generator.integers(2**31))}

        def apply(self, img: NDArray, orbit_seed: int = 0, **_: object) -> NDArray:
            return transform(img, generator=torch.Generator().manual_seed(orbit_seed))

        def __reduce__(self) -> tuple[Any, ...]:
            # spawned workers look classes up by name, which fails for a class made in a function
            return _again, (transform, self.p)

    return OrbitImageTransform(p=probability)


def _again(transform: OrbitTransform, probability: float) -> ImageTransform:
    return _faithful(transform, probability, LIBRARIES["albumentations"].load())
