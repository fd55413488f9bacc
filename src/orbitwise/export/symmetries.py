"""Flips and quarter turns by name: the moves of images that are exact in every library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orbitwise.orbits.finite import FiniteOrbit, closure
from orbitwise.transforms.images import check_image_shape, flips, quarter_turns
from orbitwise.transforms.permutations import SignedPermutations, compose, element_keys

FLIPS = ("identity", "flip_horizontal", "flip_vertical", "turn_180")
TURNS = ("identity", "turn_90", "turn_180", "turn_270")
MIRRORED_TURNS = ("flip_horizontal", "flipped_turn_90", "flip_vertical", "flipped_turn_270")
NAMES = tuple(dict.fromkeys((*FLIPS, *TURNS, *MIRRORED_TURNS)))


def symmetries(image_shape: Sequence[int]) -> dict[str, Tensor]:
    """Where each pixel is read from, for every symmetry of the image's rectangle; turns counter-clockwise.

    A flipped turn is turned first, then mirrored left to right.
    """
    mirrors = flips(image_shape, horizontal=True, vertical=True)
    found: dict[str, Tensor] = dict(zip(FLIPS, mirrors.index, strict=True))
    if image_shape[-1] != image_shape[-2]:
        return found
    turns, mirror = quarter_turns(image_shape), mirrors.index[1]
    found |= dict(zip(TURNS, turns.index, strict=True))
    sign = torch.ones_like(mirror)
    return found | {
        name: compose(index, sign, mirror, sign)[0]
        for name, index in zip(MIRRORED_TURNS, turns.index, strict=True)
    }


def names_of(orbit: FiniteOrbit, image_shape: Sequence[int]) -> tuple[str, ...]:
    """The names of the orbit's elements, or a ValueError where one is neither a flip nor a quarter turn."""
    transform = orbit.transform
    if not isinstance(transform, SignedPermutations) or orbit.weights is not None:
        raise ValueError(
            "Only flips and quarter turns without weights have names, not a finite orbit of "
            f"{type(transform).__name__}{' with weights' if orbit.weights is not None else ''}."
        )
    index, sign = transform.index, transform.sign
    if orbit.elements is not None:
        chosen = orbit.elements[:, 0].long()
        index, sign = index[chosen], sign[chosen]
    named = symmetries(image_shape)
    keys = element_keys(torch.stack(list(named.values())), torch.ones(1, dtype=torch.int8))
    known = dict(zip(keys, named, strict=True))
    found = [known.get(key) for key in element_keys(index, sign)]
    if None in found:
        raise ValueError(
            f"Element {found.index(None)} of this orbit is neither a flip nor a quarter turn of images "
            f"{tuple(image_shape)}; only {', '.join(named)} have names."
        )
    return tuple(name for name in found if name is not None)


def orbit_of(names: Sequence[str], image_shape: Sequence[int]) -> FiniteOrbit:
    """The finite orbit of the named flips and quarter turns; the identity comes first."""
    known = symmetries(image_shape)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{name!r} is no symmetry of images {tuple(image_shape)}; there are {', '.join(known)}."
            )
    if not names or names[0] != "identity" or len(set(names)) < len(names):
        raise ValueError(f"Elements must start with 'identity' and be different, not {', '.join(names)}.")
    index = torch.stack([known[name] for name in names])
    is_group = closure(SignedPermutations(index)).size == len(names)
    orbit = FiniteOrbit(SignedPermutations(index, is_group=is_group))
    orbit.image_shape = check_image_shape(image_shape)
    return orbit
