import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitwise.transforms import (
    SignedPermutations,
    block_permutations,
    coordinate_permutations,
    cyclic_shifts,
    exchange_permutations,
    negation,
    sign_changes,
)
from orbitwise.transforms.permutations import compose, element_keys
from tests.contracts.annotations import unchecked
from tests.contracts.transform_contract import DiscreteContract, assert_group, inputs

# name: (make, number of coordinates, number of elements)
FAMILIES = {
    "coordinates": (lambda: coordinate_permutations(4), 4, math.factorial(4)),
    "one coordinate": (lambda: coordinate_permutations(1), 1, 1),
    "blocks": (lambda: block_permutations(3, 2), 6, math.factorial(3)),
    "like atoms": (lambda: exchange_permutations("CHHHO", 3), 15, math.factorial(3)),
    "two kinds": (lambda: exchange_permutations([1, 8, 1, 8, 8]), 5, 2 * math.factorial(3)),
    "cyclic": (lambda: cyclic_shifts(5), 5, 5),
    "cyclic blocks": (lambda: cyclic_shifts(3, 2), 6, 3),
    "signs": (lambda: sign_changes(3), 3, 2**3),
    "negation": (lambda: negation(3), 3, 2),
}


class TestFamilies(DiscreteContract):
    @pytest.fixture(params=[name for name in FAMILIES if name != "one coordinate"])
    def case(self, request):
        make, width, _ = FAMILIES[request.param]
        return make(), width


class TestAList(DiscreteContract):
    """A list that is no group, with both permutations and signs."""

    @pytest.fixture
    def case(self):
        index = torch.tensor([[0, 1, 2], [1, 2, 0], [0, 1, 2]])
        sign = torch.tensor([[1, 1, 1], [1, -1, 1], [-1, 1, 1]])
        return SignedPermutations(index, sign), 3


@pytest.mark.parametrize("name", FAMILIES)
def test_is_a_group_of_the_right_size(name: str):
    make, width, size = FAMILIES[name]
    family = make()
    assert family.size == size
    assert family.index.shape == (size, width)
    assert family.is_group
    assert_group(family)


def test_a_list_by_hand():
    family = SignedPermutations(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.tensor([[1, 1, 1], [1, -1, 1]]))
    assert family.all_elements(torch.tensor([[10.0, 20.0, 30.0]])).tolist() == [[[10, 20, 30], [30, -10, 20]]]
    assert not family.is_group


def moved_rows(family: SignedPermutations, x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in family.all_elements(x)[0].tolist()}


def test_coordinate_permutations_are_all_orders():
    x = inputs(4, rows=1)
    assert moved_rows(coordinate_permutations(4), x) == set(itertools.permutations(x[0].tolist()))


def test_block_permutations_keep_blocks_together():
    assert moved_rows(block_permutations(2, 3), torch.arange(6.0)[None]) == {
        (0, 1, 2, 3, 4, 5),
        (3, 4, 5, 0, 1, 2),
    }


@pytest.mark.parametrize("labels", ["HHO", "HOH", "ABCD", "ABAB"])
def test_exchanges_are_the_orders_that_keep_labels(labels: str):
    x = torch.arange(2.0 * len(labels))[None]
    kept = {
        tuple(2.0 * source + inside for source in order for inside in range(2))
        for order in itertools.permutations(range(len(labels)))
        if all(labels[place] == labels[source] for place, source in enumerate(order))
    }
    assert moved_rows(exchange_permutations(labels, 2), x) == kept


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_labels_may_be_atomic_numbers_of_any_kind(kind):
    assert_group(exchange_permutations(kind([8, 1, 1])))
    assert exchange_permutations(kind([8, 1, 1])).index.tolist() == [[0, 1, 2], [0, 2, 1]]


def test_cyclic_shifts_are_rolls():
    x = inputs(5)
    moved = cyclic_shifts(5).all_elements(x)
    assert all(torch.equal(moved[:, shift], x.roll(shift, -1)) for shift in range(5))


def test_sign_changes_are_all_signs():
    signs = itertools.product([1.0, -1.0], repeat=3)
    assert moved_rows(sign_changes(3), torch.ones(1, 3)) == set(signs)
    assert negation(2).all_elements(torch.tensor([[1.0, -2.0]])).tolist() == [[[1, -2], [-1, 2]]]


signed_permutations = st.permutations(range(4)).flatmap(
    lambda order: st.tuples(st.just(order), st.lists(st.sampled_from([1, -1]), min_size=4, max_size=4))
)


@settings(max_examples=30)
@given(signed_permutations, signed_permutations)
def test_composing_is_moving_twice(first, then):
    first, then = ([torch.tensor(part) for part in element] for element in (first, then))
    x = inputs(4, rows=1)
    identity = torch.arange(4), torch.ones(4, dtype=torch.long)
    stacks = [zip(identity, element, strict=True) for element in (first, then, compose(*first, *then))]
    moved_first, moved_then, moved_both = (
        SignedPermutations(*(torch.stack(pair) for pair in stack)) for stack in stacks
    )
    element = torch.ones(1, 1, 1)
    twice = moved_then(moved_first(x, element)[:, 0], element)
    assert torch.equal(moved_both(x, element), twice)


def test_keys_tell_elements_apart():
    family = sign_changes(3)
    assert len(set(element_keys(family.index, family.sign))) == 8
    assert element_keys(family.index, family.sign) == element_keys(family.index.clone(), family.sign.long())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: coordinate_permutations(9), r"362,880 elements, above max_elements=50,000"),
        (lambda: coordinate_permutations(4, max_elements=23), "24 elements, above max_elements=23"),
        (lambda: coordinate_permutations(3000), r"about 10\^9130 elements"),
        (lambda: block_permutations(9, 2), "max_elements"),
        (lambda: sign_changes(16), r"2\^16 elements, above"),
        (lambda: sign_changes(100_000), r"2\^100000 elements, above"),
        (lambda: coordinate_permutations(0), "at least one label"),
        (lambda: block_permutations(2, 0), "at least one coordinate"),
        (lambda: exchange_permutations([]), "at least one label"),
        (lambda: cyclic_shifts(0), "at least one block"),
        (lambda: sign_changes(0), "at least one coordinate"),
        (lambda: negation(0), "at least one coordinate"),
    ],
)
def test_families_that_are_too_large_or_empty(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_larger_limit_is_taken():
    assert coordinate_permutations(4, max_elements=24).size == 24
    assert sign_changes(4, max_elements=16).size == 16


IDENTITY = [[0, 1, 2]]


@pytest.mark.parametrize(
    ("index", "sign", "message"),
    [
        (IDENTITY[0], None, r"\[e, d\]"),
        ([IDENTITY], None, r"\[e, d\]"),
        (torch.zeros(0, 3, dtype=torch.long), None, "non-empty"),
        ([[0.0, 1.0, 2.0]], None, r"torch\.float32"),
        ([[0, 1, 1]], None, r"permutation of 0, …, 2"),
        ([*IDENTITY, [1, 2, 3]], None, r"permutation of 0, …, 2"),
        ([[1, 0, 2]], None, "first element must be the identity"),
        (IDENTITY, [[1, 1, -1]], "first element must be the identity"),
        (IDENTITY, [[1, 1, 0]], "1 or -1"),
        (IDENTITY, [[1.0, 1.0, 1.5]], "1 or -1"),
        (IDENTITY, [[1, 1, 257]], "1 or -1"),
        (IDENTITY, [[1, 1]], r"shape \(1, 3\) of index, not \(1, 2\)"),
    ],
)
def test_bad_elements(index, sign, message: str):
    index = torch.as_tensor(index)
    sign = None if sign is None else torch.as_tensor(sign)
    with unchecked(), pytest.raises(ValueError, match=message):
        SignedPermutations(index, sign)
