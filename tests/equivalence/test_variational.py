"""The variational engine in its limits is the exact one, the collapsed one, the plain GP, and GPyTorch's."""

import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import (
    DirectionalDerivative,
    Evaluation,
    Functional,
    Gradient,
    OrbitAverage,
)
from orbitwise.inference.exact import condition, evidence
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse import held_rows
from orbitwise.inference.sparse.bounds import collapsed_bound, quadratic_totals
from orbitwise.inference.sparse.held_rows import HeldRows, hold_rows
from orbitwise.inference.sparse.inducing import inducing_factor, project_rows
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened, WhitenedFactor
from orbitwise.inference.stochastic.trainer import StochasticTrainer
from orbitwise.inference.stochastic.variational import bound_terms
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation, coordinate_permutations

ROWS, NOISE = 10, 0.1


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, NEW, Z = seeded(ROWS, 2), seeded(4, 2, seed=1), seeded(5, 2, seed=2)
Y = torch.stack([(2 * X[:, 0] + X[:, 1]).sin(), X[:, 0] * X[:, 1]], dim=-1)
SWAPS = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
SLOPES = [Gradient(), DirectionalDerivative(torch.tensor([0.6, 0.8]).double())]


@pytest.fixture
def process() -> Process:
    return Process(None, ScaleKernel(RBFKernel())).double().requires_grad_(False)


def noise() -> Tensor:
    return torch.full((ROWS,), NOISE).double()


def assert_same(
    sparse: SparsePosterior, exact, functionals: list[Functional], tolerance: float = 1e-5
) -> None:
    for functional in functionals:
        mine, theirs = sparse.moments(functional, NEW), exact.moments(functional, NEW)
        torch.testing.assert_close(mine.mean, theirs.mean, atol=tolerance, rtol=0)
        variance = theirs.variance if theirs.variance.dim() == 2 else theirs.variance[:, None].expand(-1, 2)
        torch.testing.assert_close(mine.variance, variance, atol=tolerance, rtol=0)


def test_inducing_points_at_the_data_are_the_exact_plain_gp(process):
    rows = Evaluation().atoms(X)
    found = hold_rows(process, Evaluation(), X, X, Y)
    exact = evidence(process, rows, Y, noise()).value.item()
    for tight in (True, False):
        assert found.bound(NOISE, tight).item() == pytest.approx(exact, rel=1e-8)
    posterior = SparsePosterior(process, X, found.optimum(NOISE), found.projected.lower)
    assert_same(posterior, condition(process, rows, Y, noise()), [Evaluation(), SWAPS, *SLOPES])


def test_all_points_of_a_finite_orbit_are_the_exact_invariant_gp(process):
    """Z in g holds every orbit point, or Z in f the data themselves: both explain f, so all is exact."""
    rows = SWAPS.atoms(X)
    exact, posterior = evidence(process, rows, Y, noise()).value.item(), condition(process, rows, Y, noise())
    plain = evidence(process, Evaluation().atoms(X), Y, noise()).value.item()
    assert abs(plain - exact) > 0.01
    for inducing in (rows.points.flatten(0, 1), rows):
        found = hold_rows(process, SWAPS, inducing, X, Y)
        assert found.bound(NOISE).item() == pytest.approx(exact, abs=1e-5)
        sparse = SparsePosterior(process, inducing, found.optimum(NOISE), found.projected.lower)
        assert_same(sparse, posterior, [SWAPS, *(slope @ SWAPS for slope in SLOPES)])


def test_an_orbit_of_no_width_is_the_plain_gp(process):
    """Drawn rows of no width, through the stochastic engine, with slack and tilt that are not best."""
    still = OrbitAverage(SampledOrbit(Rotation(), 0.0, 0.0, num_samples=4).double().requires_grad_(False))
    drawn, plain = still.atoms(X, torch.Generator().manual_seed(0)), Evaluation().atoms(X)
    assert drawn.is_drawn
    q, lower = Whitened(3 * torch.eye(5).double(), seeded(5, 2, seed=3)), inducing_factor(process, Z)
    slack, tilt = torch.full((ROWS,), 0.2).double(), torch.ones(ROWS, 2).double()
    for likelihood, targets in ((Gaussian(NOISE), Y), (Bernoulli(), Y.sign())):
        for method in ("halves", "all_pairs"):
            values = [
                bound_terms(process, likelihood, q, Z, lower, rows, targets, slack, tilt, method).data.item()
                for rows in (drawn, plain)
            ]
            assert values[0] == pytest.approx(values[1], rel=1e-10)
    mine, theirs = (
        SparsePosterior(process, Z, q, lower).moments(each, NEW) for each in (still, Evaluation())
    )
    torch.testing.assert_close(mine.mean, theirs.mean)
    torch.testing.assert_close(mine.variance, theirs.variance)


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Gaussian(NOISE, 2), Dirichlet(0.1)])
def test_one_natural_step_is_the_collapsed_engine_on_the_same_frozen_orbit(process, likelihood):
    orbit = SampledOrbit(Rotation(), -0.7, 0.7).double().freeze(6, torch.Generator().manual_seed(0))
    frozen = OrbitAverage(orbit).requires_grad_(False)
    likelihood.requires_grad_(False)
    targets = one_hot(torch.arange(ROWS) % 2, 2) if isinstance(likelihood, Dirichlet) else Y
    model, rows = LatentModel(process, frozen, likelihood), Observations(Evaluation(), X, targets)
    trainer = StochasticTrainer(model, rows, Z, torch.Generator().manual_seed(0), batch_size=ROWS)
    trainer.run(1)
    columns = project_rows(process, frozen, Z, X)
    shared = likelihood.shares_curvature
    terms = likelihood.quadratic(targets)
    one = torch.ones((), dtype=torch.float64)
    bound = collapsed_bound(quadratic_totals(process, frozen, Z, X, terms, shared), one).item()
    held = HeldRows.of_quadratic(columns, terms, shared).bound(1.0).item()
    assert held == pytest.approx(bound, rel=1e-10)
    assert trainer.estimate(1).mean == pytest.approx(bound, rel=1e-9)
    posterior = held_rows.condition(model, rows, Z).posterior
    assert_same(SparsePosterior(process, Z, trainer.q), posterior, [frozen, Evaluation()], 1e-9)
    if isinstance(likelihood, Gaussian) and shared:
        found = hold_rows(process, frozen, Z, X, targets)
        assert found.bound(likelihood.noise).item() == pytest.approx(bound, rel=1e-9)


class Theirs(gpytorch.models.ApproximateGP):
    """GPyTorch's sparse variational GP, which is whitened as ours is."""

    def __init__(self, kernel: gpytorch.kernels.Kernel, inducing: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.VariationalStrategy(
            self, inducing, distribution, learn_inducing_locations=False, jitter_val=1e-10
        )
        super().__init__(strategy.double())
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_plain_rows_are_the_sparse_gp_of_gpytorch(process):
    q = WhitenedFactor(5, 1, shared=True)
    with torch.no_grad():
        q.mean.copy_(seeded(5, 1, seed=4))
        q.raw.copy_(0.4 * seeded(5, 5, seed=5))
    model = Theirs(process.kernel, Z)
    model(X)  # the first call sets q to the prior
    distribution = model.variational_strategy._variational_distribution
    distribution.variational_mean.data = q.mean.detach()[:, 0]
    distribution.chol_variational_covar.data = q.factor.detach()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=ROWS)(model(X), Y[:, 0]).item() * ROWS
    mine = Gaussian(NOISE)
    mine.raw_noise.data.fill_(math.log(NOISE - 1e-8))
    zero = torch.zeros(ROWS).double()
    lower, rows = inducing_factor(process, Z), Evaluation().atoms(X)
    data = bound_terms(process, mine, q, Z, lower, rows, Y[:, :1], zero).data
    assert (data - q.divergence()).item() == pytest.approx(elbo, abs=1e-5)
    model.eval()
    predicted = model(NEW)
    moments = SparsePosterior(process, Z, q).moments(Evaluation(), NEW)
    torch.testing.assert_close(moments.mean[:, 0], predicted.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(moments.variance[:, 0], predicted.variance, atol=1e-6, rtol=0)
