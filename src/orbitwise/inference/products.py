"""Products of the covariance matrix of all rows with vectors, never forming it, and their gradient.

Tiles of the lower half are computed, used twice and dropped: O(N²) time, O(tile²) memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.totals import Observations
from orbitwise.process.covariance import PAIRS_AT_ONCE
from orbitwise.process.process import Process


def covariance_product(
    process: Process, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """K v, differentiable in the hyperparameters; v counts as given."""
    leaves = [*process.parameters(), *rows.functional.parameters()]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    return _Product.apply(_Tiles(process, rows), vectors.detach(), *leaves)  # pyright: ignore


def cross_product(
    process: Process, queries: Observations, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "q c"]:
    """K_*f v for other rows, in tiles."""
    step = _Tiles(process, rows).step
    result = vectors.new_zeros(len(queries.x), vectors.shape[1])
    for start in range(0, len(queries.x), step):
        left = queries.take(slice(start, start + step)).atoms()
        for first in range(0, len(rows.x), step):
            part = slice(first, first + step)
            tile = process.covariance(left, rows.take(part).atoms()).double()
            result[start : start + step] += tile @ vectors[part]
    return result


def prior_means(process: Process, rows: Observations) -> Float[Tensor, " n"]:
    """m of every row."""
    step = _Tiles(process, rows).step
    starts = range(0, len(rows.x), step)
    return torch.cat([process.mean(rows.take(slice(i, i + step)).atoms()).double() for i in starts])


@dataclass(frozen=True)
class _Tiles:
    process: Process
    rows: Observations

    @property
    def step(self) -> int:
        """Observations of a tile, so that its pairs of atoms are held at once."""
        with torch.no_grad():
            width = self.rows.take(slice(0, 1)).atoms().points.shape[-2]
        pairs = PAIRS_AT_ONCE["cpu" if self.rows.x.device.type == "cpu" else "cuda"]
        return max(16, math.isqrt(pairs) // width)

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Places and values of the tiles of the lower half."""
        step, count = self.step, len(self.rows.x)
        for start in range(0, count, step):
            below = slice(start, start + step)
            left = self.rows.take(below).atoms()
            for first in range(0, start + 1, step):
                beside = slice(first, first + step)
                right = None if first == start else self.rows.take(beside).atoms()
                yield below, beside, self.process.covariance(left, right).double()


class _Product(torch.autograd.Function):
    """(v, parameters) → K v, with the gradient in one more pass over the tiles."""

    @staticmethod
    def forward(ctx: Any, tiles: _Tiles, vectors: Tensor, *leaves: Tensor) -> Tensor:  # pyright: ignore
        result = torch.zeros_like(vectors)
        for below, beside, tile in tiles.tiles():
            result[below] += tile @ vectors[beside]
            if below != beside:
                result[beside] += tile.mT @ vectors[below]
        ctx.tiles, ctx.leaves = tiles, leaves
        ctx.save_for_backward(vectors)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (to_result,) = grads
        (vectors,) = ctx.saved_tensors
        total: list[Tensor | None] = [None] * len(ctx.leaves)
        with torch.enable_grad():
            for below, beside, tile in ctx.tiles.tiles():
                # dK = K̄ vᵀ, and its mirror image where the tile stands for two
                to_tile = to_result[below] @ vectors[beside].mT
                if below != beside:
                    to_tile = to_tile + vectors[below] @ to_result[beside].mT
                parts = torch.autograd.grad(tile, ctx.leaves, to_tile, allow_unused=True)
                total = [
                    part if mine is None else mine if part is None else mine + part
                    for mine, part in zip(total, parts, strict=True)
                ]
                del tile
        return None, None, *total
