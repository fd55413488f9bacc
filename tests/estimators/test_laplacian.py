"""LaplacianSVC against InvariantSVC with the differences of the same graph, and against fᵀLf by hand."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

from orbitwise.estimators.laplacian import LaplacianSVC
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Difference, Evaluation
from orbitwise.functionals.graphs import neighbour_graph
from orbitwise.inference.optimise.cost import dense_cost
from tests.contracts.estimator_contract import assert_follows_scikit_learn

RNG = np.random.default_rng(0)
X, MORE, NEW = RNG.normal(size=(16, 2)), RNG.normal(size=(20, 2)), RNG.normal(size=(15, 2))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=16) > 0, "up", "down")
BOTH = torch.from_numpy(np.unique(np.r_[X, MORE], axis=0))


def test_follows_scikit_learn():
    assert_follows_scikit_learn(LaplacianSVC(Cs=(0.1, 10.0), strengths=(1e-3, 1e-1), neighbours=(3, 6)))


@pytest.mark.parametrize("weighting", ["heat", "binary"])
@pytest.mark.parametrize("loss", ["squared_hinge", "logistic", "squared"])
def test_an_unnormalised_graph_is_that_of_differences(weighting: Any, loss: str):
    graph = neighbour_graph(BOTH, 4, weighting)
    differences = [(Difference(), graph.pairs.numpy(), graph.weights.numpy())]
    settings: dict[str, Any] = {"C": 5.0, "strength": 0.7, "loss": loss, "bandwidth": 0.9}
    expected = InvariantSVC(invariance=differences, **settings).fit(X, Y, MORE)
    model = LaplacianSVC(num_neighbours=4, weighting=weighting, normalized=False, **settings).fit(X, Y, MORE)
    np.testing.assert_allclose(
        model.decision_function(NEW), expected.decision_function(NEW), rtol=0, atol=1e-6
    )
    assert model.num_neighbours_ == 4


def test_a_graph_by_name_is_the_binary_one_of_six_neighbours():
    named = InvariantSVC(invariance="graph", C=10.0, strength=0.1, loss="squared_hinge").fit(X, Y, MORE)
    settings: dict[str, Any] = {"C": 10.0, "strength": 0.1, "bandwidth": "median"}
    model = LaplacianSVC(weighting="binary", normalized=False, **settings).fit(X, Y, MORE)
    np.testing.assert_allclose(model.decision_function(NEW), named.decision_function(NEW), rtol=0, atol=1e-6)


@pytest.mark.parametrize("normalized", [False, True])
def test_the_risk_is_the_one_that_is_said(normalized: bool):
    """½|f|² + C Σ ℓ + ν fᵀLf of the machine is what the solver certifies, and is least."""
    model = LaplacianSVC(C=5.0, strength=0.7, normalized=normalized, basis="none").fit(X, Y, MORE)
    laplacian = neighbour_graph(BOTH, 6, "heat").laplacian().to_dense()
    if normalized:
        root = laplacian.diagonal().rsqrt()
        laplacian = root[:, None] * laplacian * root
    machine = model.machine_
    gram = machine.process.covariance(machine.rows).detach()
    signs = torch.from_numpy(np.where(Y == "up", 1.0, -1.0))

    def risk(alpha: torch.Tensor) -> float:
        machine.coefficients = alpha
        f = machine.values(Evaluation(), BOTH)[:, 0]
        labels = machine.values(Evaluation(), torch.from_numpy(X))[:, 0]
        loss = (1 - signs * labels).relu().square().sum()
        return (0.5 * (alpha * (gram @ alpha)).sum() + 5 * loss + 0.7 * f @ laplacian @ f).item()

    alpha = machine.coefficients
    least = risk(alpha)
    assert least == pytest.approx(model.objective_[0], rel=1e-6)
    for seed in range(5):
        move = torch.randn(alpha.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert risk(alpha + 1e-2 * move) > least
        assert risk(alpha - 1e-2 * move) > least


def test_the_graph_of_unlabelled_points_finds_two_moons():
    x, y = make_moons(120, noise=0.06, random_state=0)
    labelled = np.concatenate([np.flatnonzero(y == each)[:2] for each in (0, 1)])
    others = np.setdiff1d(np.arange(120), labelled)
    alone = LaplacianSVC(strength=0.0, bandwidth=0.3).fit(x[labelled], y[labelled])
    model = LaplacianSVC(C=100.0, strength=100.0, bandwidth=0.3).fit(x[labelled], y[labelled], x[others])
    assert model.score(x[others], y[others]) > alone.score(x[others], y[others])
    assert model.score(x[others], y[others]) > 0.97


def test_cross_validation_chooses_the_number_of_neighbours():
    x, y = make_moons(80, noise=0.1, random_state=0)
    settings: dict[str, Any] = {"strength": "cross_validation", "Cs": [1.0, 10.0], "strengths": [0.1, 10.0]}
    first, second = (
        LaplacianSVC(neighbours=(2, 5), random_state=1, **settings).fit(x[:20], y[:20], x[20:]) for _ in "ab"
    )
    assert first.num_neighbours_ in (2, 5)
    assert (first.C_, first.strength_) in [(c, s) for c in (1.0, 10.0) for s in (0.1, 10.0)]
    assert 0 <= first.cv_error_ <= 0.5
    np.testing.assert_array_equal(first.decision_function(x), second.decision_function(x))


def test_the_evidence_chooses_too():
    x, y = make_moons(80, noise=0.06, random_state=0)
    labelled = np.concatenate([np.flatnonzero(y == each)[:5] for each in (0, 1)])
    model = LaplacianSVC(
        loss="logistic", strength="evidence", bandwidth=0.4, Cs=[1.0, 1000.0], strengths=[0.0, 1.0]
    )
    model.fit(x[labelled], y[labelled], x)
    assert (model.C_, model.evidence_kind_) == (1000.0, "expectation propagation")
    assert model.strength_ > 0
    assert model.score(x, y) > 0.95


def test_unlabelled_rows_beside_and_among_the_labelled():
    beside = LaplacianSVC(random_state=0).fit(X, Y, MORE).predict_proba(NEW)
    model = LaplacianSVC(random_state=0, unlabeled_label="?").fit(np.r_[MORE, X], np.r_[["?"] * 20, Y])
    np.testing.assert_array_equal(model.predict_proba(NEW), beside)


def test_a_point_that_comes_twice_is_one_point_of_the_graph():
    once = LaplacianSVC(random_state=0).fit(X, Y, MORE).decision_function(NEW)
    twice = LaplacianSVC(random_state=0).fit(X, Y, np.r_[MORE, MORE, X]).decision_function(NEW)
    np.testing.assert_array_equal(twice, once)


def test_fewer_points_than_neighbours_and_a_single_point():
    model = LaplacianSVC(num_neighbours=50).fit(X, Y)
    assert np.isfinite(model.decision_function(NEW)).all()
    with pytest.warns(UserWarning, match="predicts class 0 for all training rows"):
        same = LaplacianSVC().fit(np.ones((4, 2)), [0, 0, 1, 1])
    assert np.isfinite(same.predict_proba(NEW)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_neighbours": 0}, "num_neighbours must be a whole number of at least 1, not 0"),
        ({"num_neighbours": 2.5}, "num_neighbours must be a whole number of at least 1, not 2.5"),
        ({"neighbours": (3, -1)}, "Numbers of neighbours must be whole and at least 1, not -1"),
        ({"weighting": "cosine"}, "weighting must be 'binary' or 'heat', not 'cosine'"),
        ({"C": 0}, "C must be positive and finite"),
        ({"strength": -1}, "strength must be finite and at least 0"),
        ({"loss": "epsilon_insensitive"}, "loss must be a loss of labels"),
        ({"strength": "evidence"}, "loss='logistic' or 'squared'"),
    ],
)
def test_bad_settings_get_a_clear_error(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LaplacianSVC().set_params(**settings).fit(X, Y, MORE)


def test_the_cost_of_a_graph_is_said_before_it_is_decomposed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orbitwise.inference.optimise.cost.OPERATIONS_A_SECOND", 100.0)
    monkeypatch.setattr("orbitwise.inference.optimise.cost.machine_memory", lambda: 1e4)
    with pytest.raises(ValueError, match=r"graph of 36 points would take .*: pass fewer unlabelled rows"):
        LaplacianSVC().fit(X, Y, MORE)


@pytest.mark.parametrize("strength", [0.1, "cross_validation"])
def test_the_cost_of_a_graph_is_said_once(strength: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orbitwise.inference.optimise.cost.OPERATIONS_A_SECOND", 100.0)
    with warnings.catch_warnings(record=True, action="always") as said:
        LaplacianSVC(strength=strength, neighbours=(3, 6)).fit(X, Y, MORE)
    (message,) = (str(each.message) for each in said)
    operations = dense_cost(36, 16).operations * (1 if strength == 0.1 else 2)
    assert f"LaplacianSVC.fit with the graph of 36 points will take about {operations:.0e}" in message
    assert ("fewer numbers of neighbours" in message) == (strength != 0.1)
    assert "invariance=" not in message


def test_one_class_for_all_is_warned_of():
    unequal = np.where(np.arange(16) == 3, "up", "down")
    with pytest.warns(UserWarning, match=r"LaplacianSVC predicts class down for all 36 training rows"):
        LaplacianSVC(C=1e-3, strength=0.1, basis="bias").fit(X, unequal, MORE)


def test_the_default_does_not_depend_on_a_seed_or_the_order_of_rows():
    x, y = make_moons(120, noise=0.1, random_state=0)
    models = [LaplacianSVC(random_state=seed).fit(x[:20], y[:20], x[20:]) for seed in (0, 1)]
    models.append(LaplacianSVC().fit(x[19::-1], y[19::-1], x[:19:-1]))
    for model in models[1:]:
        np.testing.assert_allclose(
            model.decision_function(x), models[0].decision_function(x), rtol=0, atol=1e-9
        )
    assert models[0].score(x[20:], y[20:]) > 0.95
    assert 0 < models[0].left_out_loss_ < 0.3


def test_labels_of_chance_take_what_is_usual_and_clear_ones_what_they_show():
    x = RNG.normal(size=(60, 5))
    chance = LaplacianSVC().fit(x[:6], [0, 1] * 3, x)
    assert chance.strength_ == 1.0
    # stripes that are narrower than the distance of neighbours: smoothness is wrong, and labels say so
    line = np.linspace(0, 1, 160)[:, None]
    model = LaplacianSVC(bandwidth=0.01).fit(line, np.arange(160) // 3 % 2)
    assert model.strength_ < 1.0


def test_given_values_are_the_only_ones_to_choose_from():
    model = LaplacianSVC(C=3.0, strengths=[0.2, 5.0], bandwidth=0.5).fit(X, Y, MORE)
    assert (model.C_, model.bandwidth_) == (3.0, 0.5)
    assert model.strength_ in (0.2, 5.0)
    assert LaplacianSVC(Cs=[0.3, 3.0]).fit(X, Y, MORE).C_ in (0.3, 3.0)
    fixed = LaplacianSVC(strength=0.7).fit(X, Y, MORE)
    assert (fixed.C_, fixed.strength_) == (10.0, 0.7)
    assert not hasattr(fixed, "left_out_loss_")


def test_the_bandwidth_is_that_of_neighbours_at_most_the_median_distance():
    distances = np.sort(np.linalg.norm(BOTH[:, None] - BOTH[None], axis=-1), axis=1)
    near, median = np.sort(distances[:, 6])[17], np.median(distances[np.triu_indices(36, 1)])
    found = LaplacianSVC(strength=1.0).fit(X, Y, MORE).bandwidth_
    assert found == pytest.approx(near, rel=1e-12)
    assert found < median
    far = LaplacianSVC(strength=1.0, num_neighbours=34).fit(X, Y, MORE).bandwidth_
    assert far == pytest.approx(LaplacianSVC(strength=1.0, bandwidth="median").fit(X, Y, MORE).bandwidth_)
