import numpy as np
import pytest

from orbitwise.report.judgement import brief_error, judgement_section, quality, root_mean_square
from orbitwise.report.predictions import Measured
from tests.report.test_outcomes import JUDGED, labelled


def measured(source: str = "test", outputs: int = 1) -> Measured:
    mean = np.zeros((4, outputs))
    return Measured(source, mean, mean + 1.0, mean + np.array([[1.0], [-1.0], [1.0], [-3.0]]))


def test_errors_of_classes_are_shares_with_intervals():
    assert brief_error(JUDGED) == "25 ± 22 %"
    assert quality(JUDGED) == ("The model errs on 25.0 % (95 % interval 4.6 to 69.9 %) of 4 test examples.")


def test_no_mistake_is_not_certainty():
    perfect = labelled([[0.9, 0.1]] * 10, [0] * 10)
    assert brief_error(perfect) == "0 ± 10 %"


def test_the_root_of_a_mean_of_squares_and_its_error():
    root, error = root_mean_square(np.array([1.0, -1.0, 1.0, -3.0]))
    assert root == pytest.approx(np.sqrt(3))
    assert error == pytest.approx(np.std([1, 1, 1, 9], ddof=1) / 2 / (2 * np.sqrt(3)))
    assert "root mean square" in quality(measured())


def test_the_section_says_what_was_judged():
    assert "each predicted from all the others" in judgement_section(measured("leave-one-out"), 0)


def test_classes_have_a_confusion_matrix_and_a_reliability_diagram():
    section = judgement_section(JUDGED, 0)
    assert section.count("<img") == 2
    assert "log loss" in section
    many = labelled(np.eye(61), np.arange(61), [str(i) for i in range(61)])
    assert "Confusion matrix" not in judgement_section(many, 0)


def test_outputs_have_three_figures_each_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("orbitwise.report.judgement.MOST_OUTPUTS", 1)
    several = judgement_section(measured(outputs=2), 0)
    assert several.count("<img") == 3
    assert "first 1 of 2 outputs" in several
    assert "in the 95\u00a0% interval" in several
