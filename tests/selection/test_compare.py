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


def learned(name, evidence, *ranges, error=0.0):
    return Candidate(name, evidence, error, evidence, "exact", dict.fromkeys(ranges, (-1.0, 1.0)), 1.0, None)


def test_of_a_tie_the_simplest_is_best():
    both = learned("affine", 100.3, "angle", "shear"), learned("rotation", 100.2, "angle")
    plain = learned("none", 99.5)
    assert Comparison((*both, plain)).best is plain
    assert Comparison((*both, plain)).tied == ("affine", "rotation")
    assert "none (tie)" not in str(Comparison((*both, plain)))
    assert Comparison(both).best is both[1]
    assert Comparison((*both, learned("none", 98.0))).best is both[1]
    assert Comparison((*both, learned("none", 98.0, error=1.2))).best.name == "none"


def test_an_invariance_that_does_nothing_is_not_kept():
    rng = np.random.default_rng(0)
    images = rng.random((24, 6, 6))
    labels = (images[:, 0, 0] > 0.5).astype(int)
    asked = {"invariances": [None, "rotation"], "num_nodes": 4, "random_state": 0}
    comparison = compare(images, labels, **asked)
    assert comparison.best.name == "none"
    assert comparison.best_estimator.orbit_ is None
    assert comparison.tied == ("rotation",) or comparison.candidates[-1].name == "rotation"


def test_the_table_tells_what_was_learned_in_its_unit(symmetric_data):
    images = np.random.default_rng(0).random((8, 5, 6))
    asked = {"invariances": ["rotation"], "max_iterations": 0, "num_nodes": 2, "random_state": 0}
    comparison = compare(images, np.arange(8.0) / 8, **asked)
    assert comparison.best_estimator.orbit_.describe() in str(comparison)
    assert "°" in str(comparison)


def test_candidates_of_a_table_are_not_those_of_images(symmetric_data):
    X, y = symmetric_data
    quick = {"max_iterations": 1, "num_nodes": 2, "random_state": 0}
    names = {each.name for each in compare(X, y, **quick).candidates}
    assert names == {"none", "negation", "permutation"}
    wide = np.random.default_rng(0).random((12, 36))
    assert {each.name for each in compare(wide, y[:12], **quick).candidates} == {"none", "negation"}
    images = compare(wide, y[:12], image_shape=(6, 6), **quick)
    assert {each.name for each in images.candidates} == {"none", "rotation", "affine", "affine+deformation"}


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
