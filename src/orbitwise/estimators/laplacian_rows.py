"""Smoothness over the graph of neighbours as rows of a kernel machine: fᵀLf = |R f|² with RᵀR = L."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Block
from orbitwise.functionals.graphs import Weighting, neighbour_graph
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.folding import fold, fold_weights, places_among
from orbitwise.inference.shifted_search import Folded, Invariances
from orbitwise.process.process import Process


@final
@dataclass(frozen=True)
class LaplacianRows:
    """The penalty ν fᵀLf of values at all points, as rows R f with RᵀR = L: as many rows as points."""

    points: Float[Tensor, "t d"]
    num_neighbours: int
    weighting: Weighting
    is_normalized: bool

    @classmethod
    def of(cls, points: Tensor, num_neighbours: int, weighting: str, is_normalized: bool) -> LaplacianRows:
        """Those of a graph of nearest neighbours, which is decomposed when its root is first needed."""
        if weighting not in ("binary", "heat"):
            raise ValueError(f"weighting must be 'binary' or 'heat', not {weighting!r}.")
        count = num_neighbours if len(points) > 1 else 0
        return cls(points, count, cast(Weighting, weighting), is_normalized)

    @cached_property
    def root(self) -> Float[Tensor, "t t"]:
        """R, from the eigenvalues and eigenvectors of L."""
        if self.num_neighbours == 0:
            return torch.zeros(len(self.points), len(self.points)).to(self.points)
        count = min(self.num_neighbours, len(self.points) - 1)
        laplacian = neighbour_graph(self.points, count, self.weighting).laplacian().to_dense()
        if self.is_normalized:
            degree = laplacian.diagonal().clamp_min(1e-300).rsqrt()
            laplacian = degree[:, None] * laplacian * degree
        values, vectors = torch.linalg.eigh(laplacian)
        return values.clamp_min(0).sqrt()[:, None] * vectors.mT

    @property
    def blocks(self) -> list[Block]:
        """f is a combination of kernels at all points."""
        return [Evaluation().atoms(self.points)]

    @property
    def weights(self) -> Float[Tensor, " t"]:
        """All rows count once."""
        return torch.ones_like(self.points[:, 0])

    def invariances(self, process: Process, x: Tensor, columns: Tensor) -> Invariances:
        """What folding needs to know of the rows."""
        own = Evaluation().atoms(self.points)
        gram = self.root @ process.covariance(own) @ self.root.mT
        left, right = (self.root @ process.covariance(own, Evaluation().atoms(each)) for each in (x, columns))
        return Invariances(
            len(gram), lambda v: (gram @ v, left.mT @ v), lambda part: right[:, part], lambda: gram
        )

    def fold(
        self,
        process: Process,
        x: Float[Tensor, "n d"],
        strengths: Sequence[float],
        points: Float[Tensor, "t d"] | None = None,
    ) -> Folded:
        """k̃ of the points x for every strength, or of the `points`, x among them, with x."""
        points = x if points is None else points
        prior = process.covariance(Evaluation().atoms(points), Evaluation().atoms(x))
        inner, places = self.invariances(process, points, x), places_among(points, x)
        return fold(prior, inner, strengths, positions=places)

    def coefficients(
        self, process: Process, x: Tensor, strength: float, labels: Float[Tensor, "n c"]
    ) -> Float[Tensor, "t c"]:
        """Those of kernels at all points, given the coefficients of labels at the points x under k̃."""
        found = fold_weights(self.invariances(process, x, x), labels, strength)
        return self.root.mT @ found.vectors
