"""Learnable orbits of images: affine moves between bounds, and smooth local deformations, in one warp (LIM 5; METHOD 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.bounds import Bounds, Interval
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.transforms.images import AFFINE_PARAMETERS, AffineWarp, check_image_shape, warp

AFFINE_START = {
    "angle": 0.1,
    "log_scale_x": 0.1,
    "log_scale_y": 0.1,
    "shear": 0.1,
    "shift_x": 0.02,
    "shift_y": 0.02,
}
LIMITS = {"angle": math.pi, "log_scale_x": 1.5, "log_scale_y": 1.5, "shear": 2.0, "shift_x": 1.0, "shift_y": 1.0}


@final
class ImageOrbit(DrawnOrbit):
    """Images moved by an affine map with uniform parameters between learnable bounds, then by a smooth random displacement.

    `affine` gives the bounds to start from ({} for none), see `Bounds`. `amplitude` is the standard deviation of the
    displacement in pixels (0 for none) and `smoothness` the width in pixels over which it varies; both are learned.
    """

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
    ) -> None:
        super().__init__(num_samples, num_groups)
        self.image_shape = check_image_shape(image_shape)
        self.warp = AffineWarp(image_shape)
        start = AFFINE_START if affine is None else affine
        moving = tuple(start) if learnable is None else tuple(n for n in learnable if n in AFFINE_PARAMETERS)
        self.bounds = Bounds(AFFINE_PARAMETERS, start, moving, two_sided, LIMITS)
        if amplitude < 0 or smoothness <= 0:
            raise ValueError("amplitude must not be negative and smoothness must be positive.")
        self.deforms = amplitude > 0
        self.has_affine = bool(start)
        learn = {name: self.deforms and (learnable is None or name in learnable) for name in ("amplitude", "smoothness")}
        self.raw_amplitude = nn.Parameter(_log(max(amplitude, 1e-6)), requires_grad=learn["amplitude"])
        self.raw_smoothness = nn.Parameter(_log(smoothness), requires_grad=learn["smoothness"])

    @property
    def num_noise(self) -> int:
        """Entries of noise a draw takes: the affine parameters, then a displacement for every pixel."""
        _, height, width = self.image_shape
        return len(AFFINE_PARAMETERS) + (2 * height * width if self.deforms else 0)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
        place = like.device if generator is None else generator.device
        count = len(AFFINE_PARAMETERS)
        uniform = 2 * torch.rand(*shape, count, generator=generator, device=place, dtype=like.dtype) - 1
        if not self.deforms:
            return uniform.to(like.device)
        rest = self.num_noise - count
        normal = torch.randn(*shape, rest, generator=generator, device=place, dtype=like.dtype)
        return torch.cat([uniform, normal], dim=-1).to(like.device)

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        self.warp.check(x)
        count = len(AFFINE_PARAMETERS)
        grid = self.warp.grid(self.bounds.place(noise[..., :count]))
        if self.deforms:
            grid = grid + self.displacement(noise[..., count:])
        return warp(x, grid, self.image_shape)

    def displacement(self, noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s h w 2"]:
        """amplitude·W n Wᵀ, in the units of the grid, with rows of W that keep unit variance at every pixel."""
        _, height, width = self.image_shape
        field = noise.unflatten(-1, (2, height, width))
        rows, columns = (self._smoother(size, noise) for size in (height, width))
        smooth = self.raw_amplitude.exp().to(noise) * (rows @ field @ columns.T)
        # a pixel is 2/size of the grid
        return torch.stack([smooth[..., 0, :, :] * (2 / width), smooth[..., 1, :, :] * (2 / height)], dim=-1)

    def _smoother(self, size: int, like: Tensor) -> Tensor:
        place = torch.arange(size, dtype=like.dtype, device=like.device)
        weights = torch.exp(-0.5 * ((place[:, None] - place) / self.raw_smoothness.exp().to(like)).square())
        return weights / weights.square().sum(-1, keepdim=True).sqrt()

    def learned(self) -> dict[str, Interval]:
        """The present range of every transformation, by name."""
        ranges = self.bounds.intervals()
        if self.deforms:
            ranges["amplitude"] = (0.0, float(self.raw_amplitude.exp()))
            ranges["smoothness"] = (0.0, float(self.raw_smoothness.exp()))
        return ranges


def _log(value: float) -> Tensor:
    return torch.tensor(math.log(value), dtype=torch.float64)
