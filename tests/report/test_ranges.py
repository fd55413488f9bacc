import math

import pytest
from sklearn.base import clone

from orbitwise import InvariantGPClassifier
from orbitwise.orbits.certainty import DEGREES, PER_CENT, PIXELS
from orbitwise.report.ranges import (
    Range,
    interval_text,
    label_of,
    learned_ranges,
    orbit_of,
    range_errors,
    record_ranges,
    recorded_ranges,
    symmetry_phrase,
)
from orbitwise.storage import load, save

# Few iterations are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_a_symmetric_range_is_one_number_with_its_error():
    turn = Range("angle", DEGREES, -math.radians(21.3), math.radians(21.3), None, math.radians(2.2))
    assert turn.phrase() == "rotation up to ±21° (± 2°)"


def test_phrases_say_what_is_known_of_a_range():
    zero = Range("angle", DEGREES, 0.0, 0.0, None, 0.03, (0.0, math.radians(3.02)))
    assert zero.phrase() == "rotation not needed (at most 3.0°)"
    wide = Range("angle", DEGREES, -0.4, 0.4, None, 0.5, (0.1, 1.0))
    assert not wide.is_determined
    assert wide.phrase() == "rotation up to ±23° (between 6° and 57°, not determined more closely)"
    unknown = Range("angle", DEGREES, -0.4, 0.4)
    assert not unknown.is_known
    assert unknown.phrase() == "rotation up to ±23°"
    assert unknown.error_text() == "error bar not computed"


def test_other_ranges_are_named_by_both_ends_or_by_their_size():
    assert Range("log_scale_x", PER_CENT, -0.2, 0.2).phrase() == "horizontal stretch from −18 to +22 %"
    assert Range("amplitude", PIXELS, 0.0, 0.31).phrase() == "deformation by 0.31 pixels"
    assert Range("smoothness", PIXELS, 0.0, 2.6).phrase() == "smooth over 2.6 pixels"


def test_labels_keep_the_number_of_a_stage():
    assert label_of("angle_2") == "rotation 2"
    assert label_of("my_move") == "my move"


def test_a_range_of_nothing_has_a_text():
    assert interval_text((0.0, 0.0), PIXELS) == "0 pixels"


def test_the_learned_ranges_of_a_model(turned):
    (turn,) = learned_ranges(turned.model)
    assert (turn.low, turn.high) == turned.model.orbit_.learned()["angle"]
    assert turn.start == pytest.approx((-math.radians(15), math.radians(15)))
    assert turn.error == turned.model.orbit_errors_["angle"]
    assert turn.interval == turned.model.orbit_intervals_["angle"]


def test_a_loaded_model_has_the_errors_that_were_saved(turned, tmp_path):
    save(turned.model, tmp_path / "model.orbitwise")
    again = load(tmp_path / "model.orbitwise")
    assert learned_ranges(again) == learned_ranges(turned.model)


def test_errors_that_cannot_be_had_say_why(turned, tmp_path, monkeypatch):
    save(turned.model, tmp_path / "model.orbitwise")
    again = load(tmp_path / "model.orbitwise")
    del again._orbit_errors
    found = range_errors(again)
    assert (found.errors, found.intervals) == ({}, {})
    assert "were not computed before the model was saved" in found.reason
    assert not learned_ranges(again)[0].is_known
    monkeypatch.setattr("orbitwise.estimators.estimator.expected_seconds", lambda *_: 150.0)
    assert "would take about 3 minutes" in range_errors(again).reason


def test_a_finite_symmetry_is_put_in_words(symmetric, turned):
    assert symmetry_phrase(symmetric.model) == "the order of the columns (2 elements, exactly)"
    assert orbit_of(symmetric.model).size == 2
    assert learned_ranges(symmetric.model) == []
    assert symmetry_phrase(turned.model) == ""


def test_every_iteration_is_kept_and_the_last_is_what_was_learned(turned):
    recorded = recorded_ranges(turned.model)
    assert len(recorded) == len(turned.model.history_)
    assert recorded[0] != recorded[-1]
    low, high = turned.model.orbit_.learned()["angle"]
    assert abs(recorded[-1]["angle"][1] - high) < 0.2 * (high - low)


def test_the_callback_that_was_there_is_still_called(turned):
    seen = []
    model = InvariantGPClassifier(
        invariance="rotation",
        image_shape=(8, 8),
        num_nodes=2,
        max_iterations=2,
        random_state=0,
        callback=lambda step, bound: seen.append((step, bound)),
    )
    history = record_ranges(model)
    model.fit(turned.x[:20], turned.y[:20])
    assert len(seen) == len(history.ranges) > 0


def test_nothing_is_recorded_for_others(symmetric, turned):
    assert recorded_ranges(symmetric.model) == []
    assert recorded_ranges(clone(turned.model)) == []
