"""Orbits with finitely many elements: whole groups, closed under composition, with equal or learned weights.

All elements are taken, or some are drawn afresh without replacement (LIM-A eq. 8 and 12).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from orbitwise.declarations import Field, Stored, require
from orbitwise.orbits.orbit import (
    Interval,
    Orbit,
    OrbitPoints,
    Symmetry,
    check_samples,
    drawn_points,
    exact_points,
)
from orbitwise.transforms.permutations import SignedPermutations, compose, element_keys
from orbitwise.transforms.transform import Transform, element_numbers
from orbitwise.transforms.vectors import LinearMaps

ROUNDING = 1e-6
"""Matrices whose entries differ by less are the same element."""
COARSE_ROUNDING = 1e-4
"""The same for generators in less than double precision."""


def closure(*generators: SignedPermutations | LinearMaps, max_size: int = 10_000) -> FiniteOrbit:
    """The orbit of the group that the elements of the generators generate.

    Raises a ValueError as soon as more than `max_size` elements are found: some generators (a rotation by an
    irrational part of a turn) generate an infinite group.

    Parameters
    ----------
    *generators : SignedPermutations or LinearMaps
        Generators of one kind, acting on the same number of coordinates.
    max_size : int, default=10,000
        The largest group that is built.

    Returns
    -------
    FiniteOrbit
        The orbit of the whole group, the identity first.
    """
    if not generators:
        raise ValueError("closure needs at least one generator.")
    permutations = [generator for generator in generators if isinstance(generator, SignedPermutations)]
    if len(permutations) == len(generators):
        return FiniteOrbit(_close_permutations(permutations, max_size))
    matrices = [generator for generator in generators if isinstance(generator, LinearMaps)]
    if len(matrices) == len(generators):
        return FiniteOrbit(_close_matrices(matrices, max_size))
    raise TypeError("closure takes generators of one kind: all SignedPermutations, or all LinearMaps.")


def _close_permutations(generators: list[SignedPermutations], max_size: int) -> SignedPermutations:
    _check_widths([generator.index.shape[-1] for generator in generators])
    # One integer for each coordinate: ±(1 + where it comes from).
    signed = torch.cat(
        [(generator.index.cpu() + 1) * generator.sign.cpu() for generator in generators]
    ).numpy()
    known: set[bytes] = set()

    def add(element: NDArray) -> bool:
        before = len(known)
        known.add(element.tobytes())
        return len(known) > before

    def then(first: NDArray, second: NDArray) -> NDArray:
        return first[:, np.abs(second) - 1] * np.sign(second)

    members = torch.from_numpy(_generate(signed, then, add, max_size))
    return SignedPermutations(members.abs() - 1, members.sign(), is_group=True)


def _close_matrices(generators: list[LinearMaps], max_size: int) -> LinearMaps:
    width = _check_widths([generator.matrices.shape[-1] for generator in generators])
    is_double = all(generator.matrices.dtype == torch.float64 for generator in generators)
    tolerance = ROUNDING if is_double else COARSE_ROUNDING
    matrices = torch.cat([generator.matrices.detach().cpu().double() for generator in generators]).numpy()
    # powers of a contracting matrix converge and would look like a finite set
    if np.abs(np.abs(np.linalg.det(matrices)) - 1).max() > tolerance * width:
        raise ValueError("A matrix whose determinant is not 1 or -1 generates infinitely many elements.")
    known = _Matrices(width, tolerance)
    # products that overflow are refused by `add`
    with np.errstate(over="ignore", invalid="ignore"):
        members = _generate(matrices, lambda first, second: second @ first, known.add, max_size)
    return LinearMaps(torch.from_numpy(members), is_group=True)


def _generate(
    elements: NDArray,
    then: Callable[[NDArray, NDArray], NDArray],
    add: Callable[[NDArray], bool],
    max_size: int,
) -> NDArray:
    """All products of the elements, the first of which is the identity; `add` returns whether one is new."""
    add(elements[0])
    found, used = [elements[0]], []
    for element in elements[1:]:
        if not add(element):
            continue
        found.append(element)
        used.append(element)
        # the elements so far are closed under the earlier generators, but not under the new one
        frontier, factors = found, [element]
        while frontier:
            fresh = []
            for factor in factors:
                for product in then(np.stack(frontier), factor):
                    if add(product):
                        fresh.append(product)
                        _check_size(len(found) + len(fresh), max_size)
            found = found + fresh
            frontier, factors = fresh, used
        _check_size(len(found), max_size)
    return np.stack(found)


@final
class _Matrices:
    """A set of matrices, equal up to rounding, that are looked up by their projection onto one direction."""

    def __init__(self, width: int, tolerance: float) -> None:
        self.direction = np.cos(np.arange(width * width)).reshape(width, width)
        self.tolerance = tolerance
        self.reach = tolerance * np.abs(self.direction).sum()
        self.keys: list[float] = []
        self.members: list[NDArray] = []

    def add(self, matrix: NDArray) -> bool:
        """Add a matrix; returns whether it is new."""
        if not np.isfinite(matrix).all():
            raise ValueError(
                "These generators generate infinitely many elements: their products grow forever."
            )
        key = float((self.direction * matrix).sum())
        near = slice(bisect_left(self.keys, key - self.reach), bisect_right(self.keys, key + self.reach))
        if any(np.abs(member - matrix).max() <= self.tolerance for member in self.members[near]):
            return False
        place = bisect_right(self.keys, key)
        self.keys.insert(place, key)
        self.members.insert(place, matrix)
        return True


def _check_widths(widths: list[int]) -> int:
    if len(set(widths)) > 1:
        raise ValueError(f"Generators act on different numbers of coordinates: {sorted(set(widths))}.")
    return widths[0]


def _check_size(size: int, max_size: int) -> None:
    if size > max_size:
        raise ValueError(
            f"These generators generate more than max_size={max_size:,} elements. Use fewer generators, "
            "raise max_size, or list the elements you need in a FiniteOrbit."
        )


LARGEST_CHARACTER_TABLE = 512


def _cost(arguments: Mapping[str, object]) -> int:
    """The memory for construction in bytes: all pairs of weighted elements are composed."""
    weights = arguments.get("weights")
    return 16 * weights.numel() ** 2 if isinstance(weights, Tensor) else 0


@final
class FiniteOrbit(Orbit):
    """The points t_e(x) for every element e of a discrete family, or for a given list of parameters.

    Elements that do not move x are counted with their multiplicity, so the average over the elements is the
    average over the orbit. `weights` gives each element a factor, for example -1 for odd permutations, which
    makes f anti-symmetric. With `num_samples`, each row draws that many elements afresh, in `num_groups`
    independent groups, without replacement within a group.

    Parameters
    ----------
    transform : Transform
        A discrete family, all of whose elements are taken, or a continuous one with `elements`.
    elements : Tensor of shape (e, p), default=None
        The parameters of the elements that are taken.
    weights : Tensor of shape (e,), default=None
        A factor per element, 1 where None.
    num_samples : int, default=None
        Elements drawn per row; None takes all of them.
    num_groups : int, default=2
        Independent groups of draws, as in `DrawnOrbit`.
    """

    elements: Tensor | None
    weights: Tensor | None
    image_shape: tuple[int, int, int] | None = None
    """The shape of the images that it moves, if known; the orbit itself only sees rows of numbers."""

    stored = Stored(attributes={"image_shape": Field((tuple,), Field((int,)), least=1)}, cost=_cost)

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
        elif transform.size is None:
            raise ValueError(
                f"{type(transform).__name__} is a continuous family: give the parameters of its elements, "
                "or use a sampled orbit."
            )
        self.transform = transform
        self.register_buffer("elements", elements)
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
        self.register_buffer("weights", weights)
        is_group = elements is None and transform.is_group and not self.is_drawn
        if is_group and (weights is None or _is_character(transform, weights)):
            self.symmetry = Symmetry(self, self.size, transform.isometric)
        else:
            self.symmetry = None

    def check_parts(self) -> None:
        """Raise a ValueError if the elements do not move rows of as many numbers as the images have."""
        if self.image_shape is not None:
            require(len(self.image_shape) == 3, "images of another shape than channels, height and width")
            self.transform.check(torch.zeros(1, math.prod(self.image_shape), dtype=torch.float64))

    @property
    def size(self) -> int:
        """The number of elements."""
        return (self.transform.size or 0) if self.elements is None else len(self.elements)

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
    """Random subsets of k of `size` numbers, all equally likely, for each of n·g groups.

    Floyd's method: draw the j-th from the first size-k+j numbers, or take the last of these if it was drawn
    before. The cost is k² per group, independent of `size`.
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


Weighting = Literal["softmax", "free"]


@final
class WeightedOrbit(Orbit):
    """f(x) = Σ_e w_e g(x_e) over the elements of an exact finite orbit, with learned weights w.

    "softmax" weights are positive and sum to one: f becomes insensitive to the elements that the data
    support. "free" weights take any sign and size, as the patches of a convolutional GP want. All are equal
    at first, so f is the average over the orbit; weights of the orbit itself are kept as factors.

    Parameters
    ----------
    orbit : Orbit
        An exact finite orbit: a `FiniteOrbit` without `num_samples`, a `PatchOrbit` or a `FrozenOrbit`.
    weighting : "softmax" or "free", default="softmax"
        Whether weights are shares of one, or any numbers.
    learnable : bool, default=True
        Whether the weights are learned; otherwise they stay equal.
    """

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
        self.weighting: Weighting = weighting
        start = torch.full((orbit.size,), 0.0 if weighting == "softmax" else 1 / orbit.size)
        self.raw = nn.Parameter(start.double(), requires_grad=learnable)

    @property
    def size(self) -> int:
        """The number of elements of the orbit."""
        return len(self.raw)

    @property
    def weights(self) -> Float[Tensor, " e"]:
        """The present weights w."""
        return self.raw.softmax(-1) if self.weighting == "softmax" else self.raw

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        exact = self.orbit.points(x, generator)
        # the orbit's own weights are the same in every row, and 1/size if all elements are equal; a symmetry
        # of the elements is not one of the weighted sum
        return exact_points(exact.points, exact.weights[0] * (self.size * self.weights).to(x))

    def learned(self) -> dict[str, Interval]:
        """The smallest and the largest weight, and the learned ranges of the orbit itself."""
        weights = self.weights.detach()
        return {**self.orbit.learned(), "weight": (float(weights.min()), float(weights.max()))}

    def __repr__(self) -> str:
        return f"WeightedOrbit({type(self.orbit).__name__}, {self.describe()})"
