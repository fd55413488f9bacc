"""Learnable deformations along the image's own tangents: the form of infinite MNIST (METHOD 7b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import OMITTED, SMALLEST, Field, Stored, switch
from orbitwise.orbits.certainty import Unit, image_units
from orbitwise.orbits.images import smooth_field
from orbitwise.orbits.nodes import Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit, Interval, image_widths
from orbitwise.transforms.deformations import TangentDeformation

THICKNESS = ("thickness",)


@final
class DeformationOrbit(DrawnOrbit):
    """x' = clip(x + a(F₁∘t_x - F₂∘t_y) + β|t|), with smooth random fields F of unit variance.

    `amplitude` a is the standard deviation of the move in pixels (0 for none), `smoothness` the width in
    pixels over which it varies, `thickness` the bounds of β: how many pixels strokes grow or shrink. All are
    learned, or only those in `learnable`; with thickness in `two_sided`, both its bounds are learned. The
    tangents are accurate for moves of about a pixel; use `ImageOrbit` for larger ones. `tangent_width` and
    `clip` are those of `TangentDeformation`.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    amplitude, smoothness : float
        Size and width of the random fields, both in pixels.
    thickness : float or (lower, upper), default=0.0
        Bounds of β, in pixels.
    tangent_width : float, default=1.0
        Width in pixels of the Gaussian whose derivatives are the tangents.
    clip : (low, high), default=None
        The interval that pixels are clipped to, that of the image itself where None.
    learnable, two_sided : sequence of str
        What is learned, and whether thickness learns both its bounds.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored(
        {
            "image_shape": Field(read="transform.image_shape"),
            "amplitude": switch("deforms"),
            "smoothness": OMITTED,
            "thickness": OMITTED,
            "tangent_width": Field(least=SMALLEST, most=10_000, read="transform.tangent_width"),
            "clip": Field(read="transform.clip"),
        }
    )

    def __init__(
        self,
        image_shape: Sequence[int],
        amplitude: float = 1.0,
        smoothness: float = 4.0,
        thickness: float | Interval = 0.0,
        tangent_width: float = 1.0,
        clip: tuple[float, float] | None = None,
        learnable: Sequence[str] | None = None,
        two_sided: Sequence[str] = (),
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        self.transform = TangentDeformation(image_shape, tangent_width, clip)
        if not smoothness > 0:
            raise ValueError(f"smoothness must be positive, not {smoothness}.")
        self.deforms = amplitude != 0
        start = {} if thickness == 0 else {"thickness": thickness}
        widths = {"amplitude": amplitude, "smoothness": smoothness} if self.deforms else {}
        natural = image_widths(image_shape)
        self._learn_ranges(THICKNESS, start, widths, learnable, two_sided, natural=natural)

    @property
    def randomness(self) -> Noise:
        """The thickness, then two fields of noise."""
        _, height, width = self.transform.image_shape
        fields = Noise((("normal", 2 * height * width),) if self.deforms else ())
        return Noise((("uniform", 1),)) + fields

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        thickness = self.bounds.place(noise[..., :1])
        return self.transform(x, torch.cat([self.fields(noise[..., 1:]), thickness], dim=-1))

    def fields(self, noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s p"]:
        """a·F₁ and a·F₂ of every pixel."""
        _, height, width = self.transform.image_shape
        if not self.deforms:
            return noise.new_zeros(*noise.shape[:2], 2 * height * width)
        smooth = smooth_field(noise.unflatten(-1, (2, height, width)), self.widths["smoothness"])
        return (self.widths["amplitude"].to(noise) * smooth).flatten(2)

    def units(self) -> Mapping[str, Unit]:
        return image_units(self.transform.image_shape)
