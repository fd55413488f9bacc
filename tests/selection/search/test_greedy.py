"""The search itself, on small problems with short fits."""

from dataclasses import replace

import numpy as np
import pytest
from joblib import parallel_config

from orbitwise.kernels.spelling import Term
from orbitwise.selection.search.greedy import Effort, HypothesisModel, Search, SearchData, silent
from orbitwise.selection.search.hypotheses import Hypothesis, base_terms, claims_of

RANDOM = np.random.default_rng(5)
X = RANDOM.uniform(-1.7, 1.7, (40, 1))
Y = 2 * X[:, 0] + np.sin(9 * X[:, 0]) + 0.1 * RANDOM.standard_normal(40)
QUICK = Effort(max_depth=1, screen_iterations=10, max_iterations=40, num_promising=2, num_restarts=1)


def search(problem: SearchData, effort: Effort = QUICK, claims=None, report=silent) -> Search:
    return Search(problem, base_terms(["periodic", "linear"], 1), claims_of(claims, 1), effort, report)


def test_it_finds_a_line_and_a_cycle_and_remembers_what_it_tried():
    said: list[str] = []
    one = search(SearchData(X, Y), report=said.append)
    best = one.run()
    assert str(best.hypothesis) in ("linear + periodic", "periodic + linear")
    assert best.score == max(row["score"] for row in one.history)
    assert {row["stage"] for row in one.history} == {"screened", "fitted"}
    assert len(said) == len(one.history)
    assert "best" in said[-1]
    again = search(SearchData(X, Y)).run()
    assert again.score == best.score


def test_several_at_a_time_find_the_same():
    best = search(SearchData(X[:20], Y[:20])).run()
    with parallel_config("threading"):
        other = search(SearchData(X[:20], Y[:20]), replace(QUICK, n_jobs=2)).run()
    assert str(other.hypothesis) == str(best.hypothesis)
    assert other.score == pytest.approx(best.score, abs=1e-6)


def test_what_is_not_needed_is_taken_out():
    y = 2 * X[:, 0] + 0.1 * RANDOM.standard_normal(40)
    one = search(SearchData(X, y))
    line = one.run()
    assert str(line.hypothesis) == "linear"


def test_a_mirror_is_found():
    y = np.cos(3 * (X[:, 0] - 0.2)) * (X[:, 0] - 0.2) ** 2 + 0.02 * RANDOM.standard_normal(40)
    effort = Effort(max_depth=0, screen_iterations=10, max_iterations=40, num_restarts=1)
    one = Search(SearchData(X, y), base_terms(["rbf"], 1), claims_of("auto", 1), effort, silent)
    best = one.run()
    assert str(best.hypothesis) == "rbf | mirror[0]"
    assert best.hypothesis.claims[0].value == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("allowed", [20, 150])
def test_the_best_so_far_is_taken_when_time_is_up(allowed, monkeypatch):
    """A second passes with every evaluation of a likelihood."""
    seconds = 0.0
    compute = HypothesisModel.log_likelihood

    def slow(self):
        nonlocal seconds
        seconds += 1
        return compute(self)

    monkeypatch.setattr(HypothesisModel, "log_likelihood", slow)
    one = search(
        SearchData(X, Y, deadline=allowed, clock=lambda: seconds), Effort(max_depth=50, num_restarts=1)
    )
    best = one.run()
    assert np.isfinite(best.score)
    assert best.score == max(row["score"] for row in one.history if row["structure"] == str(best.hypothesis))
    assert allowed <= seconds <= allowed + 2, "the one that was running, and its score"
    with pytest.raises(TimeoutError, match="allow more time"):
        search(SearchData(X, Y, deadline=0.0)).run()


def test_rows_are_all_or_a_sorted_sample():
    x = np.arange(100.0)[:, None]
    data = SearchData(x, x[:, 0])
    assert data.some_rows(100) is data
    some = data.some_rows(10)
    assert len(set(some.y)) == 10
    assert (np.diff(some.y) > 0).all()
    assert (some.x[:, 0] == some.y).all()
    assert (some.y == data.some_rows(10).y).all()


def test_no_starts_are_made_when_time_is_up():
    one = search(SearchData(X, Y, deadline=0.0))

    def never() -> list[Hypothesis]:
        raise AssertionError

    assert one._advance([(Hypothesis(Term("linear")), never)], None) is None


def test_a_seed_draws_only_the_starts_beyond_two():
    few, many = ([Effort(num_restarts=count, seed=seed).seeds() for seed in (1, 2)] for count in (2, 4))
    assert few[0] == few[1]
    assert few[0][0] is None
    assert many[0][:2] == many[1][:2] == few[0]
    assert set(many[0][2:]).isdisjoint(many[1][2:])
    assert Effort(num_restarts=0).seeds() == []
