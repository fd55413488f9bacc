"""The learned orbit itself as an augmentation: every image is moved by a fresh draw, exactly as in the model.

The same module works in pipelines of torchvision and kornia and in plain torch; for albumentations it is
wrapped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from orbitwise.functionals.averages import drawn_form
from orbitwise.orbits.orbit import Orbit
from orbitwise.transforms.images import check_image_shape

PICTURES = ("L", "RGB", "RGBA", "F")
"""Modes of PIL images whose pixels are plain numbers."""


@final
class OrbitTransform(nn.Module):
    """Moves each image of a batch by an independent draw from a copy of `orbit`, whose ranges stay fixed.

    It takes tensors [*, C, H, W] or [H, W], arrays [H, W, C] or [H, W], and PIL images, and returns the same
    kind; whole numbers are rounded. Further arguments, such as labels, are returned unchanged, so masks and
    boxes, which would have to move with the image, must not be passed. An orbit of one channel moves all
    channels of an image alike. `fill` is the value outside the image. Draws come from `generator`, by default
    torch's global one, which differs between the workers of a DataLoader.
    """

    def __init__(
        self,
        orbit: Orbit,
        image_shape: Sequence[int] | None = None,
        fill: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = image_shape_of(orbit, image_shape)
        if not math.isfinite(fill):
            raise ValueError(f"fill must be a finite pixel value, not {fill}.")
        self.fill = float(fill)
        self.generator = generator
        self.orbit = copy.deepcopy(drawn_form(orbit)).requires_grad_(False)
        self._check_moves()

    def forward(self, image: object, *others: object, generator: torch.Generator | None = None) -> object:
        """The moved image; if there are other arguments, a tuple of it and them."""
        generator = self.generator if generator is None else generator
        if isinstance(image, Tensor):
            moved = self._move_pixels(image, generator)
        elif isinstance(image, np.ndarray):
            moved = self._move_array(image, generator)
        elif isinstance(image, Image.Image):
            if image.mode not in PICTURES:
                raise ValueError(
                    f"A PIL image must have one of the modes {', '.join(PICTURES)}, not {image.mode!r}: "
                    "use image.convert('RGB')."
                )
            moved = Image.fromarray(self._move_array(np.asarray(image), generator))
        else:
            raise TypeError(
                f"An exported orbit moves tensors [*, C, H, W], arrays [H, W, C] and PIL images, not "
                f"{type(image).__name__}."
            )
        return (moved, *others) if others else moved

    def _move_array(self, image: NDArray, generator: torch.Generator | None) -> NDArray:
        """Move an array with channels last, as in albumentations and PIL."""
        pixels = torch.from_numpy(np.array(image))
        has_channels = pixels.dim() == 3
        moved = self._move_pixels(pixels.movedim(-1, 0) if has_channels else pixels, generator)
        return np.ascontiguousarray((moved.movedim(0, -1) if has_channels else moved).numpy())

    def _move_pixels(self, image: Tensor, generator: torch.Generator | None) -> Tensor:
        """Move a tensor [*, C, H, W] or [H, W] of any precision."""
        channels, *plane = self.image_shape
        given = 1 if image.dim() == 2 else image.shape[-3] if image.dim() > 2 else 0
        if list(image.shape[-2:]) != plane or given < 1 or (channels > 1 and given != channels):
            raise ValueError(
                f"This orbit moves images [C, H, W] = {self.image_shape}, but got shape "
                f"{tuple(image.shape)}: resize the images, or learn an orbit at their size."
            )
        exact = image.dtype in (torch.float32, torch.float64)
        pixels = (image if exact else image.float()) - self.fill
        moved = self._move_rows(pixels.reshape(-1, given, math.prod(plane)), generator) + self.fill
        moved = moved.reshape(image.shape)
        if image.is_floating_point():
            return moved.to(image.dtype)
        least, most = _whole_range(image.dtype)
        return moved.round().clamp(least, most).to(image.dtype)

    def _move_rows(
        self, pixels: Float[Tensor, "n c l"], generator: torch.Generator | None
    ) -> Float[Tensor, "n c l"]:
        count, given, _ = pixels.shape
        noise = self.orbit.noise((count, 1), generator, pixels)
        repeats = given // self.image_shape[0]
        rows = pixels.reshape(count * repeats, -1)
        return self.orbit.move(rows, noise.repeat_interleave(repeats, 0)).reshape(pixels.shape)

    def _check_moves(self) -> None:
        """Raise a ValueError unless all draws are images of the same shape with equal weights."""
        for part in self.orbit.modules():
            weights = getattr(part, "weights", None)
            if isinstance(weights, Tensor) and not torch.allclose(weights, weights[:1]):
                raise ValueError(
                    f"An orbit with weights cannot be an augmentation: leave out the weights of "
                    f"{type(part).__name__}."
                )
        device = next((tensor.device for tensor in self.orbit.state_dict().values()), None)
        row = torch.zeros(1, math.prod(self.image_shape), device=device)
        noise = self.orbit.noise((1, 1), torch.Generator().manual_seed(0), row)
        moved = self.orbit.move(row, noise)
        if moved.shape[-1] != row.shape[-1]:
            raise ValueError(
                f"This orbit turns {row.shape[-1]} pixels into {moved.shape[-1]}: it is not an augmentation."
            )

    def extra_repr(self) -> str:
        return f"image_shape={self.image_shape}, fill={self.fill:g}"


def image_shape_of(orbit: object, image_shape: Sequence[int] | None = None) -> tuple[int, int, int]:
    """(channels, height, width) of the images that an orbit moves, or a ValueError that asks for it."""
    if not isinstance(orbit, Orbit):
        raise TypeError(
            f"Only orbits can be exported, not {type(orbit).__name__}: pass an orbit, or `orbit_` of an "
            "estimator that was fitted with an invariance of images."
        )
    shapes = [getattr(part, "image_shape", None) for part in orbit.modules()]
    known: set[tuple[int, int, int]] = {shape for shape in shapes if shape is not None}
    if image_shape is not None:
        known.add(check_image_shape(image_shape))
    if not known:
        raise ValueError(
            f"{type(orbit).__name__} does not know the shape of its images: pass "
            "image_shape=(channels, height, width)."
        )
    if len(known) > 1:
        raise ValueError(f"The orbit and image_shape have different image shapes: {sorted(known)}.")
    return known.pop()


def _whole_range(dtype: torch.dtype) -> tuple[int, int]:
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
