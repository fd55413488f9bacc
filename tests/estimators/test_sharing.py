"""Whole fits that several processes share, and how they agree on what is fitted."""

import os
import signal

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, one_process
from orbitwise.inference.optimise.watching import Reporter
from orbitwise.inference.processes import ALONE, Processes
from tests.inference.several import in_processes, launch

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


@pytest.mark.slow
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


def small_fit(**settings):
    return SparseGPRegressor(num_inducing=10, max_iterations=6, random_state=0, **settings)


def kept(model):
    return [model.log_evidence_, model.noise_, *model.predict(X[:3])]


def test_fits_are_shared_in_processes_that_torchrun_started(tmp_path):
    def work(rank):
        model = small_fit(verbose=True, callback=lambda *_: (tmp_path / f"called {rank}").touch())
        np.save(tmp_path / f"{rank}.npy", kept(model.fit(X, Y)))
        exact = InvariantGPRegressor(max_iterations=2).fit(X[:20], Y[:20])
        assert exact.inference_ == "exact"

    assert launch(2, work) == [0, 0]
    first, second = (np.load(tmp_path / f"{rank}.npy") for rank in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, kept(small_fit().fit(X, Y)), rtol=1e-6)
    # the first process alone speaks to its caller
    assert (tmp_path / "called 0").exists()
    assert not (tmp_path / "called 1").exists()


def test_a_worker_that_dies_is_started_again_and_nothing_is_lost(tmp_path, monkeypatch):
    folder = tmp_path / "progress"
    added = Processes.sum
    computed = []

    def work(rank, dies):
        def counted(self, *parts):
            computed.append(rank)
            if dies and rank == 1 and len(computed) == 16:
                os.kill(os.getpid(), signal.SIGKILL)
            return added(self, *parts)

        monkeypatch.setattr(Processes, "sum", counted)
        model = small_fit(checkpoint=str(folder)).fit(X, Y)
        np.save(tmp_path / f"{rank}.npy", [*kept(model), len(computed)])

    assert launch(2, lambda rank: work(rank, dies=True))[1] == -signal.SIGKILL
    assert any(folder.iterdir())
    assert launch(2, lambda rank: work(rank, dies=False)) == [0, 0]
    *resumed, num_resumed = np.load(tmp_path / "1.npy")
    monkeypatch.setattr(Processes, "sum", added)
    for file in folder.iterdir():
        file.unlink()
    assert launch(2, lambda rank: work(rank, dies=False)) == [0, 0]
    *unbroken, num_unbroken = np.load(tmp_path / "1.npy")
    assert resumed == unbroken
    # what was computed before the kill was not computed again
    assert num_resumed < num_unbroken


def test_processes_that_fit_different_rows_are_told_so(tmp_path):
    def work(rank):
        with pytest.raises(ValueError, match="with the same settings and the same rows"):
            small_fit().fit(X[: 100 + rank], Y[: 100 + rank])
        with one_process():
            small_fit().fit(X[: 100 + rank], Y[: 100 + rank])

    assert launch(2, work) == [0, 0]


def test_the_first_process_decides_when_a_fit_ends():
    def work(processes):
        steps = []

        def ask(step, bound):
            steps.append(step)
            if step == 3:
                raise KeyboardInterrupt

        callbacks = [ask] if processes.is_first else []
        now = 0.0 if processes.is_first else 1e9
        reporter = Reporter(*callbacks, max_seconds=10, clock=lambda: now, processes=processes)
        assert reporter.allows(5)
        for step in range(1, 10):
            try:
                reporter(step, 0.0)
            except KeyboardInterrupt:
                return step, reporter.stopped
        return None

    assert in_processes(2, work) == [(3, "interrupted")] * 2
