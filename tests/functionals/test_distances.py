"""Inverse distances against a loop over pairs, their slopes pulled back, and how pairs move with points."""

import pytest
import torch

from orbitwise.functionals import InverseDistances
from orbitwise.functionals.distances import permutations_of_pairs
from tests.contracts.annotations import unchecked
from tests.contracts.functional_contract import Case, FunctionalContract, Waves
from tests.contracts.orbit_contract import inputs

KINDS = torch.tensor([0, 1, 0])  # of the pairs (0, 1), (0, 2), (1, 2) of three points


def weighted() -> InverseDistances:
    functional = InverseDistances(KINDS)
    with torch.no_grad():
        functional.log_weight.copy_(torch.tensor([0.3, -0.5], dtype=torch.float64))
    return functional


class TestInverseDistances(FunctionalContract):
    @pytest.fixture
    def case(self):
        def by_hand(g: Waves, x: torch.Tensor) -> torch.Tensor:
            a, b, c = x.reshape(3, 3)
            first, second = torch.tensor([0.3, -0.5], dtype=torch.float64).exp()
            return g(torch.stack([first / (a - b).norm(), second / (a - c).norm(), first / (b - c).norm()]))

        return Case(weighted(), (9,), by_hand, width_of_g=3)

    def test_slopes_are_pulled_back_by_the_jacobian(self):
        functional = weighted()
        x = inputs(9).requires_grad_(True)
        slopes = inputs(3)
        (expected,) = torch.autograd.grad((functional.atoms(x).points[:, 0] * slopes).sum(), x)
        torch.testing.assert_close(functional.pulled_back(x.detach(), slopes), expected)

    def test_moves_and_turns_change_nothing(self):
        functional, x = weighted(), inputs(9)
        turn = torch.linalg.qr(inputs(3, rows=3))[0]
        moved = (x.reshape(-1, 3, 3) @ turn + torch.tensor([1.0, -2.0, 0.5])).flatten(1)
        torch.testing.assert_close(functional.atoms(moved).points, functional.atoms(x).points)

    @pytest.mark.parametrize(
        ("kinds", "weight", "message"),
        [
            (torch.tensor([0, 0]), 1.0, "each of the p"),
            (torch.tensor([0.0, 1.0, 0.0]), 1.0, "whole numbers from 0 to 2"),
            (torch.tensor([0, 3, 0]), 1.0, "whole numbers from 0 to 2"),
            (KINDS, 0.0, "positive and finite"),
        ],
    )
    def test_what_is_refused(self, kinds: torch.Tensor, weight: float, message: str):
        with unchecked(), pytest.raises(ValueError, match=message):
            InverseDistances(kinds, weight)

    def test_rows_of_other_points_are_refused(self):
        with pytest.raises(ValueError, match="rows of 3 points in space, so 9 numbers, not 6"):
            weighted().atoms(inputs(6))


def test_pairs_move_with_their_points():
    order = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 3], [0, 1, 3, 2]])
    x, kinds = inputs(12), torch.zeros(6, dtype=torch.long)
    functional = InverseDistances(kinds)
    for points, pairs in zip(order, permutations_of_pairs(order), strict=True):
        moved = functional.atoms(x.reshape(-1, 4, 3)[:, points].flatten(1)).points[:, 0]
        torch.testing.assert_close(moved, functional.atoms(x).points[:, 0][:, pairs])
