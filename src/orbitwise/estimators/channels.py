"""Which axis of an image array holds its channels: decided here, for every estimator and for the command.

Inside, a row is an image with its channels first, (channels, height, width) or (height, width); rows as they
were given may have them last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from orbitwise.transforms.images import check_image_shape

Order = Literal["first", "last"]
Channels = Literal["auto", "first", "last"]
COUNTS = (1, 3, 4)
"""Channels that pictures have: grey, colour, colour and transparency."""
ASK = 'say which with channels="first" or channels="last"'


@final
class Layout(NamedTuple):
    """The shape of one image with its channels first, None for other data, and in which order it is given."""

    shape: tuple[int, ...] | None = None
    channels: Order | None = None

    @property
    def given(self) -> tuple[int, ...] | None:
        """The shape of one image as it is given."""
        if self.shape is None or self.channels != "last":
            return self.shape
        return (*self.shape[1:], self.shape[0])

    def inward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] as they are given, with their channels first."""
        return self._reordered(rows, self.given, -1, -3)

    def outward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] with their channels first, as they are given."""
        return self._reordered(rows, self.shape, -3, -1)

    def _reordered(
        self, rows: NDArray[np.float64], shape: tuple[int, ...] | None, start: int, end: int
    ) -> NDArray[np.float64]:
        if self.channels != "last" or shape is None:
            return rows
        if math.prod(shape) != rows.shape[-1]:
            raise ValueError(
                f"Images of shape {shape} have {math.prod(shape)} numbers, but the inputs have width "
                f"{rows.shape[-1]}."
            )
        images = rows.reshape(*rows.shape[:-1], *shape)
        return np.ascontiguousarray(np.moveaxis(images, start, end)).reshape(rows.shape)


def check_channels(channels: object) -> None:
    """Raise a ValueError unless `channels` says "auto", "first" or "last"."""
    if not isinstance(channels, str) or channels not in ("auto", "first", "last"):
        raise ValueError(f"channels must be 'auto', 'first' or 'last', not {channels!r}.")


def channel_order(shape: Sequence[int], channels: str = "auto", ask: str = ASK) -> Order:
    """Where three axes of one image have their channels; a ValueError that `ask`s where they do not tell.

    Channels are an axis of 1, 3 or 4 at either end, beside a picture of at least 2 x 2 pixels.
    """
    check_channels(channels)
    if channels != "auto":
        return cast(Order, channels)
    front, middle, back = shape
    fits = {
        "first": front in COUNTS and min(middle, back) > 1,
        "last": back in COUNTS and min(front, middle) > 1,
    }
    found = [order for order, fit in fits.items() if fit]
    if len(found) == 1:
        return cast(Order, found[0])
    why = "both the first and the last axis" if found else "neither the first nor the last axis"
    raise ValueError(
        f"Images of shape {tuple(shape)} may have their channels first or last: {why} could be 1, 3 or 4 "
        f"channels beside a picture; {ask}."
    )


def image_layout(
    dimensions: Sequence[int] | None,
    image_shape: Sequence[int] | None = None,
    channels: str = "auto",
    ask: str = ASK,
) -> Layout:
    """The layout of images that come with their `dimensions`, or in rows, or with an announced `image_shape`.

    `image_shape` is (height, width), or three sizes in the order of `channels`. The height and width alone
    settle the order of images that come with channels.
    """
    if image_shape is not None:
        check_image_shape(image_shape)
        image_shape = tuple(int(size) for size in image_shape)
    if dimensions is None:
        return Layout() if image_shape is None else _in_order(image_shape, channels, ask)
    if image_shape is None or tuple(dimensions) == image_shape:
        return _in_order(dimensions, channels, ask)
    if len(image_shape) == 2 and len(dimensions) == 3:
        orders: dict[Order, Sequence[int]] = {"first": dimensions[1:], "last": dimensions[:-1]}
        meant = [order for order, plane in orders.items() if tuple(plane) == image_shape]
        if channels in meant or (channels == "auto" and len(meant) == 1):
            return _in_order(dimensions, meant[0] if channels == "auto" else channels, ask)
    raise ValueError(
        f"X has images of shape {tuple(dimensions)}, but images of shape {image_shape} were announced."
    )


def _in_order(shape: Sequence[int], channels: str, ask: str) -> Layout:
    sizes = tuple(int(size) for size in shape)
    if len(sizes) == 2:
        return Layout(sizes)
    order = channel_order(sizes, channels, ask)
    return Layout(sizes if order == "first" else (sizes[2], *sizes[:2]), order)
