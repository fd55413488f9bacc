"""Learnable orbits of images: affine moves and smooth deformations in one warp, and crops (METHOD 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, Field, Stored, switch
from orbitwise.orbits.certainty import Unit, image_units
from orbitwise.orbits.nodes import Density, Draws, Noise
from orbitwise.orbits.orbit import (
    AMPLITUDE,
    Bounds,
    DrawnOrbit,
    Interval,
    LearnedWidths,
    image_widths,
)
from orbitwise.transforms.images import AFFINE_PARAMETERS, AffineWarp, check_image_shape, distinct, warp


def smoothing(size: int, smoothness: Tensor, like: Tensor) -> Float[Tensor, "{size} {size}"]:
    """Gaussian weights over `size` positions; rows have unit norm, so that white noise keeps its variance."""
    place = torch.arange(size, dtype=like.dtype, device=like.device)
    weights = torch.exp(-0.5 * ((place[:, None] - place) / smoothness.to(like)).square())
    return weights / weights.square().sum(-1, keepdim=True).sqrt()


def smooth_curve(noise: Float[Tensor, "*batch t"], smoothness: Tensor) -> Float[Tensor, "*batch t"]:
    """A smooth curve of unit variance at every position, from white noise."""
    return noise @ smoothing(noise.shape[-1], smoothness, noise).T


def smooth_field(noise: Float[Tensor, "*batch h w"], smoothness: Tensor) -> Float[Tensor, "*batch h w"]:
    """A smooth field of unit variance at every pixel, from white noise.

    With W the Gaussian weights of `smoothing`, the field is W n Wᵀ.
    """
    rows, columns = (smoothing(size, smoothness, noise) for size in noise.shape[-2:])
    # W n Wᵀ
    return rows @ noise @ columns.T


LIMITS = {
    "angle": math.pi,
    "log_scale_x": 1.5,
    "log_scale_y": 1.5,
    "shear": 2.0,
    "shift_x": 1.0,
    "shift_y": 1.0,
}

DEFORMATION = ("amplitude", "smoothness")


@final
class ImageOrbit(DrawnOrbit):
    """Images moved by an affine map between learnable bounds, then by a smooth random displacement (LIM 5).

    `affine` gives the initial bounds ({} for none, None for all with ordinary sizes), see `Bounds`.
    `amplitude` is the standard deviation of the displacement in pixels (0 for none) and `smoothness` the
    width in pixels over which it varies; both are learned. `learnable` names what is learned; the default is
    everything.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    affine : mapping from name to float or (lower, upper), default=None
        Bounds of angle, log_scale_x, log_scale_y, shear, shift_x and shift_y; a name left out is fixed at 0.
    amplitude : float, default=0.0
        Standard deviation of the displacement of every pixel, in pixels; 0 for no deformation.
    smoothness : float, default=4.0
        Width in pixels over which the displacement varies.
    learnable : sequence of str, default=None
        What is learned, everything that is on where None.
    two_sided : sequence of str, default=()
        Affine parameters whose lower and upper bounds are learned separately.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored(
        {
            "affine": Field(is_omitted=True, fixed={}),
            "amplitude": switch("deforms"),
            "smoothness": OMITTED,
        },
        {"has_affine": Field((bool,))},
    )

    def __init__(
        self,
        image_shape: Sequence[int],
        affine: Mapping[str, float | Interval] | None = None,
        amplitude: float = 0.0,
        smoothness: float = 4.0,
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        self.image_shape = check_image_shape(image_shape)
        self.warp = AffineWarp(image_shape)
        natural = image_widths(image_shape)
        start = {name: natural[name] for name in AFFINE_PARAMETERS} if affine is None else affine
        _check_learnable(learnable, deforms=amplitude > 0)
        moving = tuple(start) if learnable is None else tuple(n for n in learnable if n in AFFINE_PARAMETERS)
        self.bounds = Bounds(AFFINE_PARAMETERS, start, moving, two_sided, LIMITS, natural)
        if not (0 <= amplitude < math.inf and 0 < smoothness < math.inf):
            raise ValueError(
                "amplitude must not be negative and smoothness must be positive, both finite, not "
                f"{amplitude} and {smoothness}."
            )
        self.deforms = amplitude > 0
        self.has_affine = bool(start)
        learn = {name: self.deforms and (learnable is None or name in learnable) for name in DEFORMATION}
        self.raw_amplitude = nn.Parameter(_log(max(amplitude, 1e-6)), requires_grad=learn["amplitude"])
        self.raw_smoothness = nn.Parameter(_log(smoothness), requires_grad=learn["smoothness"])

    @property
    def randomness(self) -> Noise:
        """The affine parameters, then a displacement for every pixel."""
        _, height, width = self.image_shape
        field: tuple[tuple[Density, int], ...] = (("normal", 2 * height * width),) if self.deforms else ()
        return Noise((("uniform", len(AFFINE_PARAMETERS)), *field))

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        self.warp.check(x)
        count, noise = len(AFFINE_PARAMETERS), distinct(noise)
        grid = self.warp.grid(self.bounds.place(noise[..., :count]))
        if self.deforms:
            grid = grid + self.displacement(noise[..., count:])
        return warp(x, grid, self.image_shape)

    def displacement(self, noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s h w 2"]:
        """amplitude·W n Wᵀ in the units of the grid; the rows of W keep unit variance at every pixel."""
        _, height, width = self.image_shape
        field = noise.unflatten(-1, (2, height, width))
        smooth = self.raw_amplitude.exp().to(noise) * smooth_field(field, self.raw_smoothness.exp())
        # a pixel is 2/size of the grid
        x, y = smooth.unbind(-3)
        return torch.stack([x * (2 / width), y * (2 / height)], dim=-1)

    def learned_widths(self) -> list[LearnedWidths]:
        """The amplitude and the smoothness of the deformation, where they are learned."""
        unlimited = torch.full((1,), torch.inf, dtype=torch.float64)
        here = torch.zeros(1, dtype=torch.long)
        found = [
            (self.raw_amplitude, AMPLITUDE, True),
            (self.raw_smoothness, self.raw_smoothness.exp().item(), False),
        ]
        return [
            LearnedWidths(raw, here, torch.full_like(unlimited, natural), unlimited, vanishes)
            for raw, natural, vanishes in found
            if raw.requires_grad
        ]

    def learned(self) -> dict[str, Interval]:
        """The present range of every move that is not fixed at the identity, by name."""
        ranges = super().learned()
        if self.deforms:
            ranges["amplitude"] = (0.0, self.raw_amplitude.exp().item())
            ranges["smoothness"] = (0.0, self.raw_smoothness.exp().item())
        return ranges

    def units(self) -> Mapping[str, Unit]:
        return image_units(self.image_shape)


def _log(value: float) -> Tensor:
    return torch.tensor(math.log(value), dtype=torch.float64)


def _check_learnable(learnable: Sequence[str] | None, deforms: bool) -> None:
    known = (*AFFINE_PARAMETERS, *(DEFORMATION if deforms else ()))
    for name in learnable or ():
        if name not in known:
            hint = " (with amplitude above 0)" if name in DEFORMATION else ""
            raise ValueError(f"{name!r} cannot be learned{hint}; there are {', '.join(known)}.")


SHIFTS = ("shift_x", "shift_y")


@final
class CropOrbit(DrawnOrbit):
    """A random window of 1/exp(z) times the size of the image, resized to the whole image and then shifted.

    z is uniform between 0 and `log_zoom` (0 for none), which is learned. `shift` bounds an additional shift,
    in fractions of half the image (2/width is one pixel), with zeros outside the image; without zoom, this is
    the crop of a padded image. `learnable` names what is learned; the default is everything that is not zero.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    log_zoom : float, default=0.1
        The largest logarithm of the magnification.
    shift : float or (lower, upper), default=0.0
        Bounds of both shifts, in fractions of half the image.
    learnable, two_sided : sequence of str
        What is learned, and which shifts learn both their bounds.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored(
        {
            "image_shape": Field(read="warp.image_shape"),
            "log_zoom": switch("zooms"),
            "shift": OMITTED,
        }
    )

    def __init__(
        self,
        image_shape: Sequence[int],
        log_zoom: float = 0.1,
        shift: float | Interval = 0.0,
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        self.warp = AffineWarp(image_shape)
        start: dict[str, float | Interval] = {} if shift == 0 else dict.fromkeys([*SHIFTS], shift)
        widths = {} if log_zoom == 0 else {"log_zoom": log_zoom}
        natural = image_widths(image_shape)
        self._learn_ranges(SHIFTS, start, widths, learnable, two_sided, dict.fromkeys(SHIFTS, 1.0), natural)
        self.zooms = log_zoom != 0

    @property
    def randomness(self) -> Noise:
        """The shifts, then the zoom and the position of the window."""
        return Noise((("uniform", len(SHIFTS) + (3 if self.zooms else 0)),))

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        noise = distinct(noise)
        shift = self.bounds.place(noise[..., : len(SHIFTS)])
        zoom = torch.zeros_like(shift[..., :1])
        if self.zooms:
            zoom = self.widths["log_zoom"].to(noise) * (noise[..., 2:3] + 1) / 2
            # A window of half-size w = exp(-z) about c = place·(1-w) fills the image by p ↦ (p-c)/w.
            shift = shift - noise[..., 3:] * zoom.expm1()
        zero = torch.zeros_like(zoom)
        alpha = torch.cat([zero, zoom, zoom, zero, shift], dim=-1)
        return self.warp(x, alpha.expand(len(x), -1, -1))

    def units(self) -> Mapping[str, Unit]:
        return image_units(self.warp.image_shape)
