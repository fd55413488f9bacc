"""InvariantSVC against independent solvers, the joint machine and a Gaussian process."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from orbitwise.estimators.machines import task as module
from orbitwise.estimators.machines.task import MachineTask
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Evaluation, Gradient
from orbitwise.functionals.functional import Block
from orbitwise.inference.calibration import best_scale, two_columns
from orbitwise.inference.exact import condition
from orbitwise.inference.risk import DenseGram, Problem, Term, newton
from orbitwise.inference.risk.machines import Machine, basis_rows
from orbitwise.losses import EpsilonInsensitive, Hinge, Logistic, Loss, Squared, SquaredHinge
from orbitwise.process import Process
from tests.contracts.estimator_contract import assert_follows_scikit_learn

RNG = np.random.default_rng(0)
X, MORE, NEW = RNG.normal(size=(24, 2)), RNG.normal(size=(10, 2)), RNG.normal(size=(15, 2))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=24) > 0, 1, -1)
THREE = np.array(["ash", "elm", "oak"])[np.digitize(X[:, 0], [-0.4, 0.5])]


def moons(num_labels: int = 4) -> tuple[np.ndarray, ...]:
    """Few labels of two moons, the unlabelled points, and their classes."""
    x, y = make_moons(120, noise=0.06, random_state=0)
    draw = np.random.default_rng(1)
    labelled = np.concatenate([draw.choice(np.flatnonzero(y == c), num_labels, False) for c in (0, 1)])
    others = np.setdiff1d(np.arange(120), labelled)
    return x[labelled], y[labelled], x[others], y[others]


def test_follows_scikit_learn():
    assert_follows_scikit_learn(InvariantSVC(invariance="negation", Cs=(1.0, 10.0), strengths=(0.01, 1.0)))


def process_of(width: float) -> Process:
    kernel = RBFKernel().double()
    kernel.lengthscale = width
    return Process(None, kernel.requires_grad_(False))


def joint_machine(loss: Loss, other: Loss, basis: str, C: float, strength: float) -> Machine:
    """The machine over labels and slopes as rows, built by hand."""
    process, x, points = process_of(0.8), torch.from_numpy(X), torch.from_numpy(np.concatenate([X, MORE]))
    rows: list[Block] = [Evaluation().atoms(x), Gradient().atoms(points).scale(0.8)]
    count = 2 * len(points)
    terms = [
        Term(loss, torch.from_numpy(Y).double(), torch.full((24,), C).double()),
        Term(other, torch.zeros(count).double(), torch.full((count,), strength).double()),
    ]
    functions = basis_rows(rows, basis)
    found = newton(Problem(DenseGram(process.covariance(rows)), terms, functions), tolerance=1e-12)
    return Machine(process, rows, found.coefficients[:, None], found.beta[:, None], basis)


@pytest.mark.parametrize(
    ("loss", "basis"),
    [
        *((Logistic(), basis) for basis in ("none", "bias", "linear")),
        *((Hinge(0.2), "bias"), (SquaredHinge(), "linear"), (Squared(), "none")),
    ],
)
def test_folded_invariances_are_those_of_the_joint_machine(loss: Loss, basis: str):
    expected = joint_machine(loss, Squared(), basis, 3.0, 0.2).values(Evaluation(), torch.from_numpy(NEW))
    model = InvariantSVC(C=3.0, strength=0.2, loss=loss, bandwidth=0.8, basis=basis).fit(X, Y, MORE)
    np.testing.assert_allclose(model.decision_function(NEW), expected[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", ["auto", "lbfgs", "newton_cg"])
@pytest.mark.parametrize("other", ["absolute", EpsilonInsensitive(0.2)])
def test_other_losses_of_the_invariances_make_rows_of_them(other: Any, solver: str):
    loss = EpsilonInsensitive(0.0) if other == "absolute" else other
    expected = joint_machine(Logistic(), loss, "bias", 3.0, 0.2).values(Evaluation(), torch.from_numpy(NEW))
    settings: dict[str, Any] = {"C": 3.0, "strength": 0.2, "bandwidth": 0.8, "basis": "bias"}
    model = InvariantSVC(**settings, invariance_loss=other, solver=solver)
    found = model.fit(X, Y, MORE).decision_function(NEW)
    np.testing.assert_allclose(found, expected[:, 0], rtol=0, atol=2e-3 if solver == "auto" else 0.02)


def test_squared_losses_are_the_posterior_mean_of_a_gaussian_process():
    model = InvariantSVC(C=3.0, strength=0.2, loss="squared", bandwidth=0.8, basis="none").fit(X, Y, MORE)
    rows = [
        Evaluation().atoms(torch.from_numpy(X)),
        Gradient().atoms(torch.from_numpy(np.r_[X, MORE])).scale(0.8),
    ]
    targets = torch.cat([torch.from_numpy(Y).double(), torch.zeros(68).double()])[:, None]
    noise = torch.cat([torch.full((24,), 1 / 6.0), torch.full((68,), 1 / 0.4)]).double()
    posterior = condition(process_of(0.8), rows, targets, noise)
    expected = posterior.moments(Evaluation(), torch.from_numpy(NEW)).mean[:, 0]
    np.testing.assert_allclose(model.decision_function(NEW), expected, rtol=0, atol=1e-6)


def features(width: float) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's Cholesky factor, and coordinates of new points on its axes."""
    process = process_of(width)
    points, new = (Evaluation().atoms(torch.from_numpy(each)) for each in (X, NEW))
    factor = torch.linalg.cholesky(process.covariance(points))
    other = torch.linalg.solve_triangular(factor, process.covariance(points, new), upper=False)
    return factor.numpy(), other.mT.numpy()


@pytest.mark.parametrize("invariance", [None, "gradient"])
def test_without_invariances_it_is_liblinear_on_the_cholesky_factor(invariance: str | None):
    factor, new = features(0.5)
    known = LinearSVC(C=2.0, loss="squared_hinge", fit_intercept=False, tol=1e-10, max_iter=1_000_000)
    expected = known.fit(factor, Y).decision_function(new)
    model = InvariantSVC(
        invariance=invariance, C=2.0, strength=0.0, loss="squared_hinge", bandwidth=0.5, basis="none"
    ).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(NEW), expected, rtol=0, atol=1e-6)


def test_the_multinomial_machine_is_logistic_regression_on_the_cholesky_factor():
    factor, new = features(0.5)
    known = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(factor, THREE)
    model = InvariantSVC(
        invariance=None, C=2.0, bandwidth=0.5, basis="none", multi_class="multinomial"
    ).fit(X, THREE)  # fmt: skip
    assert list(model.classes_) == list(known.classes_)
    np.testing.assert_allclose(model.decision_function(NEW), known.decision_function(new), atol=2e-4)
    np.testing.assert_allclose(model.predict_proba(NEW), known.predict_proba(new), atol=1e-4)


def test_the_multinomial_machine_folds_its_invariances():
    """Its risk is the least: steps away from it along rows of any kind cost."""
    settings: dict[str, Any] = {"multi_class": "multinomial", "C": 1.0, "strength": 0.3, "bandwidth": 0.8}
    model = InvariantSVC(**settings).fit(X, THREE, MORE)
    rows = InvariantSVC(**settings, invariance_loss=Squared(), solver="lbfgs").fit(X, THREE, MORE)
    assert model.decision_function(NEW).shape == (15, 3)
    np.testing.assert_allclose(model.decision_function(NEW), rows.decision_function(NEW), atol=1e-4)
    scores = model.machine_.values(Evaluation(), torch.from_numpy(X))
    slopes = 0.8 * model.machine_.values(Gradient(), torch.from_numpy(np.r_[X, MORE]))
    gram = model.machine_.process.covariance(model.machine_.rows).detach()
    alpha = model.machine_.coefficients
    codes = torch.from_numpy(np.unique(THREE, return_inverse=True)[1])
    risk = 0.5 * (alpha * (gram @ alpha)).sum() + 0.3 * slopes.square().sum()
    risk = risk + torch.nn.functional.cross_entropy(scores, codes, reduction="sum")
    assert risk.item() == pytest.approx(model.objective_[0], rel=1e-8)


def test_large_problems_are_searched_and_agree(monkeypatch: pytest.MonkeyPatch):
    settings: dict[str, Any] = {"C": 3.0, "strength": 0.2, "bandwidth": 0.8}
    dense = InvariantSVC(**settings).fit(X, Y, MORE).decision_function(NEW)
    other = InvariantSVC(**settings, invariance_loss="absolute").fit(X, Y, MORE).decision_function(NEW)
    monkeypatch.setattr(module, "LARGEST_DENSE", 10)
    found = InvariantSVC(**settings).fit(X, Y, MORE).decision_function(NEW)
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-4)
    monkeypatch.setattr("orbitwise.inference.risk.machines.gram_of.__defaults__", (10,))
    found = InvariantSVC(**settings, invariance_loss="absolute").fit(X, Y, MORE).decision_function(NEW)
    np.testing.assert_allclose(found, other, rtol=0, atol=0.02)


@pytest.mark.parametrize("settings", [{}, {"loss": "hinge"}, {"multi_class": "multinomial"}])
@pytest.mark.parametrize("labels", [Y, THREE], ids=["two", "three"])
def test_probabilities_add_up_and_agree_with_the_classes(settings: dict[str, Any], labels: np.ndarray):
    model = InvariantSVC(**settings).fit(X, labels)
    chances = model.predict_proba(NEW)
    assert chances.shape == (15, len(np.unique(labels)))
    np.testing.assert_allclose(chances.sum(1), 1, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model.classes_[chances.argmax(1)], model.predict(NEW))
    assert model.decision_function(NEW).dtype == chances.dtype == np.float64


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_probabilities_have_the_scale_of_held_out_labels(rate: float):
    """The scales of decisions differ by ten, those of probabilities do not."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(900, 2))
    y = draw.random(900) < 1 / (1 + np.exp(-2 * x[:, 0]))
    model = InvariantSVC(C=rate, strength=0.1, loss="squared_hinge", random_state=0).fit(x[:200], y[:200])
    scores = model.decision_function(x[200:])[:, None]
    ideal = best_scale(two_columns(torch.from_numpy(scores)), torch.from_numpy(y[200:].astype(int)))
    assert 0.5 < model.scale_ / ideal < 2
    expected = 1 / (1 + np.exp(-2 * model.scale_ * scores[:, 0]))
    np.testing.assert_allclose(model.predict_proba(x[200:])[:, 1], expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"strength": "evidence", "bandwidth": 0.3, "strengths": [0.0, 0.01, 1.0], "Cs": [1.0, 30.0, 1000.0]},
        {"strength": "evidence", "loss": "squared", "strengths": [0.0, 1.0]},
        {"strength": "cross_validation", "bandwidth": 0.3, "num_folds": 3, "strengths": [0.0, 0.01, 1.0]},
    ],
    ids=["logistic", "exact", "folds"],
)
def test_strengths_are_chosen_sensibly_on_two_moons(settings: dict[str, Any]):
    x, y, others, classes = moons()
    first, second = (InvariantSVC(**settings, random_state=5).fit(x, y, others) for _ in range(2))
    plain = InvariantSVC(strength=0.0, C=first.C_, bandwidth=first.bandwidth_).fit(x, y)
    assert first.strength_ > 0
    assert first.score(others, classes) >= max(0.95, plain.score(others, classes))
    np.testing.assert_array_equal(first.decision_function(others), second.decision_function(others))
    assert hasattr(first, "log_evidence_") == (settings["strength"] == "evidence")
    assert hasattr(first, "cv_error_") == (settings["strength"] == "cross_validation")


def test_a_choice_that_was_made_before_is_forgotten():
    x, y, others, _ = moons()
    model = InvariantSVC(strength="evidence", Cs=[1.0], strengths=[0.1], bandwidth=0.3).fit(x, y, others)
    model.set_params(strength=0.1).fit(x, y, others)
    assert not hasattr(model, "log_evidence_")


def test_a_fitted_model_can_be_pickled():
    model = InvariantSVC().fit(X, THREE)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict_proba(NEW), model.predict_proba(NEW))


def test_certificates_are_small():
    model = InvariantSVC(loss="hinge").fit(X, THREE, MORE)
    assert model.objective_.shape == model.gap_.shape == model.n_iter_.shape == (3,)
    assert (model.gap_ <= 1e-6 * model.objective_).all()


def test_more_features_than_points_cost_the_rows_of_the_points_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    """Slopes across the span of the points have no covariance with anything there."""
    draw = np.random.default_rng(0)
    x, more, new = (draw.normal(size=(count, 14)) for count in (9, 4, 5))
    y = np.arange(9) % 2
    for settings in ({}, {"strength": 0.3}, {"invariance": Gradient(), "loss": "hinge"}):
        few = InvariantSVC(**settings).fit(x, y, more)
        assert len(few.machine_.coefficients) == 9 + 13 * 12
        with monkeypatch.context() as patch:
            patch.setattr("orbitwise.estimators.machines.machine.is_isotropic", lambda kernel: False)
            all_slopes = InvariantSVC(**settings).fit(x, y, more)
        assert len(all_slopes.machine_.coefficients) == 9 + 13 * 14
        expected = all_slopes.decision_function(new)
        np.testing.assert_allclose(few.decision_function(new), expected, rtol=0, atol=1e-6)
    # none of these is a penalty of the length of the gradient alone
    kernel = RBFKernel(ard_num_dims=14)
    for settings in ({"invariance_loss": "absolute"}, {"basis": "linear"}, {"kernel": kernel}):
        model = InvariantSVC(**settings).fit(x, y, more)
        assert len(model.machine_.coefficients) == 9 + 13 * 14


def test_few_points_in_thousands_of_dimensions_are_a_small_problem():
    draw = np.random.default_rng(0)
    model = InvariantSVC().fit(draw.normal(size=(12, 3000)), np.arange(12) % 2)
    assert len(model.machine_.coefficients) == 12 + 12 * 11


def test_the_cost_is_said_before_the_work_begins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orbitwise.inference.optimise.cost.OPERATIONS_A_SECOND", 100.0)
    monkeypatch.setattr(MachineTask, "fit", lambda *given: pytest.fail("the work has begun"))
    with (
        pytest.warns(
            UserWarning,
            match=r"InvariantSVC.fit with 68 rows .* at 34 points .* To make it cheaper, pass fewer "
            r"unlabelled rows, reduce the features \(PCA\), or use invariance='graph'\.$",
        ),
        pytest.raises(pytest.fail.Exception),
    ):
        InvariantSVC().fit(X, Y, MORE)
    monkeypatch.setattr("orbitwise.inference.optimise.cost.machine_memory", lambda: 1e4)
    with pytest.raises(ValueError, match=r"would take about .* of memory, and this machine has"):
        InvariantSVC().fit(X, Y, MORE)


def test_a_graph_is_no_advice_to_who_has_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orbitwise.inference.optimise.cost.OPERATIONS_A_SECOND", 100.0)
    with pytest.warns(UserWarning, match=r"pass fewer unlabelled rows, or reduce the features \(PCA\)\.$"):
        InvariantSVC(invariance="graph").fit(X, Y, MORE)


def test_a_fit_of_a_minute_is_announced(monkeypatch: pytest.MonkeyPatch):
    """150 rows of 30 features: 4,500 slopes, about a minute on one core."""
    monkeypatch.setattr(MachineTask, "fit", lambda *given: pytest.fail("the work has begun"))
    x = np.random.default_rng(0).normal(size=(150, 30))
    with (
        pytest.warns(UserWarning, match=r"InvariantSVC.fit with 4,500 rows .*\(55 seconds on one core\)"),
        pytest.raises(pytest.fail.Exception),
    ):
        InvariantSVC(functions="all", strength=1.0).fit(x, np.arange(150) % 2)


@pytest.mark.parametrize("labels", [Y, THREE], ids=["two", "three"])
def test_one_class_for_all_is_warned_of(labels: np.ndarray):
    unequal = labels.copy()
    unequal[labels != labels[0]] = labels[0]
    for place, label in enumerate(np.unique(labels)[np.unique(labels) != labels[0]]):
        unequal[place + 1] = label
    with pytest.warns(
        UserWarning, match=r"predicts class .* for all 34 training rows, although .*class_weight='balanced'"
    ):
        InvariantSVC(C=1e-3, strength=10.0).fit(X, unequal, MORE)


@pytest.mark.parametrize("strength", ["evidence", "cross_validation"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_choices_that_say_one_class_for_all_are_passed_over(strength: str, loss: str):
    """Labels of chance and unequal classes: the best guess is the larger class, and no answer."""
    draw = np.random.default_rng(4)
    x, more = draw.normal(size=(10, 20)), draw.normal(size=(40, 20))
    y = (np.arange(10) < 3).astype(int)
    settings: dict[str, Any] = {
        "loss": loss,
        "random_state": 0,
        "bandwidth": 5.0,
        "strengths": [0.0, 0.1, 10.0],
        "basis": "bias",
    }
    model = InvariantSVC(strength=strength, **settings).fit(x, y, more)
    assert len(np.unique(model.predict(more))) == 2


def test_many_slopes_are_kept_small_among_combinations_of_the_points():
    """150 rows of 30 features, 4,500 slopes: hardly another answer than among all functions, and sooner."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 30))
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int)
    settings: dict[str, Any] = {"strength": 0.001, "random_state": 0}
    model = InvariantSVC(**settings).fit(x[:60], y[:60], x[60:])
    (block,) = model.machine_.rows
    assert block.num_rows == 150
    exact = InvariantSVC(**settings, functions="all", invariance=[(Gradient(), x[:60])])
    exact.fit(x[:60], y[:60])
    fewer = InvariantSVC(**settings, functions="points", invariance=[(Gradient(), x[:60])])
    fewer.fit(x[:60], y[:60], x[60:])
    assert np.corrcoef(exact.decision_function(x), fewer.decision_function(x))[0, 1] > 0.99
    assert fewer.objective_[0] >= exact.objective_[0] - 1e-6


def test_the_default_strength_is_chosen_without_random_numbers():
    x, y, others, classes = moons()
    models = [InvariantSVC(random_state=seed).fit(x, y, others) for seed in (0, 1)]
    np.testing.assert_array_equal(*(model.decision_function(others) for model in models))
    model = models[0]
    assert model.score(others, classes) > 0.85
    assert model.left_out_loss_ < math.log(2)
    fixed = InvariantSVC(multi_class="multinomial").fit(X, THREE)
    assert (fixed.C_, fixed.strength_) == (100.0, 0.001)
    assert not hasattr(fixed, "left_out_loss_")
    losses = InvariantSVC(invariance_loss="absolute").fit(X, Y)
    assert (losses.C_, losses.strength_) == (100.0, 0.001)
