"""Scales and calibration of scores."""

import math

import pytest
import torch

from orbitwise.inference.calibration import (
    best_scale,
    cautious_scale,
    cross_entropy,
    evenly_of_classes,
    expected_calibration_error,
    label_losses,
    least_noise,
    soft_labels,
)

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(500, 3, generator=GENERATOR, dtype=torch.float64)


def labels_of(scale: float) -> torch.Tensor:
    """Labels drawn from softmax(scale·scores)."""
    chosen = torch.multinomial(
        torch.softmax(scale * SCORES, -1), 1, generator=torch.Generator().manual_seed(1)
    )
    return chosen[:, 0]


def test_cross_entropy_is_the_mean_of_minus_log_probabilities():
    labels = labels_of(1.0)
    probabilities = torch.softmax(2.5 * SCORES, -1)[torch.arange(500), labels]
    assert cross_entropy(SCORES, labels, 2.5) == pytest.approx(-probabilities.log().mean().item())


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_best_scale_is_found(scale):
    labels = labels_of(scale)
    best = best_scale(SCORES, labels)
    assert best == pytest.approx(scale, rel=0.15)
    least = min(cross_entropy(SCORES, labels, math.exp(i / 50)) for i in range(-200, 200))
    assert cross_entropy(SCORES, labels, best) <= least + 1e-9


def test_scores_that_are_always_right_or_say_nothing_end_at_the_limits():
    labels = SCORES.argmax(1)
    assert best_scale(SCORES, labels) > 9_000
    assert best_scale(-SCORES, labels) < 0.011


def test_calibrated_probabilities_have_no_error_and_overconfident_ones_have():
    probabilities = torch.tensor([[0.8, 0.2]] * 10, dtype=torch.float64)
    labels = torch.tensor([0] * 8 + [1] * 2)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0, abs=1e-12)
    sure = torch.tensor([[1.0, 0.0]] * 10).double()
    assert expected_calibration_error(sure, labels) == pytest.approx(0.2)
    # Two bins that err in opposite directions do not cancel.
    mixed = torch.tensor([[0.9, 0.1]] * 5 + [[0.6, 0.4]] * 5, dtype=torch.float64)
    hits = torch.tensor([1] * 5 + [0] * 5)
    assert expected_calibration_error(mixed, hits) == pytest.approx(0.5 * 0.9 + 0.5 * 0.4)


@pytest.mark.parametrize("target", [0.1, 3e-3, 1e-5])
def test_noise_is_found_where_the_loss_is_least(target):
    found = least_noise(lambda noise: (math.log(noise) - math.log(target)) ** 2, 0.1)
    assert found == pytest.approx(target, rel=0.35)


def test_a_single_column_stands_for_two_classes():
    scores, labels = torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([1, 0, 0])
    both = torch.cat([-scores, scores], dim=1)
    assert label_losses(scores, labels).mean().item() == label_losses(both, labels).mean().item()
    assert label_losses(scores, labels).mean().item() == cross_entropy(
        both, labels, cautious_scale(both, labels)
    )


def test_soft_labels_doubt_one_label_in_two_more_than_there_are():
    soft = soft_labels(torch.tensor([0, 0, 1]), 3)
    torch.testing.assert_close(soft.sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(soft[0], torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64))
    torch.testing.assert_close(soft[2], torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64))


def test_soft_labels_keep_the_scale_of_separated_scores_finite():
    scores = torch.tensor([[1.0, -1.0], [2.0, -2.0], [-1.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    assert best_scale(scores, labels) > 9000
    assert cautious_scale(scores, labels) == best_scale(scores, soft_labels(labels, 2)) < 2
    assert label_losses(scores, labels).mean().item() == cross_entropy(
        scores, labels, cautious_scale(scores, labels)
    )
    assert label_losses(scores, labels).mean().item() > 0.01


def test_labels_of_no_weight_do_not_count_for_the_scale():
    scores = torch.tensor([[1.0, -1.0], [2.0, -2.0], [-1.0, 1.0], [-3.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0])
    weights = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    assert cautious_scale(scores, labels, torch.ones_like(weights)) == cautious_scale(scores, labels)
    assert cautious_scale(scores, labels, weights) > 3 * cautious_scale(scores, labels)


def test_rows_are_taken_evenly_from_classes_that_come_in_turn():
    labels = torch.arange(60) % 2
    labels[59] = 2
    some = evenly_of_classes(labels, 20)
    assert some.tolist() == sorted(set(some.tolist()))
    assert labels[some].bincount().tolist() == [10, 10, 1]
    assert torch.equal(labels[evenly_of_classes(labels, 60)], labels)
