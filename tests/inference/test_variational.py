"""The bound on a batch, its slack and tilt, the memory, and moments of any functional from q."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    FeatureMap,
    Gradient,
    OrbitAverage,
)
from orbitwise.inference.sparse.inducing import inducing_factor, project
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened, projected_moments
from orbitwise.inference.stochastic.variational import Memory, bound_terms
from orbitwise.likelihoods import Bernoulli, Gaussian, Poisson, Softmax, StudentT
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Translation, coordinate_permutations

SIZE, ROWS, OUTPUTS = 5, 8, 2


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z, Y = seeded(ROWS, 3), seeded(SIZE, 3, seed=1), seeded(ROWS, OUTPUTS, seed=2)
SIGNS = torch.where(Y > 0, 1.0, -1.0).double()
AVERAGE = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
DRAWN = OrbitAverage(SampledOrbit(Translation(3), -0.5, 0.5, num_samples=4))


@pytest.fixture
def process() -> Process:
    return Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)


def gaussian(shared: bool = False) -> Whitened:
    root = seeded(SIZE, SIZE, seed=3) if shared else seeded(OUTPUTS, SIZE, SIZE, seed=3)
    return Whitened(root @ root.mT + torch.eye(SIZE), seeded(SIZE, OUTPUTS, seed=4))


def terms(process, likelihood, targets, slack=None, tilt=None, rows=None, q=None):
    rows = AVERAGE.atoms(X) if rows is None else rows
    q = gaussian(likelihood.shares_curvature) if q is None else q
    return bound_terms(process, likelihood, q, Z, inducing_factor(process, Z), rows, targets, slack, tilt)


def zeros() -> Tensor:
    return torch.zeros(ROWS).double()


def test_the_plain_bound_is_the_expected_log_likelihood(process):
    """With slack 0: Σ E_q(f) log N(y | f, σ²), by the moments of f itself."""
    q = gaussian(shared=True)
    moments = SparsePosterior(process, Z, q).moments(AVERAGE, X)
    likelihood = Gaussian(0.3)
    value = terms(process, likelihood, Y, zeros(), q=q).data
    torch.testing.assert_close(value, likelihood.expected_log_likelihood(moments, Y).sum())


def test_the_tight_bound_has_a_logarithm_of_the_residual(process):
    likelihood = Gaussian(0.3, OUTPUTS)
    plain, tight = terms(process, likelihood, Y, zeros()), terms(process, likelihood, Y)
    slack = plain.moments.residual[:, None] / likelihood.noise
    gain = 0.5 * (slack - torch.log1p(slack)).sum()
    torch.testing.assert_close(tight.data, plain.data + gain)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 2.0, 30.0])
def test_any_slack_is_valid_and_the_residual_itself_is_best(process, factor):
    """At slack c = λ·r the tangent touches the logarithm; elsewhere it is above it."""
    best = terms(process, Gaussian(0.3), Y)
    other = terms(process, Gaussian(0.3), Y, factor * best.moments.residual)
    if factor == 1.0:
        torch.testing.assert_close(other.data, best.data)
    else:
        assert other.data < best.data - 1e-3


def test_exact_rows_find_the_best_tilt(process):
    best = terms(process, Bernoulli(), SIGNS)
    for seed in range(5):
        tilt = (best.square * (0.5 * seeded(ROWS, OUTPUTS, seed=seed)).exp()).sqrt()
        assert terms(process, Bernoulli(), SIGNS, tilt=tilt).data < best.data
    again = terms(process, Bernoulli(), SIGNS, tilt=best.square.sqrt())
    assert again.data.item() == pytest.approx(best.data.item(), abs=1e-4)


def test_gradients_are_those_of_the_bound_that_was_returned():
    """Slack and tilt are held: at the best ones that is the whole gradient (envelope theorem)."""
    process = Process(None, ScaleKernel(RBFKernel())).double()

    def value() -> Tensor:
        return terms(process, Bernoulli(), SIGNS).data

    parameters = list(process.parameters())
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        with torch.no_grad():
            parameter += 1e-5
            up = value()
            parameter -= 2e-5
            down = value()
            parameter += 1e-5
        assert gradient.item() == pytest.approx(((up - down) / 2e-5).item(), rel=2e-3)


@pytest.mark.parametrize("likelihood", [Poisson(), StudentT(), Softmax(OUTPUTS)])
def test_general_likelihoods_take_exact_rows_and_refuse_drawn_ones(process, likelihood):
    targets = torch.nn.functional.one_hot(torch.arange(ROWS) % 2, 2).double()
    q = gaussian()
    moments = SparsePosterior(process, Z, q).moments(AVERAGE, X)
    value = terms(process, likelihood, targets, q=q).data
    torch.testing.assert_close(value, likelihood.expected_log_likelihood(moments, targets).sum())
    drawn = DRAWN.atoms(X, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"not quadratic in f.*biased.*Freeze the orbit"):
        terms(process, likelihood, targets, zeros(), rows=drawn)


def test_drawn_rows_bring_no_slack_or_tilt_of_their_own(process):
    drawn = DRAWN.atoms(X, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="not computed from the same draws"):
        terms(process, Gaussian(), Y, rows=drawn)
    with pytest.raises(ValueError, match="not computed from the same draws"):
        terms(process, Bernoulli(), SIGNS, zeros(), rows=drawn)
    assert terms(process, Bernoulli(), SIGNS, zeros(), torch.ones_like(Y), drawn).data.isfinite()


def test_a_prior_mean_shifts_the_targets():
    mean = ConstantMean().double()
    mean.constant.data.fill_(1.7)
    kernel = ScaleKernel(RBFKernel()).double()
    with_mean, without = (Process(each, kernel).requires_grad_(False) for each in (mean, None))
    shifted = terms(with_mean, Gaussian(0.3), Y + 1.7, q=gaussian(shared=True))
    torch.testing.assert_close(shifted.data, terms(without, Gaussian(0.3), Y, q=gaussian(shared=True)).data)


def test_memory_averages_visits_and_lends_typical_values(process):
    memory = Memory(20, OUTPUTS)
    residual, tilt = memory.recall(torch.arange(3))
    assert residual.tolist() == [0.0] * 3
    assert tilt.unique().tolist() == [1.0]
    found = terms(process, Gaussian(0.3), Y)
    index = torch.arange(ROWS)
    memory.learn(index, found)
    first, _ = memory.recall(index)
    torch.testing.assert_close(first, found.moments.residual)
    unseen, unseen_tilt = memory.recall(torch.tensor([15]))
    torch.testing.assert_close(unseen, found.moments.residual.mean()[None])
    torch.testing.assert_close(unseen_tilt[0], found.square.mean(0).sqrt())
    negative = found._replace(
        moments=found.moments._replace(residual=-torch.ones(ROWS).double()), square=-found.square
    )
    memory.learn(index, negative)
    second, tilt = memory.recall(index)
    torch.testing.assert_close(second, 0.5 * first)
    assert bool((tilt > 0).all())


FUNCTIONALS = [
    Evaluation(),
    AVERAGE,
    Gradient(),
    Gradient([1]) @ AVERAGE,
    DirectionalDerivative(torch.ones(3).double()) @ AVERAGE,
    AVERAGE - Evaluation(),
    FeatureMap(lambda x: 2 * x),
]


@pytest.mark.parametrize("functional", FUNCTIONALS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shared", [True, False])
def test_posterior_moments_of_any_functional_are_those_of_its_atoms(process, functional, shared):
    """var(L g | y) = k_L - k_Lu K_uu⁻¹(K_uu - V)K_uu⁻¹ k_uL, with the rows expanded and matrices inverted."""
    q = gaussian(shared)
    posterior = SparsePosterior(process, Z, q)
    rows = functional.atoms(X)
    atoms = rows if not hasattr(rows, "expand") else rows.expand()
    moments = posterior.moments(functional, X)
    lower = inducing_factor(process, Z)
    weights = process.covariance(atoms, Evaluation().atoms(Z)) @ torch.linalg.inv(lower @ lower.T) @ lower
    torch.testing.assert_close(moments.mean, weights @ q.mean)
    inner = torch.eye(SIZE).double() - torch.linalg.inv(q.precision).expand(OUTPUTS, SIZE, SIZE)
    prior = process.covariance(atoms).diagonal()[:, None]
    right = prior - torch.einsum("nu,cuw,nw->nc", weights, inner, weights)
    torch.testing.assert_close(moments.variance, right)
    torch.testing.assert_close(moments.mean_square, moments.mean.square() + moments.variance)


@pytest.mark.parametrize("functional", FUNCTIONALS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("shared", [True, False])
def test_posterior_covariances_of_any_functional_are_those_of_its_atoms(process, functional, shared):
    """K - A(I - S)Aᵀ with the rows expanded; its diagonal are the variances, and means come alone."""
    q = gaussian(shared)
    posterior = SparsePosterior(process, Z, q)
    rows = functional.atoms(X)
    atoms = rows if not hasattr(rows, "expand") else rows.expand()
    lower = inducing_factor(process, Z)
    weights = process.covariance(atoms, Evaluation().atoms(Z)) @ torch.linalg.inv(lower).T
    inner = torch.eye(SIZE).double() - torch.linalg.inv(q.precision)
    covariance = posterior.covariance(rows)
    assert covariance.dim() == (2 if shared else 3)
    torch.testing.assert_close(covariance, process.covariance(atoms) - weights @ inner @ weights.T)
    moments = posterior.row_moments(rows)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1).expand(OUTPUTS, -1).T
    torch.testing.assert_close(diagonal, moments.variance)
    torch.testing.assert_close(posterior.row_mean(rows), moments.mean)


@pytest.mark.parametrize("shared", [True, False])
def test_posterior_draws_have_the_posterior_moments(process, shared):
    posterior = SparsePosterior(process, Z, gaussian(shared))
    rows, count = AVERAGE.atoms(X), 40_000
    draws = posterior.sample(rows, count, torch.Generator().manual_seed(0))
    assert draws.shape == (ROWS, OUTPUTS, count)
    torch.testing.assert_close(draws.mean(-1), posterior.row_mean(rows), atol=0.03, rtol=0)
    covariance = posterior.covariance(rows).expand(OUTPUTS, -1, -1)
    for output in range(OUTPUTS):
        torch.testing.assert_close(draws[:, output].cov(), covariance[output], atol=0.03, rtol=0)
    again = posterior.sample(rows, count, torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)


def test_a_prior_mean_is_part_of_the_posterior_mean():
    mean = ConstantMean().double()
    mean.constant.data.fill_(1.7)
    process = Process(mean, RBFKernel().double()).requires_grad_(False)
    posterior = SparsePosterior(process, Z, gaussian(shared=True))
    rows = AVERAGE.atoms(X)
    torch.testing.assert_close(posterior.row_mean(rows), posterior.row_moments(rows).mean)
    without = SparsePosterior(Process(None, process.kernel), Z, gaussian(shared=True))
    torch.testing.assert_close(posterior.row_mean(rows), without.row_mean(rows) + 1.7)


@torch.no_grad()
def test_predictions_from_drawn_rows_never_have_negative_variance():
    """An unbiased variance of few draws may be negative; rows as they are keep each draw's own."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.7
    process = Process(None, kernel)
    q = Whitened(1e6 * torch.eye(SIZE).double(), seeded(SIZE, 1))
    rows = OrbitAverage(SampledOrbit(Translation(3), -2.0, 2.0, num_samples=4)).atoms(
        X.repeat(20, 1), torch.Generator().manual_seed(0)
    )
    moments = SparsePosterior(process, Z, q).row_moments(rows)
    assert bool((moments.variance > 0).all())
    unbiased = projected_moments(project(process, Z, inducing_factor(process, Z), rows), q)
    total = unbiased.mean_square - unbiased.mean.square() + unbiased.residual[:, None]
    assert (total < 0).double().mean() > 0.02
