from itertools import pairwise

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference import exact
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.sparse import bounds
from orbitwise.inference.sparse.bounds import collapsed_bound, quadratic_totals
from orbitwise.inference.sparse.held_rows import HeldRows, best_tilt, condition
from orbitwise.inference.sparse.inducing import project_rows
from orbitwise.likelihoods import Bernoulli, Gaussian
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.process.process import PAIRS_AT_ONCE
from orbitwise.transforms import Translation, coordinate_permutations


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    y = torch.stack([torch.sin(x.sum(1)), torch.cos(x.prod(1))], dim=1)
    process = Process(None, ScaleKernel(RBFKernel())).double()
    return process, x, y, generator


def bound(process, functional, inducing, x, y, noise=0.05, tight=True):
    likelihood = Gaussian(noise)
    totals = quadratic_totals(process, functional, inducing, x, likelihood.quadratic(y), shared=True)
    return collapsed_bound(totals, torch.ones((), dtype=torch.float64), tight)


def evidence(process, functional, x, y, noise=0.05):
    value = Gaussian(noise).noise.expand(len(x))
    return exact.evidence(process, functional.atoms(x), y, value).value


def test_inducing_points_at_the_data_give_the_evidence(problem):
    process, x, y, _ = problem
    torch.testing.assert_close(
        bound(process, Evaluation(), x, x, y), evidence(process, Evaluation(), x, y), rtol=1e-6, atol=1e-4
    )


def test_whole_orbits_as_inducing_points_give_the_evidence_of_an_invariant_gp(problem):
    process, x, y, _ = problem
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    points = functional.atoms(x).points.flatten(0, 1)
    torch.testing.assert_close(
        bound(process, functional, points, x, y), evidence(process, functional, x, y), rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize("size", [2, 5, 12])
def test_titsias_is_below_the_tight_bound_is_below_the_evidence(problem, size):
    process, x, y, _ = problem
    loose = bound(process, Evaluation(), x[:size], x, y, tight=False)
    tight = bound(process, Evaluation(), x[:size], x, y)
    assert loose < tight < evidence(process, Evaluation(), x, y)


def test_titsias_equals_its_definition(problem):
    process, x, y, _ = problem
    z, noise = x[:6], Gaussian(0.05).noise.item()
    kernel = process.kernel
    K_uu, K_uf = kernel(z).to_dense(), kernel(z, x).to_dense()
    Q = K_uf.T @ torch.linalg.solve(K_uu, K_uf)
    normal = torch.distributions.MultivariateNormal(torch.zeros(30).double(), Q + noise * torch.eye(30))
    trace = (kernel(x).to_dense().diagonal() - Q.diagonal()).sum()
    expected = normal.log_prob(y.T).sum() - 2 * trace / (2 * noise)
    torch.testing.assert_close(
        bound(process, Evaluation(), z, x, y, tight=False), expected, rtol=1e-6, atol=1e-4
    )


def test_streamed_rows_give_the_same_bound_and_gradient(problem, monkeypatch):
    process, x, y, generator = problem
    functional = OrbitAverage(SampledOrbit(Translation(2), -0.3, 0.3).freeze(4, generator)).double()
    values = []
    for pairs in (2**20, 40):
        monkeypatch.setattr(bounds, "LEAST_ROWS", 5)
        monkeypatch.setitem(PAIRS_AT_ONCE, "cpu", pairs)
        value = bound(process, functional, x[:8], x, y)
        parameters = [p for m in (process, functional) for p in m.parameters() if p.requires_grad]
        values.append((value, torch.autograd.grad(value, parameters)))
    torch.testing.assert_close(values[0], values[1])


def test_posterior_is_the_exact_one_in_the_limit(problem):
    process, x, y, generator = problem
    likelihood = Gaussian(0.05)
    model, rows = LatentModel(process, Evaluation(), likelihood), Observations(Evaluation(), x, y)
    sparse = condition(model, rows, x).posterior
    with torch.no_grad():
        full = exact.condition(process, Evaluation().atoms(x), y, likelihood.noise.expand(30))
        new = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        ours, theirs = sparse.moments(Evaluation(), new), full.moments(Evaluation(), new)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.variance[:, 0], theirs.variance, rtol=1e-3, atol=1e-5)


def test_each_round_of_tilts_raises_the_bound(problem):
    process, x, y, _ = problem
    likelihood, targets = Bernoulli(), y[:, :1].sign()
    with torch.no_grad():
        columns = project_rows(process, Evaluation(), x[:10], x)
        tilt = torch.full_like(targets, 3.0)
        values = []
        for _ in range(5):
            values.append(
                HeldRows.of_quadratic(columns, likelihood.quadratic(targets, tilt), False).bound(1.0)
            )
            tilt = best_tilt(columns, likelihood, targets, tilt, num_rounds=1)
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(values))
    assert values[-1] > values[0]


def test_drawn_rows_are_refused(problem):
    process, x, y, _ = problem
    with pytest.raises(ValueError, match="freeze"):
        bound(process, OrbitAverage(SampledOrbit(Translation(2), -1, 1)), x[:3], x, y)
