"""Orbits drawn afresh from a density: α between learnable bounds, or normal around zero, reparameterised.

Draws are α = centre + spread·ε with ε standard uniform on [-1, 1] or standard normal, so gradients reach the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.frozen import FrozenOrbit, freeze
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.transforms.transform import Transform

Density = Literal["uniform", "normal"]


@final
class SampledOrbit(DrawnOrbit):
    """Moves t_α(x) with α drawn afresh for every row, uniformly between `lower` and `upper` or from a normal density.

    For the normal density α has mean (lower+upper)/2 and standard deviation (upper-lower)/2. The draws come in
    `num_groups` independent groups (two halves by default), so that quadratic terms can be estimated without bias.
    """

    def __init__(
        self,
        transform: Transform,
        lower: float | Sequence[float] | Tensor,
        upper: float | Sequence[float] | Tensor,
        density: Density = "uniform",
        num_samples: int = 32,
        num_groups: int = 2,
        learnable: bool = True,
    ) -> None:
        super().__init__(num_samples, num_groups)
        if density not in ("uniform", "normal"):
            raise ValueError(f"density must be 'uniform' or 'normal', not {density!r}.")
        if transform.size is not None:
            raise ValueError(f"{type(transform).__name__} is a discrete family: use FiniteOrbit(num_samples=…).")
        self.transform = transform
        self.density = density
        low, high = (_bound(value, transform.num_parameters) for value in (lower, upper))
        if bool((high < low).any()):
            raise ValueError(f"lower={low.tolist()} must not exceed upper={high.tolist()}.")
        self.lower = nn.Parameter(low, requires_grad=learnable)
        self.upper = nn.Parameter(high, requires_grad=learnable)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
        place = like.device if generator is None else generator.device
        full = (*shape, self.transform.num_parameters)
        if self.density == "normal":
            return torch.randn(full, generator=generator, device=place, dtype=like.dtype).to(like.device)
        return (2 * torch.rand(full, generator=generator, device=place, dtype=like.dtype) - 1).to(like.device)

    def place(self, noise: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """α = centre + spread·ε."""
        lower, upper = self.lower.to(noise), self.upper.to(noise)
        return (lower + upper) / 2 + (upper - lower) / 2 * noise

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s d"]:
        return self.transform(x, self.place(noise))

    def freeze(self, num_nodes: int, generator: torch.Generator | None = None) -> FrozenOrbit:
        """The same orbit with `num_nodes` fixed nodes, shared by all rows, that still move with the bounds."""
        return freeze(self, num_nodes, generator, self.lower)


def _bound(value: float | Sequence[float] | Tensor, num_parameters: int) -> Tensor:
    bound = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
    if bound.dim() > 1 or bound.numel() not in (1, num_parameters):
        raise ValueError(f"A bound must be one number or {num_parameters} numbers, not shape {tuple(bound.shape)}.")
    if not bool(bound.isfinite().all()):
        raise ValueError(f"Bounds must be finite, not {bound.tolist()}.")
    return bound.expand(num_parameters).clone()
