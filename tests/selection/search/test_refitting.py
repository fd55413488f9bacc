"""The winner, fitted by the regressor from where the search left it."""

import numpy as np
import pytest

from orbitwise import InvariantGPRegressor
from orbitwise.estimators import engines
from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.auto import refitted
from orbitwise.selection.search.greedy import Effort, Search, SearchData, silent
from orbitwise.selection.search.hypotheses import Claim, Hypothesis, base_terms

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANDOM = np.random.default_rng(2)
X = RANDOM.uniform(0, 4, (35, 1))
Y = np.cos(2 * (X[:, 0] - 1.5)) + 0.05 * RANDOM.standard_normal(35)


def test_it_goes_on_from_the_values_and_the_noise_of_the_search():
    start = Hypothesis(parse_expression("rbf(lengthscale=1)"), (Claim("mirror", (0,), 1.4),), 0.003)
    estimator, claims, is_cut_short = refitted(start, X, Y)
    assert not is_cut_short
    assert (claims[0].kind, claims[0].columns) == ("mirror", (0,))
    assert claims[0].value == pytest.approx(1.5, abs=0.05)
    assert estimator.noise_ == pytest.approx(0.05**2, rel=0.6)
    left, right = estimator.predict(np.array([[claims[0].value - 1], [claims[0].value + 1]]))
    assert left == pytest.approx(right, abs=1e-8)


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_the_last_fit_ends_when_time_is_up(asked):
    start = Hypothesis(parse_expression("rbf(lengthscale=5)"), (), 0.5)
    questions = 0

    def is_over() -> bool:
        nonlocal questions
        questions += 1
        return questions > asked

    estimator, _, is_cut_short = refitted(start, X, Y, is_over)
    assert is_cut_short
    assert questions == asked + 1, "nothing goes on after that"
    assert not estimator.converged_
    assert len(estimator.history_) == asked
    assert np.isfinite(estimator.predict(X)).all()
    assert estimator.callback is None


def test_leading_structures_are_compared_on_all_rows():
    problem = SearchData(X[:15], Y[:15])
    effort = Effort(max_depth=0, screen_iterations=10, max_iterations=30, num_restarts=1)
    search = Search(problem, base_terms(["rbf", "linear"], 1), [], effort, silent)
    best = search.run()
    winner = search.finalist(best, SearchData(X, Y))
    assert str(winner.hypothesis) == "rbf"
    assert winner.score != best.score


def test_a_search_on_a_sample_goes_on_with_all_rows():
    y = X[:, 0] + 0.5 * np.sin(12 * X[:, 0]) + 0.05 * RANDOM.standard_normal(35)
    effort = Effort(max_depth=1, screen_iterations=10, max_iterations=30, num_restarts=1)
    search = Search(SearchData(X[:10], y[:10]), base_terms(["linear", "periodic"], 1), [], effort, silent)
    first = search.finalist(search.run(), SearchData(X, y))
    count = len(search.history)
    best = search.grown_on(SearchData(X, y), first)
    assert sorted(str(best.hypothesis).split(" + ")) == ["linear", "periodic"]
    assert best.score > first.score or str(first.hypothesis) == str(best.hypothesis)
    assert len(search.history) > count, "what was tried on all rows belongs to the history"


def test_sparse_engines_keep_the_learned_mean(monkeypatch):
    monkeypatch.setattr(engines, "EXACT_ROWS", 20)
    # a bump on a flat level: the mean of the targets is far above the level
    targets = 2 + 3 * np.exp(-2 * (X[:, 0] - 1.0) ** 2) + 0.02 * np.cos(40 * X[:, 0])
    start = Hypothesis(parse_expression("rbf(lengthscale=0.5)"), (), 0.01)
    estimator, _, _ = refitted(start, X, targets)
    assert estimator.inference_ == "collapsed"
    level = estimator.predict(np.array([[400.0]]))[0]
    assert abs(level - targets.mean()) > 0.2, "the level is learned"
    assert (
        estimator.log_evidence_
        > InvariantGPRegressor(
            estimator.kernel_, inference="collapsed", noise=estimator.noise_, max_iterations=0, random_state=0
        )
        .fit(X, targets)
        .log_evidence_
    )
