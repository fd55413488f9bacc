"""The form of the data a user brings: images and the axis of their channels, signals, clouds, tables, dates.

Decided here for every estimator and for the command. Dates and durations are no numbers, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any, Literal, cast, final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from orbitwise.declarations import Stored, require
from orbitwise.estimators.invariances import NAMES, Family
from orbitwise.transforms.images import check_image_shape
from orbitwise.transforms.permutations import MAX_ELEMENTS

MOMENTS = (date, time, timedelta, np.datetime64, np.timedelta64)


def refuse_dates(values: object, name: str) -> None:
    """Raise a TypeError that names the column where values are dates, times, durations or periods.

    NumPy would turn many of them into raw integers without a word.
    """
    for column, part in _columns(values):
        if (found := _dates_in(part)) is not None:
            where = "" if column is None else f" in column {column!r}"
            raise TypeError(
                f"{name} holds dates or durations ({found}{where}), but numbers are required: turn them into "
                "numbers, say decimal years. AutoGPRegressor does so itself with dates in X."
            )


def _columns(values: object) -> Iterator[tuple[object, object]]:
    """The columns of a frame, or of an array of objects, with their names; else the values as a whole."""
    if hasattr(values, "columns") and hasattr(values, "dtypes"):  # a data frame, whatever library it is of
        frame = cast(Any, values)
        if len(set(frame.columns)) == len(frame.columns):
            yield from ((column, frame[column]) for column in frame.columns)
            return
        values = np.asarray(frame, dtype=object)
    if isinstance(values, list | tuple):
        try:
            values = np.asarray(values)
        except (TypeError, ValueError):
            return  # ragged, and refused as such
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 2:
        yield from enumerate(values.T)
        return
    yield None, values


def _dates_in(values: object) -> str | None:
    """What kind of dates a column holds, by its type or by its entries; a category counts by its values."""
    dtype = getattr(values, "dtype", None)
    if (categories := getattr(dtype, "categories", None)) is not None and hasattr(categories, "dtype"):
        return _dates_in(categories)
    is_temporal = getattr(dtype, "is_temporal", bool)  # as polars says it
    is_period = getattr(getattr(dtype, "type", None), "__name__", "") == "Period"
    if getattr(dtype, "kind", "") in ("M", "m") or is_period or is_temporal():
        return str(dtype)
    if getattr(dtype, "kind", "") != "O":
        return None
    kinds = dict.fromkeys(type(entry) for entry in np.asarray(values, dtype=object).ravel())
    return next((kind.__name__ for kind in kinds if issubclass(kind, MOMENTS) or _is_period(kind)), None)


def _is_period(kind: type) -> bool:
    return kind.__name__ == "Period" and hasattr(kind, "to_timestamp")


Order = Literal["first", "last"]
Channels = Literal["auto", "first", "last"]
COUNTS = (1, 3, 4)
"""Channels that pictures have: grey, colour, colour and transparency."""
ASK = 'say which with channels="first" or channels="last"'


@final
@dataclass(frozen=True)
class InputForm:
    """The form of the inputs that an estimator was fitted to.

    `image_shape` is the shape of one image with its channels first, None for other data, and `channels` says
    in which order images were given. `input_shape` is that of a signal or a cloud that came with dimensions.
    `background` is the darkest value of images that are warped, which is taken off because warps fill with 0.
    """

    image_shape: tuple[int, ...] | None = None
    channels: Order | None = None
    input_shape: tuple[int, ...] | None = None
    background: float = 0.0

    stored = Stored()

    def check_width(self, width: int) -> None:
        """Raise a ValueError unless rows of `width` numbers may have this form."""
        shape, own = self.image_shape, self.input_shape
        is_image = shape is None or (len(shape) in (2, 3) and math.prod(shape) == width)
        require(is_image, "images of another shape")
        require(own is None or (len(own) == 2 and math.prod(own) == width), "inputs of another shape")
        require(self.channels in (None, "first", "last"), "channels that are neither first nor last")
        has_channels = shape is not None and len(shape) == 3
        require(self.channels is None or has_channels, "channels of images that have none")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The same as `image_shape`."""
        return self.image_shape

    @property
    def given(self) -> tuple[int, ...] | None:
        """The shape of one image as it is given."""
        if self.image_shape is None or self.channels != "last":
            return self.image_shape
        return (*self.image_shape[1:], self.image_shape[0])

    def inward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] as they are given, with their channels first."""
        return self._reordered(rows, self.given, -1, -3)

    def outward(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows [..., d] with their channels first, as they are given."""
        return self._reordered(rows, self.image_shape, -3, -1)

    def require_channels_first(self, what: str) -> None:
        """Raise a ValueError where `what` speaks of single pixels and these have their channels last."""
        if self.channels == "last":
            raise ValueError(
                f"{what} go with rows that have their channels first: fit to images "
                "[n, channels, height, width], np.moveaxis(X, -1, 1)."
            )

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


Layout = InputForm
"""The earlier name."""


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
) -> InputForm:
    """The layout of images that come with their `dimensions`, or in rows, or with an announced `image_shape`.

    `image_shape` is (height, width), or three sizes in the order of `channels`. The height and width alone
    settle the order of images that come with channels.
    """
    if image_shape is not None:
        check_image_shape(image_shape)
        image_shape = tuple(int(size) for size in image_shape)
    if dimensions is None:
        return InputForm() if image_shape is None else _in_order(image_shape, channels, ask)
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


def _in_order(shape: Sequence[int], channels: str, ask: str) -> InputForm:
    sizes = tuple(int(size) for size in shape)
    if len(sizes) == 2:
        return InputForm(sizes)
    order = channel_order(sizes, channels, ask)
    return InputForm(sizes if order == "first" else (sizes[2], *sizes[:2]), order)


PLURALS: dict[str, str] = {
    "image": "images",
    "signal": "signals",
    "cloud": "clouds of points",
    "table": "tables",
}
LEAST_SIDE = 4
MOST_RATIO = 4
"""Of sides in pixels: what is smaller, or longer than this many times the short side less two, is a picture
only where it is said to be one. So 4 x 8 pixels are a picture, and 12 points of four coordinates are not."""
INSTEAD: dict[str, str] = {
    "image": 'an invariance of images, such as "rotation", "translation" or "flip", or an ImageOrbit',
    "signal": '"signal:shift" or "signal:warp", or a SignalOrbit(signal_shape=(channels, length), shift=1.0)',
    "cloud": '"cloud:rotation" or "cloud:permutation", or a PointCloudOrbit(num_points, num_dimensions, '
    "angle=0.5)",
    "table": 'rows of columns, with "permutation", "sign" or "cyclic"',
}


MOST_ALIKE = 4
"""Points of one kind in an example of kinds."""


def family_of(invariance: object) -> Family | None:
    """The family that an invariance moves; None where it moves rows of any kind, or is unknown."""
    if isinstance(invariance, str):
        return NAMES[invariance].family if invariance in NAMES else None
    found = own_shape(invariance)
    return None if found is None else found[0]


def own_shape(invariance: object) -> tuple[Family, tuple[int, ...]] | None:
    """The family of an orbit or functional, and the shape of one of its inputs, where it knows them."""
    for part in invariance.modules() if isinstance(invariance, nn.Module) else ():
        shape, signal = getattr(part, "image_shape", None), getattr(part, "signal_shape", None)
        if shape is not None:
            return "image", tuple(shape)
        if signal is not None:
            return "signal", tuple(signal)
        points, dimensions = getattr(part, "num_points", None), getattr(part, "num_dimensions", None)
        if points is not None and dimensions is not None:
            return "cloud", (points, dimensions)
    return None


def input_shape(estimator: object) -> tuple[int, ...] | None:
    """The shape of one image, signal or cloud that an estimator was fitted to; None for plain rows."""
    form = getattr(estimator, "form_", InputForm())
    known = form.image_shape or form.input_shape
    if known is not None:
        return known
    for name in ("invariance", "functional_"):
        own = own_shape(getattr(estimator, name, None))
        if own is not None:
            return own[1]
    return None


def check_family(invariance: object, family: Family) -> None:
    """Raise a ValueError where an invariance is not one of this family; rows of a table may be anything."""
    own = family_of(invariance)
    if own is None or own == family:
        return
    if family == "table" and not isinstance(invariance, str):
        return  # a row may be a signal or a cloud written one number after the other
    raise ValueError(
        f"{named(invariance)} is an invariance of {PLURALS[own]}, but these inputs are {PLURALS[family]}: "
        f"use {INSTEAD[family]}."
    )


def is_picture(dimensions: Sequence[int]) -> bool:
    """Whether inputs of two dimensions may be taken for pictures without asking."""
    short, long = sorted(dimensions)
    return short >= LEAST_SIDE and long <= MOST_RATIO * (short - 2)


def check_picture(invariance: object, dimensions: Sequence[int], ask: str | None = None) -> None:
    """Raise a ValueError where an invariance of images meets inputs that look like something else."""
    if len(dimensions) != 2 or is_picture(dimensions):
        return
    shape = tuple(int(size) for size in dimensions)
    said = f"image_shape={shape}" if ask is None else ask
    raise ValueError(
        f"{named(invariance)} is an invariance of images, but inputs of shape {shape} look like "
        f"{looks_like(shape)}. If they are pictures of {shape[0]} x {shape[1]} pixels, say {said}."
    )


def looks_like(dimensions: Sequence[int]) -> str:
    """What inputs of two dimensions that are no plausible picture may be, and what moves them."""
    first, second = dimensions
    cloud = (
        f"clouds of {first} points in {second} dimensions, which "
        f"PointCloudOrbit(num_points={first}, num_dimensions={second}, angle=0.5) moves"
    )
    channels, length = (first, second) if first <= second else (second, first)
    turned = "" if first <= second else " once they are (channels, length)"
    signal = (
        f"signals of {channels} channel{'s' if channels > 1 else ''} and {length} samples, which "
        f"SignalOrbit(signal_shape=({channels}, {length}), shift=1.0) moves{turned}"
    )
    return f"{cloud}, or {signal}" if second in (2, 3) else signal


def whole_points(invariance: str, dimensions: Sequence[int], estimator: str) -> str:
    """What an invariance of columns does, and lines of code that do so to whole points of [points, size]."""
    points, size = dimensions
    does, wanted, imported, made = {
        "cyclic": (
            "shifts single columns",
            f"shift whole points of {size} numbers each",
            "cyclic_shifts",
            f"cyclic_shifts({points}, {size})",
        ),
        "permutation": (
            "exchanges single columns",
            f"exchange whole points of {size} numbers each",
            "block_permutations",
            f"block_permutations({points}, {size})",
        ),
        "sign": (
            "changes the signs of single columns",
            "mirror an axis of all points at once",
            "SignedPermutations, negation, sign_changes",
            f"SignedPermutations(negation({points * size}).index[:1].repeat({2**size}, 1), "
            f"sign_changes({size}).sign.repeat(1, {points}), is_group=True)",
        ),
    }[invariance]
    if invariance == "permutation" and math.factorial(points) > MAX_ELEMENTS:
        # all orders are too many, but those of a few like points are not
        kinds = f"[0] * {MOST_ALIKE} + list(range(1, {points - MOST_ALIKE + 1}))"
        wanted = f"{wanted} that are of the same kind, here the first {MOST_ALIKE} (all have too many orders)"
        imported, made = "exchange_permutations", f"exchange_permutations({kinds}, {size})"
    return (
        f"{invariance!r} {does} of X [n_samples, n_features]. To {wanted}:\n\n"
        "    from orbitwise.orbits import FiniteOrbit\n"
        f"    from orbitwise.transforms import {imported}\n"
        f"    orbit = FiniteOrbit({made})\n"
        f"    {estimator}(invariance=orbit).fit(X.reshape(len(X), -1), y)\n"
    )


def named(invariance: object) -> str:
    """How a message speaks of an invariance."""
    return repr(invariance) if isinstance(invariance, str) else type(invariance).__name__
