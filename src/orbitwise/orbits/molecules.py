"""Exchanges of like atoms of a molecule, found from its geometries.

The energy is the same whichever of two like atoms is which, but averaging over all exchanges is wasteful: of
the 1,440 of ethanol, most would have to break bonds. Those that can happen without that map bonds on bonds,
and are a turn or a turn and a mirror image, which distances cannot tell from the molecule itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, islice

import numpy as np
import torch
from numpy.typing import NDArray

from orbitwise.orbits.finite import closure
from orbitwise.transforms.permutations import SignedPermutations

COVALENT_RADII = np.array([
    0.31, 0.28, 1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58, 1.66, 1.41, 1.21, 1.11, 1.07, 1.05, 1.02,
    1.06, 2.03, 1.76, 1.70, 1.60, 1.53, 1.39, 1.39, 1.32, 1.26, 1.24, 1.32, 1.22, 1.22, 1.20, 1.19, 1.20,
    1.20, 1.16, 2.20, 1.95, 1.90, 1.75, 1.64, 1.54, 1.47, 1.46, 1.42, 1.39, 1.45, 1.44, 1.42, 1.39, 1.39,
    1.38, 1.39, 1.40, 2.44, 2.15, 2.07, 2.04, 2.03, 2.01, 1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89,
    1.90, 1.87, 1.87, 1.75, 1.70, 1.62, 1.51, 1.44, 1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.40, 1.50,
    1.50, 2.60, 2.21, 2.15, 2.06, 2.00, 1.96, 1.90, 1.87, 1.80, 1.69,
])  # fmt: skip
"""Covalent radii in Å of hydrogen to curium (Cordero et al. 2008, doi:10.1039/b801115j)."""
LONGEST_BOND = 1.3
"""Atoms are bonded up to this multiple of the sum of their radii."""
FLAT = 0.1
"""The least volume that four neighbours span, over the cube of their distance, where an atom has a hand."""
ALIKE = 0.15
"""Distances of neighbours of one atom that differ by less than this share may be exchanged."""
SELDOM = 0.1
"""Bonds that exist in a smaller share of the geometries are not counted."""
MAX_TRIED = 5_000
"""Exchanges that are looked at in molecules with a great many."""

Distances = NDArray[np.float64]
Bonds = NDArray[np.bool_]


def like_atom_exchanges(
    z: NDArray[np.int64], x: NDArray[np.float64], max_exchanges: int = 128
) -> NDArray[np.int64]:
    """The group of exchanges of like atoms that break no bond, [e, atoms], the identity first.

    Atoms a of the exchanged molecule are the atoms `found[e, a]` of the given one. An exchange maps atoms on
    like atoms, bonds on bonds, and leaves the hand of every atom with four neighbours or more as it is, or
    turns all of them into their mirror images. The unit of length is inferred from the geometries.

    Parameters
    ----------
    z : ndarray of shape (atoms,)
        Atomic numbers.
    x : ndarray of shape (n, atoms, 3)
        Geometries, in any unit of length.
    max_exchanges : int, default=128
        The largest group. Of a larger one, a subgroup is returned: its generators are the exchanges that
        change the mean distances least.

    Returns
    -------
    ndarray of shape (e, atoms)
        A group of permutations.
    """
    distances = np.linalg.norm(x[:, :, None] - x[:, None], axis=-1)
    bonds = bonds_of(z, distances)
    hands = _hands(x, bonds)
    tried = islice(_automorphisms(z, bonds), MAX_TRIED)
    found = [each for each in tried if _is_feasible(each, x, bonds, distances, hands)]
    # the mean distances hardly change under exchanges that the geometries have seen
    mean = distances.mean(0)
    changes = [np.abs(mean[np.ix_(each, each)] - mean).sum() for each in found]
    group = np.arange(len(z))[None]
    for place in np.argsort(changes, kind="stable"):
        if 2 * len(group) > max_exchanges:
            break  # a larger group has at least twice as many elements
        if not (found[place] == group).all(1).any():
            with suppress(ValueError):  # where they generate too many
                group = generated_exchanges(np.concatenate([group, found[place][None]]), max_exchanges)
    return group


def generated_exchanges(exchanges: NDArray[np.int64], max_exchanges: int = 10_000) -> NDArray[np.int64]:
    """The group that permutations [e, atoms] generate, the identity first; a ValueError if it is larger."""
    alone = np.arange(exchanges.shape[1])[None]
    generators = SignedPermutations(torch.from_numpy(np.concatenate([alone, exchanges])))
    transform = closure(generators, max_size=max_exchanges).transform
    assert isinstance(transform, SignedPermutations)
    return transform.index.numpy()


def bonds_of(z: NDArray[np.int64], distances: Distances) -> Bonds:
    """Which atoms are bonded: those up to 1.3 times their covalent radii apart, in a tenth of the geometries.

    In the unit of length, nearest neighbours are as far apart as their covalent radii say, in the median over
    the atoms.
    """
    radii = COVALENT_RADII[np.minimum(z, len(COVALENT_RADII)) - 1]
    ratios = distances / (radii[:, None] + radii)
    ratios[:, np.arange(len(z)), np.arange(len(z))] = np.inf
    unit = np.median(np.median(ratios, axis=0).min(1))
    return np.quantile(ratios, SELDOM, axis=0, method="nearest") < LONGEST_BOND * unit


def _hands(x: NDArray[np.float64], bonds: Bonds) -> dict[int, tuple[NDArray[np.int64], float]]:
    """Four neighbours of every atom that has as many, and the sign of the volume that they always span."""
    hands = {}
    for centre in range(len(bonds)):
        for four in combinations(np.flatnonzero(bonds[centre]), 4):
            volumes = _volumes(x, np.array(four))
            if np.all(volumes > FLAT) or np.all(volumes < -FLAT):
                hands[centre] = (np.array(four), float(np.sign(volumes[0])))
                break
    return hands


def _volumes(x: NDArray[np.float64], four: NDArray[np.int64]) -> NDArray[np.float64]:
    """Six times the signed volume of four atoms, over the product of three edges, in every geometry."""
    edges = x[:, four[1:]] - x[:, four[:1]]
    return np.linalg.det(edges) / np.linalg.norm(edges, axis=-1).prod(-1)


def _is_feasible(
    exchange: NDArray[np.int64],
    x: NDArray[np.float64],
    bonds: Bonds,
    distances: Distances,
    hands: dict[int, tuple[NDArray[np.int64], float]],
) -> bool:
    """Whether a molecule can get there without breaking bonds, or its mirror image can."""
    volumes = [sign * _volumes(x, exchange[four]) for four, sign in hands.values()]
    if volumes and not (np.min(volumes) > FLAT or np.max(volumes) < -FLAT):
        return False
    near = (bonds @ bonds) | bonds
    least, most = distances.min(0), distances.max(0)
    moved = np.ix_(exchange, exchange)
    overlap = (least <= (1 + ALIKE) * most[moved]) & (least[moved] <= (1 + ALIKE) * most)
    return bool(overlap[near].all())


def _automorphisms(z: NDArray[np.int64], bonds: Bonds) -> Iterator[NDArray[np.int64]]:
    """All permutations that map atoms on like atoms and bonds on bonds, the identity first."""
    colours = _colours(z, bonds)
    order = _connected_order(bonds)
    images: list[int] = []

    def extended() -> Iterator[NDArray[np.int64]]:
        place = len(images)
        if place == len(z):
            exchange = np.empty(len(z), dtype=np.int64)
            exchange[order] = images
            yield exchange
            return
        atom = order[place]
        alike = np.flatnonzero(colours == colours[atom])
        # the atom itself first
        for other in sorted(alike, key=lambda each: each != atom):
            is_bonded = bonds[atom, order[:place]] == bonds[other, images]
            if other not in images and is_bonded.all():
                images.append(int(other))
                yield from extended()
                images.pop()

    yield from extended()


def _colours(z: NDArray[np.int64], bonds: Bonds) -> NDArray[np.int64]:
    """A number for every atom; atoms that bonds tell apart have different ones."""
    colours = np.unique(z, return_inverse=True)[1]
    for _ in range(len(z)):
        around = [(colours[a], *sorted(colours[bonds[a]])) for a in range(len(z))]
        numbers = {key: number for number, key in enumerate(sorted(set(around)))}
        refined = np.array([numbers[key] for key in around])
        if len(numbers) == len(set(colours)):
            break
        colours = refined
    return colours


def _connected_order(bonds: Bonds) -> list[int]:
    """Atoms such that each has bonds to an earlier one where it can."""
    order: list[int] = []
    for first in range(len(bonds)):
        waiting = [first]
        while waiting:
            atom = waiting.pop()
            if atom not in order:
                order.append(atom)
                waiting += np.flatnonzero(bonds[atom]).tolist()
    return order
