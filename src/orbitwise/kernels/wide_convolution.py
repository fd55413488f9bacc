"""Infinitely wide convolutional networks (Garriga-Alonso et al. 2019; Novak et al. 2019; Talk, recap).

With k×k filter taps o and c channels, the covariance of position p of an image with position q of another is
K₀(p, q) = σ_b² + σ_w² mean_o x_{p+o}ᵀx′_{q+o}/c, then K_{l+1}(p, q) = σ_b² + σ_w² mean_o M_l(p+o, q+o) with
M_l = E[φ(u)φ(v)] under K_l. A readout of all positions needs p = q alone, h·w numbers a pair of images; one
of their average needs all (h·w)², which are taken shift by shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from orbitwise.kernels.wide_kernel import WideKernel, affine
from orbitwise.kernels.wide_positions import Layers, Padding, Shift, shifts

ENTRIES_AT_ONCE = {"cpu": 2**18, "cuda": 2**25}
"""Covariances of positions held at a time: on a CPU what stays in its caches, on a GPU enough to fill it. A
few arrays of this size (or of one pair of images, if that is more) are all that is held beside inputs and
result, and in the backward pass as well."""


@final
class WideConvolutionKernel(WideKernel):
    """The covariance of one output of a random convolutional network with infinitely many channels.

    `depth` counts convolutional layers, each followed by the activation; after the first they may be residual
    blocks. The readout is affine, of all positions, or with `pooling` of their average: with circular padding
    the kernel is then invariant to translations. Inputs are rows of h·w (or c·h·w) pixels.
    """

    padding: Padding

    def __init__(
        self,
        image_shape: Sequence[int],
        depth: int = 2,
        filter_size: int = 3,
        activation: str = "relu",
        weight_variance: float = 2.0,
        bias_variance: float = 0.1,
        padding: str = "zero",
        pooling: bool = False,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance, residual, **kwargs)
        self.image_shape = _checked_shape(image_shape)
        self.filter_size = filter_size
        self.padding = cast(Padding, padding)
        self.pooling = pooling
        if not isinstance(filter_size, int) or filter_size < 1 or filter_size % 2 == 0:
            raise ValueError(f"filter_size must be an odd whole number, not {filter_size!r}.")
        if filter_size > min(self.image_shape[-2:]):
            raise ValueError(
                f"A filter of {filter_size}×{filter_size} does not fit in images of shape {self.image_shape}."
            )
        if padding not in ("circular", "zero"):
            raise ValueError(f"padding must be 'circular' or 'zero', not {padding!r}.")

    @property
    def layers(self) -> Layers:
        """What is between the pixels and the readout."""
        return Layers(self.depth, self.activation, self.filter_size, self.padding, self.residual)

    def _covariance(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x1.dim() > 2 or x2.dim() > 2 or weight.dim() > 2:
            return _over_batches(self._covariance, x1, x2, weight, bias)
        symmetric = _is_same(x1, x2)
        left, right = (self._positions(x, weight, bias) for x in (x1, x2))
        # Long rows and few of them: the last dimension is what a processor's vectors run over.
        pairs = self._pairs_at_once(x1)
        columns = min(pairs, len(x2))
        rows = max(1, pairs // columns)
        bands = []
        for i in range(0, len(x1), rows):
            upper = [each[:, :, i : i + rows] for each in left]
            last = min(i + rows, len(x2)) if symmetric else len(x2)
            tiles = [
                self._tile(upper, [each[:, :, j : min(j + columns, last)] for each in right], weight, bias)
                for j in range(0, last, columns)
            ]
            bands.append(nn.functional.pad(torch.cat(tiles, dim=1), (0, len(x2) - last)))
        whole = torch.cat(bands)
        return whole.tril() + whole.tril(-1).mT if symmetric else whole

    def _paired(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x1.dim() > 2 or x2.dim() > 2 or weight.dim() > 2:
            return _over_batches(self._paired, x1, x2, weight, bias)
        step = self._pairs_at_once(x1)
        parts = []
        for both in zip(x1.split(step), x2.split(step), strict=True):
            left, right = (self._positions(x, weight, bias) for x in both)
            parts.append(self._tile(left, right, weight, bias, crosses=False))
        return torch.cat(parts)

    def _pairs_at_once(self, x: Tensor) -> int:
        """How many pairs of images fit in a tile."""
        entries = ENTRIES_AT_ONCE["cpu" if x.device.type == "cpu" else "cuda"]
        return max(1, entries // math.prod(self.image_shape[-2:]))

    def _positions(self, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        """Pixels [h, w, n, c] and the variances [h, w, n] of every layer: once an image, not once a pair."""
        channels, height, width = self.image_shape
        if x.shape[-1] != channels * height * width:
            raise ValueError(
                f"Images of shape {self.image_shape} are rows of {channels * height * width} pixels, not of "
                f"{x.shape[-1]}: give the image_shape of these inputs."
            )
        pixels = x.reshape(-1, channels, height, width).permute(2, 3, 0, 1) / math.sqrt(channels)
        pixels = pixels.contiguous()
        squares = pixels.square().sum(-1)
        return [pixels, *self.layers.variances(squares, weight.reshape(()), bias.reshape(()))]

    def _tile(
        self, left: list[Tensor], right: list[Tensor], weight: Tensor, bias: Tensor, crosses: bool = True
    ) -> Tensor:
        """The kernel of some images with some others, crossed or paired, shift by shift."""
        weight, bias = weight.reshape(()), bias.reshape(())
        height, width = self.image_shape[-2:]
        tracked = torch.is_grad_enabled() and any(
            each.requires_grad for each in (*left, *right, weight, bias)
        )
        total: Tensor | None = None
        for shift in shifts(height, width, self.padding, self.pooling):
            arguments = (shift, left, right, weight, bias, crosses)
            # Only the sum of a tile is remembered; its layers are computed again in the backward pass.
            part = (
                checkpoint(self._summed, *arguments, use_reentrant=False)
                if tracked
                else self._summed(*arguments)
            )
            total = part if total is None else total + part  # pyright: ignore
        count = height * width
        return affine(total, weight / (count**2 if self.pooling else count), bias)  # pyright: ignore

    def _summed(
        self,
        shift: Shift,
        left: list[Tensor],
        right: list[Tensor],
        weight: Tensor,
        bias: Tensor,
        crosses: bool,
    ) -> Tensor:
        """Σ_p M(p, p + shift) of the last layer."""
        a, *left_variances = (shift.left(each) for each in left)
        b, *right_variances = (shift.right(each) for each in right)
        products = (a @ b.mT) if crosses else (a * b).sum(-1)
        if crosses:
            left_variances = [each[..., :, None] for each in left_variances]
            right_variances = [each[..., None, :] for each in right_variances]
        moments = self.layers.moments(products, left_variances, right_variances, weight, bias)
        return moments.sum((0, 1))


def _over_batches(evaluate: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """One batch entry at a time: the work of a pair of images dwarfs the loop."""
    shape = torch.broadcast_shapes(*(each.shape[:-2] for each in arguments))
    flat = [each.expand(*shape, *each.shape[-2:]).reshape(-1, *each.shape[-2:]) for each in arguments]
    whole = torch.stack([evaluate(*each) for each in zip(*flat, strict=True)])
    return whole.reshape(*shape, *whole.shape[1:])


def _is_same(x1: Tensor, x2: Tensor) -> bool:
    """Whether one half of the matrix is enough: equal copies have gradients of their own."""
    return x1 is x2 or (not (x1.requires_grad or x2.requires_grad) and torch.equal(x1, x2))


def _checked_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    shape = tuple(image_shape)
    if len(shape) not in (2, 3) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(
            f"image_shape must be (height, width) or (channels, height, width), not {image_shape!r}."
        )
    return (1, *shape) if len(shape) == 2 else shape  # pyright: ignore
