"""Figures as SVG: the same bytes every time, text as text, and what is marked in them."""

from dataclasses import replace

import numpy as np

from orbitwise.orbits import ImageOrbit
from orbitwise.orbits.certainty import DEGREES, PIXELS
from orbitwise.report.exploration import Track, moves_of
from orbitwise.report.figures import (
    MOST_POINTS,
    change_figure,
    confusion_figure,
    coverage_figure,
    evidence_figure,
    panel,
    predicted_figure,
    range_history_figure,
    ranges_figure,
    reliability_figure,
    residual_figure,
    shortened,
    some,
    stages_figure,
)
from orbitwise.report.predictions import Output
from orbitwise.report.ranges import Range
from tests.report.drawings import svg_of, text_of
from tests.report.test_predictions import JUDGED, labelled


def test_a_figure_is_the_same_bytes_every_time_and_its_text_is_text():
    @panel()
    def drawn(axes, title):
        axes.plot([1, 2], [3, 4])
        axes.set_title(title)

    first = drawn("a <b> & $x_1$ 数")
    assert first == drawn("a <b> & $x_1$ 数")
    assert "a &lt;b&gt; &amp; $x_1$ 数" in text_of(first)
    assert "system-ui" in svg_of(first)


def test_long_names_are_cut():
    assert shortened("a" * 20, 5) == "aaaa…"
    assert shortened("short") == "short"


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
    drawn = text_of(stages_figure([16, 32], [[5.0, 3.0], [9.0]]))
    for words in ("16", "32", "nodes", "log evidence"):
        assert words in drawn


def test_recorded_ranges_are_drawn_over_iterations():
    drawn = text_of(range_history_figure([{"angle": (-0.1, 0.1)}, {"angle": (-0.3, 0.3)}]))
    assert "iteration" in drawn
    assert "rotation" in drawn
    assert "2×" in drawn


def test_the_change_of_f_has_a_band():
    (move,) = moves_of(ImageOrbit((4, 4), {"angle": 0.3}))
    mean, pixels, bands = np.zeros((3, 21)), np.zeros((3, 21, 16)), np.zeros((3, 21, 1))
    narrow = Track(move, pixels, mean, mean + 1.0, bands, bands, bands)
    drawn = change_figure(narrow, "")
    assert "change of f" in text_of(drawn)
    assert "rotation (°)" in text_of(drawn)
    assert drawn != change_figure(replace(narrow, deviation=mean + 2.0), "")


def test_the_confusion_matrix_shows_names_and_counts():
    drawn = text_of(confusion_figure(JUDGED))
    assert "predicted" in drawn
    assert "a | b" in drawn
    many = labelled(np.eye(40), np.arange(40), [f"class number {i}" for i in range(40)])
    assert "class nu…" in text_of(confusion_figure(many))


def test_names_cannot_be_markup_or_mathematics():
    hostile = labelled([[1.0, 0.0]], [0], ("<script>", "$\\frac$"))
    assert "<script" not in svg_of(confusion_figure(hostile))


def test_shares_are_drawn_against_what_was_promised():
    assert "share that is right" in text_of(reliability_figure(JUDGED))
    assert "share that they contain" in text_of(coverage_figure(Output(*np.zeros((3, 5)))))


def test_residuals_outside_are_marked():
    output = Output(np.zeros(3), np.ones(3), np.array([0.0, 1.0, 5.0]))
    assert "#d55e00" in svg_of(residual_figure(output))
    assert "measured" in text_of(predicted_figure(output))


def test_so_many_points_as_can_be_told_apart():
    np.testing.assert_array_equal(some(5, 0), np.arange(5))
    chosen = some(10 * MOST_POINTS, 0)
    assert len(set(chosen.tolist())) == MOST_POINTS
    np.testing.assert_array_equal(chosen, some(10 * MOST_POINTS, 0))
