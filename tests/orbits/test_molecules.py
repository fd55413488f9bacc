"""Exchanges of like atoms: those of known molecules, in any unit and order, and groups that are cut short."""

import itertools

import numpy as np
import pytest

from orbitwise.datasets import load
from orbitwise.orbits.molecules import bonds_of, generated_exchanges, like_atom_exchanges

CORNERS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
METHANE = np.concatenate([np.zeros((1, 3)), 1.09 * CORNERS])
WATER = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
AMMONIA = np.array([[0.0, 0, 0.3], [0.94, 0, 0], [-0.47, 0.81, 0], [-0.47, -0.81, 0]])
AXES = np.concatenate([np.zeros((1, 3)), 1.56 * np.eye(3), -1.56 * np.eye(3)])


def ring(count: int, radius: float) -> np.ndarray:
    """Atoms on a regular polygon."""
    angle = 2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)


def ethane() -> np.ndarray:
    """Two carbon atoms with three hydrogen atoms each, staggered."""
    carbon = np.array([[0, 0, 0.77], [0, 0, -0.77]])
    upper = ring(3, 1.02) + np.array([0, 0, 1.16])
    lower = -upper
    return np.concatenate([carbon, upper, lower])


BENZENE = np.concatenate([ring(6, 1.4), ring(6, 2.48)])
GROUPS = {
    "water": ([8, 1, 1], WATER, 2),
    "ammonia": ([7, 1, 1, 1], AMMONIA, 6),
    "methane": ([6, 1, 1, 1, 1], METHANE, 24),
    "one of each": ([6, 1, 9, 17, 35], METHANE * [[1], [1], [1.27], [1.62], [1.78]], 1),
    "chlorofluoromethane": ([6, 1, 1, 9, 17], METHANE * [[1], [1], [1], [1.27], [1.62]], 2),
    "ethane": ([6, 6, *[1] * 6], ethane(), 36),
    "benzene": ([*[6] * 6, *[1] * 6], BENZENE, 12),
    "sulfur hexafluoride": ([16, *[9] * 6], AXES, 48),
    "hydrogen": ([1, 1], np.array([[0.0, 0, 0], [0.74, 0, 0]]), 2),
    "two waters": ([8, 1, 1] * 2, np.concatenate([WATER, WATER + np.array([0, 0, 2.9])]), 8),
}


def geometries(molecule: np.ndarray, count: int = 12, seed: int = 0) -> np.ndarray:
    """The molecule in small motion."""
    random = np.random.default_rng(seed)
    return molecule + 0.03 * random.normal(size=(count, *molecule.shape))


def is_group(permutations: np.ndarray) -> bool:
    known = {tuple(each) for each in permutations.tolist()}
    pairs = itertools.product(permutations, repeat=2)
    return len(known) == len(permutations) and all(tuple(a[b].tolist()) in known for a, b in pairs)


@pytest.mark.parametrize("name", GROUPS)
def test_known_molecules(name: str):
    z, molecule, size = GROUPS[name]
    z = np.array(z)
    found = like_atom_exchanges(z, geometries(molecule))
    assert len(found) == size
    assert (found[0] == np.arange(len(z))).all()
    assert (z[found] == z).all()
    assert is_group(found)


@pytest.mark.parametrize("unit", [0.1, 1.89])
def test_neither_unit_nor_position_matters(unit: float):
    z, molecule, size = GROUPS["ethane"]
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    x = geometries(molecule)
    moved = unit * (x @ turn + [4.0, -1.0, 2.0])
    found = like_atom_exchanges(np.array(z), moved)
    assert len(found) == size
    assert {*map(tuple, found)} == {*map(tuple, like_atom_exchanges(np.array(z), x))}


def test_the_order_of_atoms_does_not_matter():
    z, molecule, _ = GROUPS["benzene"]
    order = np.random.default_rng(2).permutation(12)
    z, x = np.array(z), geometries(molecule)
    place = np.argsort(order)
    found = like_atom_exchanges(z[order], x[:, order])
    expected = {tuple(place[each[order]]) for each in like_atom_exchanges(z, x)}
    assert {*map(tuple, found)} == expected


def test_ethane_turns_but_does_not_swap_two_hydrogens_of_one_end():
    z, molecule, _ = GROUPS["ethane"]
    found = {tuple(each) for each in like_atom_exchanges(np.array(z), geometries(molecule)).tolist()}
    assert (0, 1, 3, 4, 2, 5, 6, 7) in found
    assert (0, 1, 3, 2, 4, 5, 6, 7) not in found
    # the mirror image swaps two of either end
    assert (0, 1, 3, 2, 4, 6, 5, 7) in found


@pytest.mark.requires_data("rmd17_ethanol")
@pytest.mark.requires_data("rmd17_benzene")
@pytest.mark.requires_data("rmd17_malonaldehyde")
@pytest.mark.parametrize(("name", "size"), [("ethanol", 6), ("benzene", 12), ("malonaldehyde", 4)])
@pytest.mark.parametrize("count", [2, 200])
def test_measured_molecules(name: str, size: int, count: int):
    data = load(f"rmd17_{name}")
    assert len(like_atom_exchanges(data.z.astype(int), data.x_train[:count])) == size


def test_a_group_that_is_too_large_is_cut_to_a_subgroup():
    z, x = np.array(GROUPS["methane"][0]), geometries(METHANE)
    found = like_atom_exchanges(z, x, max_exchanges=12)
    assert 1 < len(found) <= 12
    assert is_group(found)
    # a cluster of equal atoms has 13! exchanges, which nobody lists
    cluster = np.concatenate([np.zeros((1, 3)), ring(12, 3.8)])
    assert len(like_atom_exchanges(np.full(13, 18), cluster[None])) <= 128


def test_bonds_that_seldom_exist_do_not_count():
    x = np.repeat(WATER[None], 30, axis=0)
    x[:2, 2] = [1.2, 0.6, 0.0]  # two hydrogen atoms that meet
    bonds = bonds_of(np.array([8, 1, 1]), np.linalg.norm(x[:, :, None] - x[:, None], axis=-1))
    assert bonds.tolist() == [[False, True, True], [True, False, False], [True, False, False]]


def test_generated_exchanges_are_a_group_with_the_identity_first():
    found = generated_exchanges(np.array([[1, 2, 0, 3], [0, 1, 2, 3]]))
    assert found.tolist() == [[0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3]]
    with pytest.raises(ValueError, match="max_size=2"):
        generated_exchanges(np.array([[1, 2, 0, 3]]), max_exchanges=2)
