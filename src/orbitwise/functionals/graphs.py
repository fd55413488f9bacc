"""Graphs of nearest neighbours: Σ_e w_e (f(x_i) - f(x_j))² = fᵀL f as differences of f (RKHS 3).

The pairs of points are inputs of `Difference`, with the weights of the edges; the Laplacian L is for
functions with values at all points.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.transforms.transform import check_rows

Weighting = Literal["binary", "heat"]


class NeighbourGraph(NamedTuple):
    """An undirected graph: every edge once, its two points (the lower number first), and its weight."""

    edges: Int[Tensor, "e 2"]
    pairs: Float[Tensor, "e 2 d"]
    weights: Float[Tensor, " e"]
    num_points: int

    def laplacian(self) -> Float[Tensor, "n n"]:
        """The sparse L = D - W, with fᵀL f = Σ_e w_e (f_i - f_j)²."""
        i, j = self.edges.T
        # each edge adds w to the degrees of both points, and -w to both entries between them
        places = torch.stack([torch.cat([i, j, i, j]), torch.cat([i, j, j, i])])
        values = torch.cat([self.weights, self.weights, -self.weights, -self.weights])
        size = (self.num_points, self.num_points)
        # torch 2.11 warns unless it is told that indices need no check
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            return torch.sparse_coo_tensor(places, values, size).coalesce()


def neighbour_graph(
    x: Float[Tensor, "n d"],
    num_neighbours: int,
    weighting: Weighting = "binary",
    width: float | None = None,
) -> NeighbourGraph:
    """The graph that joins two points where either is among the `num_neighbours` nearest of the other.

    Edges weigh 1 ("binary") or exp(-|x-x′|²/2 width²) ("heat"); without a `width` it is the mean distance of
    joined points. A point is not its own neighbour, but copies of it are, at distance 0; differences along
    such edges are zero for every f.
    """
    check_rows(x, "neighbour_graph")
    if not bool(x.isfinite().all()):
        raise ValueError("neighbour_graph takes finite points: drop or impute rows with NaN or infinity.")
    if not 1 <= num_neighbours < len(x):
        raise ValueError(
            f"Each of {len(x)} points has {len(x) - 1} others; num_neighbours must be between 1 and that, "
            f"not {num_neighbours}."
        )
    if weighting not in ("binary", "heat"):
        raise ValueError(f"weighting must be 'binary' or 'heat', not {weighting!r}.")
    if width is not None and not 0 < width < math.inf:
        raise ValueError(f"width must be positive and finite, not {width}.")
    # takes as long to import as all of this package
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=num_neighbours).fit(x.detach().cpu().double().numpy())
    nearest = search.kneighbors(return_distance=False)
    ends = np.stack([np.repeat(np.arange(len(x)), num_neighbours), nearest.ravel()], axis=-1)
    edges = torch.from_numpy(np.unique(np.sort(ends, axis=-1), axis=0)).long().to(x.device)
    pairs = x[edges]
    if weighting == "binary":
        return NeighbourGraph(edges, pairs, torch.ones_like(pairs[:, 0, 0]), len(x))
    distance = torch.linalg.vector_norm(pairs[:, 0] - pairs[:, 1], dim=-1)
    # if all joined points coincide, any width will do
    scale = width or distance.mean().item() or 1.0
    return NeighbourGraph(edges, pairs, torch.exp(-0.5 * (distance / scale).square()), len(x))
