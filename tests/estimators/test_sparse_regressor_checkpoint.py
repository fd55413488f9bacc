"""A sparse fit that was killed goes on from its checkpoint, through all its stages, to the same bits."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from orbitwise import SparseGPRegressor
from orbitwise.inference.sparse.model import SparseModel

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 4, size=(300, 2))
Y = np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1]) + 0.1 * RNG.normal(size=300)


class KilledError(Exception):
    pass


def kill_at(count: int):
    def callback(step: int, bound: float) -> None:
        if step == count:
            raise KilledError

    return callback


def result(model: SparseGPRegressor) -> tuple:
    """All that was learned but the seconds."""
    certificate = model.certificate_
    stages = [stage._replace(seconds=0.0) for stage in certificate.history]
    learned = [parameter.tolist() for parameter in model.fit_result_.parameters]
    points = model.predict(X + 0.01, return_std=True)
    known = (certificate.lower, certificate.upper, certificate.stopped, stages, model.history_, learned)
    return *known, model._stream.posterior().inducing.tolist(), *(each.tolist() for each in points)


# Stages that double, points that move in the end, all rows, a number that is given, and each bound.
SEARCHES = {
    "auto": {"max_iterations": 6, "tolerance": 0.05, "max_inducing": 64, "optimize_inducing": False},
    "freed": {"max_iterations": 9, "tolerance": 1e-6, "max_inducing": 12},
    "all": {"max_iterations": 6, "tolerance": 1e-6},
    "given": {"max_iterations": 8, "num_inducing": 9, "bound": "titsias"},
    "cg": {"max_iterations": 6, "num_inducing": 9, "bound": "cg", "optimize_inducing": False},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_fit_that_was_killed_ends_with_the_same_bits(tmp_path, search):
    settings = {**SEARCHES[search], "random_state": 0}
    few = slice(300 if search == "auto" else 120)  # with few rows the first stage is enough
    whole = SparseGPRegressor(**settings).fit(X[few], Y[few])
    expected, steps = result(whole), len(whole.history_)
    assert search != "auto" or len({stage.num_inducing for stage in whole.certificate_.history}) > 1
    assert steps > 2
    for number, place in enumerate((1, steps // 2, steps)):
        folder = tmp_path / str(number)
        model = SparseGPRegressor(**settings, checkpoint=str(folder))
        with pytest.raises(KilledError):
            model.set_params(callback=kill_at(place)).fit(X[few], Y[few])
        assert len(list(folder.glob("*.journal"))) == 1
        assert result(model.set_params(callback=None).fit(X[few], Y[few])) == expected


def test_what_was_evaluated_is_not_evaluated_again(tmp_path, monkeypatch):
    calls = []
    forward = SparseModel.forward

    def counted(self):
        calls.append(1)
        return forward(self)

    monkeypatch.setattr(SparseModel, "forward", counted)
    model = SparseGPRegressor(num_inducing=9, max_iterations=9, random_state=0, checkpoint=str(tmp_path))
    first = result(model.fit(X, Y))
    assert calls
    calls.clear()
    assert result(model.fit(X, Y)) == first
    assert not calls


@pytest.mark.parametrize("other", ["targets", "seed", "noise", "tolerance"])
def test_another_fit_does_not_go_on_from_it(tmp_path, other):
    settings = {"num_inducing": 9, "max_iterations": 4, "random_state": 0}
    SparseGPRegressor(**settings, checkpoint=str(tmp_path)).fit(X, Y)
    targets = Y + 0.1 * X[:, 0] if other == "targets" else Y
    settings |= {"seed": {"random_state": 1}, "noise": {"noise": 0.1}, "tolerance": {"tolerance": 0.5}}.get(
        other, {}
    )
    again = SparseGPRegressor(**settings, checkpoint=str(tmp_path)).fit(X, targets)
    assert result(again) == result(SparseGPRegressor(**settings).fit(X, targets))
    assert len(list(tmp_path.iterdir())) == 2


PROCESS = """
import sys, warnings
import torch
warnings.simplefilter("ignore")
import tests.estimators.test_sparse_regressor_checkpoint as here
from orbitwise import SparseGPRegressor
torch.set_num_threads(int(sys.argv[2]))
def told(step, bound):
    print(step, flush=True)
    if step == 8:
        sys.stdin.read()  # waits to be killed
settings = {**here.SEARCHES["auto"], "random_state": 0}
SparseGPRegressor(**settings, checkpoint=sys.argv[1], callback=told).fit(here.X, here.Y)
"""


def killed_after_eight_steps(folder: Path, threads: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(8)] == [f"{step}\n" for step in range(1, 9)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_process_that_was_killed_leaves_what_it_needs(tmp_path):
    settings = {**SEARCHES["auto"], "random_state": 0}
    expected = result(SparseGPRegressor(**settings).fit(X, Y))
    killed_after_eight_steps(tmp_path, torch.get_num_threads())
    found = SparseGPRegressor(**settings, checkpoint=str(tmp_path)).fit(X, Y)
    assert result(found) == expected


def test_with_other_threads_it_ends_with_the_same_result_up_to_rounding(tmp_path):
    settings = {**SEARCHES["auto"], "random_state": 0}
    expected = SparseGPRegressor(**settings).fit(X, Y)
    others = torch.get_num_threads() + 1
    killed_after_eight_steps(tmp_path, others)
    with pytest.warns(UserWarning, match=rf"made with {others} threads, .* only up to rounding"):
        found = SparseGPRegressor(**settings, checkpoint=str(tmp_path)).fit(X, Y)
    assert found.certificate_.num_inducing == expected.certificate_.num_inducing
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-3)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-2, atol=1e-2)
