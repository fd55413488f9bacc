"""Transforms of images stored as flat rows: flips, quarter turns and the affine warp.

`image_shape` is (height, width) or (channels, height, width); a row has that many pixels, channels first.
Flips and quarter turns permute pixels, so they are exact; the affine warp interpolates bilinearly and fills
with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from orbitwise.transforms.permutations import SignedPermutations
from orbitwise.transforms.transform import Transform, central_differences, check_rows

SHARING = 32
"""Images that are moved together where they share their grids; more would leave cores without work."""
AFFINE_PARAMETERS = ("angle", "log_scale_x", "log_scale_y", "shear", "shift_x", "shift_y")


def check_image_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """`image_shape` as (channels, height, width), or a ValueError that explains what is accepted."""
    shape = tuple(image_shape)
    if len(shape) not in (2, 3) or any(size != int(size) or size < 1 for size in shape):
        raise ValueError(
            f"image_shape must be (height, width) or (channels, height, width) in whole pixels, not {shape}."
        )
    channels, height, width = (int(size) for size in ((1, *shape) if len(shape) == 2 else shape))
    return channels, height, width


def check_images(x: object, image_shape: tuple[int, int, int], name: str) -> None:
    """Raise a ValueError unless the rows of x are images of this shape; `name` says who asks."""
    width, pixels = check_rows(x, name), math.prod(image_shape)
    if width != pixels:
        raise ValueError(
            f"Images of shape {image_shape} have {pixels} pixels, but the inputs have width {width}."
        )


def flips(image_shape: Sequence[int], horizontal: bool = True, vertical: bool = False) -> SignedPermutations:
    """The identity and mirror images: left-right (`horizontal`), upside down (`vertical`), or both."""
    pixels = _pixel_numbers(image_shape)
    if not (horizontal or vertical):
        raise ValueError("flips needs horizontal=True, vertical=True, or both.")
    axes = [(), *([(-1,)] if horizontal else []), *([(-2,)] if vertical else [])]
    if horizontal and vertical:
        axes.append((-1, -2))
    return SignedPermutations(torch.stack([pixels.flip(axis).flatten() for axis in axes]), is_group=True)


def quarter_turns(image_shape: Sequence[int]) -> SignedPermutations:
    """The rotations by 0, 90, 180 and 270 degrees counter-clockwise; images must be square."""
    pixels = _pixel_numbers(image_shape)
    if pixels.shape[-1] != pixels.shape[-2]:
        raise ValueError(f"Quarter turns need square images, not {tuple(image_shape)}.")
    turned = [torch.rot90(pixels, turn, (-2, -1)).flatten() for turn in range(4)]
    return SignedPermutations(torch.stack(turned), is_group=True)


@final
class AffineWarp(Transform):
    """Rotation, scaling, shear and translation about the image's centre, bilinear, zero outside.

    α = (angle, log_scale_x, log_scale_y, shear, shift_x, shift_y): the angle in radians, counter-clockwise
    as seen on the screen; natural logarithms of the scales (positive enlarges); the shear moves what is one
    pixel lower by `shear` pixels to the right; shifts are fractions of half the image's width and height
    (positive moves the content right and down; 2/width is one pixel). The content is scaled, then sheared,
    then rotated, then moved.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read. All channels move together.
    """

    parameter_names = AFFINE_PARAMETERS

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.image_shape = check_image_shape(image_shape)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x holds images of this shape."""
        check_images(x, self.image_shape, type(self).__name__)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        return warp(x, self.grid(distinct(alpha)), self.image_shape)

    def grid(self, alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s h w 2"]:
        """The position x, y from which each pixel is read, from -1 to 1 between the outer edges."""
        _, height, width = self.image_shape
        angle, scale_x, scale_y, shear, shift_x, shift_y = alpha.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        # y points down, so a counter-clockwise turn of the content is R = [[cos, sin], [-sin, cos]]; where to
        # read is the inverse of p = R H S q + shift, with S = diag(exp scale) and H = [[1, shear], [0, 1]].
        y, x = torch.meshgrid(
            _pixel_centres(height, alpha) * height, _pixel_centres(width, alpha) * width, indexing="ij"
        )
        moved_x = x - (shift_x * width)[..., None, None]
        moved_y = y - (shift_y * height)[..., None, None]
        turned_x = cos[..., None, None] * moved_x - sin[..., None, None] * moved_y
        turned_y = sin[..., None, None] * moved_x + cos[..., None, None] * moved_y
        source_x = (turned_x - shear[..., None, None] * turned_y) * (-scale_x).exp()[..., None, None]
        source_y = turned_y * (-scale_y).exp()[..., None, None]
        return torch.stack([source_x / width, source_y / height], dim=-1)

    def tangent(self, x: Float[Tensor, "n d"], step: float = 1e-2) -> Float[Tensor, "n p d"]:
        """Central differences, because a bilinear warp has a kink at the identity."""
        return central_differences(self, x, step)


def distinct(rows: Tensor) -> Tensor:
    """The rows, or a single one where all are the same number in memory, as nodes of a frozen orbit are."""
    return rows[:1] if rows.stride(0) == 0 else rows


def warp(
    x: Float[Tensor, "n d"], grid: Float[Tensor, "m s h w 2"], image_shape: tuple[int, int, int]
) -> Float[Tensor, "n s d"]:
    """Sample each image at the s grids of its row, bilinearly, with zeros outside.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Images as rows.
    grid : Tensor of shape (n, s, h, w, 2) or (1, s, h, w, 2)
        The place (x, y) that each pixel of each result is read from, between -1 and 1 inside the image. One
        set of grids serves all images.
    image_shape : (channels, height, width)
        How a row is read.
    """
    (count, width), (num_grids, samples) = x.shape, grid.shape[:2]
    channels, *size = image_shape
    # One image and s grids: stack the grids along the height, so that the image is not copied s times.
    grid = grid.flatten(1, 2)
    if num_grids == count:
        warped = _GridSample.apply(x.reshape(count, channels, *size), grid)
    else:
        # Images that share their grids are channels of one image: their places are computed once.
        together = min(count, SHARING)
        padded = F.pad(x, (0, 0, 0, -count % together)).reshape(-1, together * channels, *size)
        shared = _GridSample.apply(padded, grid.expand(len(padded), -1, -1, -1))
        warped = shared.reshape(-1, channels, *shared.shape[2:])[:count]
    return warped.reshape(count, channels, samples, -1).transpose(1, 2).reshape(count, samples, width)


class _GridSample(torch.autograd.Function):
    """`grid_sample` with the forward derivative that torch lacks: the warp is linear in the image."""

    @staticmethod
    def forward(images: Tensor, grid: Tensor) -> Tensor:
        return _sample(images, grid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
        images, grid = ctx.saved_tensors
        needs_images, needs_grid = ctx.needs_input_grad
        grad_images, grad_grid = torch.ops.aten.grid_sampler_2d_backward(
            grad_outputs[0].contiguous(), images, grid, 0, 0, False, (needs_images, needs_grid)
        )
        return grad_images if needs_images else None, grad_grid if needs_grid else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        images, grid = ctx.saved_tensors
        along_images, along_grid = tangents
        if along_grid is not None and bool((along_grid != 0).any()):
            raise ValueError(
                "An image warp has no exact derivatives by its parameters; tangent() takes differences."
            )
        return _sample(torch.zeros_like(images) if along_images is None else along_images, grid)


def _sample(images: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _pixel_centres(size: int, like: Tensor) -> Tensor:
    return (2 * torch.arange(size, dtype=like.dtype, device=like.device) + 1) / size - 1


def _pixel_numbers(image_shape: Sequence[int]) -> Tensor:
    shape = check_image_shape(image_shape)
    return torch.arange(math.prod(shape)).reshape(shape)
