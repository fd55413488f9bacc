"""LIM-A section A: the deviation bound (3) of the normalised double-sum kernel, in simulation."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from orbitwise.functionals import OrbitAverage, OrbitSum
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import FunctionalKernel, Process
from orbitwise.transforms import Translation, coordinate_permutations

NUM_DRAWS = 20_000


def base() -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 3.0, 0.75
    return kernel


def shifts(reach: float) -> FiniteOrbit:
    """A(x): seven points within `reach` of x, on a line."""
    return FiniteOrbit(
        Translation(1), elements=torch.linspace(-reach, reach, 7, dtype=torch.float64)[:, None]
    )


def prior_draws(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    white = torch.randn(
        len(values), NUM_DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return vectors @ (values.clamp_min(0).sqrt()[:, None] * white)


def squared_changes(kernel: FunctionalKernel, x: Tensor, orbit: FiniteOrbit) -> tuple[Tensor, Tensor]:
    """[f(x) - f(x_a)]² for draws of f and x_a, and E k(x, x_a)."""
    points = torch.cat([x, orbit.points(x).points[0]])
    covariance = kernel(points).to_dense().detach()
    f = prior_draws(covariance)
    chosen = torch.randint(orbit.size, (NUM_DRAWS,), generator=torch.Generator().manual_seed(1)) + 1
    return (f[0] - f[chosen, torch.arange(NUM_DRAWS)]).square(), covariance[0, 1:].mean()


@pytest.mark.parametrize("reach", [0.2, 0.8, 2.0])
def test_the_deviation_bound_holds(reach: float):
    orbit, x = shifts(reach), torch.tensor([[0.4]], dtype=torch.float64)
    kernel = FunctionalKernel(base(), OrbitSum(orbit), normalize=True)
    changes, overlap = squared_changes(kernel, x, orbit)
    expected = 2 * (1 - overlap)
    # eq. 5: E [f(x) - f(x_a)]² = 2(1 - E k(x, x_a)), which needs unit variance at x and at every x_a
    assert abs(changes.mean() - expected) < 4 * changes.std() / math.sqrt(NUM_DRAWS)
    for epsilon in (1.5, 2.0, 4.0, 10.0):
        # eq. 3
        assert (changes > epsilon * expected).double().mean() < 1 / epsilon
    # A bound three times tighter would not hold: the simulation can tell.
    assert (changes > 1.5 * expected / 3).double().mean() > 1 / 3


def test_without_the_normalisation_equation_5_fails():
    orbit, x = shifts(0.8), torch.tensor([[0.4]], dtype=torch.float64)
    changes, overlap = squared_changes(FunctionalKernel(base(), OrbitSum(orbit)), x, orbit)
    error = changes.std() / math.sqrt(NUM_DRAWS)
    assert abs(changes.mean() - 2 * (1 - overlap)) > 20 * error


@torch.no_grad()
def test_more_overlap_means_less_change():
    """The more the augmentation sets of x and x_a overlap, the less sensitive is f."""
    x, near = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([[0.6]], dtype=torch.float64)
    overlaps = [
        float(FunctionalKernel(base(), OrbitAverage(shifts(reach)), normalize=True)(x, near).to_dense())
        for reach in (0.01, 0.5, 1.0, 2.0)
    ]
    assert overlaps == sorted(overlaps)
    assert overlaps[-1] - overlaps[0] > 0.01


def test_a_fully_and_uniformly_overlapping_orbit_is_strictly_invariant():
    orbit = FiniteOrbit(coordinate_permutations(3))
    x = torch.tensor([[0.3, -0.8, 1.1]], dtype=torch.float64)
    kernel = FunctionalKernel(base(), OrbitAverage(orbit), normalize=True)
    changes, overlap = squared_changes(kernel, x, orbit)
    assert abs(overlap - 1) < 1e-12
    assert changes.max() < 1e-12  # the square of the root of rounding
    other = torch.tensor([[0.3, 0.9, 0.1]], dtype=torch.float64)
    assert kernel(x, other).to_dense() < 0.999


@torch.no_grad()
def test_normalised_rows_have_unit_variance_and_the_correlations_of_the_others():
    process, orbit = Process(None, base()), FiniteOrbit(coordinate_permutations(3))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = OrbitSum(orbit).atoms(x)
    plain, unit = process.covariance(rows), process.covariance(process.normalize(rows))
    deviation = plain.diagonal().sqrt()
    torch.testing.assert_close(unit, plain / deviation / deviation[:, None], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(unit.diagonal(), torch.ones(5, dtype=torch.float64))
