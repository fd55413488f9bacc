"""Random networks of finite width: what kernels of infinitely wide ones are checked against.

Given the activations of a layer, the units of the next are independent Gaussian vectors, whose covariance
over all inputs (and positions) is that of the weights' sum: drawing them so is drawing the weights, at a
small part of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "erf": torch.erf}


class FiniteNetwork(NamedTuple):
    """A network of `width` units or channels a layer; `size` and `padding` are of its filters, if any."""

    depth: int
    activation: str
    residual: bool
    weight: float
    bias: float
    size: int = 1
    padding: str = "zero"
    pooling: bool = False
    width: int = 1000

    def grams(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """σ_b² + σ_w² mean φφ′ of the last layer, averaged over readouts, for draws of other weights."""
        generator = torch.Generator().manual_seed(1)
        for _ in range(count):
            hidden = self.layer(images, generator)
            for _ in range(self.depth - 1):
                block = self.layer(FUNCTIONS[self.activation](hidden), generator)
                hidden = hidden + block if self.residual else block
            active = FUNCTIONS[self.activation](hidden)
            features = active.mean((2, 3)) if self.pooling else active.flatten(1)
            yield self.bias + self.weight * features @ features.T / features.shape[1]

    def layer(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """[n, width, h, w] of [n, c, h, w]: W·(patches of all channels) + b with Gaussian W and b."""
        count, _, height, width = values.shape
        mode = {"circular": "circular", "zero": "constant"}[self.padding]
        padded = torch.nn.functional.pad(values, (self.size // 2,) * 4, mode=mode)
        patches = torch.nn.functional.unfold(padded, self.size).mT.flatten(0, 1)
        covariance = self.bias + self.weight * patches @ patches.T / patches.shape[1]
        scales, vectors = torch.linalg.eigh(covariance)
        root = vectors * scales.clamp_min(0).sqrt()
        drawn = root @ torch.randn(len(root), self.width, generator=generator, dtype=values.dtype)
        return drawn.reshape(count, height, width, self.width).permute(0, 3, 1, 2)

    def estimate(self, images: Tensor, count: int = 300) -> tuple[Tensor, Tensor]:
        """The mean of the draws and its standard error."""
        grams = torch.stack(list(self.grams(images, count)))
        return grams.mean(0), grams.std(0) / math.sqrt(count)
