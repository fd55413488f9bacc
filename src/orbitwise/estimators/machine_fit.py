"""The fit that kernel classifiers share once their settings are known: solve, certify, calibrate."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from orbitwise.estimators.choosing import (
    SLOPE_STRENGTHS,
    STRENGTHS,
    Choice,
    by_cross_validation,
    by_laplace_evidence,
    by_squared_evidence,
    decided,
    held_out_scores,
    one_class,
)
from orbitwise.estimators.kernel_machine import BANDWIDTHS, Ground
from orbitwise.estimators.laplacian_rows import LaplacianRows
from orbitwise.estimators.machine_inputs import Labelled, signed_targets
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.calibration import cautious_scale, two_columns
from orbitwise.inference.cost import check_cost
from orbitwise.inference.risk.problem import Solution
from orbitwise.losses import Logistic, Loss, Multinomial, Squared

TOLERANCE = 1e-8
ACCEPTED = 1e-4
"""A gap that is larger than this part of the risk deserves a warning."""
ROUNDING = 64 * np.finfo(np.float64).eps
"""A gap below this part of the risk of f = 0 is nothing but rounding."""
BALANCE = "class_weight='balanced', or label more rows"
ALONE = f"Raise C, use {BALANCE}"
CHOOSE = f"Raise C, lower strength, use strength='cross_validation' or {BALANCE}"
"""What to do where one class is predicted for all rows, without an invariance and with one."""


def label_loss(loss: Loss, name: Any) -> Loss:
    """The loss, if it is one of labels."""
    if not (loss.takes_labels or isinstance(loss, Squared)):
        raise ValueError(f"loss must be one of labels, such as 'logistic' or 'hinge', not {name!r}.")
    return loss


def settle(
    estimator: Any,
    data: Labelled,
    loss: Loss,
    weights: torch.Tensor,
    invariance_loss: Loss,
    seed: int,
) -> Ground:
    """The ground and the strengths that were asked for, or those that evidence or cross-validation choose."""
    ground = Ground.of(estimator, data.x, data.unlabeled)
    announce(estimator, ground, invariance_loss)
    for chosen in ("log_evidence_", "evidence_kind_", "cv_error_"):
        vars(estimator).pop(chosen, None)
    if not isinstance(estimator.strength, str):
        estimator.C_, estimator.strength_ = float(estimator.C), float(estimator.strength)
        estimator.bandwidth_ = ground.bandwidth
        return ground
    if not isinstance(invariance_loss, Squared):
        raise ValueError(f"strength={estimator.strength!r} goes with invariance_loss='squared'.")
    check_basis(estimator, ground)
    targets = signed_targets(data.codes, len(estimator.classes_))
    strengths, rates = asked_grids(estimator)
    if estimator.strength == "evidence":
        grounds = ground.alternatives(estimator, data.unlabeled)
        choice = _by_evidence(loss, grounds, targets, weights, strengths, rates)
        estimator.log_evidence_ = choice.score
        estimator.evidence_kind_ = "laplace" if isinstance(loss, Logistic) else "exact"
    else:
        smallest = int(torch.bincount(data.codes).min())
        if smallest < 2:
            raise ValueError("strength='cross_validation' needs at least two labels of every class.")
        folds = stratified_folds(data.codes, min(estimator.num_folds, smallest), seed)
        grounds = estimator._grounds(ground, data)
        choice = by_cross_validation(grounds, loss, targets, weights, folds, data.codes, strengths, rates)
        estimator.cv_error_ = choice.score
    estimator.C_, estimator.strength_, estimator.bandwidth_ = choice[:3]
    return choice.ground


def announce(estimator: Any, ground: Ground, invariance_loss: Loss) -> None:
    """Warn of a fit that takes long, and raise a ValueError for one that memory cannot do."""
    if estimator.strength == 0:
        return
    is_free = estimator.kernel is None and estimator.bandwidth == "median"
    count = len(BANDWIDTHS) if estimator.strength == "evidence" and is_free else 1
    rows = 0 if ground.rows is None else len(ground.rows.weights)
    what, cheaper = f"{rows:,} rows of its invariance at", ["pass fewer unlabelled rows"]
    if isinstance(ground.rows, LaplacianRows):
        what = "the graph of"
        if estimator.strength == "cross_validation":
            count = len(estimator.neighbours)
            cheaper.append("try fewer numbers of neighbours")
    else:
        cheaper.append("reduce the features (PCA)")
        if estimator.invariance != "graph":
            cheaper.append("use invariance='graph'")
    if len(cheaper) > 1:
        cheaper[-1] = f"or {cheaper[-1]}"
    check_cost(
        ground.cost(invariance_loss).times(count),
        f"{type(estimator).__name__}.fit with {what} {len(ground.points):,} points",
        ", ".join(cheaper),
    )


def check_basis(estimator: Any, ground: Ground) -> None:
    """Raise a ValueError where an invariance sees the basis, so that it cannot be folded and chosen."""
    if ground.is_basis_seen:
        raise ValueError(
            f"strength={estimator.strength!r} goes with a basis that the invariance does not see, but it is "
            f"not zero for all functions of basis={estimator.basis!r}: use basis='bias' or 'none'."
        )


def asked_grids(estimator: Any) -> tuple[Sequence[float], list[float] | None]:
    """The strengths and λ to choose from; None for λ stands for the usual ones."""
    usual = SLOPE_STRENGTHS if estimator.invariance == "gradient" else STRENGTHS
    strengths = usual if estimator.strengths is None else [float(each) for each in estimator.strengths]
    return strengths, None if estimator.Cs is None else [float(each) for each in estimator.Cs]


def _by_evidence(
    loss: Loss,
    grounds: list[Ground],
    targets: torch.Tensor,
    weights: torch.Tensor,
    strengths: Sequence[float],
    rates: Sequence[float] | None,
) -> Choice:
    if isinstance(loss, Logistic):
        return by_laplace_evidence(grounds, targets, weights, strengths, rates)
    if isinstance(loss, Squared):
        return by_squared_evidence(grounds, targets, weights, strengths, rates, loss)
    raise ValueError("strength='evidence' goes with loss='logistic' or 'squared'.")


def fit_classifier(
    estimator: Any,
    ground: Ground,
    loss: Loss,
    codes: torch.Tensor,
    weights: torch.Tensor,
    invariance_loss: Loss,
    seed: int,
) -> None:
    """Set `machine_`, its certificate and the scale of probabilities; C_ and strength_ are known."""
    count = len(estimator.classes_)
    is_joint = isinstance(loss, Multinomial)
    codes_of_all = torch.nn.functional.one_hot(codes, count).T.double() if is_joint else None
    targets = signed_targets(codes, count) if codes_of_all is None else codes_of_all
    estimator.machine_, solutions = ground.fit(
        loss,
        targets,
        weights,
        estimator.C_,
        estimator.strength_,
        invariance_loss,
        getattr(estimator, "solver", "auto"),
        TOLERANCE,
        torch.Generator().manual_seed(seed),
    )
    certify(estimator, solutions)
    with torch.no_grad():
        said = decided(estimator.machine_.values(Evaluation(), ground.points).mT)
    warn_of_one_class(estimator, said, ground.has_no_label, codes)
    estimator.scale_ = 0.5 if len(targets) == 1 else 1.0
    smallest = int(torch.bincount(codes).min())
    if smallest >= 2 and not is_joint:
        estimator.scale_ = _held_out_scale(
            estimator, ground, loss, codes, weights, stratified_folds(codes, min(5, smallest), seed)
        )


def certify(estimator: Any, solutions: list[Solution], sizes: Tensor | None = None) -> None:
    """Remember risk, gap and iterations of every output, and warn of a gap that is not small.

    `sizes` are the risks of f = 0: against their rounding even a wide gap in a tiny risk means nothing.
    """
    estimator.objective_ = np.array([found.objective.item() for found in solutions])
    estimator.gap_ = np.array([found.gap.item() for found in solutions])
    estimator.n_iter_ = np.array([found.iterations for found in solutions])
    rounding = 0.0 if sizes is None else ROUNDING * sizes.numpy()
    if (estimator.gap_ > np.maximum(ACCEPTED * estimator.objective_, rounding)).any():
        warnings.warn(
            f"The solver stopped with a gap of up to {estimator.gap_.max():.2g} in a risk of "
            f"{estimator.objective_.max():.2g}: scale the inputs, lower C, or widen the losses.",
            ConvergenceWarning,
            stacklevel=4,
        )


def warn_of_one_class(
    estimator: Any, said: Tensor, has_no_label: Tensor, codes: Tensor, advice: str = CHOOSE
) -> None:
    """Warn where one class is `said` for all training rows, or for all unlabelled ones."""
    kind = one_class(said, has_no_label, codes)
    if kind is None or len(estimator.classes_) == 1:
        return
    rows = said if kind == "training" else said[has_no_label]
    most = rows.mode().values
    count = int((rows == most).sum())
    share = f"{count:,} of {len(rows):,}"
    if count == len(rows):
        share = f"all {count:,}" if count > 1 else "all"  # rows that are equal count as one here
    if getattr(estimator, "unlabeled_label", 0) is None and any(each == -1 for each in estimator.classes_):
        advice += "; if -1 marks rows without a label, pass unlabeled_label=-1"
    warnings.warn(
        f"{type(estimator).__name__} predicts class {estimator.classes_[int(most)]!s} for {share} {kind} "
        f"rows, although the labels have {len(estimator.classes_)} classes. {advice}.",
        UserWarning,
        stacklevel=4,
    )


def stratified_folds(codes: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """The number of the fold of every label, each class spread evenly over the folds."""
    folds = torch.zeros_like(codes)
    splits = StratifiedKFold(count, shuffle=True, random_state=seed).split(codes, codes)
    for number, (_, held_out) in enumerate(splits):
        folds[torch.from_numpy(held_out)] = number
    return folds


def _held_out_scale(
    estimator: Any,
    ground: Ground,
    loss: Loss,
    codes: torch.Tensor,
    weights: torch.Tensor,
    folds: torch.Tensor,
) -> float:
    """The softmax's scale that suits labels held out in turn; invariances count as if squared."""
    strength = estimator.strength_
    grams = ground.grams([strength]) if strength > 0 else ground.without_invariances()[None]
    targets = signed_targets(codes, len(estimator.classes_))
    rates = torch.full((1, 1), estimator.C_, dtype=torch.float64)
    scores = held_out_scores(grams, ground.basis, loss, targets, weights, rates, folds)
    return cautious_scale(two_columns(scores.values[0, 0].T), codes, weights)
