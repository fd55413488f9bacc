"""`features=` of Gaussian processes: f(x) averages g(φ(t x)) over the orbit, moves before features."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from orbitwise.estimators.validation import InputForm, input_shape
from orbitwise.functionals.features import Features, FixedFeatures, kind_of
from orbitwise.functionals.functional import Composition, Evaluation, Functional
from orbitwise.functionals.points import FeatureMap


@runtime_checkable
class SeesFeatures(Protocol):
    """What is asked of an estimator that sees its inputs through `features`."""

    features: Features | None
    form_: InputForm


def through_features(estimator: SeesFeatures, functional: Functional, x: NDArray[np.float64]) -> Functional:
    """The functional of f(x) = L_x (g ∘ φ), where φ is `features`.

    An unfitted transformer learns from the rows x, whose channels come first, as those of `training_rows`. φ
    remembers features until the fit ends: engines ask for those of the same rows at every step.
    """
    source, form, shape = estimator.features, estimator.form_, input_shape(estimator)
    assert source is not None
    kind = kind_of(source)
    if kind == "transformer":
        source = _fitted(estimator, source, form.outward(x))
    if kind == "module" and form.image_shape is not None and len(form.image_shape) == 2:
        shape = (1, *form.image_shape)
    rows = torch.from_numpy(x) - form.background
    is_last = kind != "module" and form.channels == "last"
    features = FixedFeatures.of(source, rows, shape, is_last, form.background)
    if not features.is_differentiable and any(each.requires_grad for each in functional.parameters()):
        raise ValueError(
            f"{features} has no derivatives, so ranges of the invariance cannot be learned through it: "
            "give φ as a torch.nn.Module, an orbit whose ranges are fixed, such as "
            "ImageOrbit(image_shape, {'angle': 0.3}, learnable=()), or a finite one, such as 'flip'."
        )
    features.remember()
    return functional @ FeatureMap(features)


def without_features(functional: Functional) -> Functional:
    """L alone of f(x) = L_x (g ∘ φ)."""
    if isinstance(functional, FeatureMap) and isinstance(functional.features, FixedFeatures):
        return Evaluation()
    if isinstance(functional, Composition) and isinstance(functional.inner, FeatureMap):
        inner, outer = functional.inner, functional.outer
        return outer if isinstance(inner.features, FixedFeatures) else functional
    return functional


def unfitted_copy(estimator: object) -> Any:
    """A clone with the same features: a clone of a transformer would forget what it was fitted to."""
    copy: Any = clone(cast(Any, estimator))
    features = getattr(estimator, "features", None)
    return copy if features is None else copy.set_params(features=features)


def _fitted(estimator: object, source: object, rows: NDArray[np.float64]) -> Features:
    """A transformer that is fitted: itself, or a clone that learns from the rows, without their labels."""
    names, own = (getattr(each, "feature_names_in_", None) for each in (source, estimator))
    if names is not None and own is not None and list(names) != list(own):
        raise ValueError(
            f"The transformer {type(source).__name__} was fitted to columns {list(names)[:5]}, but X has "
            f"{list(own)[:5]}: give X the same columns in the same order."
        )
    if not hasattr(source, "fit"):
        return cast(Features, source)
    try:
        check_is_fitted(source)
    except NotFittedError:
        fresh: Any = clone(cast(Any, source))
        return fresh.fit(rows)
    return cast(Features, source)
