"""The search on cheap objectives: starts, nodes that double, zeros, time, Ctrl-C, journals."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from orbitwise.inference.optimise.checkpoints import Journal
from orbitwise.inference.optimise.orbit_search import FIRST_NODES, NOTHING, Coordinates, OrbitSearch
from orbitwise.inference.optimise.training import CUT_SHORT, INTERRUPTED, OUT_OF_MEMORY, TIME_IS_OVER
from orbitwise.orbits.orbit import Bounds

ROWS = 50
WIDTHS = slice(3, 5)
"""Where the squares of the ranges are among the coordinates."""


class Toy(nn.Module):
    """Two ranges of natural size 1 and a plain parameter, with an objective that is known on any nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = Bounds(("a", "b"), {"a": 1.0, "b": 1.0})
        self.level = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.calls: list[tuple[int, int]] = []

    def value(self, nodes: int, scramble: int) -> torch.Tensor:
        """A hill over v = a² and w = b²; b is not needed."""
        v, w = self.bounds.half_width.square()
        # more nodes move the top towards 2, other nodes to its sides
        top = 2.0 - 4.0 / nodes + (0.0, -0.4, 0.6, -0.2)[scramble] / nodes
        return -10 * (v - top) ** 2 - 5 * w - (self.level - 1).square().sum() + 5 - 20 / nodes

    def at_nodes(self, nodes: int, scramble: int):
        def objective() -> torch.Tensor:
            self.calls.append((nodes, scramble))
            return self.value(nodes, scramble)

        return objective

    def search(self, max_nodes: int = 128, **settings) -> OrbitSearch:
        return OrbitSearch(self.at_nodes, Coordinates([self]), ROWS, max_nodes, **settings)

    @property
    def halves(self) -> list[float]:
        return self.bounds.half_width.tolist()


def test_the_top_is_found_zeros_are_exact_and_nodes_double_until_nothing_moves():
    toy = Toy()
    found = toy.search().run()
    assert found.message == "other nodes agree"
    assert found.is_converged(ROWS)
    nodes = found.num_nodes
    assert [stage.num_nodes for stage in found.stages] == [16 * 2**i for i in range(len(found.stages))]
    assert nodes < 128
    assert toy.halves[0] ** 2 == pytest.approx(2 - 4 / nodes, abs=0.05)
    assert toy.halves[1] == 0.0
    assert toy.level.tolist() == pytest.approx([1.0] * 3, abs=0.1)
    assert found.value == pytest.approx(5 - 20 / nodes, abs=0.1)
    assert sum(stage.evaluations for stage in found.stages) < len(toy.calls)


def test_what_other_nodes_say_is_as_by_hand():
    toy = Toy()
    found = toy.search(max_nodes=16, is_given=True).run()
    assert (found.num_nodes, len(found.stages)) == (16, 1)
    v = found.point[WIDTHS][0]
    # on other nodes, half as many, the top is elsewhere: a quadratic in v, of curvature 20
    tops = [2 - (4 + 0.4) / 8, 2 - (4 - 0.6) / 8, 2 - (4 + 0.2) / 8]
    assert [step[WIDTHS][0] for step in found.shifts] == pytest.approx([top - v for top in tops], abs=0.05)
    assert found.node_variance[WIDTHS][0] == pytest.approx(
        np.mean([(top - v) ** 2 for top in tops]) / 2, abs=0.02
    )
    assert found.gain == math.inf
    spread = [other - found.value for other in found.others]
    assert found.node_error == pytest.approx(np.sqrt(np.mean(np.square(spread))))
    doubled = Toy().search(max_nodes=32, is_given=True).run()
    assert doubled.gain == pytest.approx(20 / 16 - 20 / 32, abs=0.3)
    spread = [other - doubled.value for other in doubled.others]
    assert doubled.node_error == pytest.approx(math.hypot(np.sqrt(np.mean(np.square(spread))), doubled.gain))


@pytest.mark.parametrize(("given", "stages"), [(5, [5]), (16, [16]), (100, [16, 32, 64, 100])])
def test_a_number_of_nodes_that_is_given_is_reached(given, stages):
    found = Toy().search(max_nodes=given, is_given=True).run()
    assert [stage.num_nodes for stage in found.stages] == stages
    assert found.num_nodes == given
    assert found.message in ("other nodes agree", "the most nodes were used")


def test_the_best_of_several_starts_is_taken():
    class Hills(Toy):
        def value(self, nodes, scramble):
            v, w = self.bounds.half_width.square()
            low = 5 * torch.exp(-4 * (v - 1) ** 2)
            # only a start twice as wide leads to the higher hill
            high = 20 * torch.exp(-((v - 4.2) ** 2))
            return low + high - 5 * w - (self.level - 1).square().sum()

    hills = Hills()
    found = hills.search(max_nodes=16).run()
    assert hills.halves[0] ** 2 == pytest.approx(4.2, abs=0.1)
    assert len(found.stages[0].values) == 3
    assert found.value == pytest.approx(max(found.stages[0].values), abs=1.0)


def test_random_starts_are_tried_too_and_come_from_the_generator():
    class Narrow(Toy):
        def value(self, nodes, scramble):
            v, w = self.bounds.half_width.square()
            return 20 * torch.exp(-((v - 12) ** 2) / 2) - 0.01 * v - 5 * w - self.level.square().sum()

    plain, tried, again = Narrow(), Narrow(), Narrow()
    plain.search(max_nodes=16).run()
    assert plain.halves[0] < 3
    for each in (tried, again):
        found = each.search(max_nodes=16, num_starts=12, generator=torch.Generator().manual_seed(0)).run()
        assert len(found.stages[0].values) == 3 + 12
    assert tried.halves[0] ** 2 == pytest.approx(12, abs=0.1)
    assert tried.halves == again.halves


def test_where_the_parameters_are_is_screened_first_and_never_lost():
    class Islands(Toy):
        def value(self, nodes, scramble):
            v, w = self.bounds.half_width.square()
            return 20 * torch.exp(-5 * (v - 9) ** 2) - 0.01 * v - 5 * w - (self.level - 1).square().sum()

    toy = Islands()
    coordinates = Coordinates([toy])
    coordinates.assign(np.array([1.0, 1.0, 1.0, 9.1, 0.0]))
    before = toy.value(16, 0).item()
    search = OrbitSearch(toy.at_nodes, coordinates, ROWS, 16)
    first = []
    search.callback = lambda step, value: first.append(toy.halves)
    found = search.run()
    assert first[0][0] ** 2 == pytest.approx(9.1)
    assert found.value >= before
    assert toy.halves[0] ** 2 == pytest.approx(9, abs=0.1)
    assert toy.halves[1] == 0.0


def test_a_zero_is_tried_again_when_the_nodes_double():
    class Hidden(Toy):
        def value(self, nodes, scramble):
            v, w = self.bounds.half_width.square()
            pays = 5.0 if nodes > FIRST_NODES else -5.0
            return -((v - 1) ** 2) * 10 + pays * w - 2 * w**2 - (self.level - 1).square().sum()

    toy = Hidden()
    found = toy.search(max_nodes=32, is_given=True).run()
    assert found.num_nodes == 32
    assert toy.halves[1] ** 2 == pytest.approx(1.25, abs=0.1)


def test_time_that_is_over_keeps_the_best_so_far_and_says_so(monkeypatch):
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("orbitwise.inference.optimise.orbit_search.time", clock)

    class Slow(Toy):
        def value(self, nodes, scramble):
            nonlocal now
            # the first number of nodes is quick
            now += 0.001 if nodes == FIRST_NODES else 0.2
            return super().value(nodes, scramble)

    toy = Slow()
    found = toy.search(max_seconds=2.0).run()
    assert found.message == TIME_IS_OVER
    assert found.message in CUT_SHORT
    assert found.stages[-1].num_nodes == found.num_nodes < 128
    np.testing.assert_allclose(
        toy.search().coordinates.point(), np.where(found.point >= NOTHING, found.point, 0)
    )
    assert toy.value(found.num_nodes, 0).item() == pytest.approx(found.value, abs=1e-4)
    assert found.value > 5 - 20 / 16 - 1.5
    # at least one evaluation is made, however little time there is
    quick = Slow().search(max_seconds=1e-9).run()
    assert (quick.message, len(quick.history)) == (TIME_IS_OVER, 1)
    assert not quick.is_converged(ROWS)


@pytest.mark.parametrize("after", [3, 30, 50])
def test_an_interruption_keeps_the_best_so_far(after):
    toy = Toy()
    best = -math.inf

    def interrupt(step, value):
        if step == after:
            raise KeyboardInterrupt

    found = toy.search(callback=interrupt).run()
    if found.message != INTERRUPTED:
        assert len(found.history) < after
        return
    best = toy.value(found.num_nodes, 0).item()
    assert best == pytest.approx(found.value, abs=1e-4)
    assert found.value == pytest.approx(max(found.history[-1], found.value))


def test_an_interruption_of_the_first_evaluation_is_passed_on():
    class Never(Toy):
        def value(self, nodes, scramble):
            raise KeyboardInterrupt

    toy = Never()
    before = toy.halves
    with pytest.raises(KeyboardInterrupt):
        toy.search().run()
    assert toy.halves == pytest.approx(before)


def test_an_objective_that_fails_at_every_start_says_why():
    class Broken(Toy):
        def value(self, nodes, scramble):
            raise ValueError("no such kernel")

    toy = Broken()
    before = toy.halves
    with pytest.raises(ValueError, match="at any start: no such kernel"):
        toy.search().run()
    assert toy.halves == pytest.approx(before)


def test_starts_that_fail_are_left_out():
    class Partly(Toy):
        def value(self, nodes, scramble):
            if self.bounds.half_width[0] > 1.6:
                return torch.full((), torch.nan, dtype=torch.float64) * self.level.sum()
            return super().value(nodes, scramble)

    toy = Partly()
    found = toy.search(max_nodes=32).run()
    assert len(found.stages[0].values) == 2
    assert toy.halves[0] ** 2 == pytest.approx(2 - 4 / found.num_nodes, abs=0.1)


def test_a_search_that_was_killed_is_replayed_from_its_journal_with_equal_bits(tmp_path):
    whole = Toy()
    expected = whole.search(journal=Journal(tmp_path / "whole")).run()
    for after in (1, len(whole.calls) // 2, len(whole.calls) - 1):
        path = tmp_path / f"killed-{after}"

        class Killed(Exception):
            pass

        class Dying(Toy):
            def at_nodes(self, nodes, scramble):
                objective = super().at_nodes(nodes, scramble)

                def dying():
                    if len(self.calls) >= after:  # noqa: B023
                        raise Killed
                    return objective()

                return dying

        with pytest.raises(Killed):
            Dying().search(journal=Journal(path)).run()
        toy = Toy()
        journal = Journal(path)
        found = toy.search(journal=journal).run()
        assert journal.num_recalled == after
        assert len(toy.calls) == len(whole.calls) - after
        assert found.point.tobytes() == expected.point.tobytes()
        assert found.history == expected.history
        assert toy.halves == whole.halves


def test_more_coordinates_than_a_matrix_serves_go_by_lbfgs():
    class Many(Toy):
        def __init__(self):
            super().__init__()
            self.level = nn.Parameter(torch.zeros(40, dtype=torch.float64))

    many = Many()
    search = many.search(max_nodes=128, max_evaluations=200)
    assert not search.is_dense
    found = search.run()
    assert found.curvature is None
    assert found.is_converged(ROWS)
    assert not found.shifts
    assert found.others
    assert many.halves[0] ** 2 == pytest.approx(2 - 4 / found.num_nodes, abs=0.15)
    assert many.halves[1] == pytest.approx(0.0, abs=0.1)
    assert many.level.tolist() == pytest.approx([1.0] * 40, abs=0.15)


def test_with_nothing_but_plain_parameters_there_is_one_start():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.level = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    plain = Plain()
    coordinates = Coordinates([plain])
    found = OrbitSearch(
        lambda nodes, scramble: lambda: -(plain.level - 2).square().sum(), coordinates, ROWS, 64
    ).run()
    assert len(found.stages[0].values) == 1
    assert plain.level.tolist() == pytest.approx([2.0, 2.0], abs=0.1)


def test_what_was_found_elsewhere_is_finished_from_its_own_value():
    toy = Toy()
    found = toy.search(max_nodes=16).run()
    # as another precision might have it: the value is too high, and the point a little off
    found.value += 10
    found.point = found.point + np.array([0.0, 0.0, 0.0, 0.3, 0.0])
    finished = toy.search(max_nodes=16).finished(found)
    assert finished.value == pytest.approx(5 - 20 / 16, abs=0.1)
    assert toy.halves[0] ** 2 == pytest.approx(2 - 4 / 16, abs=0.1)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    ],
)
def test_memory_that_runs_out_on_more_nodes_keeps_what_was_found_on_fewer(error):
    class Large(Toy):
        def value(self, nodes, scramble):
            if nodes > 32:
                raise error
            return super().value(nodes, scramble)

    toy = Large()
    found = toy.search(is_given=True).run()
    assert found.message == OUT_OF_MEMORY
    assert found.num_nodes == found.stages[-1].num_nodes == 32
    assert found.curvature is not None
    assert toy.halves[0] ** 2 == pytest.approx(2 - 4 / 32, abs=0.1)


def test_other_errors_and_memory_that_never_sufficed_are_passed_on():
    class Broken(Toy):
        def value(self, nodes, scramble):
            raise self.error

    for error in (MemoryError("no memory"), RuntimeError("a bug")):
        broken = Broken()
        broken.error, before = error, broken.halves
        with pytest.raises(type(error), match=str(error)):
            broken.search().run()
        assert broken.halves == pytest.approx(before)
