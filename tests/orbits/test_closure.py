import math

import pytest
import torch

from orbitwise.orbits import FiniteOrbit, closure
from orbitwise.transforms import (
    LinearMaps,
    SignedPermutations,
    coordinate_permutations,
    cyclic_shifts,
    flips,
    negation,
    quarter_turns,
    sign_changes,
    turns,
)
from tests.contracts.orbit_contract import OrbitContract, inputs
from tests.contracts.transform_contract import assert_group


def swap(*order: int) -> SignedPermutations:
    return SignedPermutations(torch.tensor([list(range(len(order))), list(order)]))


def maps(*matrices: list[list[float]], dtype: torch.dtype = torch.float64) -> LinearMaps:
    width = len(matrices[0])
    return LinearMaps(
        torch.stack([torch.eye(width, dtype=dtype), *(torch.tensor(m, dtype=dtype) for m in matrices)])
    )


def turn(angle: float) -> list[list[float]]:
    return [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]


MIRROR = [[-1.0, 0.0], [0.0, 1.0]]


class TestClosure(OrbitContract):
    @pytest.fixture(params=["permutations", "maps"])
    def case(self, request):
        if request.param == "permutations":
            return closure(swap(1, 0, 2), negation(3)), 3
        return closure(maps(turn(math.pi / 3)), maps(MIRROR)), 2


@pytest.mark.parametrize(
    ("generators", "size"),
    [
        ([flips((3, 3)), quarter_turns((3, 3))], 8),
        ([flips((2, 3, 3)), quarter_turns((2, 3, 3))], 8),
        ([swap(1, 0, 2, 3), swap(1, 2, 3, 0)], 24),
        ([swap(1, 0, 2, 3), swap(0, 2, 1, 3), swap(0, 1, 3, 2)], 24),
        ([swap(1, 2, 0, 3), swap(0, 2, 3, 1)], 12),
        ([coordinate_permutations(3), sign_changes(3)], 48),
        (
            [
                swap(1, 0, 2),
                SignedPermutations(torch.arange(3).repeat(2, 1), torch.tensor([[1, 1, 1], [-1, 1, 1]])),
            ],
            8,
        ),
        ([coordinate_permutations(4)], 24),
        ([cyclic_shifts(7), cyclic_shifts(7)], 7),
        ([swap(0, 1, 2)], 1),
    ],
)
def test_permutations(generators: list[SignedPermutations], size: int):
    orbit = closure(*generators)
    assert isinstance(orbit, FiniteOrbit)
    assert orbit.size == size
    assert isinstance(orbit.transform, SignedPermutations)
    assert_group(orbit.transform)
    assert orbit.symmetry is not None
    assert orbit.symmetry.isometric


def test_the_generators_are_in_their_group():
    orbit = closure(flips((3, 3)), quarter_turns((3, 3)))
    rows = orbit.transform.index.tolist()
    for family in (flips((3, 3)), quarter_turns((3, 3))):
        assert all(row in rows for row in family.index.tolist())


@pytest.mark.parametrize(
    ("generators", "size"),
    [
        ([turns(4), maps(MIRROR)], 8),
        ([maps(turn(2 * math.pi / 7))], 7),
        ([maps(turn(2 * math.pi / 6), MIRROR)], 12),
        ([maps([[0.0, 2.0], [0.5, 0.0]])], 2),
        ([maps(turn(2 * math.pi / 100), dtype=torch.float32)], 100),
        # the rotations of the cube
        ([maps([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], [[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])], 24),
    ],
)
def test_matrices(generators: list[LinearMaps], size: int):
    orbit = closure(*generators)
    assert orbit.size == size
    found = orbit.transform.matrices
    torch.testing.assert_close(found[0], torch.eye(found.shape[-1], dtype=torch.float64))
    products = torch.einsum("aij,bjk->abik", found, found).flatten(0, 1)
    gaps = (products[:, None] - found[None]).abs().amax((-1, -2))
    assert gaps.amin(1).max() < 1e-4
    assert orbit.transform.is_group


def test_an_average_over_a_closure_is_invariant():
    orbit, x = closure(turns(3), maps(MIRROR)), inputs(2)

    def average(y: torch.Tensor) -> torch.Tensor:
        moved = orbit.points(y)
        return (moved.weights * (moved.points[..., 0].sin() + moved.points[..., 1].exp())).sum(-1)

    for matrix in orbit.transform.matrices:
        torch.testing.assert_close(average(x @ matrix.T), average(x))


def test_the_limit_is_the_largest_size_allowed():
    assert closure(coordinate_permutations(4), max_size=24).size == 24
    assert closure(turns(9), max_size=9).size == 9
    assert closure(swap(1, 0), max_size=2).size == 2
    for generator, size in ((coordinate_permutations(4), 24), (turns(9), 9), (swap(1, 0), 2)):
        with pytest.raises(ValueError, match=f"more than max_size={size - 1} elements"):
            closure(generator, max_size=size - 1)


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([maps(turn(1.0))], "more than max_size=1,000 elements"),
        ([maps([[1.0, 1.0], [0.0, 1.0]])], "more than max_size=1,000 elements"),
        ([maps([[2.0, 0.0], [0.0, 0.5]])], "infinitely many|max_size"),
        ([maps([[0.5, 0.0], [0.0, 0.5]])], "determinant"),
        ([maps([[0.999, 0.0], [0.0, 1.0]])], "determinant"),
        ([maps([[-1.0, 0.0], [0.0, 1.0]], [[-1.0, 3.0], [0.0, 1.0]])], "max_size"),
        ([swap(1, 0), swap(1, 0, 2)], r"different numbers of coordinates: \[2, 3\]"),
        ([maps(MIRROR), maps([[1.0]])], r"different numbers of coordinates: \[1, 2\]"),
        ([], "at least one generator"),
    ],
)
def test_what_has_no_finite_group(generators: list, message: str):
    with pytest.raises(ValueError, match=message):
        closure(*generators, max_size=1000)


def test_products_that_grow_beyond_all_numbers():
    with pytest.raises(ValueError, match="grow forever"):
        closure(maps([[2.0, 0.0], [0.0, 0.5]]), max_size=5000)


def test_generators_of_one_kind():
    with pytest.raises(TypeError, match="one kind"):
        closure(swap(1, 0), turns(2))
