"""Finite families that permute coordinates and change signs.

Permutations of coordinates and blocks, exchange of like parts, sign changes, cyclic shifts, and (in `images`)
flips and quarter turns are all *signed permutations* x ↦ σ_e ∘ x[π_e]: they compose exactly, in integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.transforms.transform import Transform, element_numbers

MAX_ELEMENTS = 50_000


@final
class SignedPermutations(Transform):
    """A finite list of moves x ↦ sign_e ∘ x[index_e]; element 0 is the identity.

    `is_group` means that the elements are closed under composition, as they are for the functions below. For
    your own generators, `orbitwise.orbits.finite.closure` builds the group.

    Parameters
    ----------
    index : Tensor of shape (e, d)
        Where each coordinate of the moved row is read from, one permutation of 0, …, d-1 per element.
    sign : Tensor of shape (e, d), default=None
        1 or -1 for each coordinate of the moved row; None changes no sign.
    is_group : bool, default=False
        Whether the elements are closed under composition. It is not checked.
    """

    parameter_names = ("element",)
    isometric = True
    index: Tensor
    sign: Tensor

    def __init__(
        self, index: Int[Tensor, "e d"], sign: Shaped[Tensor, "e d"] | None = None, is_group: bool = False
    ) -> None:
        super().__init__()
        if index.dim() != 2 or index.numel() == 0 or index.is_floating_point():
            raise ValueError(
                f"index must be a non-empty integer tensor [e, d], not {index.dtype} {tuple(index.shape)}."
            )
        sign = torch.ones_like(index, dtype=torch.int8) if sign is None else sign
        if sign.shape != index.shape:
            raise ValueError(
                f"sign must have the shape {tuple(index.shape)} of index, not {tuple(sign.shape)}."
            )
        width = index.shape[-1]
        if not torch.equal(index.sort(-1).values, torch.arange(width, device=index.device).expand_as(index)):
            raise ValueError(f"Every row of index must be a permutation of 0, …, {width - 1}.")
        if not bool((sign.abs() == 1).all()):
            raise ValueError("Every sign must be 1 or -1.")
        if not torch.equal(index[0], torch.arange(width, device=index.device)) or bool((sign[0] < 0).any()):
            raise ValueError("The first element must be the identity: index 0, 1, …, d-1 with all signs 1.")
        self.size = len(index)
        self.is_group = is_group
        self.register_buffer("index", index.long())
        self.register_buffer("sign", sign.to(torch.int8))
        self.changes_signs = bool((sign < 0).any())

    def check(self, x: Tensor) -> None:
        super().check(x)
        if x.shape[-1] != self.index.shape[-1]:
            raise ValueError(
                f"This family permutes {self.index.shape[-1]} coordinates, but the inputs have {x.shape[-1]}."
            )

    def forward(self, x: Float[Tensor, "n d"], alpha: Shaped[Tensor, "n s p"]) -> Float[Tensor, "n s d"]:
        element = element_numbers(self, alpha)
        moved = x[:, None, :].expand(-1, element.shape[1], -1).gather(-1, self.index[element])
        return moved * self.sign[element].to(x) if self.changes_signs else moved

    def all_elements(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e d"]:
        self.check(x)
        moved = x[:, self.index]
        return moved * self.sign.to(x) if self.changes_signs else moved


def coordinate_permutations(num_coordinates: int, max_elements: int = MAX_ELEMENTS) -> SignedPermutations:
    """All d! orders of the coordinates."""
    return exchange_permutations([0] * num_coordinates, max_elements=max_elements)


def block_permutations(
    num_blocks: int, block_size: int, max_elements: int = MAX_ELEMENTS
) -> SignedPermutations:
    """All orders of `num_blocks` consecutive blocks of `block_size` coordinates each."""
    return exchange_permutations([0] * num_blocks, block_size, max_elements)


def exchange_permutations(
    labels: Sequence[Hashable] | Shaped[Tensor, " b"] | NDArray,
    block_size: int = 1,
    max_elements: int = MAX_ELEMENTS,
) -> SignedPermutations:
    """All exchanges of blocks with the same label, such as identical atoms of a molecule (block_size=3).

    Parameters
    ----------
    labels : sequence of length b
        One label per block, such as the elements of the atoms of a molecule.
    block_size : int, default=1
        Consecutive coordinates that move together.
    max_elements : int, default=50,000
        A ValueError is raised where the group would be larger: it grows with the factorials of the counts.
    """
    # entries of tensors and arrays are converted to plain values, which can be compared
    labels = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
    if not labels or block_size < 1:
        raise ValueError("Permutations need at least one label and blocks of at least one coordinate.")
    places = [[i for i, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)]
    size = math.prod(math.factorial(len(group)) for group in places)
    if size > max_elements:
        raise ValueError(
            f"These exchanges form a group of {_count(size)} elements, above max_elements={max_elements:,}. "
            "Exchange fewer parts, raise max_elements, or subsample the orbit of a smaller set of generators."
        )
    rows = []
    for choice in itertools.product(*(itertools.permutations(group) for group in places)):
        row = list(range(len(labels)))
        for group, image in zip(places, choice, strict=True):
            for place, source in zip(group, image, strict=True):
                row[place] = source
        rows.append(row)
    return SignedPermutations(_blocks(torch.tensor(rows), block_size), is_group=True)


def cyclic_shifts(num_blocks: int, block_size: int = 1) -> SignedPermutations:
    """All cyclic shifts of `num_blocks` consecutive blocks."""
    if num_blocks < 1 or block_size < 1:
        raise ValueError("Cyclic shifts need at least one block of at least one coordinate.")
    place = torch.arange(num_blocks)
    shifted = (place[None, :] - place[:, None]) % num_blocks
    return SignedPermutations(_blocks(shifted, block_size), is_group=True)


def sign_changes(num_coordinates: int, max_elements: int = MAX_ELEMENTS) -> SignedPermutations:
    """All 2^d independent changes of the coordinates' signs."""
    if num_coordinates < 1:
        raise ValueError("Sign changes need at least one coordinate.")
    if 2**num_coordinates > max_elements:
        raise ValueError(
            f"All sign changes of {num_coordinates} coordinates are 2^{num_coordinates} elements, above "
            f"max_elements={max_elements:,}. Use negation, or the closure of the sign changes you need."
        )
    sign = torch.tensor(list(itertools.product([1, -1], repeat=num_coordinates)))
    return SignedPermutations(torch.arange(num_coordinates).repeat(len(sign), 1), sign, is_group=True)


def negation(num_coordinates: int) -> SignedPermutations:
    """The two elements x and -x."""
    if num_coordinates < 1:
        raise ValueError("Negation needs at least one coordinate.")
    index = torch.arange(num_coordinates).repeat(2, 1)
    sign = torch.tensor([[1], [-1]]).expand(2, num_coordinates)
    return SignedPermutations(index, sign, is_group=True)


def compose(
    first_index: Tensor, first_sign: Tensor, then_index: Tensor, then_sign: Tensor
) -> tuple[Tensor, Tensor]:
    """The signed permutations "first, then": x ↦ sign_b ∘ (sign_a ∘ x[index_a])[index_b]."""
    return first_index[then_index], then_sign * first_sign[then_index]


def element_keys(index: Tensor, sign: Tensor) -> list[bytes]:
    """A hashable key for every signed permutation."""
    signed = (index + 1) * sign
    return [row.tobytes() for row in signed.cpu().numpy()]


def _count(size: int) -> str:
    return f"{size:,}" if size < 10**12 else f"about 10^{math.floor(math.log10(size))}"


def _blocks(order: Int[Tensor, "e b"], block_size: int) -> Int[Tensor, "e d"]:
    inside = torch.arange(block_size)
    return (order[:, :, None] * block_size + inside).flatten(1)
