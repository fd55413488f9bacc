"""Deformations of images along their own tangents: the form of infinite MNIST (METHOD 7b).

x' = clip(x + F₁∘t_x - F₂∘t_y + β√(t_x² + t_y²)), with the image's Gaussian derivatives t_x and t_y. It is
affine in the fields F and in the thickness β, and uses only the pixel and its neighbours, so it suits small
moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import SMALLEST, Field, Stored
from orbitwise.transforms.images import check_image_shape, check_images
from orbitwise.transforms.transform import Transform


@final
class TangentDeformation(Transform):
    """x + F₁∘t_x - F₂∘t_y + β|t|, clipped, for α = (F₁ of every pixel, F₂ of every pixel, β).

    Fields and β are in pixels: the content moves left by F₁ and down by F₂, and bright strokes grow by β on
    each side. `tangent_width` is the width in pixels of the Gaussian whose derivatives are used. Pixels are
    clipped to the interval `clip`, or, if it is None, to the range of the image itself. All channels move
    together.
    """

    stored = Stored({"tangent_width": Field(least=SMALLEST, most=10_000)})

    def __init__(
        self,
        image_shape: Sequence[int],
        tangent_width: float = 1.0,
        clip: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = check_image_shape(image_shape)
        if not 0 < tangent_width < math.inf:
            raise ValueError(f"tangent_width must be positive and finite, not {tangent_width}.")
        if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
            raise ValueError(f"clip must be an interval (low, high), not {clip}.")
        self.tangent_width = float(tangent_width)
        self.clip = clip
        _, height, width = self.image_shape
        pixels = [f"{row}_{column}" for row in range(height) for column in range(width)]
        fields = [f"field_{axis}_{pixel}" for axis in ("x", "y") for pixel in pixels]
        self.parameter_names = (*fields, "thickness")

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x holds images of this shape."""
        check_images(x, self.image_shape, type(self).__name__)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        _, height, width = self.image_shape
        field_x, field_y = alpha[..., :-1].reshape(*alpha.shape[:2], 2, 1, height * width).unbind(2)
        along_x, along_y, magnitude = self.gradients(x)
        change = field_x * along_x - field_y * along_y + alpha[..., -1:, None] * magnitude
        moved = x[:, None, :] + change.flatten(2)
        if self.clip is not None:
            return moved.clamp(*self.clip)
        low, high = x.amin(-1)[:, None, None], x.amax(-1)[:, None, None]
        return torch.minimum(torch.maximum(moved, low), high)

    def gradients(self, x: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """t_x, t_y and √(t_x² + t_y²) of every channel [n 1 c h·w], per pixel; images are zero outside."""
        _, height, width = self.image_shape
        images = x.reshape(len(x), 1, *self.image_shape)
        rows, columns = (gaussian_filters(size, self.tangent_width, x) for size in (height, width))
        # t_x = S X Dᵀ and t_y = D X Sᵀ, with S the smoothing and D its derivative
        along_x = (rows[0] @ images @ columns[1].T).flatten(-2)
        along_y = (rows[1] @ images @ columns[0].T).flatten(-2)
        # this norm has derivative zero where the image is flat; a square root would have none
        return along_x, along_y, torch.linalg.vector_norm(torch.stack([along_x, along_y]), dim=0)

    def tangent(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p d"]:
        """The directions of the fields and the thickness, without clipping."""
        self.check(x)
        _, height, width = self.image_shape
        along_x, along_y, magnitude = self.gradients(x)
        pixels = torch.eye(height * width, dtype=x.dtype, device=x.device)[:, None, :]
        parts = [along_x * pixels, -along_y * pixels, magnitude]
        return torch.cat(parts, dim=1).flatten(2)


def gaussian_filters(size: int, width: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices that smooth and differentiate a line of pixels; a ramp has slope 1 except at edges."""
    place = torch.arange(size, dtype=like.dtype, device=like.device)
    apart = place[:, None] - place
    reach = torch.arange(-math.ceil(10 * width), math.ceil(10 * width) + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (reach / width).square())
    bell = torch.exp(-0.5 * (apart / width).square())
    return bell / float(weights.sum()), -apart * bell / float((reach.square() * weights).sum())
