"""Comparisons and searches on joblib's back-ends: threads, and a Dask cluster that is started here."""

import threading
from contextlib import contextmanager

import joblib
import numpy as np
import pytest

from orbitwise import AutoGPRegressor, InvariantGPRegressor, compare

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 2))
Y = X.sum(axis=1) ** 2 + 0.1 * RANDOM.normal(size=30)
THREADS: set[str] = set()
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def note_thread(step, bound):
    THREADS.add(threading.current_thread().name)


@contextmanager
def dask(processes):
    """A cluster of two workers on this machine; yields what makes joblib work on it."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": processes, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield joblib.parallel_config(backend="dask")


def compared(callback=None):
    estimator = InvariantGPRegressor(max_iterations=4, callback=callback)
    found = compare(X, Y, [None, "permutation"], estimator)
    return {each.name: each.log_evidence for each in found.candidates}


def searched():
    model = AutoGPRegressor(max_depth=1, base_kernels=["linear"], num_restarts=0, random_state=0)
    return model.fit(X[:, :1], Y).spelling_, [row["structure"] for row in model.history_]


def test_a_dask_cluster_compares():
    expected = compared(note_thread)
    THREADS.clear()
    with dask(processes=False) as configured, configured:
        assert compared(note_thread) == pytest.approx(expected, rel=1e-9)
        assert all("Dask" in name for name in THREADS)
        assert len(THREADS) > 0


def test_a_search_runs_where_joblib_is_configured_to(monkeypatch):
    from orbitwise.selection.search import greedy

    where = set()
    given = greedy.fit

    def fit(*arguments):
        where.add(threading.current_thread().name)
        return given(*arguments)

    monkeypatch.setattr(greedy, "fit", fit)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        searched()
    assert where
    assert threading.main_thread().name not in where


@pytest.mark.slow
def test_a_dask_cluster_of_processes_compares_and_searches():
    expected = compared(), searched()
    with dask(processes=True) as configured, configured:
        assert compared() == pytest.approx(expected[0], rel=1e-9)
        assert searched() == expected[1]
