"""A fit that is interrupted, or has no more time, leaves a model that predicts, by every engine."""

import os
import signal

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.convergence import fit_quietly
from orbitwise.estimators.estimator import LearnedOrbit
from orbitwise.storage import load, save

ENGINES = ["exact", "exact on nodes", "collapsed", "variational", "classes", "softmax", "sparse"]


@pytest.fixture(scope="module")
def waves() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * random.normal(size=60)


def model_for(engine: str, **settings):
    """A small model of the engine that would learn for many steps."""
    settings = {"random_state": 0, "max_iterations": 200, **settings}
    few = {"num_inducing": 12}
    if engine == "exact":
        return InvariantGPRegressor(**settings)
    if engine == "exact on nodes":
        return InvariantGPRegressor(invariance="rotation", image_shape=(2, 2), max_nodes=32, **settings)
    if engine == "classes":
        return InvariantGPClassifier(inference="collapsed", likelihood="stick_breaking", **few, **settings)
    if engine == "softmax":
        return InvariantGPClassifier(inference="variational", likelihood="softmax", **few, **settings)
    if engine == "sparse":
        return SparseGPRegressor(tolerance=1e-6, **few, **settings)
    return InvariantGPRegressor(inference=engine, **few, **settings)


def targets_for(engine: str, y: np.ndarray) -> np.ndarray:
    return (y > 0).astype(int) if engine in ("classes", "softmax") else y


def predicts(model, x: np.ndarray, folder) -> None:
    """What a usable model does: it predicts, and a file of it predicts the same."""
    means = model.predict(x)
    assert np.isfinite(model.log_evidence_)
    save(model, folder / "model.orbitwise")
    np.testing.assert_array_equal(load(folder / "model.orbitwise").predict(x), means)


@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupted_fit_keeps_the_best_so_far(engine, after, waves, tmp_path):
    x, y = waves
    seen = []

    def interrupt(step, bound):
        seen.append(bound)
        if len(seen) == after:
            raise KeyboardInterrupt

    model = model_for(engine, callback=interrupt)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(x, targets_for(engine, y))
    assert len(seen) == after  # nothing is learned afterwards, in no later phase
    assert not model.converged_
    assert model.stopped_by_ == "interrupted"
    (told,) = [each for each in caught if issubclass(each.category, ConvergenceWarning)]
    assert "interrupted" in str(told.message)
    predicts(model, x, tmp_path)
    # the same estimator learns on its own account again
    model.set_params(callback=None, max_iterations=1)
    if hasattr(model, "num_steps"):
        model.set_params(num_steps=3)
    fit_quietly(model, x, targets_for(engine, y))
    assert getattr(model, "stopped_by_", "") != "interrupted"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fit_without_time_keeps_the_best_so_far(engine, waves, tmp_path, monkeypatch):
    """A second passes with every step."""
    x, y = waves
    now = 0.0
    monkeypatch.setattr(LearnedOrbit, "_clock", staticmethod(lambda: now))
    steps = []

    def tick(step, bound):
        nonlocal now
        now += 1.0
        steps.append(step)

    model = model_for(engine, callback=tick, max_seconds=3.5)
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(x, targets_for(engine, y))
    assert 1 <= len(steps) <= 5
    assert not model.converged_
    assert model.stopped_by_ == "time is over"
    predicts(model, x, tmp_path)


@pytest.mark.parametrize("engine", ["exact", "variational", "sparse"])
def test_control_c_ends_a_fit_after_its_step(engine, waves):
    x, y = waves
    seen = []

    def press(step, bound):
        seen.append(step)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = model_for(engine, callback=press).fit(x, targets_for(engine, y))
    assert len(seen) == 3
    assert not model.converged_
    assert np.isfinite(model.predict(x)).all()
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_limit_no_clock_ends_a_fit(waves):
    model = InvariantGPRegressor(random_state=0).fit(*waves)
    assert model.converged_
    assert not hasattr(model, "stopped_by_")
