"""Many derivatives at the same points, kept as one block instead of as many rows.

Row (i, k) is Σ_s w_is ∂_{v_isk} g(p_is): n·k rows that share their points, weights and kernel evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import OMITTED, Stored
from orbitwise.functionals.atoms import Atoms, exact_atoms, push
from orbitwise.orbits.orbit import Symmetry

if TYPE_CHECKING:
    from orbitwise.functionals.functional import Functional


@final
@dataclass(frozen=True)
class Gradients:
    """A block of n·k exact derivative rows, ordered with k running fastest."""

    points: Float[Tensor, "n s d"]
    weights: Float[Tensor, "n s"]
    directions: Float[Tensor, "n s k d"]
    symmetry: Symmetry | None = None
    is_drawn: bool = False

    stored = Stored({"is_drawn": OMITTED})

    @property
    def num_rows(self) -> int:
        """n·k."""
        return len(self.points) * self.num_directions

    @property
    def num_directions(self) -> int:
        """k."""
        return self.directions.shape[-2]

    def rows(self, index: slice) -> Gradients:
        """The rows of a slice of the points."""
        return replace(
            self, points=self.points[index], weights=self.weights[index], directions=self.directions[index]
        )

    def pick(self, index: slice, factor: float = 1.0) -> Gradients:
        """Some of each point's atoms, their weights multiplied by `factor`; the symmetry is dropped."""
        return replace(
            self,
            points=self.points[:, index],
            weights=self.weights[:, index] * factor,
            directions=self.directions[:, index],
            symmetry=None,
        )

    def scale(self, factor: float) -> Gradients:
        """The functional times a number."""
        return replace(self, weights=self.weights * factor)

    def combine(self, coefficients: Float[Tensor, "n k"]) -> Atoms:
        """Σ_k c_ik of the rows (i, k): one slope for each point, along Σ_k c_ik v_isk."""
        tangents = torch.einsum("nskd,nk->nsd", self.directions, coefficients)
        return replace(exact_atoms(self.points, self.weights, tangents), symmetry=self.symmetry)

    def expand(self) -> Atoms:
        """The same rows as plain atoms: the slow form that the fast one is tested against."""
        num = self.num_directions
        atoms = exact_atoms(
            self.points.repeat_interleave(num, 0),
            self.weights.repeat_interleave(num, 0),
            self.directions.transpose(1, 2).flatten(0, 1),
        )
        return replace(atoms, symmetry=self.symmetry)

    def substitute(self, inner: Functional, generator: torch.Generator | None = None) -> Gradients:
        """The same derivatives of f(x) = inner_x(g) instead of g."""
        count, outer, _ = self.points.shape

        def lower(points: Tensor) -> Atoms:
            lowered = inner.lower(points.reshape(count * outer, -1), generator)
            if isinstance(lowered, Atoms) and lowered.blur is not None:
                raise ValueError(
                    "A block of gradients takes no local averages: observe their slopes one by one, "
                    "DirectionalDerivative(v) @ LocalAverage(width)."
                )
            if not isinstance(lowered, Atoms) or lowered.is_drawn or lowered.tangents is not None:
                raise ValueError(
                    "Gradient takes exact values only: freeze a drawn orbit first, and observe second "
                    "derivatives through FiniteDifference."
                )
            return lowered

        pushed = [push(lower, self.points, direction) for direction in self.directions.unbind(-2)]
        lowered = pushed[0][0]
        width = lowered.num_atoms
        symmetry = lowered.symmetry
        if symmetry is None and self.symmetry is not None and width == 1:
            symmetry = replace(self.symmetry, isometric=self.symmetry.isometric and inner.is_identity)
        return Gradients(
            lowered.points.reshape(count, outer * width, -1),
            (self.weights[..., None] * lowered.weights.reshape(count, outer, width)).flatten(-2),
            torch.stack([moved.reshape(count, outer * width, -1) for _, moved in pushed], dim=-2),
            symmetry,
        )
