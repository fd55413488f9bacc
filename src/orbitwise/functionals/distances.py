"""Functions of the distances between the points of a row, such as the energy of a molecule.

They are the same however the points are moved or turned together, and for their mirror image.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, Stored, is_plain_numbers, require
from orbitwise.functionals.functional import Atoms, Functional, check_matrix, exact_atoms


@final
class InverseDistances(Functional):
    """g(φ(x)), where φ(x) holds ℓ_k/|x_a - x_b| for all pairs a < b of points in space, of the kind k.

    A row x holds the coordinates x₁ y₁ z₁ x₂ … of its points. The weights ℓ_k are learned with the kernel:
    they say how much f depends on distances of kind k.

    Parameters
    ----------
    kinds : Tensor of shape (pairs,)
        A number from 0 for every pair (0, 1), (0, 2), …, (1, 2), …; pairs of one kind share their weight.
    weight : float, default=1.0
        Where all weights start.
    """

    kinds: Tensor
    pairs: Tensor

    stored = Stored({"weight": OMITTED})

    def __init__(self, kinds: Int[Tensor, " pairs"], weight: float = 1.0) -> None:
        super().__init__()
        num_points = round((2 * len(kinds)) ** 0.5 + 0.5)
        if kinds.dim() != 1 or len(kinds) == 0 or num_points * (num_points - 1) != 2 * len(kinds):
            raise ValueError(
                f"kinds must have an entry for each of the p(p-1)/2 pairs of p points, not shape "
                f"{tuple(kinds.shape)}."
            )
        if kinds.is_floating_point() or not 0 <= int(kinds.min()) <= int(kinds.max()) < len(kinds):
            raise ValueError(f"kinds must be whole numbers from 0 to {len(kinds) - 1}.")
        if not 0 < weight < math.inf:
            raise ValueError(f"weight must be positive and finite, not {weight}.")
        self.register_buffer("kinds", kinds.long())
        self.register_buffer("pairs", torch.triu_indices(num_points, num_points, 1), persistent=False)
        start = torch.full((int(kinds.max()) + 1,), math.log(weight), dtype=torch.float64)
        self.log_weight = nn.Parameter(start)

    def check_parts(self) -> None:
        """Raise a ValueError where weights are out of range."""
        require(is_plain_numbers(self.weights.detach(), 1e-30, 1e30), "weights out of range")

    @property
    def num_points(self) -> int:
        """How many points a row holds."""
        return int(self.pairs.max()) + 1

    @property
    def weights(self) -> Float[Tensor, " kinds"]:
        """The present weight of every kind."""
        return self.log_weight.exp()

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Atoms:
        check_matrix(x, self)
        features = self._edges(x).square().sum(-1).rsqrt() * self.weights.to(x)[self.kinds]
        return exact_atoms(features[:, None, :], torch.ones_like(features[:, :1]))

    def pulled_back(self, x: Float[Tensor, "n d"], slopes: Float[Tensor, "n pairs"]) -> Float[Tensor, "n d"]:
        """Σ_k s_k ∂φ_k/∂x: the slopes by coordinates of a function whose slopes by the features are s."""
        edges = self._edges(x)
        # ∂φ_k/∂x_a = -ℓ (x_a - x_b)/|x_a - x_b|³, and the opposite for b
        factor = slopes * self.weights.to(x)[self.kinds] * edges.square().sum(-1) ** -1.5
        pulls = factor[..., None] * edges
        (first, second), points = self.pairs, torch.zeros_like(x).unflatten(1, (-1, 3))
        return points.index_add(1, second, pulls).index_add(1, first, -pulls).flatten(1)

    def _edges(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n pairs 3"]:
        """x_a - x_b for all pairs."""
        if x.shape[1] != 3 * self.num_points:
            raise ValueError(
                f"InverseDistances takes rows of {self.num_points} points in space, so {3 * self.num_points} "
                f"numbers, not {x.shape[1]}."
            )
        points = x.unflatten(1, (-1, 3))
        return points.index_select(1, self.pairs[0]) - points.index_select(1, self.pairs[1])


def permutations_of_pairs(order: Int[Tensor, "e p"]) -> Int[Tensor, "e pairs"]:
    """How the pairs (0, 1), (0, 2), …, (1, 2), … move where the points a are moved to `order[e, a]`."""
    count = order.shape[1]
    first, second = torch.triu_indices(count, count, 1, device=order.device)
    number = torch.zeros(count, count, dtype=torch.long, device=order.device)
    number[first, second] = number[second, first] = torch.arange(len(first), device=order.device)
    return number[order[:, first], order[:, second]]
