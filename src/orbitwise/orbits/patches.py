"""The patches of an image as its orbit: f(x) = mean of g over all patches is a convolutional GP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.orbits.orbit import Orbit, OrbitPoints, exact_points
from orbitwise.transforms.images import check_image_shape, check_images


@final
class PatchOrbit(Orbit):
    """All patches of `patch_shape` (height, width), `stride` pixels apart; g lives on patches.

    A patch has all channels, so its width is channels·height·width. `WeightedOrbit` learns the weights of
    positions in the image.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    patch_shape : (height, width)
        The size of a patch, in pixels.
    stride : int, default=1
        Pixels between neighbouring patches, in both directions.
    """

    stored = Stored({"patch_shape": Field(least=1, most=2**20), "stride": Field(least=1, most=2**20)})

    def __init__(self, image_shape: Sequence[int], patch_shape: Sequence[int], stride: int = 1) -> None:
        super().__init__()
        self.image_shape = check_image_shape(image_shape)
        shape = tuple(patch_shape)
        if len(shape) != 2 or any(size != int(size) or size < 1 for size in shape):
            raise ValueError(f"patch_shape must be (height, width) in whole pixels, not {shape}.")
        _, height, width = self.image_shape
        if shape[0] > height or shape[1] > width:
            raise ValueError(f"A patch of {shape} pixels is larger than the image of {(height, width)}.")
        if stride < 1:
            raise ValueError(f"stride must be at least 1, not {stride}.")
        self.patch_shape = (int(shape[0]), int(shape[1]))
        self.stride = int(stride)
        self.grid = tuple(
            (whole - part) // self.stride + 1
            for whole, part in zip((height, width), self.patch_shape, strict=True)
        )

    @property
    def size(self) -> int:
        """The number of patches."""
        return math.prod(self.grid)

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_images(x, self.image_shape, type(self).__name__)
        windows = x.reshape(len(x), *self.image_shape)
        for axis, size in zip((2, 3), self.patch_shape, strict=True):
            windows = windows.unfold(axis, size, self.stride)
        # [n c rows columns h w] → [n, rows·columns, c·h·w]
        patches = windows.permute(0, 2, 3, 1, 4, 5).reshape(len(x), self.size, -1)
        return exact_points(patches, x.new_full((self.size,), 1 / self.size))

    def extra_repr(self) -> str:
        return f"{self.size} patches of {self.patch_shape[0]}×{self.patch_shape[1]} pixels"
