"""Covariances of convolutional layers at pairs of positions that are a fixed shift apart, positions first.

Arrays are [height, width, …]: entry p holds the covariance of position p of one image with position p + shift
of another, so a convolution is a box filter over p, and each filter tap is one pass over contiguous memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from orbitwise.kernels.activations import Activation, mean_square, second_moment
from orbitwise.kernels.wide_kernel import affine

Padding = Literal["circular", "zero"]


class Layers(NamedTuple):
    """A convolutional network: how many layers of what kind, the size of filters, and what is outside."""

    depth: int
    activation: Activation
    filter_size: int
    padding: Padding
    residual: bool

    def moments(
        self, products: Tensor, left: list[Tensor], right: list[Tensor], weight: Tensor, bias: Tensor
    ) -> Tensor:
        """E[φ(u)φ(v)] of the last layer from products of pixels; `left`, `right` hold variances a layer."""
        inner = self.convolve(products, weight, bias)
        for layer in range(self.depth - 1):
            moment = second_moment(self.activation, inner, left[layer], right[layer])
            block = self.convolve(moment, weight, bias)
            inner = inner + block if self.residual else block
        return second_moment(self.activation, inner, left[-1], right[-1])

    def variances(self, squares: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        """The variances of every layer at every position, from squares of pixels."""
        found = [self.convolve(squares, weight, bias)]
        for _ in range(self.depth - 1):
            block = self.convolve(mean_square(self.activation, found[-1]), weight, bias)
            found.append(found[-1] + block if self.residual else block)
        return found

    def convolve(self, moments: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """σ_b² + σ_w² times the mean over the filter."""
        summed = _BoxSum.apply(moments, self.filter_size, self.padding == "circular")
        return affine(summed, weight / self.filter_size**2, bias)  # pyright: ignore


class Shift(NamedTuple):
    """Positions p of one image with p + (down, across) of another, all of them or those inside both."""

    down: int
    across: int
    is_circular: bool

    def left(self, values: Tensor) -> Tensor:
        """The values at p."""
        return values if self.is_circular else _inside(_inside(values, -self.down, 0), -self.across, 1)

    def right(self, values: Tensor) -> Tensor:
        """The values at p + shift."""
        if self.is_circular:
            both = (-self.down, -self.across)
            return values.roll(both, (0, 1)) if any(both) else values
        return _inside(_inside(values, self.down, 0), self.across, 1)


def shifts(height: int, width: int, padding: Padding, pooling: bool) -> Iterator[Shift]:
    """All shifts that the output depends on: none but zero without pooling."""
    is_circular = padding == "circular"
    if not pooling:
        yield Shift(0, 0, is_circular)
        return
    for down in range(0 if is_circular else 1 - height, height):
        for across in range(0 if is_circular else 1 - width, width):
            yield Shift(down, across, is_circular)


def _inside(values: Tensor, start: int, dim: int) -> Tensor:
    """Without the first `start` entries, or without the last ones where it is negative."""
    return values.narrow(dim, max(start, 0), values.shape[dim] - abs(start))


@final
class _BoxSum(torch.autograd.Function):
    """Sums over windows of the first two dimensions; its own adjoint, because windows are symmetric."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, size: int, is_circular: bool) -> Tensor:
        ctx.window = size, is_circular
        return _box_sum(values, size, is_circular)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _BoxSum.apply(gradient, *ctx.window), None, None  # pyright: ignore


def _box_sum(values: Tensor, size: int, is_circular: bool) -> Tensor:
    if size == 1:
        return values.clone()
    for dim in (0, 1):
        length, total = values.shape[dim], values.clone()
        for step in range(1, size // 2 + 1):
            if step < length:
                total.narrow(dim, step, length - step).add_(values.narrow(dim, 0, length - step))
                total.narrow(dim, 0, length - step).add_(values.narrow(dim, step, length - step))
            if is_circular:
                total.narrow(dim, 0, step).add_(values.narrow(dim, length - step, step))
                total.narrow(dim, length - step, step).add_(values.narrow(dim, 0, step))
        values = total
    return values
