"""Whole fits that several processes share, and how they agree on what is fitted."""

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, SparseGPRegressor
from orbitwise.inference.processes import ALONE
from tests.inference.several import in_processes

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, size=(120, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * RANDOM.normal(size=120)


def fitted(make, X, y):
    """A function that fits one estimator, each process its own, as torchrun would have it."""

    def work(processes):
        model = make(processes)
        model._processes = processes
        return model.fit(X, y)

    return work


def test_a_sparse_fit_is_that_of_one_process():
    def make(_):
        return SparseGPRegressor(num_inducing=16, max_iterations=12, random_state=0)

    one = fitted(make, X, Y)(ALONE)
    first, second = in_processes(2, fitted(make, X, Y))
    assert first.log_evidence_ == second.log_evidence_
    assert first.log_evidence_ == pytest.approx(one.log_evidence_, rel=1e-8)
    assert first.certificate_.num_inducing == one.certificate_.num_inducing
    assert first.certificate_.upper == pytest.approx(one.certificate_.upper, rel=1e-8)
    np.testing.assert_allclose(second.predict(X[:5]), one.predict(X[:5]), rtol=1e-5)
    assert first._processes.is_alone


def test_a_collapsed_fit_is_that_of_one_process():
    labels = (Y > 1).astype(int)

    def make(_):
        return InvariantGPClassifier(
            invariance="rotation",
            num_nodes=4,
            num_inducing=8,
            max_iterations=4,
            inference="collapsed",
            random_state=0,
        )

    images = np.random.default_rng(1).normal(size=(60, 4, 4)) + labels[:60, None, None]
    one = fitted(make, images, labels[:60])(ALONE)
    first, second = in_processes(2, fitted(make, images, labels[:60]))
    assert first.log_evidence_ == second.log_evidence_ == pytest.approx(one.log_evidence_, rel=1e-7)
    np.testing.assert_allclose(first.predict_proba(images[:3]), one.predict_proba(images[:3]), rtol=1e-5)
    # what rows say is kept in full by every process
    assert len(second.fit_result_.held_out().mean) == 60
