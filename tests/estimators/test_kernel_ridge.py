"""InvariantKernelRidge against Gaussian processes, scikit-learn, dense algebra and finite differences."""

from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import PolynomialKernel, RBFKernel, ScaleKernel
from scipy.stats import multivariate_normal
from sklearn.kernel_ridge import KernelRidge

from orbitwise.estimators.kernel_ridge import InvariantKernelRidge, robust_deviations
from orbitwise.estimators.machines.machine import BANDWIDTHS
from orbitwise.estimators.machines.task import median_distance
from orbitwise.functionals import Evaluation, Gradient, LocalAverage
from orbitwise.functionals.functional import Block
from orbitwise.inference.exact import condition
from orbitwise.losses import EpsilonInsensitive, Squared
from orbitwise.process import Process
from tests.contracts.estimator_contract import assert_follows_scikit_learn

RNG = np.random.default_rng(0)
X, MORE, NEW = RNG.normal(size=(20, 2)), RNG.normal(size=(8, 2)), RNG.normal(size=(15, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=20)
POINTS = np.concatenate([X, MORE])


def test_follows_scikit_learn():
    assert_follows_scikit_learn(InvariantKernelRidge(invariance="negation"))


def process_of(width: float) -> Process:
    kernel = RBFKernel().double()
    kernel.lengthscale = width
    return Process(None, kernel.requires_grad_(False))


def posterior_mean(
    functional: Any, weights: np.ndarray, targets: np.ndarray, C: float, strength: float
) -> np.ndarray:
    """That of a process which saw targets with noise 1/(2C), and L f = 0 with noise 1/(2 strength)."""
    x, points = torch.from_numpy(X), torch.from_numpy(POINTS)
    rows: list[Block] = [Evaluation().atoms(x), functional.atoms(points)]
    zeros = torch.zeros(rows[1].num_rows, targets.shape[1]).double()
    noise = torch.cat([torch.from_numpy(1 / (2 * C * weights)), (zeros[:, 0] + 1) / (2 * strength)])
    posterior = condition(process_of(0.8), rows, torch.cat([torch.from_numpy(targets), zeros]), noise)
    return posterior.moments(Evaluation(), torch.from_numpy(NEW)).mean.numpy()


@pytest.mark.parametrize("strength", [0.02, 1.0, 30.0])
@pytest.mark.parametrize("functional", [Gradient(), Gradient([1]), LocalAverage(0.4)])
def test_squared_losses_are_the_posterior_mean_of_a_gaussian_process(functional: Any, strength: float):
    weights = RNG.uniform(0.5, 2, size=20)
    expected = posterior_mean(functional, weights, Y[:, None], 3.0, strength)[:, 0]
    model = InvariantKernelRidge(
        invariance=functional, C=3.0, strength=strength, bandwidth=0.8, basis="none"
    ).fit(X, Y, MORE, sample_weight=weights)
    np.testing.assert_allclose(model.predict(NEW), expected, rtol=0, atol=1e-6)
    assert (model.gap_ <= 1e-6 * model.objective_).all()


def test_single_precision_learns_nearly_the_same():
    model = InvariantKernelRidge(bandwidth=0.8)
    wide, narrow = (model.fit(*(a.astype(kind) for a in (X, Y, MORE))).predict(NEW) for kind in (float, "f4"))
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=1e-5)
    assert narrow.dtype == np.float64


def test_several_outputs_are_learned_as_one_at_a_time():
    targets = np.column_stack([Y, X[:, 1] ** 2, np.zeros(20)])
    model = InvariantKernelRidge(C=3.0, strength=0.3, bandwidth=0.8, basis="none").fit(X, targets, MORE)
    found = model.predict(NEW)
    np.testing.assert_allclose(
        found, posterior_mean(Gradient(), np.ones(20), targets, 3.0, 0.3 * 0.8**2), rtol=0, atol=1e-6
    )
    assert model.gap_.shape == model.objective_.shape == (3,)
    single = InvariantKernelRidge(C=3.0, strength=0.3, bandwidth=0.8, basis="none").fit(
        X, targets[:, 1], MORE
    )
    assert single.predict(NEW).shape == (15,)
    np.testing.assert_allclose(single.predict(NEW), found[:, 1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("settings", [{"invariance": None}, {"strength": 0.0}])
def test_without_invariance_it_is_kernel_ridge_regression(settings: dict[str, Any]):
    expected = KernelRidge(alpha=1 / (2 * 3.0), kernel="rbf", gamma=0.5 / 0.8**2).fit(X, Y).predict(NEW)
    model = InvariantKernelRidge(**settings, C=3.0, bandwidth=0.8, basis="none").fit(X, Y, MORE)
    np.testing.assert_allclose(model.predict(NEW), expected, rtol=0, atol=1e-7)


def test_a_bias_is_not_held_back():
    settings: dict[str, Any] = {"C": 1.0, "strength": 0.3, "bandwidth": 0.8}
    low, high = (InvariantKernelRidge(**settings).fit(X, Y + shift, MORE).predict(NEW) for shift in (0, 1e3))
    np.testing.assert_allclose(high - 1e3, low, rtol=0, atol=1e-3)
    held = InvariantKernelRidge(**settings, basis="none").fit(X, Y + 1e3, MORE).predict(NEW)
    assert (np.abs(held - 1e3 - low) > 1).all()


def test_a_kernel_of_your_own_is_taken_as_it_is():
    kernel = PolynomialKernel(power=2).double()
    model = InvariantKernelRidge(kernel, None, C=3.0, basis="none").fit(X, Y)
    offset = kernel.offset.item()
    expected = KernelRidge(alpha=1 / 6, kernel="poly", degree=2, gamma=1, coef0=offset).fit(X, Y).predict(NEW)
    np.testing.assert_allclose(model.predict(NEW), expected, rtol=0, atol=1e-6)


STRENGTHS, RATES = [0.0, 0.01, 0.3], [0.3, 3.0, 100.0]


def conditional_evidence(width: float, strength: float, rate: float) -> float:
    """log p(contrasts of y, Lf = 0) - log p(Lf = 0), at its greatest over the scale, by dense algebra."""
    contrasts = np.linalg.svd(np.ones((20, 1)))[0][:, 1:]
    rows: list[Block] = [Evaluation().atoms(torch.from_numpy(X))]
    rows += [Gradient().atoms(torch.from_numpy(POINTS))] if strength > 0 else []
    covariance = process_of(width).covariance(rows).numpy()
    zeros = len(covariance) - 20
    noise = np.r_[np.full(20, 0.5 / rate), np.full(zeros, 0.5 / (strength * width**2) if zeros else 0)]
    turn = np.zeros((len(covariance), 19 + zeros))
    turn[:20, :19], turn[20:, 19:] = contrasts, np.eye(zeros)
    covariance = turn.T @ (covariance + np.diag(noise)) @ turn
    targets = np.r_[contrasts.T @ Y, np.zeros(zeros)]
    # zeros see no scale in the quadratic forms, and log s² counts the contrasts alone
    scale = targets @ np.linalg.solve(covariance, targets) / 19
    both = multivariate_normal(np.zeros(19 + zeros), scale * covariance).logpdf(targets)
    if not zeros:
        return both
    return both - multivariate_normal(np.zeros(zeros), scale * covariance[19:, 19:]).logpdf(np.zeros(zeros))


def test_the_strength_by_evidence_is_that_of_dense_algebra():
    model = InvariantKernelRidge(strength="evidence", Cs=RATES, strengths=STRENGTHS).fit(X, Y, MORE)
    median = median_distance(torch.from_numpy(np.unique(POINTS, axis=0)))
    scores = {
        (rate, strength, factor * median): conditional_evidence(factor * median, strength, rate)
        for rate in RATES
        for strength in STRENGTHS
        for factor in BANDWIDTHS
    }
    best = max(scores, key=lambda key: scores[key])
    assert (model.C_, model.strength_) == best[:2]
    assert model.bandwidth_ == pytest.approx(best[2], rel=1e-12)
    assert model.log_evidence_ == pytest.approx(scores[best], abs=1e-5)
    assert model.evidence_kind_ == "exact"
    same = InvariantKernelRidge(C=model.C_, strength=model.strength_, bandwidth=model.bandwidth_)
    np.testing.assert_allclose(same.fit(X, Y, MORE).predict(NEW), model.predict(NEW), rtol=0, atol=1e-9)


def plateaus(seed: int) -> tuple[np.ndarray, ...]:
    """Few noisy targets of a function that is flat wherever points lie, and points without a target."""
    draw = np.random.default_rng(seed)
    centres = np.array([[-2.0, 0.0], [0.0, 2.0], [2.0, -1.0]])
    place = np.arange(90) % 3
    x = centres[place] + 0.5 * draw.normal(size=(90, 2))
    levels = np.array([-1.0, 0.5, 2.0])[place]
    return x[:9], levels[:9] + 0.2 * draw.normal(size=9), x[9:], levels[9:]


def test_evidence_finds_plateaus_and_gains_by_them():
    errors, strengths, rates = [], [], np.logspace(-2, 4, 25).tolist()
    for seed in range(4):
        x, y, others, levels = plateaus(seed)
        model = InvariantKernelRidge(strength="evidence", Cs=rates).fit(x, y, others)
        plain = InvariantKernelRidge(strength="evidence", Cs=rates, strengths=[0.0]).fit(x, y, others)
        strengths.append(model.strength_)
        assert model.log_evidence_ >= plain.log_evidence_
        errors.append([np.mean((each.predict(others) - levels) ** 2) for each in (model, plain)])
    assert min(strengths) > 0
    ours, theirs = np.mean(errors, axis=0)
    assert ours < 0.8 * theirs


def test_evidence_of_a_steep_function_wants_no_invariance():
    x = np.linspace(-2, 2, 25)[:, None]
    y = np.sin(4 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=25)
    model = InvariantKernelRidge(strength="evidence", strengths=[0.0, 100.0, 1e4]).fit(x, y)
    assert model.strength_ == 0


def test_a_choice_that_was_made_before_is_forgotten():
    model = InvariantKernelRidge(strength="evidence", Cs=[1.0], strengths=[0.1]).fit(X, Y)
    model.set_params(strength=0.1).fit(X, Y)
    assert not hasattr(model, "log_evidence_")


@pytest.mark.parametrize("basis", ["none", "bias", "linear"])
def test_slopes_are_those_of_the_predictions(basis: str):
    model = InvariantKernelRidge(C=3.0, strength=0.1, bandwidth=0.8, basis=basis).fit(X, Y, MORE)
    slopes, step = model.predict_functional(Gradient(), NEW), 1e-5
    assert slopes.shape == (30,)
    for axis in range(2):
        move = step * np.eye(2)[axis]
        expected = (model.predict(NEW + move) - model.predict(NEW - move)) / (2 * step)
        np.testing.assert_allclose(slopes.reshape(15, 2)[:, axis], expected, rtol=0, atol=1e-7)


def test_invariance_makes_slopes_small_where_there_are_no_targets():
    models = [InvariantKernelRidge(strength=nu, bandwidth=0.8, C=10.0) for nu in (0.0, 0.3, 10.0)]
    slopes = [model.fit(X, Y, MORE).predict_functional(Gradient(), MORE) for model in models]
    sizes = [np.abs(each).mean() for each in slopes]
    assert sizes[0] > 1.2 * sizes[1] > 2 * sizes[2]


@pytest.mark.parametrize("loss", ["absolute", "epsilon_insensitive"])
def test_an_outlier_moves_absolute_losses_little(loss: str):
    spoilt = Y.copy()
    spoilt[3] += 50
    changes = {}
    for each in (loss, "squared"):
        model = InvariantKernelRidge(loss=each, strength=0.01, bandwidth=1.5)
        changes[each] = np.abs(model.fit(X, spoilt).predict(NEW) - model.fit(X, Y).predict(NEW)).mean()
    assert changes[loss] < 0.1 * changes["squared"]


def test_an_absolute_loss_of_slopes_makes_rows_of_them():
    """Subgradients: coefficients of slopes are within the strength, and at it where a slope is not small."""
    model = InvariantKernelRidge(
        C=10.0, strength=0.3, bandwidth=0.8, invariance_loss=EpsilonInsensitive(0.0, 1e-3)
    ).fit(X, Y, MORE)
    points = np.unique(POINTS, axis=0)
    # slopes in bandwidths, and f in deviations of the targets
    unit = robust_deviations(torch.from_numpy(Y)[None], torch.ones(20).double()).item()
    slopes = 0.8 * model.predict_functional(Gradient(), points) / unit
    coefficients = model.machine_.coefficients[20:, 0].numpy() / unit
    assert (np.abs(coefficients) <= 0.3 * 1.001).all()
    steep = np.abs(slopes) > 0.01
    assert 0 < steep.sum() < len(slopes)
    np.testing.assert_allclose(coefficients[steep], -0.3 * np.sign(slopes[steep]), rtol=1e-3)


def test_a_weight_of_zero_is_a_row_that_was_not_given():
    weights = np.r_[np.zeros(4), np.ones(16)]
    first = InvariantKernelRidge(bandwidth=0.8).fit(X, Y, sample_weight=weights).predict(NEW)
    second = InvariantKernelRidge(bandwidth=0.8).fit(X[4:], Y[4:]).predict(NEW)
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-9)


def test_evidence_chooses_the_same_whatever_the_unit_of_the_kernel():
    found = []
    for scale in (1e-8, 1.0, 1e8):
        kernel = ScaleKernel(RBFKernel())
        kernel.outputscale = scale
        machine = InvariantKernelRidge(kernel=kernel, invariance="gradient", strength="evidence")
        found.append(machine.fit(X, scale**0.5 * Y).predict(NEW) / scale**0.5)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=0.05)
    np.testing.assert_allclose(found[2], found[1], rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"C": 0.0}, ValueError, "C must be positive and finite, not 0.0"),
        ({"strength": -1.0}, ValueError, "at least 0 .*, 'evidence', not -1.0"),
        ({"strength": "cross_validation"}, ValueError, "'evidence', not 'cross_validation'"),
        (
            {"loss": "logistic"},
            ValueError,
            "a loss of numbers, such as 'squared' or 'absolute', not 'log",
        ),
        ({"loss": "cubic"}, ValueError, "cubic"),
        ({"strength": "evidence", "loss": "absolute"}, ValueError, "goes with loss='squared'"),
        (
            {"strength": "evidence", "invariance_loss": "absolute"},
            ValueError,
            "goes with invariance_loss='squared'",
        ),
        ({"strength": "evidence", "basis": "linear"}, ValueError, "use basis='bias' or 'none'"),
        ({"strength": "evidence", "Cs": [1.0, -1.0]}, ValueError, "Cs must be finite numbers, positive"),
        ({"bandwidth": 0.0}, ValueError, "bandwidth must be positive and finite, or 'median'"),
        ({"basis": "cubic"}, ValueError, "basis must be one of"),
        ({"solver": "simplex"}, ValueError, "solver must be one of"),
        ({"invariance": "gradeint"}, ValueError, "Did you mean 'gradient'"),
        ({"invariance": "tangent"}, ValueError, "pass image_shape"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], error: type, message: str):
    with pytest.raises(error, match=message):
        InvariantKernelRidge(**settings).fit(X, Y)


def test_data_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"zero for all rows|at least one non-zero"):
        InvariantKernelRidge().fit(X, Y, sample_weight=np.zeros(20))
    with pytest.raises(ValueError, match="features"):
        InvariantKernelRidge().fit(X, Y, np.zeros((3, 5)))
    assert np.isfinite(InvariantKernelRidge(loss=Squared()).fit(X, Y, np.zeros((0, 2))).predict(NEW)).all()


def test_deviations_are_those_of_most_targets():
    ones = torch.ones(2000, dtype=torch.float64)
    values = 3 + 5 * torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spoilt = values.clone()
    spoilt[:100] = 1e6
    few = torch.where(torch.arange(2000) < 200, 7.0, 0.0).double()
    found = robust_deviations(torch.stack([values, spoilt, few, 4 * ones, 0 * ones]), ones)
    assert found[0].item() == pytest.approx(5, rel=0.1)
    assert found[1].item() == pytest.approx(5, rel=0.2)
    assert found[2:].tolist() == pytest.approx([7 * 0.3, 4, 1])
    for unit in (1e-200, 1e200):
        assert robust_deviations(unit * values[None], ones).item() == pytest.approx(unit * found[0].item())


def test_deviations_count_weights_as_copies():
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(1, 40, generator=draw, dtype=torch.float64)
    counts = torch.randint(1, 4, (40,), generator=draw)
    copies = values.repeat_interleave(counts, dim=1)
    expected = robust_deviations(copies, torch.ones(copies.shape[1]).double())
    torch.testing.assert_close(robust_deviations(values, counts.double()), expected)


@pytest.mark.parametrize("loss", ["squared", "absolute"])
@pytest.mark.parametrize("value", [3.7, 1e-20, 0.0])
def test_a_constant_is_learned_without_a_warning(loss, value):
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = InvariantKernelRidge(loss=loss, random_state=0).fit(X, np.full(20, value))
    np.testing.assert_allclose(model.predict(X), value, rtol=1e-3)
