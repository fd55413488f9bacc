"""Images as small PNG files in data URIs; images that are mostly background are drawn as ink on paper."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image

from orbitwise.estimators.validation import InputForm, Order
from orbitwise.transforms.images import check_image_shape


@final
@dataclass(frozen=True)
class Painter:
    """Turns rows of pixels into pictures, all with the same scale of brightness.

    Attributes
    ----------
    image_shape : tuple of int
        (channels, height, width) of the images.
    low, high : float
        The values of the darkest and the brightest pixels.
    is_ink : bool
        Whether high values are drawn dark, like ink on paper.
    step : int, default=1
        Blocks of step × step pixels are drawn as one, by their mean.
    channels : {"first", "last"}, default=None
        The position of the channels in the rows.
    """

    image_shape: tuple[int, int, int]
    low: float
    high: float
    is_ink: bool
    step: int = 1
    channels: Order | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a picture."""
        _, height, width = self.image_shape
        return -(-height // self.step), -(-width // self.step)

    @property
    def num_channels(self) -> int:
        """3 for colour, else 1."""
        return 3 if self.image_shape[0] == 3 else 1

    def pixels(self, rows: Float[ndarray, "n d"]) -> UInt8[ndarray, "n h w c"]:
        """The rows as pictures with whole numbers from 0 to 255."""
        channels, height, width = self.image_shape
        first = InputForm(self.image_shape, self.channels).inward(rows)
        images = first.reshape(len(rows), channels, height, width)
        if channels not in (1, 3):
            images = images.mean(1, keepdims=True)
        images = _shrunk(images, self.step)
        grey = np.clip((images - self.low) / max(self.high - self.low, 1e-300), 0, 1)
        return np.round(255 * (1 - grey if self.is_ink else grey)).astype(np.uint8).transpose(0, 2, 3, 1)

    def uri(self, row: Float[ndarray, " d"]) -> str:
        """One row as a data URI."""
        return png_uri(self.pixels(row[None])[0])

    def sprite(self, rows: Float[ndarray, "r k d"]) -> str:
        """A sheet of pictures, one row of pictures for each entry of the first axis, as a data URI."""
        count, across, _ = rows.shape
        height, width = self.size
        tiles = self.pixels(rows.reshape(count * across, -1)).reshape(count, across, height, width, -1)
        return png_uri(tiles.transpose(0, 2, 1, 3, 4).reshape(count * height, across * width, -1))


def painter_for(rows: Float[ndarray, "n d"], images: InputForm | Sequence[int], step: int = 1) -> Painter:
    """A painter whose brightness suits the rows; one channel that is mostly dark is drawn as ink on paper.

    `images` is the form of the rows, or their shape with channels first.
    """
    layout = images if isinstance(images, InputForm) else InputForm(tuple(images))
    shape = check_image_shape(layout.image_shape or ())
    low, high = float(rows.min()), float(np.quantile(rows, 0.999))
    high = high if high > low else float(rows.max())
    dark = float(np.mean(rows <= low + 0.1 * (high - low)))
    return Painter(shape, low, high, shape[0] != 3 and dark > 0.3, step, layout.channels)


def png_uri(pixels: UInt8[ndarray, "h w c"]) -> str:
    """Pixels as a PNG file inside a URI."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _shrunk(images: Float[ndarray, "n c h w"], step: int) -> Float[ndarray, "n c h2 w2"]:
    """Images in which blocks of step × step pixels are averaged; incomplete blocks repeat the edge."""
    if step == 1:
        return images
    padding = [(0, 0), (0, 0), *((0, -size % step) for size in images.shape[2:])]
    padded = np.pad(images, padding, mode="edge")
    count, channels, height, width = padded.shape
    blocks = padded.reshape(count, channels, height // step, step, width // step, step)
    return blocks.mean((3, 5))
