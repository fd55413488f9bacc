"""Orbits with finitely many elements: all of them, or a subset drawn afresh without replacement (LIM-A eq. 8 and 12)."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.orbits.orbit import Orbit, OrbitPoints, Symmetry, check_samples, drawn_points, exact_points
from orbitwise.transforms.permutations import SignedPermutations, compose, element_keys
from orbitwise.transforms.transform import Transform

LARGEST_CHARACTER_TABLE = 512


@final
class FiniteOrbit(Orbit):
    """The points t_e(x) for every element e of a discrete family, or for a given list of parameters.

    Elements that leave x where it is keep their multiplicity, so the average over the elements is the average over the
    orbit. `weights` gives each element a factor, say -1 for odd permutations: then f is anti-symmetric. With
    `num_samples`, each row draws that many elements afresh, in `num_groups` independent groups, without replacement
    within a group.
    """

    def __init__(
        self,
        transform: Transform,
        elements: Float[Tensor, "e p"] | None = None,
        weights: Float[Tensor, " e"] | None = None,
        num_samples: int | None = None,
        num_groups: int = 2,
    ) -> None:
        super().__init__()
        if elements is None and transform.size is None:
            raise ValueError(
                f"{type(transform).__name__} is a continuous family: give the parameters of its elements, "
                "or use a sampled orbit."
            )
        self.transform = transform
        self.size = transform.size if elements is None else len(elements)
        self.num_samples = num_samples
        self.num_groups = num_groups
        self.is_drawn = num_samples is not None
        if num_samples is not None:
            check_samples(num_samples, num_groups)
            if num_samples // num_groups > self.size:
                raise ValueError(
                    f"A group of {num_samples // num_groups} elements cannot be drawn without replacement from "
                    f"{self.size}; choose fewer samples or take all elements (num_samples=None)."
                )
        if weights is not None and weights.shape != (self.size,):
            raise ValueError(f"weights must have one entry for each of the {self.size} elements.")
        self.register_buffer("elements", elements)
        self.register_buffer("weights", weights)
        is_group = elements is None and transform.is_group and (weights is None or _is_character(transform, weights))
        self.symmetry = Symmetry(self, self.size, transform.isometric) if is_group and not self.is_drawn else None

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        if self.num_samples is not None:
            return self._drawn(x, self.num_samples, generator)
        if self.elements is None and isinstance(self.transform, SignedPermutations):
            moved = self.transform.all_elements(x)
        else:
            moved = self.transform(x, self._parameters(x).expand(len(x), -1, -1))
        weights = torch.ones(self.size, dtype=x.dtype) if self.weights is None else self.weights
        return exact_points(moved, weights / self.size, self.symmetry)

    def _drawn(self, x: Tensor, num_samples: int, generator: torch.Generator | None) -> OrbitPoints:
        shape = (len(x), self.num_groups, self.size)
        # The first entries of a random order are a sample without replacement.
        keys = torch.rand(shape, generator=generator, device=x.device if generator is None else generator.device)
        order = keys.to(x.device).argsort(-1)[..., : num_samples // self.num_groups].flatten(1)
        drawn = drawn_points(self.transform(x, self._parameters(x)[order]), self.num_groups, self.size)
        if self.weights is None:
            return drawn
        return OrbitPoints(drawn.points, drawn.weights * self.weights.to(x)[order], drawn.draw, drawn.groups)

    def _parameters(self, x: Tensor) -> Tensor:
        if self.elements is None:
            return torch.arange(self.size, device=x.device)[:, None]
        return self.elements.to(x)


def _is_character(transform: Transform, weights: Tensor) -> bool:
    """Whether weight(b∘a) = weight(b)·weight(a) for all elements, so that one-sided averages hold with weights."""
    if not isinstance(transform, SignedPermutations) or len(weights) > LARGEST_CHARACTER_TABLE:
        return False
    number = {key: e for e, key in enumerate(element_keys(transform.index, transform.sign))}
    for e in range(len(weights)):
        index, sign = compose(transform.index[e], transform.sign[e], transform.index, transform.sign)
        products = [number.get(key) for key in element_keys(index, sign)]
        if None in products or not torch.allclose(weights[torch.tensor(products)], weights[e] * weights):
            return False
    return True
