import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators.laplacian import LaplacianSVC
from orbitwise.estimators.machines.choosing import stratified_folds
from orbitwise.estimators.machines.machine import ALONE, CHOOSE, warn_of_one_class
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Evaluation
from orbitwise.inference.risk import Solution
from orbitwise.losses import EpsilonInsensitive, Hinge, Multinomial, Squared

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(30, 2)), RNG.normal(size=(9, 2))
Y = (X[:, 0] + 0.5 * RNG.normal(size=30) > 0).astype(int)


def test_losses_of_labels():
    for loss in (Hinge(), Squared()):
        assert LaplacianSVC(loss=loss)._label_loss() is loss
    for loss in ("absolute", EpsilonInsensitive(), Multinomial(3)):
        with pytest.raises(
            ValueError, match="loss must be a loss of labels, such as 'logistic' or 'hinge', not"
        ):
            LaplacianSVC(loss=loss)._label_loss()


def test_folds_spread_every_class_evenly():
    codes = torch.tensor([0] * 7 + [1] * 10 + [2] * 5)
    folds = stratified_folds(codes, 5, seed=3)
    for label in range(3):
        counts = torch.bincount(folds[codes == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(folds, stratified_folds(codes, 5, seed=3))
    assert not torch.equal(folds, stratified_folds(codes, 5, seed=4))


def solution(objective: float, gap: float, iterations: int) -> Solution:
    none = torch.zeros(0)
    return Solution(
        none, none, none, torch.tensor(objective), torch.tensor(gap), iterations, 0, True, []
    )  # fmt: skip


def test_certificates_are_kept_and_wide_gaps_told():
    model = InvariantSVC()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model._certify([solution(2.0, 1e-6, 3), solution(4.0, 0.0, 5)])
    np.testing.assert_allclose(model.objective_, [2.0, 4.0])
    np.testing.assert_allclose(model.gap_, [1e-6, 0.0])
    assert model.n_iter_.tolist() == [3, 5]
    with pytest.warns(ConvergenceWarning, match=r"a gap of up to 0\.1 in a risk of 4"):
        model._certify([solution(2.0, 0.1, 3), solution(4.0, 0.0, 5)])
    sizes = torch.tensor([10.0], dtype=torch.float64)
    model._certify([solution(2e-30, 2e-30, 3)], sizes)
    with pytest.warns(ConvergenceWarning, match="a gap of up to 2e-06"):
        model._certify([solution(2e-6, 2e-6, 3)], sizes)


def test_one_class_is_told_with_how_many_rows_and_what_to_do():
    classes = np.array([0, 1])
    codes, has_no_label = torch.tensor([0, 1, 1, 1]), torch.arange(394) >= 4
    said = torch.ones(394, dtype=torch.int64)
    said[0] = 0
    with warnings.catch_warnings(record=True, action="always") as warned:
        warn_of_one_class("InvariantSVC", classes, said, has_no_label, codes, CHOOSE)
        said[5:7] = 0
        warn_of_one_class("InvariantSVC", classes, said, has_no_label, codes, ALONE)
    assert [str(each.message) for each in warned] == [
        "InvariantSVC predicts class 1 for all 390 unlabelled rows, although the labels have 2 classes. "
        "Raise C, lower strength, use strength='cross_validation' or class_weight='balanced', or label more "
        "rows.",
        "InvariantSVC predicts class 1 for 388 of 390 unlabelled rows, although the labels have 2 classes. "
        "Raise C, use class_weight='balanced', or label more rows.",
    ]


def test_the_scale_of_probabilities_is_that_of_machines_that_did_not_see_the_labels():
    """By hand: five machines, each without a fifth of the labels, whose points stay."""
    model = InvariantSVC(C=10.0, strength=0.5, loss="hinge", random_state=0).fit(X, Y)
    order = np.lexsort((Y, X[:, 1], X[:, 0]))
    seed = int(np.random.RandomState(0).randint(2**31))
    folds = stratified_folds(torch.from_numpy(Y[order]), 5, seed).numpy()
    scores = np.zeros(30)
    for fold in range(5):
        out = folds == fold
        part = InvariantSVC(C=10.0, strength=0.5, loss="hinge", bandwidth=model.bandwidth_)
        part.fit(X[order][~out], Y[order][~out], X[order][out])
        scores[out] = part.decision_function(X[order][out])
    right = np.where(Y[order] == 1, 1.0, -1.0)

    def entropy(scale: float) -> float:
        log = -np.logaddexp(0, -2 * scale * right * scores), -np.logaddexp(0, 2 * scale * right * scores)
        doubt = 1 / (len(Y) + 2)
        return -((1 - doubt) * log[0] + doubt * log[1]).sum()

    best = entropy(model.scale_)
    assert best < entropy(1.03 * model.scale_)
    assert best < entropy(model.scale_ / 1.03)


def test_too_few_labels_to_hold_out_leave_the_scale_of_the_loss():
    two = InvariantSVC().fit(X[:2], [0, 1])
    assert two.scale_ == 0.5
    chances = two.predict_proba(NEW)[:, 1]
    np.testing.assert_allclose(chances, 1 / (1 + np.exp(-two.decision_function(NEW))))
    three = InvariantSVC().fit(X[:3], [0, 1, 2])
    assert three.scale_ == 1.0


def test_a_new_choice_replaces_the_old_one():
    settings: dict[str, Any] = {"Cs": [1.0], "strengths": [0.1], "bandwidth": 1.0}
    model = InvariantSVC(strength="evidence", **settings).fit(X, Y)
    assert model.evidence_kind_ == "expectation propagation"
    model.set_params(strength="cross_validation").fit(X, Y)
    assert not hasattr(model, "log_evidence_")
    assert 0 <= model.cv_error_ < 0.5
    model.set_params(strength="evidence", loss="squared").fit(X, Y)
    assert not hasattr(model, "cv_error_")
    assert (model.evidence_kind_, model.C_, model.strength_) == ("exact", 1.0, 0.1)
    assert model.machine_.values(Evaluation(), torch.from_numpy(NEW)).dtype == torch.float64


@pytest.mark.parametrize("machine", [InvariantSVC, LaplacianSVC])
def test_no_seed_matters_where_labels_left_out_choose(machine: Any):
    first, other = (machine(random_state=seed).fit(X[:12], Y[:12], X) for seed in (0, 1))
    np.testing.assert_array_equal(first.predict_proba(NEW), other.predict_proba(NEW))
    np.testing.assert_array_equal(
        machine().fit(X[:12], Y[:12], X).predict_proba(NEW), first.predict_proba(NEW)
    )
    assert 0 < first.scale_ != 0.5


def test_a_score_leaves_out_rows_without_a_label():
    labels = np.where(np.arange(30) < 12, Y, -1)
    model = LaplacianSVC(unlabeled_label=-1).fit(X, labels)
    alone = LaplacianSVC().fit(X[:12], Y[:12], X)
    assert model.score(X, labels) == alone.score(X[:12], Y[:12])
    weight = np.arange(1.0, 31.0)
    assert model.score(X, labels, weight) == alone.score(X[:12], Y[:12], weight[:12])
    with pytest.raises(ValueError, match="All rows are unlabelled: a score needs rows with labels"):
        model.score(X[12:], labels[12:])
