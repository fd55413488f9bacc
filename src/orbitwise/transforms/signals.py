"""Transforms of signals stored as flat rows, channels first: time shifts and time warps.

A row has num_channels·length entries. Between samples the signal is interpolated linearly; beyond its ends it
is zero or, with boundary="wrap", periodic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.transforms.transform import Transform, central_differences

Boundary = Literal["zero", "wrap"]
TANGENT_STEP = 0.5
"""The step of differences, in samples; any step below 1 gives the same, because interpolation is linear."""


def check_signal_shape(signal_shape: int | Sequence[int]) -> tuple[int, int]:
    """`signal_shape` as (channels, length), or a ValueError that explains what is accepted."""
    shape = (1, signal_shape) if isinstance(signal_shape, int) else tuple(signal_shape)
    if len(shape) == 1:
        shape = (1, *shape)
    if len(shape) != 2 or any(size != int(size) or size < 1 for size in shape):
        raise ValueError(
            f"signal_shape must be a length or (channels, length) in whole samples, not {signal_shape}."
        )
    return int(shape[0]), int(shape[1])


@final
class TimeShift(Transform):
    """x(t - α): the signal comes α samples later, in all channels; α need not be whole.

    Parameters
    ----------
    signal_shape : int or (channels, length)
        How a row is read: channels first.
    boundary : "zero" or "wrap", default="zero"
        What lies beyond the ends: zeros, or the signal once more.
    """

    parameter_names = ("shift",)

    def __init__(self, signal_shape: int | Sequence[int], boundary: Boundary = "zero") -> None:
        super().__init__()
        self.signal_shape = check_signal_shape(signal_shape)
        self.boundary: Boundary = _check_boundary(boundary)

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x holds signals of this shape."""
        super().check(x)
        check_length(x, self.signal_shape)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        return read_delayed(x, alpha, self.signal_shape, self.boundary)

    def tangent(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p d"]:
        """Central differences, because linear interpolation has a kink at the identity."""
        return central_differences(self, x, TANGENT_STEP)


@final
class TimeWarp(Transform):
    """x(t - α_t): every sample has its own delay, the same in all channels.

    Parameters
    ----------
    signal_shape : int or (channels, length)
        How a row is read: channels first. There are as many parameters as samples in the length.
    boundary : "zero" or "wrap", default="zero"
        What lies beyond the ends: zeros, or the signal once more.
    """

    def __init__(self, signal_shape: int | Sequence[int], boundary: Boundary = "zero") -> None:
        super().__init__()
        self.signal_shape = check_signal_shape(signal_shape)
        self.boundary: Boundary = _check_boundary(boundary)
        self.parameter_names = tuple(f"delay_{time}" for time in range(self.signal_shape[1]))

    def check(self, x: Tensor) -> None:
        """Raise a ValueError unless x holds signals of this shape."""
        super().check(x)
        check_length(x, self.signal_shape)

    def forward(self, x: Float[Tensor, "n d"], alpha: Float[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        return read_delayed(x, alpha, self.signal_shape, self.boundary)

    def tangent(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n p d"]:
        """Central differences, because linear interpolation has a kink at the identity."""
        return central_differences(self, x, TANGENT_STEP)


def read_delayed(
    x: Float[Tensor, "n d"],
    delay: Float[Tensor, "n s t"],
    signal_shape: tuple[int, int],
    boundary: Boundary,
) -> Float[Tensor, "n s d"]:
    """Interpolate each signal linearly at t - delay_t, with one delay for all times or one for each."""
    channels, length = signal_shape
    time = torch.arange(length, dtype=x.dtype, device=x.device) - delay
    signal = x.reshape(len(x), 1, channels, length)
    if boundary == "wrap":
        before = time.detach().floor()
        part = time - before
        first = before.long() % length
        second = (first + 1) % length
    else:
        # pad with one zero on either side, and clamp times to it
        signal = torch.nn.functional.pad(signal, (1, 1))
        time = time.clamp(-1, length)
        before = time.detach().floor().clamp(max=length - 1)
        part = time - before
        first = before.long() + 1
        second = first + 1
    signal = signal.expand(-1, delay.shape[1], -1, -1)
    near, far = (
        signal.gather(-1, place[:, :, None, :].expand(-1, -1, channels, -1)) for place in (first, second)
    )
    part = part[:, :, None, :]
    return ((1 - part) * near + part * far).flatten(2)


def check_length(x: Tensor, signal_shape: tuple[int, int]) -> None:
    """Raise a ValueError unless the rows of x are signals of this shape."""
    channels, length = signal_shape
    if x.shape[-1] != channels * length:
        raise ValueError(
            f"Signals of {channels} channels and {length} samples have {channels * length} entries, "
            f"but the inputs have width {x.shape[-1]}."
        )


def _check_boundary(boundary: Boundary) -> Boundary:
    if boundary not in ("zero", "wrap"):
        raise ValueError(f"boundary must be 'zero' or 'wrap', not {boundary!r}.")
    return boundary
