import itertools
from collections import Counter

import pytest
import torch
from scipy import stats

from orbitwise.orbits import FiniteOrbit, Group
from orbitwise.transforms import (
    LinearMaps,
    Rotation,
    SignedPermutations,
    coordinate_permutations,
    cyclic_shifts,
    negation,
    sign_changes,
    turns,
)
from tests.contracts.annotations import unchecked
from tests.contracts.orbit_contract import OrbitContract, inputs, seeded


def parity(family: SignedPermutations) -> torch.Tensor:
    """1 for even and -1 for odd permutations."""
    signs = [torch.linalg.det(torch.eye(len(row), dtype=torch.float64)[row]) for row in family.index]
    return torch.stack(signs).round()


CASES = {
    "permutations": (lambda: FiniteOrbit(coordinate_permutations(3)), 3),
    "signs": (lambda: FiniteOrbit(sign_changes(2)), 2),
    "turns": (lambda: FiniteOrbit(turns(5)), 2),
    "angles": (lambda: FiniteOrbit(Rotation(2), torch.tensor([[0.0], [0.5], [2.0]])), 2),
    "some elements": (lambda: FiniteOrbit(coordinate_permutations(3), torch.tensor([[4], [1]])), 3),
    "odd": (lambda: FiniteOrbit(negation(2), weights=torch.tensor([1.0, -1.0])), 2),
}
DRAWN = {
    "permutations": (lambda: FiniteOrbit(coordinate_permutations(4), num_samples=8), 4),
    "one group": (lambda: FiniteOrbit(coordinate_permutations(3), num_samples=3, num_groups=1), 3),
    "angles": (lambda: FiniteOrbit(Rotation(2), torch.linspace(0, 3, 9)[:, None], num_samples=6), 2),
    "weights": (lambda: FiniteOrbit(turns(5), weights=torch.arange(5.0), num_samples=4), 2),
}


class TestAllElements(OrbitContract):
    @pytest.fixture(params=CASES)
    def case(self, request):
        make, width = CASES[request.param]
        return make(), width


class TestSomeElements(OrbitContract):
    @pytest.fixture(params=DRAWN)
    def case(self, request):
        make, width = DRAWN[request.param]
        return make(), width


def test_all_elements_by_hand():
    moved = FiniteOrbit(cyclic_shifts(3)).points(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert moved.points.tolist() == [
        [[1, 2, 3], [3, 1, 2], [2, 3, 1]],
        [[4, 5, 6], [6, 4, 5], [5, 6, 4]],
    ]
    torch.testing.assert_close(moved.weights, torch.full((2, 3), 1 / 3))
    assert FiniteOrbit(cyclic_shifts(3)).size == 3


def test_chosen_elements_are_taken_in_order():
    family, x = coordinate_permutations(3), inputs(3)
    everything = family.all_elements(x)
    for kind in (torch.long, torch.float32):
        orbit = FiniteOrbit(family, torch.tensor([[4], [1], [1]], dtype=kind))
        assert orbit.size == 3
        assert torch.equal(orbit.points(x).points, everything[:, [4, 1, 1]])


def test_points_that_the_group_keeps_are_counted_again():
    """(1, 1, 2) has a stabiliser of two elements, so each of its three images comes twice."""
    moved = FiniteOrbit(coordinate_permutations(3)).points(torch.tensor([[1.0, 1.0, 2.0]]))
    counts = Counter(map(tuple, moved.points[0].tolist()))
    assert counts == {(1, 1, 2): 2, (1, 2, 1): 2, (2, 1, 1): 2}
    torch.testing.assert_close(moved.weights, torch.full((1, 6), 1 / 6))


def test_weights_are_factors_of_the_mean():
    weights = torch.tensor([1.0, -2.0, 0.5])
    moved = FiniteOrbit(cyclic_shifts(3), weights=weights).points(inputs(3))
    torch.testing.assert_close(moved.weights, weights.double().expand(3, 3) / 3)


def test_which_orbits_carry_a_symmetry():
    family = coordinate_permutations(3)
    whole = FiniteOrbit(family)
    mark = whole.points(inputs(3)).symmetry
    assert mark is not None
    assert mark.token is whole
    assert mark.size == 6
    assert mark.isometric
    # a character χ(ab) = χ(a)χ(b) keeps it
    assert FiniteOrbit(family, weights=parity(family)).symmetry is not None
    assert FiniteOrbit(sign_changes(2), weights=torch.tensor([1.0, -1.0, 1.0, -1.0])).symmetry is not None
    assert FiniteOrbit(turns(3)).symmetry is not None
    # other weights, lists, draws, and what is no group do not
    assert FiniteOrbit(family, weights=torch.tensor([1.0, -1, 1, 1, 1, 1])).symmetry is None
    assert FiniteOrbit(sign_changes(2), weights=torch.tensor([1.0, -1.0, -1.0, -1.0])).symmetry is None
    assert FiniteOrbit(family, weights=2 * torch.ones(6)).symmetry is None
    assert FiniteOrbit(turns(2), weights=torch.tensor([1.0, -1.0])).symmetry is None
    assert FiniteOrbit(family, torch.arange(6)[:, None]).symmetry is None
    assert FiniteOrbit(family, num_samples=6).symmetry is None
    assert FiniteOrbit(SignedPermutations(torch.tensor([[0, 1, 2], [1, 2, 0]]))).symmetry is None


def test_a_group_of_maps_that_stretch_is_not_isometric():
    swap = torch.tensor([[0.0, 2.0], [0.5, 0.0]])
    orbit = FiniteOrbit(LinearMaps(torch.stack([torch.eye(2), swap]), is_group=True))
    assert orbit.symmetry is not None
    assert not orbit.symmetry.isometric


def drawn_elements(orbit: FiniteOrbit, rows: int, seed: int = 0) -> torch.Tensor:
    """The numbers of the drawn elements [rows, groups, k], read off the points."""
    x = torch.arange(1.0, 6.0).expand(rows, 5)
    first = orbit.points(x, seeded(seed)).points[..., 0]
    return ((1 - first).round().long() % 5).unflatten(-1, (orbit.num_groups, -1))


def test_reading_off_elements():
    orbit = FiniteOrbit(cyclic_shifts(5))
    first = orbit.points(torch.arange(1.0, 6.0)[None]).points[0, :, 0]
    assert ((1 - first).round().long() % 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_no_element_is_drawn_twice_in_a_group(size: int):
    elements = drawn_elements(FiniteOrbit(cyclic_shifts(5), num_samples=2 * size), rows=200)
    assert elements.shape == (200, 2, size)
    assert all(len(set(group)) == size for group in elements.flatten(0, 1).tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_subset_is_equally_likely(size: int):
    elements = drawn_elements(FiniteOrbit(cyclic_shifts(5), num_samples=2 * size), rows=3000)
    subsets = Counter(tuple(sorted(group)) for group in elements.flatten(0, 1).tolist())
    possible = list(itertools.combinations(range(5), size))
    assert set(subsets) == set(possible)
    assert stats.chisquare([subsets[subset] for subset in possible]).pvalue > 1e-3


def test_groups_and_rows_are_independent():
    elements = drawn_elements(FiniteOrbit(cyclic_shifts(5), num_samples=2), rows=5000).squeeze(-1)
    for pairs in (elements, torch.stack([elements[:-1, 0], elements[1:, 0]], -1)):
        table = torch.zeros(5, 5).index_put_(tuple(pairs.T), torch.ones(()), accumulate=True)
        assert stats.chisquare(table.flatten().numpy()).pvalue > 1e-3


def test_all_elements_drawn_are_all_elements():
    elements = drawn_elements(FiniteOrbit(cyclic_shifts(5), num_samples=5, num_groups=1), rows=20)
    assert elements.sort(-1).values.tolist() == [[[0, 1, 2, 3, 4]]] * 20


def test_drawn_weights_belong_to_the_drawn_elements():
    weights = torch.tensor([3.0, 1.0, 4.0, -1.0, 5.0])
    orbit = FiniteOrbit(cyclic_shifts(5), weights=weights, num_samples=4)
    moved = orbit.points(torch.arange(1.0, 6.0).expand(50, 5), seeded())
    elements = drawn_elements(orbit, 50).flatten(1)
    torch.testing.assert_close(moved.weights, weights[elements] / 4)
    assert moved.groups == (Group(1, 5),) * 2


def test_a_drawn_average_is_unbiased():
    """z-score of the mean over many rows against the whole orbit, with weights."""
    family = coordinate_permutations(3)
    x = inputs(3, rows=1).expand(4000, 3)
    weights = torch.arange(6.0)

    def average(orbit: FiniteOrbit) -> torch.Tensor:
        moved = orbit.points(x, seeded(7))
        return (moved.weights * (moved.points[..., 0] * moved.points[..., 1].exp())).sum(-1)

    truth = average(FiniteOrbit(family, weights=weights))[0]
    estimates = average(FiniteOrbit(family, weights=weights, num_samples=4))
    z = (estimates.mean() - truth) / (estimates.std() / 4000**0.5)
    assert abs(z) < 3
    assert estimates.std() > 0.01


def test_a_few_of_many_elements_need_little_memory():
    """40,320 elements for 2,000 rows would take gigabytes if every element got a random key."""
    moved = FiniteOrbit(coordinate_permutations(8), num_samples=4).points(inputs(8, rows=2000), seeded())
    assert moved.points.shape == (2000, 4, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FiniteOrbit(Rotation(2)), "continuous family"),
        (lambda: FiniteOrbit(Rotation(2), torch.zeros(2)), r"\[e, 1\].*not shape \(2,\)"),
        (lambda: FiniteOrbit(Rotation(2), torch.zeros(0, 1)), "at least one element"),
        (lambda: FiniteOrbit(Rotation(2), torch.zeros(2, 2)), r"not shape \(2, 2\)"),
        (lambda: FiniteOrbit(Rotation(2), torch.tensor([[torch.nan]])), "finite"),
        (lambda: FiniteOrbit(negation(2), torch.tensor([[2]])), "0, …, 1"),
        (lambda: FiniteOrbit(negation(2), weights=torch.ones(3)), r"2 finite numbers.*not shape \(3,\)"),
        (lambda: FiniteOrbit(negation(2), weights=torch.tensor([1.0, torch.nan])), "finite"),
        (lambda: FiniteOrbit(negation(2), num_samples=1), "num_samples=1 cannot be split"),
        (lambda: FiniteOrbit(negation(2), num_samples=1, num_groups=1), "at least two draws"),
        (lambda: FiniteOrbit(negation(2), num_samples=6), "3 elements cannot be drawn.*from 2"),
    ],
)
def test_bad_arguments(make, message: str):
    with unchecked(), pytest.raises(ValueError, match=message):
        make()
