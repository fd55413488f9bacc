"""The recipe of scikit-learn's SVC, and what an estimator on one remembers of its fit.

An SVC is its support vectors, which are rows of the training data, and numbers beside them. The installed
scikit-learn makes a small one of its own, which then takes these: whatever else that version keeps of a fit
is there, and nothing of a file reaches libsvm that was not checked.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

from orbitwise.storage.recipes import SMALLEST, Field, Recipe, require, table_of

POSITIVE = Field((int, float), least=SMALLEST)
ARRAY = Field(np.ndarray)
FITTED = {
    "_image_shape": Field((tuple, list, NoneType), each=int, least=1),
    "bandwidth_": POSITIVE,
    "classes_": ARRAY,
    "n_features_in_": Field(int, least=1),
    "num_samples_": Field(int, least=1, most=2**53),
    "svc_": Field(SVC),
}
OPTIONAL = {
    "_input_shape": Field((tuple, list), each=int, least=1),
    "channels_": Field((str, NoneType)),
    "feature_names_in_": ARRAY,
}


def rebuild(
    C: float,
    gamma: float,
    class_weight: Any,
    classes: NDArray[Any],
    class_weights: NDArray[Any],
    support: NDArray[Any],
    support_vectors: NDArray[Any],
    num_support: NDArray[Any],
    dual_coefficients: NDArray[Any],
    intercept: NDArray[Any],
    num_iterations: NDArray[Any],
    num_samples: int,
) -> SVC:
    """The SVC of these arrays, with the radial kernel exp(-gamma |x-x′|²)."""
    require(classes.ndim == 1 and len(classes) >= 2, "no list of classes")
    require(np.array_equal(np.unique(classes), classes), "classes out of order")
    require(
        support_vectors.ndim == 2 and min(support_vectors.shape) > 0, "support vectors that are no matrix"
    )
    many, count = len(classes), len(support_vectors)
    shapes = [
        (support, (count,), "iu"),
        (num_support, (many,), "iu"),
        (dual_coefficients, (many - 1, count), "f"),
        (intercept, (many * (many - 1) // 2,), "f"),
        (class_weights, (many,), "f"),
        (num_iterations, intercept.shape, "iu"),
        (support_vectors, support_vectors.shape, "f"),
    ]
    for array, shape, kind in shapes:
        require(array.shape == shape and array.dtype.kind in kind, f"an array of shape {array.shape}")
        require(bool(np.isfinite(array).all()), "numbers that are not finite")
    # libsvm walks through the support vectors by these counts
    require(bool((num_support >= 0).all()) and int(num_support.sum()) == count, "counts of other vectors")
    corners = np.zeros((many, support_vectors.shape[1]))
    corners[:, 0] = np.arange(many)
    # of numbers that are harmless, since libsvm may not end with others
    built: Any = SVC(C=1.0, gamma="scale").fit(corners, classes)
    built.C, built.gamma, built._gamma = C, gamma, float(gamma)
    built.class_weight = class_weight
    built.class_weight_ = class_weights
    built.support_ = support.astype(np.int32)
    built.support_vectors_ = np.ascontiguousarray(support_vectors, dtype=np.float64)
    built._n_support = num_support.astype(np.int32)
    built.dual_coef_ = built._dual_coef_ = np.ascontiguousarray(dual_coefficients, dtype=np.float64)
    built.intercept_ = intercept.astype(np.float64)
    # libsvm holds the two classes of a single machine the other way around
    built._intercept_ = built.intercept_.copy()
    if many == 2:
        built._intercept_, built._dual_coef_ = -built.intercept_, -built.dual_coef_
    built.n_iter_ = built._num_iter = num_iterations.astype(np.int32)
    built.shape_fit_ = (num_samples, support_vectors.shape[1])
    return built


def _refuse(machine: SVC) -> str | None:
    given: Any = machine.gamma
    is_radial = machine.kernel == "rbf" and not isinstance(given, str)
    return None if is_radial else "only an SVC with the radial kernel and a gamma in numbers can be stored."


SUPPORT_VECTORS = table_of(
    Recipe(
        SVC,
        {
            "C": POSITIVE,
            "gamma": POSITIVE,
            "class_weight": Field((NoneType, str, dict)),
            "classes": Field(np.ndarray, lambda svc: svc.classes_),
            "class_weights": Field(np.ndarray, lambda svc: svc.class_weight_),
            "support": Field(np.ndarray, lambda svc: svc.support_),
            "support_vectors": Field(np.ndarray, lambda svc: svc.support_vectors_),
            "num_support": Field(np.ndarray, lambda svc: svc.n_support_),
            "dual_coefficients": Field(np.ndarray, lambda svc: svc.dual_coef_),
            "intercept": Field(np.ndarray, lambda svc: svc.intercept_),
            "num_iterations": Field(np.ndarray, lambda svc: svc.n_iter_),
            "num_samples": Field(int, lambda svc: svc.shape_fit_[0], least=1, most=2**53),
        },
        build=rebuild,
        refuse=_refuse,
    )
)


def check_support_vectors_of(model: Any) -> None:
    """Raise a ValueError where an estimator's SVC is one of other inputs or classes."""
    require(model.svc_.support_vectors_.shape[1] == model.n_features_in_, "support vectors of other inputs")
    require(np.array_equal(model.svc_.classes_, model.classes_), "support vectors of other classes")


def support_summary(model: Any) -> dict[str, Any]:
    """What people want to know of a support vector machine before they load it."""
    invariance = model.invariance
    return {
        "n_features": model.n_features_in_,
        "image_shape": model._image_shape,
        "channels": getattr(model, "channels_", None),
        "inference": "support vectors",
        "converged": model.svc_.fit_status_ == 0,
        "log_evidence": float("nan"),
        "log_evidence_error": 0.0,
        "evidence_kind": "not computed",
        "noise": [],
        "kernel": "RBFKernel",
        "functional": "Evaluation",
        "orbit": None if invariance is None or isinstance(invariance, str) else type(invariance).__name__,
        "learned": {},
        "learned_text": f"C = {model.C:.4g}, bandwidth = {model.bandwidth_:.4g}, "
        f"{len(model.svc_.support_)} support vectors",
        "learned_errors": {},
        "num_rows": model.num_samples_,
    }
