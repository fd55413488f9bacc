"""Infinitely wide networks, fully connected and convolutional (Neal 1996; Lee, Matthews 2018; Talk, recap).

Convolutions follow Garriga-Alonso et al. 2019 and Novak et al. 2019.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple, Unpack, cast, final

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.checkpoint import checkpoint

from orbitwise.declarations import Field, Stored
from orbitwise.kernels.activations import ACTIVATIONS, Activation, mean_square, second_moment
from orbitwise.kernels.bases import KernelArguments, LogScale


class WideKernel(Kernel, ABC):
    """The prior covariance of a network with infinitely many units or channels in every hidden layer.

    `weight_variance` and `bias_variance` are those of all layers, weights scaled by one over the number of
    their inputs. They are learned on a logarithmic scale, optionally with a `gpytorch.priors.Prior` and
    another constraint. A bias variance of 0 means no biases.
    """

    has_lengthscale = False
    activation: Activation
    raw_weight_variance: nn.Parameter
    raw_bias_variance: nn.Parameter
    weight_variance: LogScale = LogScale("weight_variance")
    """The variance of weights, times the number of inputs of a unit."""
    _learned_bias_variance: LogScale = LogScale("bias_variance")

    stored = Stored({"depth": Field(least=1, most=1000)})

    def __init__(
        self,
        depth: int,
        activation: str,
        weight_variance: float,
        bias_variance: float,
        residual: bool,
        weight_variance_prior: Distribution | None = None,
        bias_variance_prior: Distribution | None = None,
        weight_variance_constraint: Interval | None = None,
        bias_variance_constraint: Interval | None = None,
        **arguments: Unpack[KernelArguments],
    ) -> None:
        _check(depth, activation, weight_variance, bias_variance, residual)
        super().__init__(**arguments)
        self.depth = depth
        self.activation = cast(Activation, activation)
        self.residual = residual
        shape = (*self.batch_shape, 1, 1)
        constraint, prior = weight_variance_constraint, weight_variance_prior
        WideKernel.weight_variance.register(self, shape, constraint, prior)
        self.weight_variance = weight_variance
        if bias_variance > 0:
            constraint, prior = bias_variance_constraint, bias_variance_prior
            WideKernel._learned_bias_variance.register(self, shape, constraint, prior)
            self.bias_variance = bias_variance
        elif bias_variance_prior is not None or bias_variance_constraint is not None:
            raise ValueError(
                "bias_variance=0 has nothing to learn: give it neither a prior nor a constraint."
            )

    @property
    def has_bias(self) -> bool:
        """Whether the network has biases."""
        return hasattr(self, "raw_bias_variance")

    @property
    def bias_variance(self) -> Tensor:
        """The variance of biases."""
        if not self.has_bias:
            return torch.zeros_like(self.raw_weight_variance)
        return self._learned_bias_variance

    @bias_variance.setter
    def bias_variance(self, value: Tensor | float) -> None:
        if not self.has_bias:
            raise ValueError(
                "This network has no biases; make one with bias_variance > 0 to have some to learn."
            )
        self._learned_bias_variance = value

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        if last_dim_is_batch:
            raise ValueError(
                f"{type(self).__name__} sees whole inputs: last_dim_is_batch=True has no meaning for it. Use "
                "active_dims for networks of some columns, and sums of them."
            )
        # Variances follow the points, so that single precision stays single.
        weight, bias = self.weight_variance.to(x1), self.bias_variance.to(x1)
        return self._paired(x1, x2, weight, bias) if diag else self._covariance(x1, x2, weight, bias)

    @abstractmethod
    def _covariance(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """k(x_i, x′_j) for all pairs, [*batch, n, m]."""

    @abstractmethod
    def _paired(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """k(x_i, x′_i), [*batch, n]."""


def affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """weight · values + bias; overwrites the values unless gradients are needed."""
    tracked = values.requires_grad or weight.requires_grad or bias.requires_grad
    if torch.is_grad_enabled() and tracked:
        return values * weight + bias
    if torch.broadcast_shapes(values.shape, weight.shape) != values.shape:
        return (values * weight).add_(bias)
    return values.mul_(weight).add_(bias)


def _check(depth: int, activation: str, weight_variance: float, bias_variance: float, residual: bool) -> None:
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth counts hidden layers, a whole number of at least 1, not {depth!r}.")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, not {activation!r}."
        )
    if residual and depth < 2:
        raise ValueError(
            "A residual network has a first layer and at least one block: give depth 2 or more, or "
            "residual=False."
        )
    if not 0 < weight_variance < math.inf:
        raise ValueError(f"weight_variance must be positive and finite, not {weight_variance!r}.")
    if not 0 <= bias_variance < math.inf:
        raise ValueError(f"bias_variance must be finite and not negative, not {bias_variance!r}.")


@final
class WideNetworkKernel(WideKernel):
    """The covariance of one output of a random fully connected network with infinitely wide hidden layers.

    `depth` counts the hidden layers: a first affine layer, after it depth - 1 more (or residual blocks), each
    of which sees activations of the one before, and an affine readout of the last activations. The first
    layer's weights have variance σ_w²/d, so inputs of unit spread in each column are of the right size. The
    default is the one that keeps the scale of ReLU layers. A kernel of erf units is bounded: wrap it in a
    `ScaleKernel` to learn its height.

    Parameters
    ----------
    depth : int, default=1
        Hidden layers.
    activation : "relu" or "erf", default="relu"
        What is applied to the units of each.
    weight_variance : float, default=2.0
        σ_w², where learning starts.
    bias_variance : float, default=0.1
        σ_b², where learning starts; 0 for no biases.
    residual : bool, default=False
        Whether layers after the first add to what they see.
    **arguments
        `weight_variance_prior`, `bias_variance_prior`, `weight_variance_constraint` and
        `bias_variance_constraint`, and what every GPyTorch kernel takes.
    """

    def __init__(
        self,
        depth: int = 1,
        activation: str = "relu",
        weight_variance: float = 2.0,
        bias_variance: float = 0.1,
        residual: bool = False,
        **arguments: Unpack[KernelArguments],
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance, residual, **arguments)

    def _covariance(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        left, right = (affine(x.square().mean(-1, keepdim=True), weight, bias) for x in (x1, x2))
        product = (x1 / x1.shape[-1]) @ x2.mT
        return self._layers(affine(product, weight, bias), left, right.mT, weight, bias)

    def _paired(self, x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight[..., 0], bias[..., 0]
        left, right, product = (
            affine((a * b).mean(-1), weight, bias) for a, b in ((x1, x1), (x2, x2), (x1, x2))
        )
        return self._layers(product, left, right, weight, bias)

    def _layers(self, inner: Tensor, left: Tensor, right: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """From the covariance of the first layer to that of the output."""
        for layer in range(self.depth):
            is_block = self.residual and layer < self.depth - 1
            moment = affine(second_moment(self.activation, inner, left, right), weight, bias)
            inner = inner + moment if is_block else moment
            if layer < self.depth - 1:
                left, right = (
                    (variance if is_block else 0) + weight * mean_square(self.activation, variance) + bias
                    for variance in (left, right)
                )
        return inner


Padding = Literal["circular", "zero"]


class Layers(NamedTuple):
    """A convolutional network: number and kind of layers, size of filters, and padding."""

    depth: int
    activation: Activation
    filter_size: int
    padding: Padding
    residual: bool

    def moments(
        self, products: Tensor, left: list[Tensor], right: list[Tensor], weight: Tensor, bias: Tensor
    ) -> Tensor:
        """E[φ(u)φ(v)] of the last layer from products of pixels; `left` and `right` hold the variances of
        every layer."""
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
        return affine(summed, weight / self.filter_size**2, bias)


class Shift(NamedTuple):
    """Pairs of positions p of one image and p + (down, across) of another, all or those inside both."""

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
    """All shifts on which the output depends: only zero without pooling."""
    is_circular = padding == "circular"
    if not pooling:
        yield Shift(0, 0, is_circular)
        return
    for down in range(0 if is_circular else 1 - height, height):
        for across in range(0 if is_circular else 1 - width, width):
            yield Shift(down, across, is_circular)


def _inside(values: Tensor, start: int, dim: int) -> Tensor:
    """The values without the first `start` entries, or the last ones if it is negative."""
    return values.narrow(dim, max(start, 0), values.shape[dim] - abs(start))


@final
class _BoxSum(torch.autograd.Function):
    """Sums over windows of the first two dimensions; its own adjoint, because windows are symmetric."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, size: int, is_circular: bool) -> Tensor:
        ctx.window = size, is_circular
        return _box_sum(values, size, is_circular)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return _BoxSum.apply(*grad_outputs, *ctx.window), None, None


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


ENTRIES_AT_ONCE = {"cpu": 2**18, "cuda": 2**25}
"""Covariances of positions in memory at once: on a CPU they fit in its caches, on a GPU they keep it busy.
Besides inputs and results, only a few arrays of this size (or of one pair of images, if that is larger) are
needed, also in the backward pass."""


@final
class WideConvolutionKernel(WideKernel):
    """The covariance of one output of a random convolutional network with infinitely many channels.

    `depth` counts convolutional layers, each followed by the activation; after the first they may be residual
    blocks. The readout is affine, of all positions, or with `pooling` of their average: with circular padding
    the kernel is then invariant to translations. Inputs are rows of h·w (or c·h·w) pixels.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    depth : int, default=2
        Convolutional layers.
    filter_size : int, default=3
        The side of a filter in pixels, odd.
    activation, weight_variance, bias_variance, residual
        As in `WideNetworkKernel`.
    padding : "zero" or "circular", default="zero"
        The values outside the image.
    pooling : bool, default=False
        Whether the readout averages over positions; its cost is that of all pairs of positions.
    **arguments
        As in `WideNetworkKernel`.
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
        **arguments: Unpack[KernelArguments],
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance, residual, **arguments)
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
        """The layers between the pixels and the readout."""
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
        """Pixels [h, w, n, c] and the variances [h, w, n] of every layer, once per image."""
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

        def part(shift: Shift) -> Tensor:
            arguments = (shift, left, right, weight, bias, crosses)
            # Only the sum of a tile is remembered; its layers are computed again in the backward pass.
            if tracked:
                return checkpoint(self._summed, *arguments, use_reentrant=False)
            return self._summed(*arguments)

        total = reduce(torch.add, map(part, shifts(height, width, self.padding, self.pooling)))
        count = height * width
        return affine(total, weight / (count**2 if self.pooling else count), bias)

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
    """Evaluate batch entries one at a time; the loop costs little compared with a pair of images."""
    shape = torch.broadcast_shapes(*(each.shape[:-2] for each in arguments))
    flat = [each.expand(*shape, *each.shape[-2:]).reshape(-1, *each.shape[-2:]) for each in arguments]
    whole = torch.stack([evaluate(*each) for each in zip(*flat, strict=True)])
    return whole.reshape(*shape, *whole.shape[1:])


def _is_same(x1: Tensor, x2: Tensor) -> bool:
    """Whether half of the matrix suffices: equal copies have separate gradients."""
    return x1 is x2 or (not (x1.requires_grad or x2.requires_grad) and torch.equal(x1, x2))


def _checked_shape(image_shape: Sequence[int]) -> tuple[int, int, int]:
    shape = tuple(image_shape)
    if len(shape) not in (2, 3) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(
            f"image_shape must be (height, width) or (channels, height, width), not {image_shape!r}."
        )
    channels, height, width = (1, *shape)[-3:]
    return channels, height, width
