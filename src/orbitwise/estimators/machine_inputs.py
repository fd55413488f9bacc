"""What kernel classifiers accept: labels of any type, unlabelled rows beside them or among them, weights."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from orbitwise.estimators.validation import (
    as_array,
    check_counts,
    check_data,
    check_inputs,
    check_weights,
    flatten_images,
    set_layout,
)
from orbitwise.inference.risk.machines import BASES
from orbitwise.inference.risk.machines import SOLVERS

CHOOSERS = ("evidence", "cross_validation")


class Labelled(NamedTuple):
    """Labelled points, their class numbers and weights, and the points without a label.

    Rows that are the same are one with the sum of their weights, and rows have a fixed order: a weight counts
    repetitions, and the order in which rows came leaves no trace.
    """

    x: torch.Tensor
    codes: torch.Tensor
    weights: torch.Tensor
    unlabeled: torch.Tensor


def check_labelled(
    estimator: Any,
    X: ArrayLike,
    y: ArrayLike,
    unlabeled: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> Labelled:
    """Validated training data; sets `classes_`, `n_features_in_`, `_image_shape` and `channels_`.

    A weight of zero takes a row out, as if it had not been given.
    """
    check_settings(estimator)
    flat, layout = flatten_images(estimator, X)
    x, labels = check_data(estimator, flat, y)
    x = set_layout(estimator, layout, x)
    check_classification_targets(labels)
    weight = check_weights(sample_weight, x)
    is_labelled = _is_labelled(estimator.unlabeled_label, labels)
    if not is_labelled.any():
        raise ValueError("All rows are unlabelled; a classifier needs labels of at least two classes.")
    estimator.classes_, codes = np.unique(labels[is_labelled], return_inverse=True)
    if len(estimator.classes_) < 2:
        raise ValueError(
            "Classification needs at least two classes, but the labels hold one class only: "
            f"{estimator.classes_.tolist()[0]!r}."
        )
    counted = is_labelled & (weight > 0)
    if len(np.unique(labels[counted])) < len(estimator.classes_):
        raise ValueError("sample_weight leaves a class without any label; give one of its rows a weight.")
    beside = check_unlabeled(estimator, unlabeled, x.shape[1])
    rows = np.column_stack([x[counted], codes[counted[is_labelled]]])
    rows, place = np.unique(rows, axis=0, return_inverse=True)
    return Labelled(
        torch.from_numpy(rows[:, :-1].copy()),
        torch.from_numpy(rows[:, -1].astype(np.int64)),
        torch.from_numpy(np.bincount(place.ravel(), np.asarray(weight)[counted], len(rows))),
        torch.from_numpy(np.unique(np.concatenate([x[~is_labelled & (weight > 0)], beside]), axis=0)),
    )


def class_weights(
    weighting: Any, classes: NDArray[Any], codes: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weights of rows: as given, times those of classes, or such that classes count the same (RKHS 6.3)."""
    if weighting is None:
        return weights
    if isinstance(weighting, dict):
        factors = [weighting.get(label, 1.0) for label in classes.tolist()]
        if unknown := set(weighting) - set(classes.tolist()):
            raise ValueError(f"class_weight names {sorted(map(str, unknown))}, which are no labels.")
        for factor in factors:
            check_positive(factor, "A class_weight")
        return weights * torch.tensor(factors, dtype=weights.dtype)[codes]
    if weighting != "balanced":
        raise ValueError(f"class_weight must be None, 'balanced' or a dict, not {weighting!r}.")
    totals = torch.zeros(int(codes.max()) + 1, dtype=weights.dtype).index_add(0, codes, weights)
    return weights * weights.sum() / (len(totals) * totals[codes])


def signed_targets(codes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """±1 for one class against the rest, a row each; two classes need a single row."""
    if num_classes == 2:
        return (2.0 * codes - 1.0).double()[None]
    return 2 * torch.nn.functional.one_hot(codes, num_classes).T.double() - 1


def check_settings(estimator: Any, choosers: tuple[str, ...] = CHOOSERS) -> None:
    """Raise an error for settings that kernel machines cannot use."""
    if not (estimator.kernel is None or isinstance(estimator.kernel, Kernel)):
        raise TypeError(
            f"kernel must be a gpytorch.kernels.Kernel or None, not {type(estimator.kernel).__name__}."
        )
    if estimator.basis not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}, not {estimator.basis!r}.")
    if estimator.bandwidth != "median":
        check_positive(estimator.bandwidth, "bandwidth", ", or 'median'")
    if getattr(estimator, "solver", "auto") not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {estimator.solver!r}.")
    if hasattr(estimator, "C"):
        check_positive(estimator.C, "C")
    strength = estimator.strength
    if strength not in choosers and not (_is_number(strength) and strength >= 0):
        raise ValueError(
            "strength must be finite and at least 0 (0 is no invariance), "
            f"{' or '.join(map(repr, choosers))}, not {strength!r}."
        )
    for name, least in (("Cs", "positive"), ("strengths", "at least 0")):
        values = getattr(estimator, name, None)
        fine = values is None or (
            len(values) > 0
            and all(_is_number(v) and (v > 0 or (v == 0 and name == "strengths")) for v in values)
        )
        if not fine:
            raise ValueError(f"{name} must be finite numbers, {least}, not {values!r}.")
    if hasattr(estimator, "num_folds"):
        check_counts(estimator, ["num_folds"], least=2)


def check_positive(value: Any, name: str, more: str = "") -> None:
    """Raise a ValueError unless `value` is a positive finite number."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"{name} must be positive and finite{more}, not {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_labelled(unlabeled_label: Any, labels: NDArray[Any]) -> NDArray[np.bool_]:
    if unlabeled_label is None:
        return np.ones(len(labels), dtype=bool)
    return np.asarray([label != unlabeled_label for label in labels], dtype=bool)


def check_unlabeled(estimator: Any, unlabeled: ArrayLike | None, width: int) -> NDArray[np.float64]:
    """Validated rows without a label; none where nothing was given."""
    unlabeled = as_array(unlabeled)
    if unlabeled is None:
        return np.zeros((0, width))
    if np.ndim(unlabeled) == 0:  # pyright: ignore[reportArgumentType]
        raise ValueError(
            f"unlabeled must be rows of inputs [n, {width}] without labels, or None, not {unlabeled!r}."
        )
    if np.shape(unlabeled)[0] == 0:  # pyright: ignore[reportArgumentType]
        return np.zeros((0, width))
    return check_inputs(estimator, unlabeled).numpy()
