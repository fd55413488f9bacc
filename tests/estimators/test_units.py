"""Predictions of every estimator are the same in any unit of the inputs and of the targets."""

import functools
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning

import orbitwise
from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
)

RNG = np.random.default_rng(0)
X, MORE, NEW = RNG.normal(size=(30, 2)), RNG.normal(size=(12, 2)), RNG.normal(size=(40, 2))
TARGETS = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=30)
CODES = (TARGETS > 0).astype(int)
UNITS = [1e-6, 1e6]

ESTIMATORS: dict[str, Any] = {
    "auto": AutoGPRegressor(
        max_depth=1, base_kernels=("rbf",), invariances=None, num_restarts=0, random_state=0, verbose=False
    ),
    "gp classifier": InvariantGPClassifier(random_state=0),
    "gp regressor": InvariantGPRegressor(random_state=0),
    "kernel ridge": InvariantKernelRidge(),
    "kernel ridge, absolute": InvariantKernelRidge(loss="absolute", invariance_loss="absolute"),
    "kernel ridge, evidence": InvariantKernelRidge(strength="evidence"),
    "kernel ridge, local average": InvariantKernelRidge(invariance="local_average"),
    "laplacian": LaplacianSVC(random_state=0),
    "sparse": SparseGPRegressor(random_state=0),
    "sparse, few points": SparseGPRegressor(num_inducing=15, optimize_inducing=False, random_state=0),
    "svc": InvariantSVC(random_state=0),
    "svc, absolute": InvariantSVC(invariance_loss="absolute", random_state=0),
    "svc, evidence": InvariantSVC(strength="evidence", random_state=0),
    "svc, folds": InvariantSVC(strength="cross_validation", random_state=0),
    "svc, graph": InvariantSVC(invariance="graph", random_state=0),
    "virtual": VirtualSVC(),
}


@functools.cache
def scores(name: str, unit: float, unit_of_targets: float = 1.0) -> np.ndarray:
    """Predictions, or decisions where there are classes, over the unit of the targets."""
    model = ESTIMATORS[name]
    is_machine = isinstance(model, InvariantSVC | InvariantKernelRidge | LaplacianSVC)
    more = {"unlabeled": unit * MORE} if is_machine else {}
    if is_regressor(model):
        return model.fit(unit * X, unit_of_targets * TARGETS, **more).predict(unit * NEW) / unit_of_targets
    model.fit(unit * X, CODES, **more)
    decide = getattr(model, "decision_function", None) or model.predict_proba
    return decide(unit * NEW)


@functools.cache
def plain_scores(name: str) -> np.ndarray:
    """The scores in units of 1, which several tests need."""
    return scores(name, 1.0)


def assert_the_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_no_estimator_is_forgotten():
    known = {type(model).__name__ for model in ESTIMATORS.values()}
    fits = {name for name in orbitwise.__all__ if hasattr(getattr(orbitwise, name), "fit")}
    # dates have no unit, and geometries of molecules are no such rows: test_molecules.py tests their units
    assert known == fits - {"DecimalYears", "MoleculeGP"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_unit_of_the_inputs_does_not_matter(name: str, unit: float):
    with warnings.catch_warnings():
        # searches end where their steps round to nothing, which units change
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert_the_same(scores(name, unit), plain_scores(name))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", [name for name, model in ESTIMATORS.items() if is_regressor(model)])
def test_the_unit_of_the_targets_does_not_matter(name: str, unit: float):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert_the_same(scores(name, 1.0, unit), plain_scores(name))


def test_flat_everywhere_or_as_the_targets_are_does_not_depend_on_the_unit():
    """The penalty of slopes explains as much of the targets in millimetres as in kilometres."""
    explained = [
        InvariantKernelRidge(C=10.0).fit(unit * X, TARGETS).score(unit * X, TARGETS)
        for unit in (1e-3, 0.1, 1.0, 10.0)
    ]
    assert min(explained) > 0.8
    np.testing.assert_allclose(explained, explained[0], rtol=1e-4)
