"""Fits of one hypothesis, and the scores of its structure."""

import math

import numpy as np
import pytest
import torch

from orbitwise.estimators import InvariantGPRegressor
from orbitwise.kernels import parse
from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.greedy import HypothesisModel, SearchData, fit, promising
from orbitwise.selection.search.hypotheses import Claim, Hypothesis, start_from_data

RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(-2, 2, (30, 1))
Y = 5 + 2 * np.sin(2 * X[:, 0]) + 0.3 * RANDOM.standard_normal(30)
PROBLEM = SearchData(X, Y)


def hypothesis(text: str, *claims: Claim) -> Hypothesis:
    return Hypothesis(parse_expression(text), claims)


def test_the_likelihood_is_the_regressors_evidence():
    start = Hypothesis(parse_expression("0.7*rbf(lengthscale=0.8)"), (), 0.04)
    model = HypothesisModel(start, PROBLEM)
    kernel = parse("0.7*rbf(lengthscale=0.8)", 1)
    noise = 0.04 * Y.var() + 1e-8 * Y.var()
    with torch.no_grad():
        constant = model.constant.item()
        model.latent.process.mean_module.initialize(constant=0.0)
        value = model.log_likelihood().item() - len(Y) * math.log(model.scale)
    # at the mean of the targets, and at another constant
    for shift, found in ((0.0, value), (constant, _likelihood_at(model, constant))):
        regressor = InvariantGPRegressor(kernel, noise=noise, max_iterations=0, normalize_y=False)
        scaled = (Y - Y.mean()) / model.scale - shift
        regressor.set_params(noise=noise / Y.var()).fit(X, scaled)
        assert found == pytest.approx(regressor.log_evidence_ - len(Y) * math.log(model.scale), rel=1e-9)
        np.testing.assert_allclose(_residuals_at(model, shift), scaled - regressor.predict(X), atol=1e-6)


def _likelihood_at(model: HypothesisModel, constant: float) -> float:
    with torch.no_grad():
        model.latent.process.mean_module.initialize(constant=constant)
        return model.log_likelihood().item() - len(Y) * math.log(model.scale)


def _residuals_at(model: HypothesisModel, constant: float) -> np.ndarray:
    with torch.no_grad():
        model.latent.process.mean_module.initialize(constant=constant)
    return model.residuals()


def test_the_constant_starts_at_its_mode_and_its_slope_is_right():
    model = HypothesisModel(
        Hypothesis(parse_expression("0.7*linear(variance=1, centre=1)"), (), 0.04), PROBLEM
    )
    (slope,) = torch.autograd.grad(model.log_joint(), list(model.latent.process.mean_module.parameters()))
    assert slope.item() == pytest.approx(0.0, abs=1e-9)
    model.latent.process.mean_module.initialize(constant=model.constant.item() + 0.1)
    (slope,) = torch.autograd.grad(model.log_joint(), list(model.latent.process.mean_module.parameters()))
    ahead, behind = (_joint_at(model, model.constant.item() + step) for step in (1e-3, -2e-3))
    # quadratic in the constant, so that central differences are exact but for rounding
    assert slope.item() == pytest.approx((ahead - behind) / 2e-3, rel=1e-4)


def _joint_at(model: HypothesisModel, constant: float) -> float:
    with torch.no_grad():
        model.latent.process.mean_module.initialize(constant=constant)
        return model.log_joint().item()


def test_a_product_with_a_line_is_found_beside_an_offset():
    """Targets that are far from zero where the line is: the mean of the targets is not the constant."""
    x = RANDOM.uniform(0, 4, (60, 1))
    y = 3 + (x[:, 0] - 1) * np.sin(3 * x[:, 0]) + 0.05 * RANDOM.standard_normal(60)
    start = hypothesis("rbf(lengthscale=0.5)*linear(variance=1, centre=1)")
    found = fit([start], SearchData(x, y), 100)
    assert found is not None
    model = HypothesisModel(found.hypothesis, SearchData(x, y))
    assert model.constant.item() * model.scale + y.mean() == pytest.approx(3.0, abs=0.2)
    model.latent.process.mean_module.initialize(constant=0.0)
    with torch.no_grad():
        assert model.log_likelihood().item() - 60 * math.log(model.scale) < found.log_likelihood - 5


def test_the_centre_of_a_line_is_learned_where_it_means_something():
    """c + w(x - a) is one line for many (a, c); a line that multiplies, or is odd, has its centre."""
    for text, claims, is_learned in (
        ("linear + rbf", (), False),
        ("rbf*linear", (), True),
        ("linear", (Claim("odd", (0,), 0.0),), True),
    ):
        model = HypothesisModel(hypothesis(text, *claims), PROBLEM)
        centres = [value for name, value in model.kernel.named_parameters() if name.endswith("centre")]
        assert [any(each is centre for each in model.parameters) for centre in centres] == [is_learned]


def test_odd_functions_have_no_constant():
    model = HypothesisModel(hypothesis("rbf", Claim("odd", (0,), 0.0)), PROBLEM)
    assert not list(model.latent.process.mean_module.parameters())
    assert model.constant.item() == 0


def test_fits_find_a_mode_and_count_what_they_learn():
    start = start_from_data(hypothesis("rbf"), X, Y, None)
    found = fit([start], PROBLEM, 100)
    assert found is not None
    model = HypothesisModel(found.hypothesis, PROBLEM)
    gradients = torch.autograd.grad(model.log_joint(), model.parameters)
    assert max(float(each.abs().max()) for each in gradients) < 0.2
    assert found.num_parameters == 4
    assert found.score == pytest.approx(found.log_likelihood - 2 * math.log(30))
    several = fit([start_from_data(hypothesis("rbf"), X, Y, seed) for seed in (None, 1, 2)], PROBLEM, 100)
    assert several is not None
    assert several.log_likelihood == pytest.approx(found.log_likelihood, abs=0.1)


def test_claims_and_noise_are_learned_too():
    start = start_from_data(hypothesis("rbf", Claim("odd", (0,))), X, Y - 5, None)
    found = fit([start], SearchData(X, Y - 5), 100)
    assert found is not None
    assert found.num_parameters == 4
    assert found.hypothesis.claims[0].value == pytest.approx(0.0, abs=0.15)
    assert found.hypothesis.noise is not None
    assert math.sqrt(found.hypothesis.noise * np.square(Y - 5).mean()) == pytest.approx(0.3, rel=0.4)


def test_wrapped_hypotheses_come_back_in_their_own_columns():
    x = RANDOM.uniform(0, 3, (25, 2))
    y = np.sin(2 * np.pi * x[:, 0]) + x[:, 1]
    start = start_from_data(hypothesis("matern52[0] + rbf[1]", Claim("period", (0,))), x, y, None)
    found = fit([start], SearchData(x, y), 40)
    assert found is not None
    assert str(found.hypothesis) == "matern52[0] + rbf[1] | period[0]"
    assert found.hypothesis.claims[0].value == pytest.approx(1.0, abs=0.1)


def test_laplace_equals_quadrature():
    """log ∫ p(y, θ) dθ of a line of three numbers, over a fine grid."""
    problem = SearchData(X, 2 * X[:, 0] + 0.5 * RANDOM.standard_normal(30), "laplace")
    start = Hypothesis(parse_expression("dot"), (), 0.05)
    found = fit([start], problem, 100)
    assert found is not None
    model = HypothesisModel(found.hypothesis, problem)
    assert len(model.parameters) == 3
    values = [each.reshape(()) for each in model.parameters]
    centre = [each.item() for each in values]
    ranges = ((-1.5, 2, 12), (-0.5, 0.5, 11), (-4, 7, 20))
    grids = [
        torch.linspace(at + low, at + high, size)
        for at, (low, high, size) in zip(centre, ranges, strict=True)
    ]
    heights = torch.empty(12, 11, 20, dtype=torch.float64)
    with torch.no_grad():
        for place in np.ndindex(*heights.shape):
            for value, grid, i in zip(values, grids, place, strict=True):
                value.fill_(grid[i].item())
            heights[place] = model.log_joint()
        for value, at in zip(values, centre, strict=True):
            value.fill_(at)
        joint = model.log_joint().item()
    cell = sum(math.log((grid[1] - grid[0]).item()) for grid in grids)
    exact = torch.logsumexp(heights.reshape(-1), 0).item() + cell
    assert model.log_evidence(joint) == pytest.approx(exact, abs=0.2)
    assert found.score == pytest.approx(exact - 30 * math.log(model.scale), abs=0.2)


def test_one_start_from_the_data_is_tried_beside_higher_ones():
    known = [
        Hypothesis(parse_expression(f"rbf(lengthscale={each})"), (), 0.02) for each in (0.7, 0.8, 0.9, 1)
    ]
    far = Hypothesis(parse_expression("rbf(lengthscale=0.001)"))
    chosen = [
        model.hypothesis
        for model in promising([HypothesisModel(each, PROBLEM) for each in (*known, far)], PROBLEM)
    ]
    assert len(chosen) == 3
    assert far in chosen


def test_no_time_is_no_fit():
    assert fit([hypothesis("rbf")], SearchData(X, Y, deadline=0.0), 10) is None


@pytest.mark.parametrize("scoring", ["bic", "laplace"])
@pytest.mark.parametrize("allowed", [1, 3, 9])
def test_one_long_fit_ends_when_time_is_up(allowed, scoring, monkeypatch):
    """A second passes with every evaluation, and no more than one begins after the last: the score."""
    seconds = 0.0
    compute = HypothesisModel.log_likelihood

    def slow(self):
        nonlocal seconds
        seconds += 1
        return compute(self)

    monkeypatch.setattr(HypothesisModel, "log_likelihood", slow)
    problem = SearchData(X, Y, scoring, deadline=allowed, clock=lambda: seconds)
    starts = [start_from_data(hypothesis("rbf"), X, Y, seed) for seed in range(6)]
    found = fit(starts, problem, 100)
    assert seconds <= allowed + 2
    if scoring == "laplace" or allowed < len(starts):
        assert found is None, "its curvature would be many evaluations more; or no start was tried"
    else:
        assert found is not None
        assert not found.converged
