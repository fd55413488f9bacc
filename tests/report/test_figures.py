import numpy as np

from orbitwise.orbits import ImageOrbit
from orbitwise.orbits.certainty import DEGREES, PIXELS
from orbitwise.report.figures import (
    change_figure,
    evidence_figure,
    range_history_figure,
    ranges_figure,
    stages_figure,
)
from orbitwise.report.moves import moves_of
from orbitwise.report.ranges import Range
from tests.report.drawings import svg_of, text_of


def test_evidence_is_the_gain_since_the_first_iteration():
    drawn = text_of(evidence_figure([-100.0, -90.0, float("nan"), -50.0]))
    assert "nats gained since the first" in drawn
    assert "| 50 |" in drawn
    assert "−100" not in drawn


def test_ranges_are_drawn_from_start_to_end_and_the_undetermined_differ():
    sure = Range("angle", DEGREES, -0.4, 0.4, (-0.1, 0.1), 0.02, (0.36, 0.44))
    unsure = Range("amplitude", PIXELS, 0.0, 0.05, (0.0, 0.1), None)
    drawn = text_of(ranges_figure([sure, unsure]))
    assert "rotation" in drawn
    assert "deformation" in drawn
    assert "2×" in drawn
    assert "#d55e00" in svg_of(ranges_figure([unsure]))
    assert "#d55e00" not in svg_of(ranges_figure([sure]))


def test_a_range_of_nothing_can_be_drawn_with_its_interval():
    zero = Range("angle", DEGREES, 0.0, 0.0, (-0.1, 0.1), 0.02, (0.0, 0.05))
    assert "rotation" in text_of(ranges_figure([zero]))
    assert "#d55e00" not in svg_of(ranges_figure([zero]))


def test_the_stages_of_a_search_are_drawn_by_their_nodes():
    search = [{"num_nodes": 16, "values": (5.0, 3.0)}, {"num_nodes": 32, "values": (9.0,)}]
    drawn = text_of(stages_figure(search))
    for words in ("16", "32", "nodes", "log evidence"):
        assert words in drawn


def test_recorded_ranges_are_drawn_over_iterations():
    drawn = text_of(range_history_figure([{"angle": (-0.1, 0.1)}, {"angle": (-0.3, 0.3)}]))
    assert "iteration" in drawn
    assert "rotation" in drawn
    assert "2×" in drawn


def test_the_change_of_f_has_a_band():
    (move,) = moves_of(ImageOrbit((4, 4), {"angle": 0.3}))
    mean = np.zeros((3, 21))
    drawn = change_figure(move, mean, mean + 1.0, "")
    assert "change of f" in text_of(drawn)
    assert "rotation (°)" in text_of(drawn)
    assert drawn != change_figure(move, mean, mean + 2.0, "")
