"""No odd input ends in silence: it is learned from with finite answers, or refused by a clear error."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orbitwise
from tests.hostile.odd_inputs import CHOICES, DATED, FAULTS, PLAIN, Case, main, outcome

TRAITS = {
    name: st.just(PLAIN[name]) | st.sampled_from(values) if name in PLAIN else st.sampled_from(values)
    for name, values in CHOICES.items()
}


@pytest.fixture(scope="module", autouse=True)
def as_for_users() -> Iterator[None]:
    """Annotations are not checked before `fit` sees the arguments."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@settings(max_examples=40)
@given(st.builds(Case, **TRAITS, seed=st.integers(0, 9)))
def test_an_odd_input_is_learned_from_or_refused(case: Case):
    kind, details = outcome(case)
    assert kind not in FAULTS, details


@pytest.mark.parametrize("estimator", CHOICES["estimator"])
def test_every_estimator_learns_under_no_grad_from_tensors_with_gradients(estimator: str):
    for mode in ("no_grad", "inference_mode"):
        odd = {"estimator": estimator, "mode": mode, "container": "learned tensor", "targets": "tensor"}
        kind, details = outcome(Case(**(PLAIN | odd)))
        assert kind == "fine", details


@pytest.mark.parametrize("estimator", [each for each in CHOICES["estimator"] if each != "search"])
def test_no_estimator_takes_dates_for_numbers(estimator: str):
    odd = [{"container": kind} for kind in DATED]
    odd += [{"targets": kind} for kind in CHOICES["targets"] if kind in DATED]
    for each in odd:
        kind, details = outcome(Case(**(PLAIN | each | {"estimator": estimator})))
        assert kind == "refused", each
        assert "holds dates or durations" in details, details


def test_a_search_turns_dates_into_years_and_takes_neither_durations_nor_periods():
    for container in DATED:
        kind, details = outcome(Case(**(PLAIN | {"estimator": "search", "container": container})))
        is_refused = container in ("durations", "periods")
        assert kind == ("refused" if is_refused else "fine"), (container, details)


def test_any_number_can_be_tried_by_hand(capsys):
    root = str(Path(orbitwise.__file__).parents[1])
    command = [sys.executable, "-m", "tests.hostile.odd_inputs", "--count", "5", "--seed", "7"]
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 odd inputs: " in done.stdout
    assert main(["--count", "0"]) == 0
    assert "silent NaN: 0" in capsys.readouterr().out


def test_faults_are_seen(monkeypatch):
    monkeypatch.setattr("orbitwise.InvariantKernelRidge.predict", lambda self, x: [float("nan")] * 14)
    plain = PLAIN | {"estimator": "ridge"}
    assert outcome(Case(**plain)) == ("silent NaN", "mean")
    monkeypatch.setattr("orbitwise.InvariantKernelRidge.predict", lambda self, x: [1e9] * 14)
    assert outcome(Case(**plain))[0] == "absurd size"
    monkeypatch.setattr("orbitwise.InvariantKernelRidge.predict", lambda self, x: {}[0])
    assert outcome(Case(**plain)) == ("wrong exception", "KeyError(0)")
    monkeypatch.setattr("orbitwise.InvariantKernelRidge.fit", lambda self, x, y: float("x"))
    assert outcome(Case(**plain))[0] == "refused for no reason"
    assert outcome(Case(**(plain | {"container": "nan"})))[0] == "refused"
