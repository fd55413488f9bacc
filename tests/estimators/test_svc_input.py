"""What InvariantSVC takes: labels and weights of many kinds, unlabelled rows, images; and bad input."""

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from sklearn.datasets import load_digits

from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Difference, Evaluation, ImageTangent
from orbitwise.functionals.tangents import PAPER_MOVES

RNG = np.random.default_rng(0)
X, MORE, NEW = RNG.normal(size=(24, 2)), RNG.normal(size=(10, 2)), RNG.normal(size=(15, 2))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=24) > 0, 1, -1)
THREE = np.array(["ash", "elm", "oak"])[np.digitize(X[:, 0], [-0.4, 0.5])]


def test_unlabelled_rows_beside_and_among_the_labelled():
    beside = InvariantSVC(bandwidth=0.8, random_state=0).fit(X, Y, MORE)
    order = np.random.default_rng(2).permutation(34)
    both, labels = np.r_[X, MORE][order], np.r_[Y, np.full(10, 99)][order]
    among = InvariantSVC(bandwidth=0.8, random_state=0, unlabeled_label=99).fit(both, labels)
    assert list(among.classes_) == [-1, 1]
    np.testing.assert_array_equal(among.predict_proba(NEW), beside.predict_proba(NEW))
    named = np.where(labels == 99, "?", np.where(labels == 1, "yes", "no"))
    words = InvariantSVC(bandwidth=0.8, random_state=0, unlabeled_label="?").fit(both, named)
    np.testing.assert_array_equal(words.predict_proba(NEW), beside.predict_proba(NEW))
    assert set(words.predict(NEW)) <= {"no", "yes"}


@pytest.mark.filterwarnings("ignore:InvariantSVC predicts class:UserWarning")  # labels here tell nothing
def test_minus_one_is_a_class_unless_it_is_said_to_be_none():
    y = np.where(THREE == "ash", -1, np.where(THREE == "elm", 0, 1))
    assert list(InvariantSVC().fit(X, y).classes_) == [-1, 0, 1]
    assert list(InvariantSVC(unlabeled_label=-1).fit(X, y).classes_) == [0, 1]


def test_no_unlabelled_rows_and_an_empty_list_of_them():
    none = InvariantSVC().fit(X, Y).decision_function(NEW)
    np.testing.assert_array_equal(InvariantSVC().fit(X, Y, np.zeros((0, 2))).decision_function(NEW), none)


def test_a_weight_counts_copies_of_a_row():
    weight = np.where(np.arange(24) < 6, 2.0, 1.0)
    weight[7] = 0.0
    weighted = InvariantSVC(bandwidth=0.8, random_state=0).fit(X, Y, MORE, weight)
    copies = np.repeat(np.arange(24), weight.astype(int))
    repeated = InvariantSVC(bandwidth=0.8, random_state=0).fit(X[copies], Y[copies], np.r_[MORE, MORE])
    np.testing.assert_allclose(repeated.predict_proba(NEW), weighted.predict_proba(NEW), rtol=0, atol=1e-12)
    plain = InvariantSVC(bandwidth=0.8, random_state=0).fit(X, Y, MORE)
    assert np.abs(plain.decision_function(NEW) - weighted.decision_function(NEW)).max() > 0.01


def test_copies_with_different_labels_work():
    model = InvariantSVC(bandwidth=0.8).fit(np.r_[X, X[:5]], np.r_[Y, -Y[:5]])
    assert len(model.machine_.rows[0].points) == 29
    assert len(model.machine_.rows[1].points) == 24


def test_classes_may_count_the_same():
    few = np.flatnonzero(Y == 1)[:3]
    rows = np.r_[np.flatnonzero(Y == -1), few]
    balanced = InvariantSVC(class_weight="balanced", bandwidth=0.8).fit(X[rows], Y[rows])
    count = len(rows) - 3
    weight = np.where(Y[rows] == 1, len(rows) / 6, len(rows) / (2 * count))
    by_hand = InvariantSVC(bandwidth=0.8).fit(X[rows], Y[rows], sample_weight=weight)
    by_name = InvariantSVC(bandwidth=0.8, class_weight={1: len(rows) / 6, -1: len(rows) / (2 * count)})
    expected = balanced.decision_function(NEW)
    np.testing.assert_allclose(by_hand.decision_function(NEW), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(by_name.fit(X[rows], Y[rows]).decision_function(NEW), expected, atol=1e-10)
    plain = InvariantSVC(bandwidth=0.8).fit(X[rows], Y[rows]).decision_function(NEW)
    assert expected.mean() > plain.mean() + 0.05


@pytest.mark.parametrize("invariance", ["tangent", "moves"])
def test_images_keep_their_shape(invariance: str):
    images, digits = load_digits(return_X_y=True)
    chosen = np.flatnonzero((digits == 4) | (digits == 9))
    images, digits = images[chosen].reshape(-1, 8, 8) / 16, digits[chosen]
    model = InvariantSVC(invariance=invariance, strength=1.0, C=100.0).fit(
        images[:12], digits[:12], images[12:40]
    )
    flat = InvariantSVC(invariance=invariance, strength=1.0, C=100.0, image_shape=(8, 8)).fit(
        images[:12].reshape(12, 64), digits[:12], images[12:40].reshape(28, 64)
    )
    found = model.decision_function(images[40:])
    np.testing.assert_array_equal(flat.decision_function(images[40:].reshape(-1, 64)), found)
    assert model.score(images[40:], digits[40:]) > 0.8
    without = InvariantSVC(invariance=invariance, strength=0.0, C=100.0).fit(images[:12], digits[:12])
    tangent = (
        ImageTangent((8, 8), PAPER_MOVES) if invariance == "moves" else ImageTangent((8, 8), smoothing=1.0)
    )
    new = torch.from_numpy(images[40:80].reshape(-1, 64))
    slopes = [
        each.machine_.values(tangent, new).norm() / each.machine_.values(Evaluation(), new).norm()
        for each in (model, without)
    ]
    assert slopes[0] < 0.9 * slopes[1]


def test_invariances_of_pairs_with_weights():
    pairs = np.stack([MORE[:5], MORE[5:]], 1)
    weights = np.arange(1.0, 6)
    weighted = InvariantSVC(invariance=[(Difference(), pairs, weights)]).fit(X, Y).decision_function(NEW)
    repeated = np.repeat(pairs, weights.astype(int), axis=0)
    found = InvariantSVC(invariance=[(Difference(), repeated)]).fit(X, Y).decision_function(NEW)
    np.testing.assert_allclose(found, weighted, rtol=0, atol=1e-7)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"C": 0.0}}, "C must be positive and finite or 'auto', not 0.0"),
    ({"settings": {"C": -1.0}}, "C must be positive and finite or 'auto', not -1.0"),
    ({"settings": {"C": float("nan")}}, "C must be positive and finite"),
    ({"settings": {"strength": -0.1}}, r"strength must be finite and at least 0 \(0 is no invariance\)"),
    ({"settings": {"strength": "guess"}}, "'evidence' or 'cross_validation', not 'guess'"),
    ({"settings": {"bandwidth": 0.0}}, "bandwidth must be positive and finite, or 'median', not 0.0"),
    ({"settings": {"bandwidth": "mean"}}, "or 'median', not 'mean'"),
    ({"settings": {"basis": "cubic"}}, "basis must be one of none, bias, linear"),
    ({"settings": {"solver": "magic"}}, "solver must be one of auto, newton"),
    ({"settings": {"loss": "logstic"}}, "Did you mean 'logistic'"),
    ({"settings": {"loss": "absolute"}}, "loss must be a loss of labels"),
    ({"settings": {"invariance_loss": "square"}}, "Did you mean 'squared'"),
    ({"settings": {"invariance": "gradeint"}}, "Did you mean 'gradient'"),
    ({"settings": {"invariance": "tangent"}}, r"pass image_shape=\(height, width\)"),
    ({"settings": {"invariance": "moves"}}, r"pass image_shape=\(height, width\)"),
    ({"settings": {"multi_class": "ovo"}}, "multi_class must be 'ovr' or 'multinomial'"),
    ({"settings": {"multi_class": "multinomial", "loss": "hinge"}, "y": THREE}, "goes with loss='logistic'"),
    (
        {"settings": {"multi_class": "multinomial", "strength": "evidence"}, "y": THREE},
        "strength='evidence' goes with multi_class='ovr'",
    ),
    ({"settings": {"strength": "evidence", "loss": "hinge"}}, "loss='logistic' or 'squared'"),
    (
        {"settings": {"strength": "evidence", "invariance_loss": "absolute"}},
        "strength='evidence' goes with invariance_loss='squared'",
    ),
    (
        {"settings": {"strength": "evidence", "basis": "linear"}},
        "goes with an invariance that is zero for all functions of the basis",
    ),
    ({"settings": {"class_weight": "even"}}, "class_weight must be None, 'balanced' or a dict, not 'even'"),
    ({"settings": {"class_weight": {3: 1.0}}}, "class_weight names"),
    ({"settings": {"class_weight": {1: 0.0}}}, "A class_weight must be positive and finite, not 0.0"),
    ({"settings": {"Cs": []}}, "Cs must be finite numbers, positive"),
    ({"settings": {"Cs": [0.0]}}, "Cs must be finite numbers, positive"),
    ({"settings": {"strengths": [-1.0]}}, "strengths must be finite numbers, at least 0"),
    ({"settings": {"num_folds": 1}}, "num_folds must be a whole number of at least 2, not 1"),
    (
        {"settings": {"kernel": MaternKernel(0.5)}},
        "MaternKernel.*FiniteDifference",
    ),
    ({"y": np.ones(24)}, "the labels hold one class only"),
    ({"y": np.r_[np.ones(23), 7], "settings": {"unlabeled_label": 7}}, "the labels hold one class only"),
    ({"y": np.full(24, 7), "settings": {"unlabeled_label": 7}}, "All rows are unlabelled"),
    ({"unlabeled": np.zeros((3, 5))}, "X has 5 features, but InvariantSVC is expecting 2 features"),
    ({"unlabeled": np.full((3, 2), np.nan)}, "NaN"),
    ({"sample_weight": np.where(Y == 1, 0.0, 1.0)}, "All rows of a class have sample_weight 0"),
    ({"sample_weight": -np.ones(24)}, "Negative values"),
    ({"X": np.full((24, 2), np.inf)}, "infinity"),
    (
        {"settings": {"strength": "cross_validation"}, "X": X[:3], "y": [0, 0, 1]},
        "needs at least two labels of every class",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_gets_a_clear_error(change: dict[str, Any], message: str):
    model = InvariantSVC().set_params(**change.get("settings", {}))
    data = [change.get(name, default) for name, default in (("X", X), ("y", Y))]
    with pytest.raises(ValueError, match=message):
        model.fit(*data, change.get("unlabeled"), change.get("sample_weight"))


def test_an_invariance_of_another_type_is_told():
    with pytest.raises(
        TypeError, match="invariance must be None, a name, a finite orbit, a functional or a list"
    ):
        InvariantSVC(invariance=3).fit(X, Y)
    with pytest.raises(TypeError, match=r"kernel must be a gpytorch\.kernels\.Kernel or None, not str"):
        InvariantSVC().set_params(kernel="rbf").fit(X, Y)


def test_a_label_that_may_mean_no_label_is_asked_about():
    rng = np.random.default_rng(0)
    y = np.full(60, -1)
    y[:2], y[2:4] = 0, 1
    with pytest.warns(UserWarning, match="predicts class -1 for .*pass unlabeled_label=-1"):
        InvariantSVC(strength=0.001, basis="bias").fit(rng.normal(size=(60, 2)), y)
