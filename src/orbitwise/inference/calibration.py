"""From means of one-hot regression to probabilities: a softmax scaled by leave-one-out (METHOD 5)."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orbitwise.inference.optimise.cost import users_level
from orbitwise.likelihoods.gaussian import two_columns


def cross_entropy(scores: Float[Tensor, "n c"], labels: Tensor, scale: float) -> float:
    """The mean negative log probability of labels, hard or soft, under softmax(scale·scores)."""
    return float(torch.nn.functional.cross_entropy(scale * scores, labels))


def label_losses(scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Minus the log probability of every label, held-out scores at their cautious scale."""
    scores = two_columns(scores)
    scale = cautious_scale(scores, labels)
    return torch.nn.functional.cross_entropy(scale * scores, labels, reduction="none")


def soft_labels(labels: Int[Tensor, " n"], num_classes: int) -> Float[Tensor, "n c"]:
    """Class probabilities of n labels of which one in n + 2 may be wrong (Laplace's rule of succession).

    So labels that are all classified correctly do not lead to probabilities of 0 and 1.
    """
    codes = torch.nn.functional.one_hot(labels, num_classes).double()
    doubt = 1 / (len(labels) + 2)
    return codes * (1 - doubt) + (1 - codes) * doubt / (num_classes - 1)


def best_scale(scores: Float[Tensor, "n c"], labels: Tensor) -> float:
    """The scale from 0.01 to 10,000 with the least cross entropy, by ternary search because it is convex.

    If held-out scores classify all hard labels correctly, it is at its upper limit: see `cautious_scale`.
    """
    low, high = math.log(1e-2), math.log(1e4)
    for _ in range(60):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if cross_entropy(scores, labels, math.exp(first)) < cross_entropy(scores, labels, math.exp(second)):
            high = second
        else:
            low = first
    return math.exp((low + high) / 2)


def cautious_scale(
    scores: Float[Tensor, "n c"], labels: Int[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> float:
    """The best scale for labels that may be wrong, so that it stays finite even if all scores are right."""
    soft = soft_labels(labels, scores.shape[1])
    return best_scale(scores, soft if weights is None else weights[:, None] * soft)


def expected_calibration_error(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], num_bins: int = 15
) -> float:
    """The mean gap between confidence and accuracy over bins of equal width, weighted by their numbers of
    rows.

    The confidence of a row is its largest probability. An error of 0 means, for example, that 80 % of the
    rows with confidence 80 % are right.
    """
    confidence, choice = probabilities.max(-1)
    right = (choice == labels).double()
    bins = (confidence * num_bins).long().clamp_max(num_bins - 1)
    gap = torch.zeros(num_bins, dtype=torch.float64, device=labels.device)
    gap.scatter_add_(0, bins, right - confidence.double())
    return float(gap.abs().sum() / len(labels))


def least_noise(loss_of: Callable[[float], float], start: float, smallest: float = 1e-7) -> float:
    """The noise with the least loss: by factors of 4 until three losses bracket it, then by parabolas.

    The search goes down from `start`, at most to `smallest`, or up by one factor.
    """
    seen: dict[float, float] = {}

    def loss(place: float) -> float:
        if place not in seen:
            seen[place] = loss_of(math.exp(place))
        return seen[place]

    best, step = math.log(start), math.log(4)
    while best - step > math.log(smallest) and loss(best - step) < loss(best):
        best -= step
    if len(seen) < 3 and loss(best + step) < loss(best):
        best += step
    for _ in range(PARABOLAS):
        below = [each for each in seen if each < best]
        above = [each for each in seen if each > best]
        if not below or not above:
            break
        place = _vertex(*((each, loss(each)) for each in (max(below), best, min(above))))
        if abs(place - best) < CLOSE:
            break
        best = place if loss(place) < loss(best) else best
    return math.exp(best)


def _vertex(low: tuple[float, float], middle: tuple[float, float], high: tuple[float, float]) -> float:
    """Where the parabola through three points (x, y), of which the middle one is the lowest, is least."""
    (a, above_a), (b, at_b), (c, above_c) = low, middle, high
    left, right = (above_a - at_b) / (b - a), (above_c - at_b) / (c - b)
    return b if left + right <= 0 else 0.5 * (a + b + (c - a) * left / (left + right))


def evenly_of_classes(labels: Int[Tensor, " n"], most: int) -> Int[Tensor, " k"] | slice:
    """The places of about `most` labels, evenly spread over the rows of each class; of all if they are few.

    Every so many rows of all would miss classes if classes come in turn.
    """
    if len(labels) <= most:
        return slice(None)
    every = -(-len(labels) // most)
    return torch.cat([(labels == each).nonzero()[::every, 0] for each in labels.unique()]).sort().values


PARABOLAS = 3
"""At most this many are fitted, until they move the logarithm of the noise by less than `CLOSE`."""
CLOSE = 0.1

NoiseOfLabels = Literal["auto", "evidence", "leave_one_out"]
"""By what the noise of one-hot codes is chosen with which labels are predicted."""


def noise_of_labels(
    held_out: Callable[[float], Tensor],
    labels: Int[Tensor, " n"],
    noise: float,
    by: NoiseOfLabels,
) -> float:
    """The noise to predict labels with: that of the evidence, or the one with the least held-out log loss.

    `held_out` predicts each label from all others under noise of any variance.

    "auto" takes the latter where it lowers the loss by more than its standard error, which few labels do not.
    """
    if by == "evidence":
        return noise
    losses: dict[float, Tensor] = {}

    def loss_of(value: float) -> float:
        losses[value] = label_losses(held_out(value), labels)
        return float(losses[value].mean())

    found = least_noise(loss_of, 4 * noise)
    if by == "leave_one_out":
        return found
    # the search has been here, up to rounding
    given = next((value for value in losses if math.isclose(value, noise)), noise)
    if given not in losses:
        loss_of(given)
    gains = losses[given] - losses[found]
    error = float(gains.std()) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return found if float(gains.mean()) > error else noise


CHANCE = 0.01
"""Below this probability, rows without a label are not all of one class by chance."""
NEGLECTED = 0.1
"""A class is neglected if its share of the rows without a label is below this part of its share of the
labels."""


def one_class(
    predicted: Int[Tensor, " t"], has_no_label: Bool[Tensor, " t"], codes: Int[Tensor, " n"]
) -> str | None:
    """The kind of rows, "training" or "unlabelled", that are all `predicted` to be of one class; or None.

    With few labels in many dimensions, the training rows are always fitted, so the unlabelled rows are
    checked as well. They are considered to be of one class if the share of the other classes among them is
    less than `NEGLECTED` times their share of the labels, unless this may be due to chance.
    """
    if len(predicted) < 2 and len(codes.unique()) < 2:
        return None
    if bool((predicted == predicted[0]).all()):
        return "training"
    others = predicted[has_no_label]
    if len(others) == 0:
        return None
    most = others.mode().values
    share = (codes == most).double().mean().item()
    is_chance = share ** len(others) >= CHANCE
    left = (others != most).double().mean().item()
    return "unlabelled" if left < NEGLECTED * (1 - share) and not is_chance else None


def warn_of_one_class(
    name: str,
    classes: NDArray[np.generic],
    predicted: Int[Tensor, " t"],
    has_no_label: Bool[Tensor, " t"],
    codes: Int[Tensor, " n"],
    advice: str,
) -> None:
    """Warn where an estimator predicts one class for all training rows, or for all unlabelled ones."""
    kind = one_class(predicted, has_no_label, codes)
    if kind is None or len(classes) == 1:
        return
    rows = predicted if kind == "training" else predicted[has_no_label]
    most = rows.mode().values
    count = int((rows == most).sum())
    share = f"{count:,} of {len(rows):,}"
    if count == len(rows):
        share = f"all {count:,}" if count > 1 else "all"  # equal rows were merged into one
    warnings.warn(
        f"{name} predicts class {classes[int(most)]!s} for {share} {kind} rows, although the labels have "
        f"{len(classes)} classes. {advice}.",
        UserWarning,
        stacklevel=users_level(sys._getframe()),
    )
