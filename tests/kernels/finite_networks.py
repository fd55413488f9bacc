"""Random networks of finite width: what kernels of infinitely wide ones are checked against."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "erf": torch.erf}


def draw(*shape: int, variance: float, generator: torch.Generator) -> Tensor:
    """Gaussian numbers of a variance."""
    return math.sqrt(variance) * torch.randn(*shape, generator=generator)


def dense_gram(
    x: Tensor, width: int, depth: int, activation: str, residual: bool, variances: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """E over the readout's weights of f(x)f(x′), for one draw of all other weights: σ_b² + σ_w² mean φφ′."""
    weight, bias = variances
    hidden = x @ draw(x.shape[1], width, variance=weight / x.shape[1], generator=generator)
    hidden = hidden + draw(width, variance=bias, generator=generator)
    for _ in range(depth - 1):
        weights = draw(width, width, variance=weight / width, generator=generator)
        block = FUNCTIONS[activation](hidden) @ weights + draw(width, variance=bias, generator=generator)
        hidden = hidden + block if residual else block
    active = FUNCTIONS[activation](hidden)
    return bias + weight * active @ active.T / width


def convolution_gram(
    images: Tensor, width: int, depth: int, size: int, activation: str, residual: bool, padding: str,
    pooling: bool, variances: tuple[float, float], generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """The same for a convolutional network with `width` channels; images are [n, c, h, w]."""
    weight, bias = variances
    mode = {"circular": "circular", "zero": "constant"}[padding]

    def layer(values: Tensor) -> Tensor:
        channels = values.shape[1]
        filters = draw(
            width, channels, size, size, variance=weight / (channels * size**2), generator=generator
        )
        padded = torch.nn.functional.pad(values, (size // 2,) * 4, mode=mode)
        shift = draw(width, variance=bias, generator=generator)
        return torch.nn.functional.conv2d(padded, filters, shift)

    hidden = layer(images)
    for _ in range(depth - 1):
        block = layer(FUNCTIONS[activation](hidden))
        hidden = hidden + block if residual else block
    active = FUNCTIONS[activation](hidden)
    features = active.mean((2, 3)) if pooling else active.flatten(1)
    return bias + weight * features @ features.T / features.shape[1]


def z_scores(grams: list[Tensor], expected: Tensor) -> Tensor:
    """(mean - expected) in standard errors of the mean."""
    stacked = torch.stack(grams).double()
    return (stacked.mean(0) - expected) / (stacked.std(0) / math.sqrt(len(grams)))
