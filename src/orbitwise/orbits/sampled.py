"""Orbits drawn afresh from a density: α uniform between learnable bounds, or normal, reparameterised.

Draws are α = centre + spread·ε with ε uniform on [-1, 1] or standard normal, so gradients reach the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.orbits.certainty import Unit, image_units
from orbitwise.orbits.nodes import Density, Draws, Noise
from orbitwise.orbits.orbit import Bounds, DrawnOrbit, widths_of
from orbitwise.transforms.images import AffineWarp
from orbitwise.transforms.transform import Transform


@final
class SampledOrbit(DrawnOrbit):
    """Moves t_α(x) with α drawn afresh for every row, uniformly between `lower` and `upper` or from a normal.

    For the normal density α has mean (lower+upper)/2 and standard deviation (upper-lower)/2. Both bounds are
    learned, or with `two_sided=False` only their distance; the distance of equal bounds stays zero. A uniform
    angle covers at most a whole turn.

    Parameters
    ----------
    transform : Transform
        A continuous family t_α.
    lower, upper : float, sequence or Tensor of shape (p,)
        Bounds of α that learning starts from, one for all entries or one for each.
    density : "uniform" or "normal", default="uniform"
        How α is distributed between, or about, the bounds.
    learnable : bool, default=True
        Whether the bounds that differ are learned.
    two_sided : bool, default=True
        Whether both are learned, or their distance alone.
    num_samples, num_groups, draws
        See `DrawnOrbit`.
    """

    is_smooth = True

    stored = Stored(
        {
            "lower": Field(is_omitted=True, fixed=0.0),
            "upper": Field(is_omitted=True, fixed=0.0),
        }
    )

    def __init__(
        self,
        transform: Transform,
        lower: float | Sequence[float] | Tensor,
        upper: float | Sequence[float] | Tensor,
        density: Density = "uniform",
        num_samples: int = 32,
        num_groups: int = 2,
        learnable: bool = True,
        two_sided: bool = True,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if density not in ("uniform", "normal"):
            raise ValueError(f"density must be 'uniform' or 'normal', not {density!r}.")
        if transform.size is not None:
            raise ValueError(
                f"{type(transform).__name__} is a discrete family: use FiniteOrbit(num_samples=…)."
            )
        self.transform = transform
        self.density: Density = density
        low, high = (_bound(value, transform.num_parameters) for value in (lower, upper))
        if bool((high < low).any()):
            raise ValueError(f"lower={low.tolist()} must not exceed upper={high.tolist()}.")
        names = transform.parameter_names
        pairs = dict(zip(names, zip(low.tolist(), high.tolist(), strict=True), strict=True))
        moving = [name for name, (first, last) in pairs.items() if learnable and first < last]
        limits = {"angle": math.pi} if density == "uniform" and "angle" in moving else {}
        shifting = names if learnable and two_sided else ()
        self.bounds = Bounds(names, pairs, moving, shifting, limits, widths_of(transform))

    @property
    def lower(self) -> Float[Tensor, " p"]:
        """The present lower bounds; for a normal density, one deviation below the mean."""
        return self.bounds.middle - self.bounds.half_width

    @property
    def upper(self) -> Float[Tensor, " p"]:
        """The present upper bounds; for a normal density, one deviation above the mean."""
        return self.bounds.middle + self.bounds.half_width

    @property
    def randomness(self) -> Noise:
        return Noise(((self.density, self.transform.num_parameters),))

    def place(self, noise: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """α = centre + spread·ε."""
        return self.bounds.place(noise)

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        return self.transform(x, self.place(noise))

    def units(self) -> Mapping[str, Unit]:
        return image_units(self.transform.image_shape) if isinstance(self.transform, AffineWarp) else {}


def _bound(value: float | Sequence[float] | Tensor, num_parameters: int) -> Tensor:
    bound = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    if bound.dim() > 1 or bound.numel() not in (1, num_parameters):
        raise ValueError(
            f"A bound must be one number or {num_parameters} numbers, not shape {tuple(bound.shape)}."
        )
    if not bool(bound.isfinite().all()):
        raise ValueError(f"Bounds must be finite, not {bound.tolist()}.")
    return bound.expand(num_parameters).clone()
