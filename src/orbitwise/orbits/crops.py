"""Learnable crops of images: a window enlarged to the size of the image, or moved over its edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from orbitwise.orbits.bounds import Bounds, Interval
from orbitwise.orbits.natural import image_widths
from orbitwise.orbits.noise import Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.orbits.units import Unit, image_units
from orbitwise.orbits.widths import Widths, divide
from orbitwise.transforms.images import AffineWarp

SHIFTS = ("shift_x", "shift_y")


@final
class CropOrbit(DrawnOrbit):
    """A window of 1/exp(z) of the image's sides, anywhere inside it, resized to the whole; then shifted.

    z is uniform between 0 and `log_zoom` (0 for none), which is learned. `shift` bounds what the content
    moves beyond that, in fractions of half the image (2/width is one pixel), with zeros where nothing was:
    alone it is the crop of a padded image. `learnable` names what is learned, all that is not zero by
    default.
    """

    is_smooth = True

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
        in_bounds, in_widths = divide(learnable, start, widths)
        natural = image_widths(image_shape)
        self.bounds = Bounds(SHIFTS, start, in_bounds, two_sided, dict.fromkeys(SHIFTS, 1.0), natural)
        self.widths = Widths(widths, in_widths, natural)
        self.zooms = log_zoom != 0

    @property
    def randomness(self) -> Noise:
        """The shifts, then the zoom and the window's place."""
        return Noise((("uniform", len(SHIFTS) + (3 if self.zooms else 0)),))

    @property
    def active(self) -> Bool[Tensor, " q"]:
        rest = torch.ones(self.num_noise - len(SHIFTS), dtype=torch.bool)
        return torch.cat([self.bounds.active.cpu(), rest])

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        shift = self.bounds.place(noise[..., : len(SHIFTS)])
        zoom = torch.zeros_like(shift[..., :1])
        if self.zooms:
            zoom = self.widths["log_zoom"].to(noise) * (noise[..., 2:3] + 1) / 2
            # A window of half-size w = exp(-z) about c = place·(1-w) fills the image by p ↦ (p-c)/w.
            shift = shift - noise[..., 3:] * zoom.expm1()
        zero = torch.zeros_like(zoom)
        return self.warp(x, torch.cat([zero, zoom, zoom, zero, shift], dim=-1))

    def units(self) -> Mapping[str, Unit]:
        return image_units(self.warp.image_shape)
