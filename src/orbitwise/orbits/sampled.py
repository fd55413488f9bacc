"""Orbits drawn afresh from a density: α between learnable bounds, or normal around zero, reparameterised.

Draws are α = centre + spread·ε with ε standard uniform on [-1, 1] or standard normal, so gradients reach the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.orbit import Orbit, OrbitPoints, check_samples, drawn_points, exact_points
from orbitwise.transforms.transform import Transform

Density = Literal["uniform", "normal"]


@final
class SampledOrbit(Orbit):
    """Moves t_α(x) with α drawn afresh for every row, uniformly between `lower` and `upper` or from a normal density.

    For the normal density α has mean (lower+upper)/2 and standard deviation (upper-lower)/2. The draws come in
    `num_groups` independent groups (two halves by default), so that quadratic terms can be estimated without bias.
    """

    is_drawn = True

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
        super().__init__()
        check_samples(num_samples, num_groups)
        if density not in ("uniform", "normal"):
            raise ValueError(f"density must be 'uniform' or 'normal', not {density!r}.")
        if transform.size is not None:
            raise ValueError(f"{type(transform).__name__} is a discrete family: use FiniteOrbit(num_samples=…).")
        self.transform = transform
        self.density = density
        self.num_samples = num_samples
        self.num_groups = num_groups
        low, high = (_bound(value, transform.num_parameters) for value in (lower, upper))
        if bool((high < low).any()):
            raise ValueError(f"lower={low.tolist()} must not exceed upper={high.tolist()}.")
        self.lower = nn.Parameter(low, requires_grad=learnable)
        self.upper = nn.Parameter(high, requires_grad=learnable)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Standard noise ε of the given shape, drawn where the generator lives."""
        place = device if generator is None else generator.device
        dtype = self.lower.dtype
        if self.density == "normal":
            return torch.randn(shape, generator=generator, device=place, dtype=dtype).to(device)
        return (2 * torch.rand(shape, generator=generator, device=place, dtype=dtype) - 1).to(device)

    def place(self, noise: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """α = centre + spread·ε."""
        return (self.lower + self.upper) / 2 + (self.upper - self.lower) / 2 * noise

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        noise = self.noise((len(x), self.num_samples, self.transform.num_parameters), generator, x.device)
        return drawn_points(self.transform(x, self.place(noise).to(x.dtype)), self.num_groups)

    def freeze(self, num_nodes: int, generator: torch.Generator | None = None) -> FrozenOrbit:
        """The same orbit with `num_nodes` fixed nodes, shared by all rows, that still move with the bounds."""
        shape = (num_nodes, self.transform.num_parameters)
        return FrozenOrbit(self, self.noise(shape, generator, self.lower.device))


@final
class FrozenOrbit(Orbit):
    """A sampled orbit whose draws are fixed: nodes ε (and their weights) shared by all rows, scaled by the bounds.

    It is an ordinary finite sum, so exact engines take it; `nodes` may also be quadrature nodes with their weights.
    """

    def __init__(
        self, source: SampledOrbit, nodes: Float[Tensor, "s p"], weights: Float[Tensor, " s"] | None = None
    ) -> None:
        super().__init__()
        if len(nodes) < 1:
            raise ValueError("A frozen orbit needs at least one node.")
        self.source = source
        self.size = len(nodes)
        self.register_buffer("nodes", nodes)
        self.register_buffer("weights", torch.full_like(nodes[:, 0], 1 / len(nodes)) if weights is None else weights)

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        alpha = self.source.place(self.nodes).to(x.dtype)
        return exact_points(self.source.transform(x, alpha.expand(len(x), -1, -1)), self.weights)


def _bound(value: float | Sequence[float] | Tensor, num_parameters: int) -> Tensor:
    bound = torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
    if bound.dim() > 1 or bound.numel() not in (1, num_parameters):
        raise ValueError(f"A bound must be one number or {num_parameters} numbers, not shape {tuple(bound.shape)}.")
    if not bool(bound.isfinite().all()):
        raise ValueError(f"Bounds must be finite, not {bound.tolist()}.")
    return bound.expand(num_parameters).clone()
