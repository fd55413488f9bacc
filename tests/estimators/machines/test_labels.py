from typing import Any

import numpy as np
import pytest
import torch

from orbitwise.estimators.machines.machine import check_positive, class_weights, signed_targets
from orbitwise.estimators.svc import InvariantSVC

X = np.array([[2.0, 0.0], [1.0, 5.0], [2.0, 0.0], [1.0, 4.0], [2.0, 0.0], [0.0, 0.0]])
Y = np.array(["b", "a", "b", "a", "a", "c"])


def test_equal_rows_are_one_with_the_sum_of_their_weights():
    model = InvariantSVC()
    data = model._labelled(X, Y, None, np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0]))
    assert data.x.tolist() == [[0.0, 0.0], [1.0, 4.0], [1.0, 5.0], [2.0, 0.0], [2.0, 0.0]]
    assert data.codes.tolist() == [2, 0, 0, 0, 1]
    assert data.weights.tolist() == [1.0, 1.0, 2.0, 3.0, 1.5]
    assert data.unlabeled.shape == (0, 2)
    assert list(model.classes_) == ["a", "b", "c"]
    assert model.n_features_in_ == 2
    assert (data.x.dtype, data.weights.dtype, data.codes.dtype) == (torch.float64, torch.float64, torch.int64)


def test_the_order_of_rows_leaves_no_trace():
    order = np.array([4, 2, 0, 5, 1, 3])
    first = InvariantSVC()._labelled(X, Y, X[:2], None)
    second = InvariantSVC()._labelled(X[order], Y[order], X[[1, 0, 1]], None)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_weights_of_zero_take_rows_out_labelled_or_not():
    weight = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    data = InvariantSVC(unlabeled_label="c")._labelled(X, Y, None, weight)
    assert data.x.tolist() == [[1.0, 4.0], [2.0, 0.0], [2.0, 0.0]]
    assert data.unlabeled.shape == (0, 2)
    kept = InvariantSVC(unlabeled_label="c")._labelled(X, Y, [[9.0, 9.0]], None)
    assert kept.unlabeled.tolist() == [[0.0, 0.0], [9.0, 9.0]]


def test_weights_of_classes():
    classes, codes = np.array(["a", "b"]), torch.tensor([0, 0, 0, 1])
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    assert class_weights(None, classes, codes, weights) is weights
    balanced = class_weights("balanced", classes, codes, weights)
    assert balanced.sum().item() == pytest.approx(weights.sum().item())
    assert balanced[:3].sum().item() == pytest.approx(balanced[3].item())
    assert balanced[1].item() == pytest.approx(2 * balanced[0].item())
    assert class_weights({"b": 3.0}, classes, codes, weights).tolist() == [1.0, 2.0, 1.0, 1.5]


def test_targets_are_signs():
    assert signed_targets(torch.tensor([0, 1, 1]), 2).tolist() == [[-1.0, 1.0, 1.0]]
    expected = [[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    assert signed_targets(torch.tensor([0, 1, 2]), 3).tolist() == expected


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "1", None])
def test_what_is_no_positive_number_is_told(value: Any):
    with pytest.raises(ValueError, match="width must be positive and finite, or else, not"):
        check_positive(value, "width", ", or else")
