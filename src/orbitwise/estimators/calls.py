"""What surrounds every call of an estimator: gradients while it learns, and results that are numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from orbitwise.estimators.convergence import shortfall

P = ParamSpec("P")
R = TypeVar("R")
TOLD: WeakSet[Any] = WeakSet()
"""Estimators that gave a ConvergenceWarning; no attribute of theirs, because it is not part of the model."""


def learning(*results: str, once: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For methods that fit: they work under `torch.no_grad()` and `torch.inference_mode()` too.

    The attributes called `results` must be finite afterwards, and learning that did not come to its end is
    said by a ConvergenceWarning. With `once`, for methods that take one batch after the other, it is not said
    again by an estimator that said it before.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def fit(*arguments: P.args, **named: P.kwargs) -> R:
            with torch.inference_mode(False), torch.enable_grad():
                fitted = method(*arguments, **named)
            estimator: Any = arguments[0]
            for name in results:
                _require_finite(getattr(estimator, name, None), f"{name} is {{}} after {method.__name__}")
            reason = shortfall(estimator)
            if reason is not None and not (once and estimator in TOLD):
                TOLD.add(estimator)
                warnings.warn(reason, ConvergenceWarning, stacklevel=2)
            elif reason is None and not once:
                TOLD.discard(estimator)
            return fitted

        return fit

    return decorate


def answering(method: Callable[P, R]) -> Callable[P, R]:
    """For methods that predict: a result that is not finite is an error, never an answer."""

    @wraps(method)
    def answer(*arguments: P.args, **named: P.kwargs) -> R:
        result = method(*arguments, **named)
        for part in result if isinstance(result, tuple) else (result,):
            _require_finite(part, f"The result of {method.__name__} contains {{}}")
        return result

    return answer


def _require_finite(values: Any, found: str) -> None:
    """Raise a ValueError with what was `found` where values are not finite."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = array[~np.isfinite(array)].ravel()[0]
        raise ValueError(
            f"{found.format(wrong)}: the computation overflowed. Scale X and y to about 1 "
            "(sklearn.preprocessing.StandardScaler), or try another kernel or a larger noise."
        )
