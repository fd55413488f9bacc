import numpy as np
import pytest
import torch
from scipy.stats import norm

from orbitwise.report.numbers import wilson
from orbitwise.report.outcomes import (
    LEVELS,
    MOST_POINTS,
    confusion_counts,
    confusion_figure,
    coverage,
    coverage_figure,
    predicted_figure,
    reliability,
    reliability_figure,
    residual_figure,
    some,
)
from orbitwise.report.predictions import Labelled
from tests.report.drawings import svg_of, text_of


def labelled(probabilities, codes, classes=("a", "b")) -> Labelled:
    nothing = torch.zeros(len(codes), 1, dtype=torch.float64)
    return Labelled("test", np.array(probabilities), np.array(codes), tuple(classes), (nothing, nothing))


JUDGED = labelled([[0.9, 0.1], [0.95, 0.05], [0.3, 0.7], [0.38, 0.62]], [0, 1, 1, 1])


def test_confusions_are_counted_with_the_truth_in_rows():
    np.testing.assert_array_equal(confusion_counts(JUDGED), [[1, 0], [1, 2]])


def test_the_confusion_matrix_shows_names_and_counts():
    drawn = text_of(confusion_figure(JUDGED))
    assert "predicted" in drawn
    assert "a | b" in drawn
    many = labelled(np.eye(40), np.arange(40), [f"class number {i}" for i in range(40)])
    assert "class nu…" in text_of(confusion_figure(many))


def test_names_cannot_be_markup_or_mathematics():
    hostile = labelled([[1.0, 0.0]], [0], ("<script>", "$\\frac$"))
    assert "<script" not in svg_of(confusion_figure(hostile))


def test_reliability_compares_confidence_with_hits():
    low, high = reliability(JUDGED)[-1], reliability(JUDGED)[0]
    assert low[:2] == (pytest.approx(0.925), 0.5)
    assert low[2:4] == wilson(1, 2)
    assert high[:2] == (pytest.approx(0.62), 1.0)
    assert sum(point[-1] for point in reliability(JUDGED)) == 4
    assert "share that is right" in text_of(reliability_figure(JUDGED))


def test_intervals_of_right_scores_hold_what_they_promise():
    scores = norm.ppf((np.arange(2000) + 0.5) / 2000)
    np.testing.assert_allclose(coverage(scores), LEVELS, atol=1e-3)
    assert (coverage(3 * scores) < LEVELS).all()
    assert "share that they hold" in text_of(coverage_figure(scores))


def test_residuals_outside_are_marked():
    mean, deviation = np.zeros(3), np.ones(3)
    assert "#d55e00" in svg_of(residual_figure(mean, deviation, np.array([0.0, 1.0, 5.0])))
    assert "measured" in text_of(predicted_figure(mean, deviation, np.array([0.0, 1.0, 5.0])))


def test_so_many_points_as_can_be_told_apart():
    np.testing.assert_array_equal(some(5, 0), np.arange(5))
    chosen = some(10 * MOST_POINTS, 0)
    assert len(set(chosen.tolist())) == MOST_POINTS
    np.testing.assert_array_equal(chosen, some(10 * MOST_POINTS, 0))
