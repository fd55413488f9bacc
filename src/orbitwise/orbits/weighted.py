"""Finite orbits whose elements' weights are learned: which elements matter, and how much."""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.bounds import Interval
from orbitwise.orbits.orbit import Orbit, OrbitPoints, exact_points

Weighting = Literal["softmax", "free"]


@final
class WeightedOrbit(Orbit):
    """f(x) = Σ_e w_e g(x_e) over the elements of an exact finite orbit, with learned weights w.

    "softmax" weights are positive and sum to one: f becomes insensitive to the elements that the data
    support. "free" weights take any sign and size, as the patches of a convolutional GP want. All start
    equal, where f is the average over the orbit; weights that the orbit has itself are kept as factors.
    """

    size: int

    def __init__(self, orbit: Orbit, weighting: Weighting = "softmax", learnable: bool = True) -> None:
        super().__init__()
        if orbit.is_drawn or orbit.size is None:
            raise ValueError(
                f"{type(orbit).__name__} is drawn at random; weights belong to the elements of an exact "
                "finite orbit: leave out num_samples, or freeze it first."
            )
        if weighting not in ("softmax", "free"):
            raise ValueError(f"weighting must be 'softmax' or 'free', not {weighting!r}.")
        self.orbit = orbit
        self.size = orbit.size
        self.weighting: Weighting = weighting
        start = torch.full((self.size,), 0.0 if weighting == "softmax" else 1 / self.size)
        self.raw = nn.Parameter(start.double(), requires_grad=learnable)

    @property
    def weights(self) -> Float[Tensor, " e"]:
        """The present weights w."""
        return self.raw.softmax(-1) if self.weighting == "softmax" else self.raw

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        exact = self.orbit.points(x, generator)
        # The orbit's own weights are 1/size where all elements count alike, the same in every row; a symmetry
        # of the elements is none of the weighted sum.
        return exact_points(exact.points, exact.weights[0] * (self.size * self.weights).to(x))

    def learned(self) -> dict[str, Interval]:
        """The smallest and the largest weight, and what the orbit itself has learned."""
        weights = self.weights.detach()
        return {**self.orbit.learned(), "weight": (float(weights.min()), float(weights.max()))}

    def __repr__(self) -> str:
        return f"WeightedOrbit({type(self.orbit).__name__}, {self.describe()})"
