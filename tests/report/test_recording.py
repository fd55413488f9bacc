import pytest
from sklearn.base import clone

from orbitwise import InvariantGPClassifier
from orbitwise.report.recording import record_ranges, recorded_ranges

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


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
