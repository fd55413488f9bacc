"""Offsets that bring the shares of classes among points without a label into agreement with the labels."""

import numpy as np
import pytest
import torch
from scipy.stats import beta

import orbitwise
from orbitwise import InvariantSVC, LaplacianSVC
from orbitwise.estimators.machines.shares import TAIL, accepted_shares, offsets_of_classes


def shares(scores: torch.Tensor) -> torch.Tensor:
    return torch.bincount(scores.argmax(1), minlength=scores.shape[1]) / len(scores)


def few_labels(count: int, share: float, seed: int = 0):
    """Two classes that overlap along the first of 40 columns, and a few labels drawn at random."""
    random = np.random.default_rng(seed)
    y = (random.random(300) < share).astype(int)
    x = random.normal(size=(300, 40))
    x[:, 0] += 3.0 * y
    return x, y, random.permutation(300)[:count]


def test_bounds_are_quantiles_of_the_posterior_of_a_share():
    low, high = accepted_shares(torch.tensor([3.0, 7.0], dtype=torch.float64))
    assert low.numpy() == pytest.approx([beta.ppf(TAIL, 4, 8), beta.ppf(TAIL, 8, 4)])
    assert (low + high.flip(0)).numpy() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_offsets_bring_shares_within_the_bounds(num_classes):
    generator = torch.Generator().manual_seed(num_classes)
    scores = torch.randn(400, num_classes, generator=generator, dtype=torch.float64)
    scores[:, 0] += 5.0
    codes = torch.arange(4 * num_classes) % num_classes
    weights = torch.ones(len(codes), dtype=torch.float64)
    low, high = accepted_shares(torch.full((num_classes,), 4.0, dtype=torch.float64))
    assert shares(scores)[0] > high[0]
    found = shares(scores + offsets_of_classes(scores, codes, weights))
    assert (found >= low - 1 / 400).all()
    assert (found <= high + 1 / 400).all()
    assert found[0] == pytest.approx(high[0].item(), abs=1 / 400)  # no further than needed


def test_shares_that_agree_with_the_labels_need_no_offset():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 50, dtype=torch.float64)
    codes, weights = torch.tensor([0, 1]), torch.full((2,), 5.0, dtype=torch.float64)
    assert offsets_of_classes(scores, codes, weights).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [InvariantSVC, LaplacianSVC])
def test_predictions_agree_with_the_labels_about_the_share_of_a_class(kind, tmp_path):
    x, y, labelled = few_labels(12, 0.5, seed=1)
    others = np.setdiff1d(np.arange(len(x)), labelled)
    data = {"X": x[labelled], "y": y[labelled], "unlabeled": x[others]}
    model, plain = kind().fit(**data), kind(offset="none").fit(**data)
    low, high = accepted_shares(torch.from_numpy(np.bincount(y[labelled]).astype(float)))
    share = (model.predict(x[others]) == 1).mean()
    assert not hasattr(plain, "offset_")
    assert low[1] - 0.01 <= share <= high[1] + 0.01
    assert model.decision_function(x) == pytest.approx(plain.decision_function(x) + model.offset_[0])
    assert model.predict_proba(x).argmax(1).tolist() == (model.predict(x) == 1).astype(int).tolist()
    orbitwise.save(model, tmp_path / "model.orbitwise")
    assert (orbitwise.load(tmp_path / "model.orbitwise").predict(x) == model.predict(x)).all()


def test_an_offset_has_two_settings():
    with pytest.raises(ValueError, match="offset must be 'auto' or 'none', not 'sum'"):
        InvariantSVC(offset="sum").fit([[0.0], [1.0]], [0, 1])
