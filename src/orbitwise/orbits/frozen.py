"""Frozen orbits: a drawn orbit whose noise is fixed, so that it is an ordinary finite sum (METHOD 4).

The nodes still move with the learnable bounds; exact, collapsed and risk engines take such rows, and refuse
drawn ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.orbits.certainty import Unit
from orbitwise.orbits.nodes import Rule, nodes_for
from orbitwise.orbits.orbit import DrawnOrbit, Orbit, OrbitPoints, exact_points
from orbitwise.orbits.ranges import Interval
from orbitwise.transforms.transform import check_rows


@final
class FrozenOrbit(Orbit):
    """A drawn orbit with fixed nodes ε (and weights), shared by all rows and scaled by the orbit's bounds.

    `nodes` may also be quadrature nodes with their weights.
    """

    nodes: Tensor
    weights: Tensor

    def __init__(
        self, source: DrawnOrbit, nodes: Float[Tensor, "s q"], weights: Float[Tensor, " s"] | None = None
    ) -> None:
        super().__init__()
        if nodes.dim() != 2 or len(nodes) < 1:
            raise ValueError(
                f"A frozen orbit needs nodes [s, q], at least one, not shape {tuple(nodes.shape)}."
            )
        if weights is None:
            weights = torch.full_like(nodes[:, 0], 1 / len(nodes))
        if weights.shape != nodes.shape[:1]:
            raise ValueError(
                f"{len(nodes)} nodes need {len(nodes)} weights, not shape {tuple(weights.shape)}."
            )
        if not bool(nodes.isfinite().all() and weights.isfinite().all()):
            raise ValueError("Nodes and weights must be finite.")
        self.source = source
        self.size = len(nodes)
        self.register_buffer("nodes", nodes)
        self.register_buffer("weights", weights)

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_rows(x, type(self).__name__)
        nodes = self.nodes.to(x).expand(len(x), -1, -1)
        moved, factors = self.source.move_and_weigh(x, nodes)
        # nodes are the same for all rows, and so are their factors
        return exact_points(moved, self.weights if factors is None else self.weights.to(x) * factors[0])

    def learned(self) -> dict[str, Interval]:
        """The learned ranges of the orbit that was frozen."""
        return self.source.learned()

    def units(self) -> Mapping[str, Unit]:
        return self.source.units()

    def __repr__(self) -> str:
        parts = [type(self.source).__name__, self.describe(), f"num_nodes={self.size}"]
        return f"FrozenOrbit({', '.join(part for part in parts if part)})"


def freeze(
    orbit: DrawnOrbit,
    num_nodes: int,
    generator: torch.Generator | None = None,
    like: Tensor | None = None,
    rule: Rule = "random",
) -> FrozenOrbit:
    """The orbit with `num_nodes` nodes in place of its noise; see `DrawnOrbit.freeze`."""
    like = torch.zeros(()) if like is None else like.detach()
    nodes = nodes_for(orbit.randomness, orbit.active, num_nodes, rule, generator, like)
    return FrozenOrbit(orbit, *orbit.complete(nodes))
