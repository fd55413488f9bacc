"""Adam on groups of parameters, and states to return to."""

import pytest
import torch
from torch import nn

from orbitwise.inference.stochastic.trainer_state import Descent, Group


def parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


def test_groups_move_at_their_own_rates_and_wait_for_the_warm_up():
    slow, fast, network = parameter(1.0), parameter(1.0), parameter(1.0)
    descent = Descent([Group([slow], 0.1), Group([fast], 0.2), Group([network], 0.4, waits=False)])

    def loss() -> torch.Tensor:
        return slow + fast + network

    descent.step(loss(), 1.0, warming=True)
    # the first step of Adam is the rate itself
    assert [slow.item(), fast.item()] == [1.0, 1.0]
    assert network.item() == pytest.approx(0.6, abs=1e-5)
    descent.step(loss(), 0.5, warming=False)
    assert slow.item() == pytest.approx(0.95, abs=1e-5)
    assert fast.item() == pytest.approx(0.9, abs=1e-5)
    assert all(each.grad is None for each in (slow, fast, network))


def test_what_moves():
    waiting, fixed = parameter(1.0), parameter(1.0).requires_grad_(False)
    assert not Descent([]).moves(False)
    assert not Descent([Group([fixed], 0.1)]).moves(False)
    assert not Descent([Group([waiting], 0.0)]).moves(False)
    descent = Descent([Group([waiting], 0.1)])
    assert descent.moves(False)
    assert not descent.moves(True)


def test_a_parameter_of_two_groups_belongs_to_the_first():
    shared = parameter(1.0)
    descent = Descent([Group([shared], 0.1), Group([shared], 5.0)])
    assert len(descent.groups) == 1
    descent.step(2 * shared, 1.0, warming=False)
    assert shared.item() == pytest.approx(0.9, abs=1e-5)


def test_an_unused_parameter_stays():
    used, idle = parameter(1.0), parameter(1.0)
    Descent([Group([used, idle], 0.1)]).step(used**2, 1.0, warming=False)
    assert idle.item() == 1.0
    assert used.item() < 1.0


def test_a_gradient_that_is_not_finite_moves_nothing():
    point = parameter(0.0)
    descent = Descent([Group([point], 0.1)])
    with pytest.raises(ValueError, match="gradient is not finite"):
        descent.step(point.sqrt(), 1.0, warming=False)
    assert point.item() == 0.0


def test_a_restart_forgets_momentum():
    point = parameter(0.0)
    descent = Descent([Group([point], 0.1)])
    for _ in range(20):
        descent.step(1000 * point, 1.0, warming=False)
    descent.restart()
    before = point.item()
    descent.step(-point, 1.0, warming=False)
    assert point.item() == pytest.approx(before + 0.1, abs=1e-5)
