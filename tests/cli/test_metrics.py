"""Measures of predictions."""

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.cli.data import Data, checked_test_targets
from orbitwise.cli.errors import CommandError
from orbitwise.cli.models import measure
from tests.cli.conftest import symmetric

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_classes_are_measured_by_error_and_log_loss():
    x, y = symmetric(20)
    labels = np.where(y > 0, "up", "down")
    model = InvariantGPClassifier(max_iterations=3).fit(x, labels)
    found = measure(model, x, labels)
    right = model.predict_proba(x)[np.arange(20), np.searchsorted(model.classes_, labels)]
    assert found["error"] == np.mean(model.predict(x) != labels)
    assert found["log_loss"] == pytest.approx(-np.log(right).mean())


def test_numbers_are_measured_by_distance_and_density():
    x, y = symmetric(20)
    model = InvariantGPRegressor(max_iterations=3).fit(x, y)
    model.feature_names_in_ = np.array(["a", "b", "c"], dtype=object)
    found = measure(model, x, y)
    assert found["rmse"] < y.std()
    assert measure(model, x, y + 1)["log_density"] < found["log_density"]


def test_an_unknown_class_is_named():
    def test_data(y) -> Data:
        return Data(np.zeros((len(y), 1)), np.array(y), ["-"] * len(y))

    assert list(checked_test_targets(test_data([1, 2]), np.array([1, 2, 3]), "classification")) == [1, 2]
    with pytest.raises(CommandError, match="'owl'"):
        checked_test_targets(test_data(["cat", "owl"]), np.array(["cat"]), "classification")
