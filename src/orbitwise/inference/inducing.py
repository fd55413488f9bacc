"""Where inducing points go: points of the orbits of training inputs, since Z lives where g does."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.functional import Functional


def random_orbit_points(
    functional: Functional,
    x: Float[Tensor, "n d"],
    num_inducing: int,
    generator: torch.Generator,
    rows_at_once: int = 256,
) -> Float[Tensor, "u e"]:
    """Distinct inputs in random order, each moved to a random point of its orbit; inputs repeat, moved otherwise, if needed."""
    place = generator.device
    orders = []
    for _ in range(-(-num_inducing // len(x))):
        orders.append(torch.randperm(len(x), generator=generator, device=place).to(x.device))
    chosen = torch.cat(orders)[:num_inducing]
    parts = []
    with torch.no_grad():
        for index in chosen.split(rows_at_once):
            atoms = functional.atoms(x[index], generator)
            weights = atoms.weights.abs()
            pick = torch.multinomial(weights.to(place), 1, generator=generator).to(x.device)
            parts.append(atoms.points[torch.arange(len(index), device=x.device), pick[:, 0]])
    return torch.cat(parts)
