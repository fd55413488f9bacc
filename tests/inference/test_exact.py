"""Exact inference against scipy, scikit-learn, GPyTorch, brute force and finite differences."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FiniteDifference,
    Gradient,
    OrbitAverage,
)
from orbitwise.inference.exact import condition, decompose, evidence, noisy_factor, sample_prior
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation, coordinate_permutations

COUNT = 11


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(COUNT, 2, dtype=torch.float64)


@pytest.fixture
def targets() -> torch.Tensor:
    return torch.randn(COUNT, 2, dtype=torch.float64)


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.linspace(0.05, 0.3, COUNT, dtype=torch.float64)


@pytest.fixture
def process() -> Process:
    kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.3, 0.8
    mean = ConstantMean()
    mean.constant = 0.4
    return Process(mean, kernel).double().requires_grad_(False)


@pytest.fixture(params=["values", "averages", "values and slopes"])
def rows(request, x):
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    return {
        "values": Evaluation().atoms(x),
        "averages": average.atoms(x),
        "values and slopes": [average.atoms(x[:5]), (Gradient() @ average).atoms(x[5:8])],
    }[request.param]


def dense(process: Process, rows, noise: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the observations, as numpy arrays."""
    return process.mean(rows).numpy(), (process.covariance(rows) + torch.diag(noise)).numpy()


def test_the_evidence_is_the_density_of_the_targets(process, rows, targets, noise):
    mean, covariance = dense(process, rows, noise)
    expected = sum(multivariate_normal(mean, covariance).logpdf(column) for column in targets.T.numpy())
    assert evidence(process, rows, targets, noise).value.item() == pytest.approx(expected, rel=1e-10)


def test_the_evidence_is_fit_and_complexity_and_a_constant(process, rows, targets, noise):
    mean, covariance = dense(process, rows, noise)
    terms = evidence(process, rows, targets, noise)
    residual = targets.numpy() - mean[:, None]
    assert terms.fit.item() == pytest.approx(-0.5 * np.sum(residual * np.linalg.solve(covariance, residual)))
    assert terms.complexity.item() == pytest.approx(-0.5 * 2 * np.linalg.slogdet(covariance)[1])
    assert terms.constant == pytest.approx(-COUNT * np.log(2 * np.pi))
    assert terms.value.item() == pytest.approx((terms.fit + terms.complexity).item() + terms.constant)
    assert terms.jitter == 0.0


def test_a_posterior_knows_its_evidence_and_its_mean_alone(process, rows, targets, noise):
    posterior = condition(process, rows, targets, noise)
    terms, again = evidence(process, rows, targets, noise), posterior.evidence()
    assert again.value.item() == pytest.approx(terms.value.item(), rel=1e-10)
    assert again.fit.item() == pytest.approx(terms.fit.item(), rel=1e-10)
    new = [Evaluation().atoms(torch.randn(3, 2).double()), Gradient().atoms(torch.randn(2, 2).double())]
    torch.testing.assert_close(posterior.row_mean(new), posterior.row_moments(new).mean)


def test_single_precision_agrees_with_double(process, x, targets, noise):
    double = evidence(process, Evaluation().atoms(x), targets, noise)
    single = evidence(process.float(), Evaluation().atoms(x.float()), targets.float(), noise.float())
    assert single.value.item() == pytest.approx(double.value.item(), rel=1e-5)


@pytest.fixture
def other(x, targets, noise) -> GaussianProcessRegressor:
    kernel = ConstantKernel(1.7) * RBF(0.9)
    return GaussianProcessRegressor(kernel, alpha=noise.numpy(), optimizer=None).fit(
        x.numpy(), targets.numpy()
    )


@pytest.fixture
def same() -> Process:
    kernel = ScaleKernel(RBFKernel()).double()
    # A Python number would be rounded to single precision.
    kernel.outputscale, kernel.base_kernel.lengthscale = torch.tensor([1.7, 0.9], dtype=torch.float64)
    return Process(None, kernel).requires_grad_(False)


def test_scikit_learn_has_the_same_evidence_and_gradient(same, other, x, targets, noise):
    same.requires_grad_(True)
    ours = evidence(same, Evaluation().atoms(x), targets, noise).value
    theirs, slopes = other.log_marginal_likelihood(other.kernel_.theta, eval_gradient=True)
    assert ours.item() == pytest.approx(theirs, rel=1e-10)
    scale, lengthscale = same.kernel.raw_outputscale, same.kernel.base_kernel.raw_lengthscale
    # scikit-learn's parameters are logarithms, GPyTorch's softplus: d/dlog θ = θ d/dθ, dθ/draw = sigmoid(raw)
    for raw, value, slope in zip((scale, lengthscale), (1.7, 0.9), slopes, strict=True):
        (by_raw,) = torch.autograd.grad(ours, raw, retain_graph=True)
        assert (by_raw / raw.sigmoid()).item() * value == pytest.approx(slope, rel=1e-8)


def test_scikit_learn_has_the_same_posterior(same, other, x, targets, noise):
    new = torch.randn(6, 2, dtype=torch.float64)
    posterior = condition(same, Evaluation().atoms(x), targets, noise)
    moments = posterior.moments(Evaluation(), new)
    mean, covariance = other.predict(new.numpy(), return_cov=True)
    np.testing.assert_allclose(moments.mean, mean, atol=1e-11)
    np.testing.assert_allclose(moments.variance, np.diagonal(covariance[..., 0]), atol=1e-11)
    np.testing.assert_allclose(posterior.covariance(Evaluation().atoms(new)), covariance[..., 0], atol=1e-11)


def test_gpytorch_has_the_same_evidence(process, x, targets, noise):
    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
            super().__init__(x, targets[:, 0], likelihood)
            self.mean_module, self.covar_module = process.mean_module, process.kernel

        def forward(self, inputs: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(inputs), self.covar_module(inputs)
            )

    model = Model().double()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    theirs = likelihood(model(x), targets[:, 0]) * COUNT
    ours = evidence(process, Evaluation().atoms(x), targets[:, :1], noise).value
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-8)


def test_the_lectures_printed_posterior_mean_is_wrong_and_ours_is_right(same, x, targets, noise):
    """Lecture 2.3.1 prints (K+σ²)⁻¹f; it is (K+σ²I)⁻¹y."""
    variance = 0.3
    posterior = condition(same, Evaluation().atoms(x), targets, torch.full_like(noise, variance))
    new = torch.randn(4, 2, dtype=torch.float64)
    gram = same.covariance(Evaluation().atoms(x)).numpy()
    cross = same.covariance(Evaluation().atoms(new), Evaluation().atoms(x)).numpy()
    ours = posterior.moments(Evaluation(), new).mean.numpy()
    right = cross @ np.linalg.solve(gram + variance * np.eye(COUNT), targets.numpy())
    scalar_added = cross @ np.linalg.solve(gram + variance, targets.numpy())
    of_f = cross @ np.linalg.solve(gram + variance * np.eye(COUNT), targets.numpy() - 0.3)
    np.testing.assert_allclose(ours, right, atol=1e-10)
    assert np.abs(ours - scalar_added).max() > 0.1
    assert np.abs(ours - of_f).max() > 0.05


def conditional(mean: np.ndarray, covariance: np.ndarray, seen: slice, asked: slice, y: np.ndarray):
    """Mean and covariance of y[asked] given y[seen], by the textbook."""
    gain = np.linalg.solve(covariance[seen, seen], covariance[seen, asked]).T
    return mean[asked] + gain @ (y[seen] - mean[seen]), covariance[asked, asked] - gain @ covariance[
        seen, asked
    ]


def test_the_decomposition_sums_to_the_evidence(process, rows, targets, noise):
    parts = decompose(process, rows, targets, noise)
    assert parts.shape == (COUNT,)
    assert parts.sum().item() == pytest.approx(
        evidence(process, rows, targets, noise).value.item(), rel=1e-10
    )


def test_every_part_is_the_density_of_a_row_given_those_before(process, rows, targets, noise):
    mean, covariance = dense(process, rows, noise)
    parts = decompose(process, rows, targets[:, :1], noise)
    for n in range(COUNT):
        at, variance = conditional(mean, covariance, slice(n), slice(n, n + 1), targets[:, 0].numpy())
        expected = norm(at[0], np.sqrt(variance[0, 0])).logpdf(targets[n, 0])
        assert parts[n].item() == pytest.approx(expected, abs=1e-9)


def test_sums_over_chunks_are_densities_of_chunks_given_those_before(process, rows, targets, noise):
    """LIM eq. 5."""
    mean, covariance = dense(process, rows, noise)
    parts = decompose(process, rows, targets, noise)
    for start, stop in [(0, 4), (4, 5), (5, COUNT)]:
        expected = 0.0
        for column in targets.T.numpy():
            chunk = conditional(mean, covariance, slice(start), slice(start, stop), column)
            expected += multivariate_normal(*chunk).logpdf(column[start:stop])
        assert parts[start:stop].sum().item() == pytest.approx(expected, abs=1e-8)


def test_leave_one_out_is_what_refits_without_the_row_predict(process, x, targets, noise):
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    closed = condition(process, functional.atoms(x), targets, noise).leave_one_out()
    for n in range(COUNT):
        others = torch.arange(COUNT) != n
        refit = condition(process, functional.atoms(x[others]), targets[others], noise[others])
        moments = refit.moments(functional, x[n : n + 1])
        variance = moments.variance[0] + noise[n]
        torch.testing.assert_close(closed.mean[n], moments.mean[0])
        torch.testing.assert_close(closed.variance[n], variance)
        density = norm(moments.mean[0], variance.sqrt()).logpdf(targets[n]).sum()
        assert closed.log_density[n].item() == pytest.approx(density)


def test_the_slope_of_the_posterior_is_the_derivative_of_its_mean(process, rows, targets, noise):
    posterior = condition(process, rows, targets, noise)
    average = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    new, direction, step = torch.randn(5, 2, dtype=torch.float64), torch.tensor([0.6, -0.8]), 1e-5
    for functional in (Evaluation(), average):
        ahead, behind = (posterior.moments(functional, new + h * direction).mean for h in (step, -step))
        slope = posterior.moments(DirectionalDerivative(direction) @ functional, new)
        torch.testing.assert_close(slope.mean, (ahead - behind) / (2 * step), atol=1e-7, rtol=1e-7)
        finite = posterior.moments(FiniteDifference(direction, step=1e-3) @ functional, new)
        torch.testing.assert_close(slope.variance, finite.variance, atol=1e-4, rtol=1e-4)


def test_all_slopes_at_once_are_the_slopes_one_by_one(process, rows, targets, noise):
    posterior = condition(process, rows, targets, noise)
    new = torch.randn(4, 2, dtype=torch.float64)
    block = posterior.moments(Gradient(), new)
    for axis in range(2):
        single = posterior.moments(DirectionalDerivative(torch.eye(2)[axis]), new)
        torch.testing.assert_close(block.mean[axis::2], single.mean)
        torch.testing.assert_close(block.variance[axis::2], single.variance)


def z_scores(draws: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> tuple[float, float]:
    """The largest z-scores of the sample mean and of the sample covariance of draws [n, q]."""
    count = draws.shape[1]
    variance = covariance.diagonal()
    of_mean = (draws.mean(1) - mean) / (variance / count).sqrt()
    deviations = draws - mean[:, None]
    # var(d_i d_j) = K_ii K_jj + K_ij² for normal deviations
    spread = ((variance[:, None] * variance + covariance.square()) / count).sqrt()
    of_covariance = (deviations @ deviations.T / count - covariance) / spread
    return of_mean.abs().max().item(), of_covariance.abs().max().item()


def test_prior_samples_have_the_priors_moments(process, rows):
    draws = sample_prior(process, rows, 40_000, torch.Generator().manual_seed(1))
    assert draws.shape == (COUNT, 40_000)
    assert max(z_scores(draws, process.mean(rows), process.covariance(rows))) < 4.5


def test_posterior_samples_have_the_posteriors_moments(process, rows, targets, noise):
    posterior = condition(process, rows, targets, noise)
    new = [
        Evaluation().atoms(torch.randn(3, 2, dtype=torch.float64)),
        Gradient().atoms(torch.zeros(1, 2).double()),
    ]
    draws = posterior.sample(new, 40_000, torch.Generator().manual_seed(2))
    assert draws.shape == (5, 2, 40_000)
    mean, covariance = posterior.row_moments(new).mean, posterior.covariance(new)
    for output in range(2):
        assert max(z_scores(draws[:, output], mean[:, output], covariance)) < 4.5
    # Outputs are drawn independently of each other.
    both = torch.stack([draws[0, 0] - mean[0, 0], draws[0, 1] - mean[0, 1]])
    assert abs(torch.corrcoef(both)[0, 1].item()) * 200 < 4.5


def test_z_scores_see_a_wrong_covariance():
    draws = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    assert max(z_scores(draws, mean, covariance)) < 4.5
    assert max(z_scores(draws, mean, 1.05 * covariance)) > 4.5
    assert max(z_scores(draws + 0.03, mean, covariance)) > 4.5


def test_samples_are_equal_where_the_function_must_be(process, x, targets, noise):
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    rows = functional.atoms(torch.cat([x, x.flip(-1), x]))
    generator = torch.Generator().manual_seed(0)
    for draws in (
        sample_prior(process, rows, 5, generator),
        condition(process, functional.atoms(x), targets, noise).sample(rows, 5, generator)[:, 0],
    ):
        plain, mirrored, again = draws.split(COUNT)
        assert (plain - mirrored).abs().max() < 1e-12
        assert (plain - again).abs().max() < 1e-12
        assert plain.std() > 0.1


def test_samples_are_reproducible_by_their_generator(process, x):
    rows = Evaluation().atoms(x)
    first, again, other = (
        sample_prior(process, rows, 2, torch.Generator().manual_seed(s)) for s in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_equal_noiseless_rows_are_fitted_with_a_little_jitter_that_is_reported(same, x, targets, dtype, most):
    twice = torch.cat([x, x]).to(dtype)
    y = torch.cat([targets, targets]).to(dtype)
    rows, silent = Evaluation().atoms(twice), torch.zeros(2 * COUNT, dtype=dtype)
    process = same.to(dtype)
    terms = evidence(process, rows, y, silent)
    posterior = condition(process, rows, y, silent)
    assert 0 < terms.jitter == posterior.jitter < most
    mean = posterior.moments(Evaluation(), x.to(dtype)).mean
    torch.testing.assert_close(mean, targets.to(dtype), atol=1e-2 if dtype == torch.float32 else 1e-6, rtol=0)
    assert (
        condition(process, Evaluation().atoms(x.to(dtype)), targets.to(dtype), silent[:COUNT] + 0.1).jitter
        == 0
    )


def test_variances_are_never_negative(same):
    x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    posterior = condition(same, Evaluation().atoms(x), x, torch.full((40,), 1e-10, dtype=torch.float64))
    assert bool((posterior.moments(Evaluation(), x).variance >= 0).all())


def test_rows_drawn_at_random_are_refused_with_the_remedy(process, x, targets, noise):
    drawn = OrbitAverage(SampledOrbit(Rotation(), -1.0, 1.0, num_samples=4)).atoms(x)
    for engine in (evidence, condition, decompose):
        with pytest.raises(ValueError, match=r"orbit\.freeze"):
            engine(process, drawn, targets, noise)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, noise: (y[:-1], noise[:-1]), "11 rows need targets"),
        (lambda y, noise: (y.where(y != y[0, 0], torch.nan), noise), "NaN or infinite"),
        (lambda y, noise: (y.where(y != y[0, 0], torch.inf), noise), "NaN or infinite"),
        (lambda y, noise: (y, noise - 0.1), "must not be negative"),
    ],
)
def test_targets_and_noise_that_do_not_fit_are_refused(process, x, targets, noise, change, message):
    y, variances = change(targets, noise)
    for engine in (evidence, condition, decompose):
        with pytest.raises(ValueError, match=message):
            engine(process, Evaluation().atoms(x), y, variances)


def test_one_noise_variance_for_each_row_is_asked_for(process, x, targets, noise):
    with pytest.raises(ValueError, match="11 rows need 11 noise variances"):
        noisy_factor(process, Evaluation().atoms(x), targets, noise[:-1])
