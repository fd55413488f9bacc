"""Gram matrices of rows: held whole, or known by their products alone where structure makes these cheap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor


@final
@dataclass(frozen=True)
class DenseGram:
    """A Gram matrix, or a batch of them, held whole."""

    matrix: Float[Tensor, "*batch m m"]

    @property
    def num_rows(self) -> int:
        """m."""
        return self.matrix.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """Of a batch of problems."""
        return self.matrix.shape[:-2]

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """Gα."""
        if self.matrix.dim() == 2:
            return vectors @ self.matrix
        return (self.matrix @ vectors[..., None])[..., 0]

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "*batch m k"]:
        """Some columns."""
        return self.matrix[..., index]

    def diagonal(self) -> Float[Tensor, "*batch m"]:
        """|z_i|² of every row."""
        return self.matrix.diagonal(dim1=-2, dim2=-1)


@final
@dataclass(frozen=True)
class ProductGram:
    """A Gram matrix known by its product with columns [m, c], its columns and its diagonal [m]."""

    multiply: Callable[[Tensor], Tensor]
    pick: Callable[[Tensor], Tensor]
    norms: Float[Tensor, " m"]
    batch_shape: torch.Size = torch.Size()  # noqa: RUF009

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.norms)

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """Gα."""
        flat = vectors.reshape(-1, self.num_rows)
        return self.multiply(flat.mT).mT.reshape(vectors.shape)

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "m k"]:
        """Some columns."""
        return self.pick(index)

    def diagonal(self) -> Float[Tensor, " m"]:
        """|z_i|² of every row."""
        return self.norms


@final
@dataclass(frozen=True)
class CopiedGram:
    """G ⊗ I: every row of a Gram matrix once for each of c functions, which stand side by side."""

    single: DenseGram | ProductGram
    num_copies: int

    @property
    def num_rows(self) -> int:
        """m·c."""
        return self.single.num_rows * self.num_copies

    @property
    def batch_shape(self) -> torch.Size:
        """Of a batch of problems."""
        return self.single.batch_shape

    def product(self, vectors: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """(G ⊗ I)α."""
        split = vectors.unflatten(-1, (-1, self.num_copies)).movedim(-1, 0)
        return torch.stack([self.single.product(each) for each in split], -1).flatten(-2)

    def columns(self, index: Int[Tensor, " k"]) -> Float[Tensor, "*batch m k"]:
        """Some columns."""
        single = self.single.columns(index // self.num_copies)
        places = torch.nn.functional.one_hot(index % self.num_copies, self.num_copies).to(single)
        return (single[..., :, None, :] * places.mT).flatten(-3, -2)

    def diagonal(self) -> Float[Tensor, "*batch m"]:
        """|z_i|² of every row."""
        return self.single.diagonal().repeat_interleave(self.num_copies, -1)


Gram = DenseGram | ProductGram | CopiedGram
