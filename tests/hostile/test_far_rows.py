"""One row far from all others: it changes neither what others are predicted nor what is learned from them."""

import numpy as np
import pytest

from orbitwise import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
)

RANDOM = np.random.default_rng(0)
X, NEW = RANDOM.normal(size=(40, 2)), RANDOM.normal(size=(200, 2))
Y, TRUTH = np.sin(2 * X[:, 0]) + 0.05 * RANDOM.normal(size=40), np.sin(2 * NEW[:, 0])
REGRESSORS = {
    "exact": InvariantGPRegressor(),
    "collapsed": InvariantGPRegressor(inference="collapsed", random_state=0),
    "symmetric": InvariantGPRegressor(invariance="negation"),
    "sparse": SparseGPRegressor(random_state=0),
    "ridge": InvariantKernelRidge(),
}
CLASSIFIERS = {"classifier": InvariantGPClassifier(), "svc": InvariantSVC(), "laplacian": LaplacianSVC()}
# Noise of 0.05 is nearly none, and learning it to the end is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("size", [1e6, 1e10, 1e16, 1e60])
@pytest.mark.parametrize("name", [*REGRESSORS, *CLASSIFIERS])
def test_a_far_row_changes_no_prediction_of_others(fitted, name, size):
    model = fitted(name)
    together = np.vstack([NEW[:5], np.full((1, 2), size)])
    asked = [model.predict_proba if name in CLASSIFIERS else model.predict]
    if name in REGRESSORS and name != "ridge":
        asked.append(lambda x: model.predict(x, return_std=True)[1])
    for ask in asked:
        np.testing.assert_allclose(ask(together)[:5], ask(NEW[:5]), rtol=1e-7, atol=1e-9)


@pytest.fixture(scope="module")
def fitted():
    kept = {}

    def fit(name: str):
        if name not in kept:
            model = {**REGRESSORS, **CLASSIFIERS}[name]
            kept[name] = model.fit(X, Y > 0 if name in CLASSIFIERS else Y)
        return kept[name]

    return fit


@pytest.mark.parametrize("size", [999.0, 1e5, 1e10, 1e16, 1e60])
@pytest.mark.parametrize(
    "model", [REGRESSORS[name] for name in ("exact", "sparse", "ridge")], ids=["exact", "sparse", "ridge"]
)
def test_regressors_learn_from_the_other_rows(model, size):
    outlying = X.copy()
    outlying[0] = size
    assert model.__class__(random_state=0).fit(outlying, Y).score(NEW, TRUTH) > 0.6


@pytest.mark.parametrize("size", [999.0, 1e5, 1e10, 1e16, 1e60])
@pytest.mark.parametrize("model", CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_classifiers_learn_from_the_other_rows(model, size):
    outlying = X.copy()
    outlying[0] = size
    assert model.__class__(random_state=0).fit(outlying, Y > 0).score(NEW, TRUTH > 0) > 0.85
