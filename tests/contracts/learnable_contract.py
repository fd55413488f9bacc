"""What every drawn orbit with learnable ranges promises, beside the contract of all orbits."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from orbitwise.orbits import DrawnOrbit, Orbit
from tests.contracts.orbit_contract import Case, OrbitContract, inputs, seeded


def assert_gradients_reach_what_is_learned(orbit: Orbit, x: Tensor, step: float = 1e-6) -> None:
    """Gradients through exact points are those of finite differences, and not all of a parameter are zero."""

    def total() -> Tensor:
        moved = orbit.points(x)
        values = (moved.points + 0.3).sin().square() @ torch.arange(1, moved.points.shape[-1] + 1).to(x)
        return (moved.weights * values).sum()

    learned = {name: value for name, value in orbit.named_parameters() if value.requires_grad}
    assert learned
    gradients = torch.autograd.grad(total(), list(learned.values()))
    for (name, parameter), gradient in zip(learned.items(), gradients, strict=True):
        flat = parameter.data.view(-1)
        expected = torch.zeros_like(flat)
        for i in range(len(flat)):
            before = flat[i].item()
            values = []
            for h in (step, -step):
                flat[i] = before + h
                values.append(total().detach())
            flat[i] = before
            expected[i] = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close(gradient.view(-1), expected, rtol=1e-5, atol=1e-7)
        assert gradient.abs().max() > 1e-6, f"{name} is not reached"


def with_sobol(orbit: DrawnOrbit) -> DrawnOrbit:
    """A copy of the orbit that draws scrambled Sobol sets."""
    other = copy.deepcopy(orbit)
    other.draws = "sobol"
    return other


class LearnableContract(OrbitContract):
    """Holds for drawn orbits; `case` gives one with at least one learnable range."""

    takes_sobol: bool = True

    def test_gradients_reach_every_learned_range(self, case: Case):
        orbit, width = case
        assert_gradients_reach_what_is_learned(orbit.freeze(4, seeded()), inputs(width))

    @pytest.mark.parametrize("draws", ["random", "sobol"])
    def test_halves_do_not_know_of_each_other(self, case: Case, draws: str):
        orbit, width = case
        if draws == "sobol":
            if not self.takes_sobol:
                return
            orbit = with_sobol(orbit)
        rows = 600
        with torch.no_grad():
            moved = orbit.points(inputs(width, rows=1).expand(rows, -1), seeded())
            values = (moved.points.sin() @ torch.arange(1.0, moved.points.shape[-1] + 1).double())[..., None]
            halves = torch.cat([values[:, moved.draw == draw].mean(1) for draw in (1, 2)], dim=-1)
        correlation = torch.corrcoef(halves.T)[0, 1]
        assert abs(correlation) < 4 / rows**0.5
        assert (halves[:, 0] - halves[:, 1]).abs().min() > 0

    def test_sobol_draws_are_recorded_and_repeatable(self, case: Case):
        if not self.takes_sobol:
            return
        orbit, width = with_sobol(case[0]), case[1]
        state = torch.get_rng_state()
        first, again = (orbit.points(inputs(width), seeded(3)) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first.points, again.points)
        assert not torch.equal(first.points, orbit.points(inputs(width), seeded(4)).points)
        assert not any(group.independent for group in first.groups)
        assert all(group.independent for group in case[0].points(inputs(width), seeded()).groups)

    def test_frozen_nodes_are_the_moves_of_their_noise(self, case: Case):
        orbit, width = case
        x, frozen = inputs(width), orbit.freeze(3, seeded())
        assert frozen.size == frozen.nodes.shape[0]
        nodes = frozen.nodes.expand(3, -1, -1)
        torch.testing.assert_close(frozen.points(x).points, orbit.move(x, nodes))
        assert frozen.points(x).weights.sum(-1).tolist() == pytest.approx([1.0] * 3)

    def test_it_says_what_it_learned(self, case: Case):
        orbit, _ = case
        learned = orbit.learned()
        assert learned
        assert all(low <= high for low, high in learned.values())
        for text in (repr(orbit), repr(orbit.freeze(2, seeded())), orbit.describe()):
            assert all(name in text for name in learned)
        assert orbit.freeze(2, seeded()).learned() == learned

    def test_it_can_be_sent_to_another_process(self, case: Case):
        orbit, width = case
        other = pickle.loads(pickle.dumps(orbit))
        x = inputs(width)
        assert torch.equal(other.points(x, seeded()).points, orbit.points(x, seeded()).points)
