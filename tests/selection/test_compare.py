import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPRegressor, compare
from orbitwise.selection import Candidate, Comparison

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def symmetric_data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return X, np.sin(X.sum(1)) + np.cos(2 * X[:, 0] * X[:, 1]) + 0.05 * rng.normal(size=40)


def test_the_right_invariance_wins_and_is_fitted(symmetric_data):
    comparison = compare(*symmetric_data, invariances=[None, "permutation", "sign"])
    assert [candidate.name for candidate in comparison.candidates] == ["permutation", "none", "sign"]
    assert comparison.best_estimator.predict(symmetric_data[0]).shape == (40,)
    assert comparison.best.per_datum == pytest.approx(comparison.best.log_evidence / 40)
    assert comparison.tied == ()
    assert "permutation" in str(comparison)


def test_parallel_runs_agree_with_serial_ones(symmetric_data):
    serial = compare(*symmetric_data, invariances=[None, "permutation"])
    parallel = compare(*symmetric_data, invariances=[None, "permutation"], n_jobs=2)
    for one, other in zip(serial.candidates, parallel.candidates, strict=True):
        assert one.name == other.name
        assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-6)


def test_classification_is_told_from_the_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    comparison = compare(X, np.where(X.sum(1) > 0, "up", "down"), invariances=[None], max_iterations=5)
    assert set(comparison.best_estimator.classes_) == {"up", "down"}


def test_settings_and_estimator_are_used(symmetric_data):
    comparison = compare(
        *symmetric_data, invariances=[None], estimator=InvariantGPRegressor(noise=0.5), max_iterations=3
    )
    assert comparison.best_estimator.noise == 0.5
    assert comparison.best_estimator.max_iterations == 3


def candidate(name, evidence, error):
    return Candidate(name, evidence, error, evidence, "exact", {}, 1.0, None)


def test_a_difference_within_the_errors_is_a_tie():
    comparison = Comparison((candidate("a", 10.0, 1.0), candidate("b", 8.0, 1.0), candidate("c", 2.0, 1.0)))
    assert comparison.tied == ("b",)
    assert "b (tie)" in str(comparison)
    assert "c (tie)" not in str(comparison)


def test_no_candidates_is_an_error(symmetric_data):
    with pytest.raises(ValueError, match="at least one"):
        compare(*symmetric_data, invariances=[])


def test_one_warning_speaks_for_all_candidates_that_did_not_converge(symmetric_data):
    with pytest.warns(ConvergenceWarning) as caught:
        compare(*symmetric_data, invariances=[None, "permutation", "sign"], max_iterations=2)
    assert len(caught) == 1
    assert "3 of 3 fits ended too early (none, permutation, sign)" in str(caught[0].message)
    assert "raise max_iterations" in str(caught[0].message)


def test_images_are_images_to_every_candidate():
    rng = np.random.default_rng(0)
    images = rng.random((8, 5, 6, 3))
    quick = {"max_iterations": 1, "num_nodes": 2, "random_state": 0}
    asked = {"invariances": [None, "flip", "rotation"], **quick}
    last = compare(images, np.arange(8.0) / 8, **asked)
    first = compare(np.moveaxis(images, -1, 1), np.arange(8.0) / 8, **asked)
    for one, other in zip(last.candidates, first.candidates, strict=True):
        assert one.name == other.name
        assert (one.estimator.channels_, other.estimator.channels_) == ("last", "first")
        assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-9)


def test_clouds_are_no_images_to_any_candidate():
    clouds = np.random.default_rng(0).random((8, 12, 2))
    with pytest.raises(ValueError, match=r"'rotation' is an invariance of images.*PointCloudOrbit"):
        compare(clouds, np.arange(8.0) / 8)
    with pytest.raises(ValueError, match="'cyclic' is an invariance of tables, but these inputs are images"):
        compare(clouds.reshape(8, 4, 6), np.arange(8.0) / 8, invariances=["cyclic", "flip"])
