"""The experiment: its problems, what counts as found, and that a stopped run goes on."""

import json

import numpy as np
import pytest

from orbitwise.experiments import kernel_search
from orbitwise.experiments.kernel_search import PROBLEMS, Synthetic, carbon_dioxide, run
from orbitwise.kernels.spelling import Product, parse_expression, summands
from orbitwise.selection.search.auto import Scaling
from orbitwise.selection.search.hypotheses import Hypothesis, claims_of

QUICK = Synthetic("a line", "linear(centre=5)", num_rows=12, seed=3)


def test_ten_problems_of_one_to_three_components_some_with_a_hidden_symmetry():
    assert len({problem.name for problem in PROBLEMS}) == len({problem.seed for problem in PROBLEMS}) == 10
    assert all(1 <= len(summands(problem.hypothesis.expression)) <= 3 for problem in PROBLEMS)
    assert sum(bool(problem.claims) for problem in PROBLEMS) == 2
    for problem in PROBLEMS:
        others = [each for each in PROBLEMS if each is not problem and each.num_dims == problem.num_dims]
        assert not any(problem.is_found(other.hypothesis) for other in others)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_data_are_repeatable_and_components_have_their_variance(problem: Synthetic):
    x, y = problem.draw()
    again = problem.draw()
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert x.shape == (problem.num_rows, problem.num_dims)
    parts = summands(problem.hypothesis.expression)
    total = sum((part.factor or 1.0) if isinstance(part, Product) else 1.0 for part in parts)
    # the sum of uncorrelated components has the sum of their variances; drawn ones are a little correlated
    assert 0.5 * total < y.var() < 2 * total


def test_a_hidden_symmetry_is_in_the_data():
    problem = next(each for each in PROBLEMS if each.claims == ("mirror[0](centre=4)",))
    x, y = Synthetic(problem.name, problem.kernel, problem.claims, noise=0.0, num_rows=400, seed=1).draw()
    order = np.argsort(x[:, 0])
    mirrored = np.interp(8 - x[order, 0], x[order, 0], y[order])
    inside = (x[order, 0] > 0.5) & (x[order, 0] < 7.5)
    assert np.abs(mirrored - y[order])[inside].mean() < 0.1 * y.std()


def test_what_counts_as_found():
    problem = PROBLEMS[-1]
    claims = tuple(claims_of(["swap[0,1]"], 2))
    assert problem.is_found(Hypothesis(parse_expression("rbf"), claims))
    assert problem.is_found(Hypothesis(parse_expression("rbf[1]*rbf[0]"), claims))
    assert not problem.is_found(Hypothesis(parse_expression("rbf")))
    assert not problem.is_found(Hypothesis(parse_expression("rq"), claims))
    mirror = PROBLEMS[-2]
    assert mirror.is_found(Hypothesis(parse_expression("periodic + rbf"), tuple(claims_of(["mirror"], 1))))


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "results.json"
    monkeypatch.setattr(kernel_search, "PROBLEMS", (QUICK,))
    monkeypatch.setattr(kernel_search, "carbon_dioxide", lambda *_: {"reached": True})
    first = run(out)
    assert first["problems"]["a line"]["searched"] == "linear"
    assert first["found"] == first["of"] == 1
    monkeypatch.setattr(kernel_search, "solve", pytest.fail)
    assert run(out) == first == json.loads(out.read_text())


def test_other_draws_are_another_run(tmp_path, monkeypatch):
    out = tmp_path / "results.json"
    monkeypatch.setattr(kernel_search, "PROBLEMS", (QUICK,))
    first = run(out, only=["a line"])
    second = run(out, only=["a line"], shift=4)
    assert first["problems"]["a line"]["seed"] == 3
    assert second["problems"]["a line"]["seed"] == 7


def test_the_truth_is_scored_from_its_own_values():
    x, y = QUICK.draw()
    score = kernel_search.score_of_truth(QUICK, x, y, "bic")
    searched = kernel_search.solve(QUICK)
    assert searched["score_of_truth"] == score
    assert searched["found"]
    assert score == pytest.approx(searched["score"], abs=0.1)


def test_carbon_dioxide_compares_evidence(monkeypatch):
    x = np.linspace(1960, 1964, 40)[:, None]
    y = 300 + x[:, 0] - 1960 + np.sin(2 * np.pi * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    monkeypatch.setattr(kernel_search, "lecture_data", lambda: (x, y))
    monkeypatch.setattr(kernel_search, "DEPTH", 1)
    found = carbon_dioxide()
    assert json.loads(json.dumps(found)) == found
    assert found["rows"] == 40
    assert found["lecture"] == "rbf + rbf*periodic + rq + rbf"
    lecture = found["lecture_evidence"]
    # eleven numbers of the lecture's kernel are learned, the noise and a constant, from 40 rows
    assert lecture["bic"] == pytest.approx(lecture["log_likelihood"] - 6.5 * np.log(40), abs=0.5)
    monkeypatch.setattr(kernel_search, "DEPTH", 0)
    given = iter([{"bic": 2.0, "laplace": 1.0}, {"bic": 1.0, "laplace": 1.5}])
    monkeypatch.setattr(kernel_search, "evidences", lambda *_: next(given))
    assert carbon_dioxide()["reached"] == {"bic": True, "laplace": False}


def test_starts_are_in_units_of_the_search():
    """A line of slope 3 about 2, for inputs of deviation 5 and targets of deviation 4."""
    x, y = np.array([[-5.0], [5.0]]) + 1, np.array([-4.0, 4.0])
    hypothesis = Hypothesis(parse_expression("linear(variance=9, centre=2)"), (), 0.16)
    own, *others = kernel_search.starts_of(hypothesis, Scaling.of(x, ["linear"]), x, y)
    values = dict(own.expression.parts[0].values)  # pyright: ignore
    assert values["centre"] == pytest.approx([0.2])
    assert values["variance"][0] * own.expression.factor == pytest.approx(9 * 25 / 16)  # pyright: ignore
    assert own.noise == pytest.approx(0.01)
    assert len(others) == 3
