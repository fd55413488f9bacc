import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, compare, load, save
from orbitwise.orbits import ImageOrbit
from orbitwise.selection import Candidate, Comparison
from orbitwise.selection.compare import candidate_of, judge

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


def digits(count):
    images, labels = load_digits(return_X_y=True)
    return images[:count].reshape(-1, 8, 8) / 16, labels[:count]


@pytest.fixture(scope="module")
def digit_comparison():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return compare(*digits(60), num_nodes=8, max_iterations=2)


def test_parallel_runs_agree_with_serial_ones():
    asked = {"invariances": [None, "flip", "rotation", "affine"], "num_nodes": 4, "max_iterations": 1}
    serial, parallel = (compare(*digits(20), **asked, n_jobs=jobs) for jobs in (1, 2))
    for one, other in zip(serial.candidates, parallel.candidates, strict=True):
        assert one.name == other.name
        assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-6)
        assert one.evidences == pytest.approx(other.evidences, rel=1e-6)
        assert one.difference == pytest.approx(other.difference, rel=1e-4, abs=1e-4)
    assert serial.verdict == parallel.verdict


def test_a_family_does_not_lose_to_its_members(digit_comparison):
    score = {each.name: each.score for each in digit_comparison.candidates}
    # the search itself stops at a tenth of a nat
    assert score["rotation"] >= score["none"] - 0.1
    assert score["affine"] >= score["rotation"] - 0.1
    assert score["affine+deformation"] >= score["affine"] - 0.1
    ranked = [each.score for each in digit_comparison.candidates]
    assert ranked == sorted(ranked, reverse=True)


def test_a_family_that_was_badly_fitted_goes_on_from_its_member():
    data = digits(30)
    quick = {"num_nodes": 4, "max_iterations": 2}
    member = InvariantGPClassifier(invariance="rotation", **quick).fit(*data)
    narrow = ImageOrbit((8, 8), dict.fromkeys(("angle", "shear", "shift_x", "shift_y"), 1e-3))
    family = InvariantGPClassifier(invariance=narrow, num_nodes=4, max_iterations=0).fit(*data)
    family.set_params(max_iterations=2)
    both = [candidate_of(name, model, 1.0, 30) for name, model in (("member", member), ("family", family))]
    comparison = judge(both, *data)
    before, after = both[1], next(each for each in comparison.candidates if each.name == "family")
    assert after.log_evidence > before.log_evidence
    assert after.score >= next(each for each in comparison.candidates if each.name == "member").score
    assert after.estimator.get_params()["max_iterations"] == 2
    assert after.seconds > before.seconds
    assert after.standard_error >= before.standard_error


def test_differences_are_means_over_common_nodes(digit_comparison):
    leader = digit_comparison.leader
    assert digit_comparison.num_nodes == 8
    assert leader.difference == leader.difference_error == 0
    for each in digit_comparison.candidates:
        assert len(each.evidences) == 4
        assert each.difference == pytest.approx(np.mean(np.subtract(each.evidences, leader.evidences)))
        assert each.difference_error == digit_comparison.difference(each, leader).error
    none = next(each for each in digit_comparison.candidates if each.name == "none")
    assert set(none.evidences) == {none.log_evidence}
    # on few nodes, too, no invariance is far behind, and that is decided
    assert none.difference < -2 * none.difference_error
    assert "none" not in digit_comparison.undecided


def test_the_order_does_not_depend_on_the_seed():
    asked = {"invariances": [None, "flip", "rotation", "affine"], "num_nodes": 4, "max_iterations": 1}
    found = [compare(*digits(20), **asked, random_state=seed) for seed in range(3)]
    assert len({tuple(each.name for each in comparison.candidates) for comparison in found}) == 1
    assert len({comparison.verdict for comparison in found}) == 1


def test_bounds_remember_half_as_many_inducing_points(symmetric_data):
    comparison = compare(
        *symmetric_data, invariances=[None, "sign"], inference="collapsed", num_inducing=8, max_iterations=30
    )
    for each in comparison.candidates:
        assert each.half_bound is not None
        assert each.evidences == ()
        assert each.difference == pytest.approx(each.log_evidence - comparison.leader.log_evidence)
    few = compare(
        *symmetric_data, invariances=[None], inference="collapsed", num_inducing=4, max_iterations=30
    )
    assert few.verdict == "none is the only candidate."


def test_undecided_candidates_are_called_so():
    order = [
        Candidate(name, evidence, 0.0, 1.0, "lower bound", {}, 1.0, None, half_bound=half)
        for name, evidence, half in [
            ("rotation", 1000.0, 900.0),
            ("affine", 980.0, 950.0),
            ("none", 10.0, 9.0),
        ]
    ]
    comparison = Comparison(tuple(order))
    assert comparison.undecided == ("affine",)
    assert comparison.tied == ()
    assert comparison.best.name == "rotation"
    assert "affine (undecided)" in str(comparison)
    assert "Undecided at this bound: rotation leads affine" in " ".join(str(comparison).split())
    paired = [
        Candidate("none", 5.0, 0.0, 1.0, "exact", {}, 1.0, None, (5.0,) * 4),
        learned("rotation", 2.0, "angle", evidences=(2.0, 2.1, 1.9, 2.0), gain=6.0),
    ]
    assert Comparison(tuple(paired), 16).undecided == ("rotation",)
    assert "Undecided on 16 nodes: none leads rotation by 3.0" in Comparison(tuple(paired), 16).verdict


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


def learned(name, evidence, *ranges, error=0.0, **more):
    moves = dict.fromkeys(ranges, (-1.0, 1.0))
    return Candidate(name, evidence, error, evidence, "exact", moves, 1.0, None, **more)


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


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((6, 3), ["none", "cloud:rotation", "cloud:permutation"]),
        ((30, 2), ["none", "cloud:rotation", "cloud:permutation"]),
        ((1, 12), ["none", "signal:shift", "signal:shift+warp", "signal:scale"]),
        ((2, 12), ["none", "signal:shift", "signal:shift+warp", "signal:scale"]),
        ((12, 1), ["none", "negation"]),
    ],
)
def test_candidates_suit_the_form_of_the_data(shape, names):
    rng = np.random.default_rng(0)
    quick = {"max_iterations": 0, "num_nodes": 2, "random_state": 0}
    comparison = compare(rng.random((8, *shape)), rng.random(8), **quick)
    assert {each.name for each in comparison.candidates} == set(names)


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
        compare(clouds, np.arange(8.0) / 8, invariances=[None, "rotation"])
    with pytest.raises(ValueError, match="'cyclic' is an invariance of tables, but these inputs are images"):
        compare(clouds.reshape(8, 4, 6), np.arange(8.0) / 8, invariances=["cyclic", "flip"])


def test_models_of_files_are_compared_on_common_nodes_like_those_that_were_fitted(tmp_path):
    data = digits(30)
    quick = {"image_shape": (8, 8), "num_nodes": 4, "max_iterations": 2}
    models = {
        name: InvariantGPClassifier(invariance=None if name == "none" else name, **quick).fit(*data)
        for name in ("none", "affine")
    }
    fitted = judge([candidate_of(name, model, 1.0, 30) for name, model in models.items()], *data)
    loaded = []
    for name, model in models.items():
        save(model, tmp_path / name)
        loaded.append(candidate_of(name, load(tmp_path / name), 1.0, 30))
    again = judge(loaded, *data)
    assert again.num_nodes == fitted.num_nodes == 4
    for one, other in zip(fitted.candidates, again.candidates, strict=True):
        assert one.name == other.name
        assert other.evidences == pytest.approx(one.evidences, rel=1e-9)
        assert other.difference == pytest.approx(one.difference, rel=1e-6, abs=1e-6)


def test_no_invariance_of_images_has_the_kernel_of_its_rivals():
    """With a lengthscale for each pixel it would win on pure noise, because that could fit anything."""
    generator = np.random.default_rng(0)
    x, y = generator.uniform(size=(30, 4, 4)), generator.normal(size=30)
    comparison = compare(x, y, [None, "rotation"], num_nodes=4, max_iterations=10)
    sizes = {each.estimator.kernel_.base_kernel.lengthscale.numel() for each in comparison.candidates}
    assert sizes == {1}
    table = InvariantGPRegressor(max_iterations=0).fit(x.reshape(30, 16), y)
    assert table.kernel_.base_kernel.lengthscale.numel() == 16
