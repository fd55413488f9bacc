"""The model behind the regressor: units, merged rows, and observations of other functionals."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from scipy.stats import multivariate_normal

from orbitwise import InvariantGPRegressor, SparseGPRegressor
from orbitwise.estimators.invariances import functional_of
from orbitwise.estimators.regression_model import RegressionModel, constant_part, prepare
from orbitwise.functionals import (
    Difference,
    DirectionalDerivative,
    Evaluation,
    FiniteDifference,
    Gradient,
    OrbitSum,
)
from orbitwise.orbits import FiniteOrbit, JitterOrbit, SampledOrbit
from orbitwise.transforms import Rotation, coordinate_permutations, negation


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 2))[[0, 1, 2, 3, 4, 5, 6, 7, 1, 2]]
    return x, 30 + 5 * rng.normal(size=(10, 2)) * [1, 10]


def make(
    x,
    y,
    weight=None,
    functional=None,
    kernel=None,
    noise=None,
    mean="zero",
    normalize_y=True,
    observations=(),
):
    functional = Evaluation() if functional is None else functional
    weight = np.ones(len(x)) if weight is None else weight
    return prepare(x, y, weight, functional, kernel, noise, mean, normalize_y, "auto", observations)


def gram(model: RegressionModel, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        rows = model.latent.functional.atoms(torch.from_numpy(x))
        return model.latent.process.covariance(rows).numpy()


def evidence(model: RegressionModel):
    return model.evidence(model.exact.posterior())


@pytest.mark.parametrize("normalize_y", [True, False])
@pytest.mark.parametrize("name", [None, "permutation"])
def test_the_evidence_is_that_of_the_targets_as_given(data, normalize_y, name):
    x, y = data
    model = make(x, y, functional=functional_of(name, 2), normalize_y=normalize_y)
    noise = model.latent.noise.item()
    expected = fit = complexity = 0.0
    for column in y.T:
        shift, scale = (column.mean(), column.std()) if normalize_y else (0.0, 1.0)
        covariance = scale**2 * (gram(model, x) + noise * np.eye(10))
        expected += multivariate_normal(np.full(10, shift), covariance).logpdf(column)
        fit -= 0.5 * (column - shift) @ np.linalg.solve(covariance, column - shift)
        complexity -= 0.5 * np.linalg.slogdet(covariance)[1]
    terms = evidence(model)
    assert terms.value == pytest.approx(expected)
    assert terms.fit == pytest.approx(fit)
    assert terms.complexity == pytest.approx(complexity)
    assert terms.constant == pytest.approx(-10 * np.log(2 * np.pi))
    assert terms.value == pytest.approx(terms.fit + terms.complexity + terms.constant)


def test_the_objective_is_the_evidence_in_other_units_and_the_hyperpriors(data):
    x, y = data
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(3.0, 6.0)))
    plain, prior = make(x, y, kernel=ScaleKernel(RBFKernel())), make(x, y, kernel=kernel)
    jacobian = 10 * np.log(y.std(0)).sum()
    assert plain.exact().item() == pytest.approx(evidence(plain).value + jacobian)
    lengthscale = torch.tensor(kernel.base_kernel.lengthscale.item())
    expected = torch.distributions.Gamma(3.0, 6.0).log_prob(lengthscale).item()
    assert (prior.exact() - plain.exact()).item() == pytest.approx(expected, rel=1e-5)


def test_targets_are_standardised_by_their_weighted_moments(data):
    x, y = data
    weight = np.arange(10.0)
    model = make(x, y, weight)
    mean = np.average(y, axis=0, weights=weight)
    np.testing.assert_allclose(model.target_scale.shift, mean)
    variance = np.average((y - mean) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(model.target_scale.scale, np.sqrt(variance))


def test_targets_of_a_function_that_cannot_be_constant_are_not_centred(data):
    odd = FiniteOrbit(negation(2), weights=torch.tensor([1.0, -1.0]))
    model = make(*data, functional=functional_of(odd, 2))
    assert not model.target_scale.shift.any()
    np.testing.assert_allclose(model.target_scale.scale, np.sqrt((data[1] ** 2).mean(0)))


def test_constant_targets_keep_their_scale(data):
    model = make(data[0], np.full((10, 1), 0.1))
    assert model.target_scale.scale.item() == 1.0
    assert model.target_scale.shift.item() == pytest.approx(0.1)


def test_a_noise_is_learned_or_fixed_in_units_of_the_targets(data):
    x, y = data
    learned, fixed = make(x, y[:, :1]), make(x, y[:, :1], noise=2.0)
    assert learned.latent.likelihood.raw_noise.requires_grad
    assert not fixed.latent.likelihood.raw_noise.requires_grad
    assert fixed.latent.noise.item() * y[:, 0].var() == pytest.approx(2.0)
    weight = fixed.observations[0].weights()
    np.testing.assert_allclose(fixed.exact.noise().detach(), fixed.latent.noise.item() / weight)


def test_a_fixed_noise_needs_one_scale(data):
    x, y = data
    slopes = (DirectionalDerivative(torch.tensor([1.0, 0.0])), x[:2], np.ones((2, 2)), 0.1)
    for arguments in ({"noise": 1.0}, {"observations": [slopes]}):
        with pytest.raises(ValueError, match="needs targets of one scale"):
            make(x, y, **arguments)
        make(x, y, normalize_y=False, **arguments)


def test_a_learned_noise_starts_at_the_size_of_what_is_observed(data):
    x, y = data
    steep = (Gradient(), x[:3], 1e6 * np.ones((3, 2, 2)), None)
    model = make(x, y, normalize_y=False, observations=[steep])
    (noise,) = (each.noise for each in model.latent.others)
    assert noise.item() == pytest.approx(0.05 * 1e12, rel=1e-3)
    assert noise.requires_grad


def test_values_and_other_functionals_share_one_evidence(data):
    x, y = data[0][:6], data[1][:6, :1]
    rng = np.random.default_rng(1)
    pairs, slopes_at = rng.normal(size=(3, 2, 2)), rng.normal(size=(2, 2))
    differences, slopes = rng.normal(size=3), rng.normal(size=(2, 2))
    observations = [(Difference(), pairs, differences, 0.2), (Gradient(), slopes_at, slopes, 0.5)]
    functional = functional_of("permutation", 2)
    model = make(x, y, functional=functional, observations=observations)
    rows = [
        functional.atoms(torch.from_numpy(np.unique(x, axis=0))),
        (Difference() @ functional).atoms(torch.from_numpy(pairs)),
        (Gradient() @ functional).atoms(torch.from_numpy(slopes_at)),
    ]
    scale, shift = y.std(), y.mean()
    noise = np.r_[np.full(6, scale**2 * model.latent.noise.item()), np.full(3, 0.2), np.full(4, 0.5)]
    with torch.no_grad():
        covariance = scale**2 * model.latent.process.covariance(rows).numpy() + np.diag(noise)
    order = np.lexsort(x.T[::-1])
    everything = np.r_[y[order, 0] - shift, differences, slopes.ravel()]
    expected = multivariate_normal(cov=covariance).logpdf(everything)
    assert evidence(model).value == pytest.approx(expected)
    assert evidence(model).constant == pytest.approx(-0.5 * 13 * np.log(2 * np.pi))


@pytest.mark.parametrize(
    ("functional", "expected"),
    [
        (Evaluation(), 1.0),
        (OrbitSum(FiniteOrbit(coordinate_permutations(2))), 2.0),
        (FiniteDifference(torch.ones(2)), 0.0),
        (DirectionalDerivative(torch.ones(2)), 0.0),
        (Gradient(), 0.0),
        (2.0 * Evaluation() - DirectionalDerivative(torch.ones(2)), 2.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_functional_makes_of_a_constant(functional, expected):
    part = constant_part(functional, torch.randn(3, 2, dtype=torch.float64))
    torch.testing.assert_close(part, torch.full_like(part, expected))
    assert len(part) == (6 if isinstance(functional, Gradient) else 3)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ((Gradient(), np.ones((2, 2)), np.ones((2, 2))), "An observation is"),
        (("slope", np.ones((2, 2)), np.ones((2, 2)), None), "An observation is"),
        (3, "An observation is"),
        ((Gradient(), np.ones((2, 3)), np.ones((2, 3)), None), "width 2"),
        ((Gradient(), np.ones(2), np.ones(2), None), "Expected 2D array"),
        ((Gradient(), np.ones((2, 2)), np.ones((2, 1)), None), r"make 4 rows of Gradient.*\(2, 1\)"),
        ((Gradient(), np.ones((2, 2)), np.ones((1, 4)), None), r"make 4 rows of Gradient.*\(1, 4\)"),
        ((Evaluation(), np.ones((2, 2)), np.ones(3), None), "make 2 rows of Evaluation"),
        ((Evaluation(), np.ones((2, 2)), np.array([1.0, np.nan]), None), "NaN"),
        ((Evaluation(), np.array([[1.0, np.inf]]), np.ones(1), None), "infinity"),
        ((Evaluation(), np.array([["a", "b"]]), np.ones(1), None), "could not convert"),
        ((Evaluation(), np.ones((2, 2)), np.ones(2), -1.0), "The noise of an observation must be"),
        ((Evaluation(), np.ones((2, 2)), np.ones(2), "low"), "The noise of an observation must be"),
        ((Difference(), np.ones((2, 2)), np.ones(2), None), "pairs of inputs"),
    ],
)
def test_observations_that_do_not_fit_are_refused(data, observation, message):
    with pytest.raises(ValueError, match=message):
        make(data[0], data[1][:, :1], observations=[observation])


def test_an_observation_of_every_slope_of_every_output_has_three_dimensions(data):
    x, y = data
    targets = np.arange(12.0).reshape(3, 2, 2)
    model = make(x, y, normalize_y=False, observations=[(Gradient(), x[:3], targets, 1.0)])
    np.testing.assert_array_equal(model.observations[1].targets, targets.reshape(6, 2))


@pytest.mark.parametrize(
    "make_model",
    [
        lambda noise: InvariantGPRegressor(normalize_y=False, noise=noise),
        lambda noise: InvariantGPRegressor(
            normalize_y=False, noise=noise, inference="collapsed", num_inducing=10, random_state=0
        ),
        lambda noise: SparseGPRegressor(normalize_y=False, noise=noise, random_state=0),
        lambda noise: InvariantGPRegressor(
            invariance=JitterOrbit(1, 0.05), normalize_y=False, noise=noise, num_nodes=4, max_iterations=20
        ),
    ],
    ids=["exact", "collapsed", "sparse", "drawn orbit"],
)
@pytest.mark.parametrize("noise", [None, 0.02], ids=["learned", "given"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_tiny_targets_as_given_are_learned_like_those_of_unit_size(make_model, noise):
    rng, tiny = np.random.default_rng(0), 1e-9
    x = rng.uniform(-2, 2, size=(30, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=30)
    large = make_model(noise).fit(x, y)
    small = make_model(None if noise is None else noise * tiny**2).fit(x, y * tiny)
    # a floor of the noise that knew no unit would explain all of the small targets
    assert small.noise_ / tiny**2 == pytest.approx(large.noise_, rel=0.1)
    assert small.log_evidence_ + 30 * np.log(tiny) == pytest.approx(large.log_evidence_, abs=0.3)
    np.testing.assert_allclose(small.predict(x) / tiny, large.predict(x), atol=0.05)


def test_drawn_orbits_are_refused_with_the_remedy(data):
    drawn = functional_of(SampledOrbit(Rotation(), -1.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"orbit\.freeze\(num_nodes\)"):
        make(*data, functional=drawn)


def test_parameters_are_those_of_kernel_mean_noise_and_orbit(data):
    orbit = SampledOrbit(Rotation(), -0.3, 0.3).freeze(4, torch.Generator().manual_seed(0))
    model = make(*data, functional=functional_of(orbit, 2), mean="linear")
    names = [name for name, each in model.latent.named_parameters() if each.requires_grad]
    assert any(name.startswith("functional.orbit") for name in names)
    others = {name.rpartition(".")[2] for name in names if not name.startswith("functional.orbit")}
    assert others == {"raw_outputscale", "raw_lengthscale", "weights", "bias", "raw_noise"}
    model.exact().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.latent.parameters())
    assert all(each.dtype == torch.float64 for each in model.latent.parameters())
