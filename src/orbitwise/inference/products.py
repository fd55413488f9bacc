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

from orbitwise.inference.totals import Observations, learned, summed
from orbitwise.process.covariance import pairs_at_once
from orbitwise.process.process import Process, Rows


def covariance_product(
    process: Process, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """K v, differentiable in the hyperparameters; v counts as given."""
    return _Product.apply(_Tiles(process, rows), vectors.detach(), *learned(process, rows))  # pyright: ignore


def cross_product(
    process: Process, queries: Rows, rows: Observations, vectors: Float[Tensor, "n c"]
) -> Float[Tensor, "q c"]:
    """K_*f v for lowered rows, a tile at a time."""
    step = _Tiles(process, rows).step
    parts = [slice(start, start + step) for start in range(0, len(rows.x), step)]
    products = (process.covariance(queries, rows.take(i).atoms()).double() @ vectors[i] for i in parts)
    return sum(products, vectors.new_zeros(()))


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
        return max(16, math.isqrt(pairs_at_once(self.rows.x.device)) // self.rows.num_atoms)

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
                total = summed(total, parts)
                del tile
        return None, None, *total
