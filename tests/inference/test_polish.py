"""Polishing: dense formulas for bound and optimum, order of the bounds, leave-one-out against refits."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor

from orbitwise.functionals import Evaluation, Gradient, OrbitAverage
from orbitwise.inference.exact import evidence
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse.held_rows import HeldRows, condition, hold_rows
from orbitwise.inference.sparse.inducing import EstimatedProcess, Estimates, inducing_factor, project_rows
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.inference.stochastic.variational import bound_terms
from orbitwise.likelihoods import Gaussian
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Translation, coordinate_permutations

ROWS, SIZE, OUTPUTS, NOISE = 15, 6, 2, 0.05


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = seeded(ROWS, 3), seeded(SIZE, 3, seed=1)
Y = torch.stack([X.sum(1).sin(), X.square().sum(1).cos()], dim=-1)
AVERAGE = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))


@pytest.fixture
def process() -> Process:
    return Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)


def statistics(process: Process, rows: Tensor = X, targets: Tensor = Y) -> HeldRows:
    return hold_rows(process, AVERAGE, Z, rows, targets)


@pytest.mark.parametrize("tight", [True, False])
def test_the_bound_is_that_of_n_by_n_matrices(process, tight):
    cross = process.covariance(AVERAGE.atoms(X), Evaluation().atoms(Z))
    explained = cross @ torch.linalg.inv(process.covariance(Evaluation().atoms(Z))) @ cross.T
    residual = process.variance(AVERAGE.atoms(X)) - explained.diagonal()
    noisy = torch.distributions.MultivariateNormal(
        torch.zeros(ROWS).double(), explained + NOISE * torch.eye(ROWS).double()
    )
    slack = torch.log1p(residual / NOISE) if tight else residual / NOISE
    right = noisy.log_prob(Y.T).sum() - 0.5 * OUTPUTS * slack.sum()
    mine = statistics(process).bound(NOISE, tight)
    assert mine.item() == pytest.approx(right.item(), rel=1e-10), "in double precision, log σ² too"


@pytest.mark.parametrize("noise", [1e-4, 0.05, 2.0])
def test_titsias_is_below_the_tight_bound_and_that_below_the_evidence(process, noise):
    found = statistics(process)
    exact = evidence(process, AVERAGE.atoms(X), Y, torch.full((ROWS,), noise).double()).value
    titsias, tight = found.bound(noise, tight=False), found.bound(noise)
    room = 1e-9 * float(exact.abs())  # far above rounding, far below what tells the bounds apart
    assert titsias < tight - room
    assert tight < exact - room


@pytest.mark.parametrize("tight", [True, False])
def test_the_optimum_attains_the_bound_and_nothing_else_does(process, tight):
    """Σ E_q log p - slack - KL at the optimum is the collapsed bound; a natural step of rate 1 goes there."""
    found = statistics(process)
    lower, likelihood = inducing_factor(process, Z), Gaussian(NOISE)
    with torch.no_grad():
        likelihood.raw_noise.fill_(math.log(NOISE - 1e-8))
    slack = None if tight else torch.zeros(ROWS).double()

    def bound(q: Whitened) -> float:
        rows = AVERAGE.atoms(X)
        data = bound_terms(process, likelihood, q, Z, lower, rows, Y, slack).data
        return (data - q.divergence()).item()

    best = found.optimum(NOISE)
    assert bound(best) == pytest.approx(found.bound(NOISE, tight).item(), rel=1e-9)
    start = Whitened.prior(SIZE, OUTPUTS, shared=True)
    terms = bound_terms(process, likelihood, start, Z, lower, AVERAGE.atoms(X), Y, slack)
    quadratic = [each.detach() for each in terms.quadratic]
    stepped = start.step(terms.projection.total, quadratic[0], quadratic[1], 1.0)
    torch.testing.assert_close(stepped.precision, best.precision)
    torch.testing.assert_close(stepped.mean, best.mean)
    for seed in range(3):
        nudge = 0.05 * seeded(SIZE, OUTPUTS, seed=seed)
        assert bound(Whitened(best.precision * (1 + 0.1 * seed), best.shift + nudge)) < bound(best)


def test_leave_one_out_is_a_refit_without_the_row(process):
    held_out = statistics(process).leave_one_out(NOISE)
    for row in range(0, ROWS, 4):
        others = torch.arange(ROWS) != row
        found = hold_rows(process, AVERAGE, Z, X[others], Y[others])
        posterior = SparsePosterior(process, Z, found.optimum(NOISE), found.projected.lower)
        moments = posterior.moments(AVERAGE, X[row : row + 1])
        torch.testing.assert_close(held_out.mean[row], moments.mean[0])
        torch.testing.assert_close(held_out.variance[row], moments.variance[0])


def test_a_prior_mean_moves_bound_and_predictions():
    mean = ConstantMean().double()
    mean.constant.data.fill_(3.0)
    kernel = ScaleKernel(RBFKernel()).double()
    with_mean, without = (Process(each, kernel).requires_grad_(False) for each in (mean, None))
    shifted, plain = statistics(with_mean, targets=Y + 3), statistics(without)
    torch.testing.assert_close(shifted.bound(NOISE), plain.bound(NOISE))
    torch.testing.assert_close(shifted.leave_one_out(NOISE).mean, plain.leave_one_out(NOISE).mean + 3)
    both = [
        SparsePosterior(each, Z, found.optimum(NOISE)).moments(AVERAGE, X).mean
        for each, found in ((with_mean, shifted), (without, plain))
    ]
    torch.testing.assert_close(both[0], both[1] + 3)


def test_drawn_rows_are_taken_as_drawn_once(process):
    drawn = OrbitAverage(SampledOrbit(Translation(3), -0.4, 0.4, num_samples=4)).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    found = hold_rows(process, drawn, Z, X, Y, generator)
    rows = drawn.atoms(X, torch.Generator().manual_seed(0)).frozen()
    exact = evidence(process, rows, Y, torch.full((ROWS,), NOISE).double()).value
    assert found.bound(NOISE) < exact - 1e-3, "six inducing variables are too few for fifteen rows"
    at_data = hold_rows(process, drawn, rows, X, Y, torch.Generator().manual_seed(0))
    assert at_data.bound(NOISE).item() == pytest.approx(exact.item(), rel=1e-6)


def test_estimates_and_gradient_rows_are_gathered_too(process):
    class Exact(EstimatedProcess):
        def inducing_covariance(self, inducing: Tensor) -> Tensor:
            return process.covariance(Evaluation().atoms(inducing))

        def estimates(self, x: Tensor, inducing: Tensor, generator: torch.Generator | None) -> Estimates:
            rows = AVERAGE.atoms(x)
            cross = process.covariance(rows, Evaluation().atoms(inducing))
            return Estimates(cross[:, None], process.variance(rows), is_exact=True)

    found = hold_rows(Exact(), AVERAGE, Z, X, Y)
    torch.testing.assert_close(found.bound(NOISE), statistics(process).bound(NOISE))
    slopes = hold_rows(process, Gradient([0]), Z, X, Y)
    noise = torch.full((ROWS,), NOISE).double()
    assert slopes.bound(NOISE) < evidence(process, Gradient([0]).atoms(X), Y, noise).value


def test_the_bound_has_gradients_in_the_noise(process):
    found, noise = statistics(process), torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(found.bound(noise), noise)
    change = (found.bound(NOISE + 1e-6) - found.bound(NOISE - 1e-6)) / 2e-6
    assert slope.item() == pytest.approx(change.item(), rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, -1.0, torch.tensor([0.1, 0.2])])
def test_the_noise_is_one_positive_number(process, noise):
    with pytest.raises(ValueError, match="one positive variance"):
        statistics(process).bound(noise)


def test_a_weight_is_a_number_of_repetitions(process):
    """Leave-one-out leaves out all repetitions of a row at once."""
    weight = torch.ones(ROWS).double()
    weight[:4] = 3
    index = torch.arange(ROWS).repeat_interleave(weight.long())
    found = project_rows(process, AVERAGE, Z, X)
    weighted = HeldRows(found, Y, weight)
    repeated = statistics(process, X[index], Y[index])
    for ours, theirs in zip(
        (weighted.optimum(NOISE).mean, weighted.precision(NOISE)),
        (repeated.optimum(NOISE).mean, repeated.precision(NOISE)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    likelihood = Gaussian(NOISE, learnable=False)
    model = LatentModel(process, AVERAGE, likelihood)
    best = condition(model, Observations(Evaluation(), X, Y, weight), Z)
    repeated = condition(model, Observations(Evaluation(), X[index], Y[index]), Z)
    q = best.posterior.q
    torch.testing.assert_close(q.mean, repeated.posterior.q.mean)
    terms = bound_terms(process, likelihood, q, Z, found.lower, AVERAGE.atoms(X), Y, weight=weight)
    assert float(terms.data - q.divergence()) == pytest.approx(float(best.bound()), rel=1e-9)
    # copies of a row have each their own residual in the bound, one row of weight 3 has only one
    assert float(best.bound()) > float(repeated.bound())
    held_out = weighted.leave_one_out(NOISE)
    others = index != 2
    left = hold_rows(process, AVERAGE, Z, X[index][others], Y[index][others])
    moments = SparsePosterior(process, Z, left.optimum(NOISE), left.projected.lower).moments(AVERAGE, X[2:3])
    torch.testing.assert_close(held_out.mean[2], moments.mean[0])
    torch.testing.assert_close(held_out.variance[2], moments.variance[0])
