"""Orbits with finitely many elements: all, or some drawn afresh without replacement (LIM-A eq. 8 and 12)."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from orbitwise.orbits.orbit import Orbit, OrbitPoints, Symmetry, check_samples, drawn_points, exact_points
from orbitwise.transforms.permutations import SignedPermutations, compose, element_keys
from orbitwise.transforms.transform import Transform, element_numbers

LARGEST_CHARACTER_TABLE = 512


@final
class FiniteOrbit(Orbit):
    """The points t_e(x) for every element e of a discrete family, or for a given list of parameters.

    Elements that leave x where it is keep their multiplicity, so the average over the elements is the average
    over the orbit. `weights` gives each element a factor, say -1 for odd permutations; f is anti-symmetric.
    With `num_samples`, each row draws that many elements afresh, in `num_groups` independent groups, without
    replacement within a group.
    """

    size: int
    elements: Tensor | None
    weights: Tensor | None
    image_shape: tuple[int, int, int] | None = None
    """That of the images it moves, where it is known: a finite orbit itself moves rows of numbers."""

    def __init__(
        self,
        transform: Transform,
        elements: Shaped[Tensor, "e p"] | None = None,
        weights: Float[Tensor, " e"] | None = None,
        num_samples: int | None = None,
        num_groups: int = 2,
    ) -> None:
        super().__init__()
        if elements is not None:
            _check_elements(transform, elements)
            self.size = len(elements)
        elif transform.size is not None:
            self.size = transform.size
        else:
            raise ValueError(
                f"{type(transform).__name__} is a continuous family: give the parameters of its elements, "
                "or use a sampled orbit."
            )
        self.transform = transform
        self.num_samples = num_samples
        self.num_groups = num_groups
        self.is_drawn = num_samples is not None
        if num_samples is not None:
            check_samples(num_samples, num_groups)
            if num_samples // num_groups > self.size:
                raise ValueError(
                    f"A group of {num_samples // num_groups} elements cannot be drawn without replacement "
                    f"from {self.size}; choose fewer samples or take all elements (num_samples=None)."
                )
        if weights is not None and (weights.shape != (self.size,) or not bool(weights.isfinite().all())):
            raise ValueError(
                f"weights must be {self.size} finite numbers, one for each element, not shape "
                f"{tuple(weights.shape)}."
            )
        self.register_buffer("elements", elements)
        self.register_buffer("weights", weights)
        is_group = elements is None and transform.is_group and not self.is_drawn
        if is_group and (weights is None or _is_character(transform, weights)):
            self.symmetry = Symmetry(self, self.size, transform.isometric)
        else:
            self.symmetry = None

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        self.transform.check(x)
        if self.num_samples is not None:
            return self._drawn(x, self.num_samples, generator)
        if self.elements is None:
            moved = self.transform.all_elements(x)
        else:
            moved = self.transform(x, self._element_parameters(x).expand(len(x), -1, -1))
        weights = torch.ones(self.size, dtype=x.dtype) if self.weights is None else self.weights
        return exact_points(moved, weights / self.size, self.symmetry)

    def _drawn(self, x: Tensor, num_samples: int, generator: torch.Generator | None) -> OrbitPoints:
        shape = (len(x), self.num_groups, num_samples // self.num_groups)
        place = x.device if generator is None else generator.device
        chosen = _subsets(shape, self.size, generator, place).flatten(1).to(x.device)
        drawn = drawn_points(
            self.transform(x, self._element_parameters(x)[chosen]), self.num_groups, self.size
        )
        if self.weights is None:
            return drawn
        return replace(drawn, weights=drawn.weights * self.weights.to(x)[chosen])

    def _element_parameters(self, x: Tensor) -> Tensor:
        if self.elements is None:
            return torch.arange(self.size, device=x.device)[:, None]
        return self.elements.to(x) if self.elements.is_floating_point() else self.elements.to(x.device)


def _subsets(
    shape: tuple[int, int, int], size: int, generator: torch.Generator | None, device: torch.device
) -> Int[Tensor, "n g k"]:
    """k of `size` numbers, every subset equally likely, for each of n·g places.

    Floyd's way: draw the j-th from the first size-k+j numbers, and take the last of these where it was drawn
    before. It costs k² for each place, never `size`.
    """
    chosen = torch.full(shape, -1, device=device)
    for place, last in enumerate(range(size - shape[-1], size)):
        drawn = torch.randint(last + 1, shape[:-1], generator=generator, device=device)
        taken = (chosen == drawn[..., None]).any(-1)
        chosen[..., place] = torch.where(taken, last, drawn)
    return chosen


def _check_elements(transform: Transform, elements: Tensor) -> None:
    if elements.dim() != 2 or len(elements) == 0 or elements.shape[-1] != transform.num_parameters:
        raise ValueError(
            f"elements must be [e, {transform.num_parameters}], the parameters of at least one element of "
            f"{type(transform).__name__}, not shape {tuple(elements.shape)}."
        )
    if not bool(elements.isfinite().all()):
        raise ValueError("The parameters of elements must be finite.")
    if transform.size is not None:
        element_numbers(transform, elements[None])


def _is_character(transform: Transform, weights: Tensor) -> bool:
    """Whether weight(b∘a) = weight(b)·weight(a) for all elements, so that one-sided averages may be used."""
    if not isinstance(transform, SignedPermutations) or len(weights) > LARGEST_CHARACTER_TABLE:
        return False
    number = {key: e for e, key in enumerate(element_keys(transform.index, transform.sign))}
    for e in range(len(weights)):
        index, sign = compose(transform.index[e], transform.sign[e], transform.index, transform.sign)
        products = [number.get(key) for key in element_keys(index, sign)]
        if None in products or not torch.allclose(weights[torch.tensor(products)], weights[e] * weights):
            return False
    return True
