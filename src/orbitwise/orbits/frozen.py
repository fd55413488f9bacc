"""Frozen orbits: a drawn orbit whose noise is fixed, so that it is an ordinary finite sum (METHOD 4).

The nodes still move with the learnable bounds; exact, collapsed and risk engines take such rows, drawn ones they refuse.
"""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.orbits.orbit import DrawnOrbit, Orbit, OrbitPoints, exact_points


@final
class FrozenOrbit(Orbit):
    """A drawn orbit with fixed nodes ε (and their weights), shared by all rows and scaled by the orbit's bounds.

    `nodes` may also be quadrature nodes with their weights.
    """

    def __init__(
        self, source: DrawnOrbit, nodes: Float[Tensor, "s q"], weights: Float[Tensor, " s"] | None = None
    ) -> None:
        super().__init__()
        if len(nodes) < 1:
            raise ValueError("A frozen orbit needs at least one node.")
        self.source = source
        self.size = len(nodes)
        self.register_buffer("nodes", nodes)
        self.register_buffer("weights", torch.full_like(nodes[:, 0], 1 / len(nodes)) if weights is None else weights)

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        nodes = self.nodes.to(x).expand(len(x), -1, -1)
        return exact_points(self.source.move(x, nodes), self.weights)


def freeze(
    orbit: DrawnOrbit, num_nodes: int, generator: torch.Generator | None = None, like: Tensor | None = None
) -> FrozenOrbit:
    """The orbit with `num_nodes` draws of its noise fixed."""
    if num_nodes < 1:
        raise ValueError(f"num_nodes must be at least 1, not {num_nodes}.")
    like = torch.zeros(()) if like is None else like
    return FrozenOrbit(orbit, orbit.noise((num_nodes,), generator, like.detach()))
