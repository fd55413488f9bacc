"""How well a model predicts targets that it has not seen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from orbitwise.cli.errors import CommandError


def measure(model: Any, X: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float]:
    """Error and log loss of classes; root mean square error and log density of numbers."""
    with unnamed():
        if hasattr(model, "predict_proba"):
            probabilities = model.predict_proba(X)
            codes = np.searchsorted(model.classes_, y)
            right = probabilities[np.arange(len(y)), codes]
            wrong = model.classes_[probabilities.argmax(1)] != y
            return {"error": float(wrong.mean()), "log_loss": float(-np.log(right.clip(1e-300)).mean())}
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    density = norm.logpdf(y, mean, deviation)
    return {"rmse": float(np.sqrt(np.mean((mean - y) ** 2))), "log_density": float(density.mean())}


def check_classes(y: NDArray[Any], known: NDArray[Any]) -> None:
    """Raise a CommandError where test labels hold a class that nothing was learned of."""
    if new := sorted({str(each) for each in y} - {str(each) for each in known}):
        raise CommandError(f"the test data hold the class {new[0]!r}, which the training data do not")


@contextmanager
def unnamed() -> Iterator[None]:
    """Arrays whose columns were matched by name already need no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield
