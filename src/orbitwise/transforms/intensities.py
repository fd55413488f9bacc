"""Brightness and contrast of images, as changed by light and camera."""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor

from orbitwise.transforms.transform import Transform


@final
class Intensity(Transform):
    """mean + exp(log_contrast)·(x - mean) + brightness, about the image's own mean, for images of any shape.

    Brightness is in units of the pixels: 0.1 is small for pixels between 0 and 1, and negligible for 0–255.
    """

    parameter_names = ("brightness", "log_contrast")

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        brightness, log_contrast = alpha[..., :1], alpha[..., 1:]
        mean = x.mean(-1)[:, None, None]
        return mean + log_contrast.exp() * (x[:, None, :] - mean) + brightness
