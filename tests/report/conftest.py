"""Small fitted models that the tests of the report share."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, compare, datasets
from orbitwise.estimators.convergence import fit_quietly
from orbitwise.report import record_ranges
from orbitwise.report.page import Page, page_of
from orbitwise.selection import Comparison


class Fitted(NamedTuple):
    """A model and the data around it."""

    model: Any
    x: Any
    y: Any
    x_test: Any
    y_test: Any


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images of three digits, in a fixed order."""
    data = datasets.load("digits")
    chosen = np.flatnonzero(np.isin(data.y, (3, 6, 9)))[:110]
    return data.x[chosen].astype(np.float64), data.y[chosen]


@pytest.fixture(scope="session")
def turned() -> Fitted:
    """Digits with a learned rotation, its ranges recorded."""
    x, y = digits()
    model = InvariantGPClassifier(
        invariance="rotation", image_shape=(8, 8), num_nodes=4, max_iterations=25, random_state=0
    )
    record_ranges(model)
    return Fitted(fit_quietly(model, x[:60], y[:60]), x[:60], y[:60], x[60:], y[60:])


@pytest.fixture(scope="session")
def bent() -> Fitted:
    """Digits with affine moves and deformations, cut short."""
    x, y = digits()
    model = InvariantGPClassifier(
        invariance="affine+deformation", image_shape=(8, 8), num_nodes=4, max_iterations=3, random_state=0
    )
    return Fitted(fit_quietly(model, x[:40], y[:40]), x[:40], y[:40], x[60:], y[60:])


@pytest.fixture(scope="session")
def compared(turned: Fitted) -> Comparison:
    """No invariance and rotation on the same digits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten iterations are enough to be shown
        return compare(
            turned.x,
            turned.y,
            invariances=(None, "rotation"),
            image_shape=(8, 8),
            num_nodes=16,
            max_iterations=10,
            random_state=0,
        )


@pytest.fixture(scope="session")
def symmetric() -> Fitted:
    """A regression that does not care about the order of its columns."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(90, 2))
    y = np.sin(x).sum(1) + x.prod(1) + 0.1 * rng.normal(size=90)
    model = InvariantGPRegressor(invariance="permutation", random_state=0).fit(x[:40], y[:40])
    return Fitted(model, x[:40], y[:40], x[40:], y[40:])


@pytest.fixture(scope="session")
def turned_page(turned: Fitted) -> Page:
    """What the report of the turned digits shows."""
    return page_of(turned.model, turned.x, turned.y, turned.x_test, turned.y_test)


@pytest.fixture(scope="session")
def symmetric_page(symmetric: Fitted) -> Page:
    """What the report of the symmetric regression shows."""
    return page_of(symmetric.model, symmetric.x, symmetric.y, symmetric.x_test, symmetric.y_test)
