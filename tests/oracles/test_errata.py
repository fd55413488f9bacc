"""The errata of METHOD 9 that covariances touch, one test each: the printed formula fails, ours holds.

RKHS 4.3 is in test_gaussian_orbit.py, beside its closed form.
"""

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, OrbitAverage, OrbitSum
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process, reduce_quadratic
from orbitwise.transforms import Translation, coordinate_permutations


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def process() -> Process:
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.25
    return Process(None, kernel)


@torch.no_grad()
def test_lim_eq_17_an_average_of_draws_is_their_sum_divided_by_their_number():
    """Printed: k̂_fu = Σ_s k_g(x_s, z). Its mean is S times ∫ p(x_a given x) k_g(x_a, z) dx_a."""
    x, z = seeded(1, 1).expand(4000, -1), seeded(1, 1, seed=1)
    orbit = SampledOrbit(Translation(1), -0.5, 0.5, num_samples=8)
    rows = OrbitAverage(orbit).atoms(x, torch.Generator().manual_seed(2))
    estimates = process().covariance(rows, Evaluation().atoms(z))[:, 0]
    # ∫ k_g(x + α, z) dα over [-½, ½]
    nodes = torch.linspace(-0.5, 0.5, 2001, dtype=torch.float64)
    truth = torch.trapezoid(torch.exp(-0.5 * ((x[0] + nodes - z[0]) / 1.25).square()), nodes)
    error = estimates.std() / len(estimates) ** 0.5
    assert (estimates.mean() - truth).abs() < 4 * error
    printed = process().kernel(rows.points[:, :, 0].reshape(-1, 1), z).to_dense().reshape(-1, 8).sum(-1)
    assert (printed.mean() - truth).abs() > 100 * error


@torch.no_grad()
def test_lim_a_eq_6_the_second_argument_has_its_own_orbit():
    """Printed: k_f(x, x') sums over A(x) twice. Right: A(x) for the first argument, A(x') for the second."""
    x, other = seeded(3, 3), seeded(3, 3, seed=1)
    orbit = FiniteOrbit(coordinate_permutations(3))
    moved, others = orbit.points(x).points, orbit.points(other).points
    kernel = process().kernel
    right = torch.stack([torch.stack([kernel(a, b).to_dense().sum() for b in others]) for a in moved])
    printed = torch.stack([kernel(a, a).to_dense().sum() for a in moved])
    total = OrbitSum(orbit)
    k_f = process().covariance(total.atoms(x), total.atoms(other))
    torch.testing.assert_close(k_f, right, rtol=1e-10, atol=1e-10)
    assert (k_f - printed[:, None]).abs().max() > 1.0


@torch.no_grad()
def test_lim_a_eq_7_the_unbiased_estimate_takes_covariances_of_g_not_of_f():
    """Printed: r = k_f(x_a, x'_a), k_fu(x_a, z). Right: r = k_g(x_a, x'_a): f is averaged already."""
    x = seeded(2, 3)
    atoms = OrbitSum(FiniteOrbit(coordinate_permutations(3))).atoms(x)
    points = Evaluation()
    of_g = torch.stack([process().covariance(points.atoms(row)) for row in atoms.points])
    of_f = torch.stack(
        [
            process().covariance(OrbitSum(FiniteOrbit(coordinate_permutations(3))).atoms(row))
            for row in atoms.points
        ]
    )
    truth = process().variance(atoms)
    torch.testing.assert_close(reduce_quadratic(atoms, of_g), truth, rtol=1e-10, atol=1e-10)
    assert (reduce_quadratic(atoms, of_f) / truth).min() > 10


@torch.no_grad()
def test_lim_eq_14_inducing_variables_live_in_g():
    """Printed: k_fu averages k(x_a, x). Right: k_g(x_a, z), with z the inducing input."""
    x, z = seeded(3, 3), seeded(4, 3, seed=1)
    orbit = FiniteOrbit(coordinate_permutations(3))
    kernel = process().kernel
    right = torch.stack([kernel(moved, z).to_dense().mean(0) for moved in orbit.points(x).points])
    k_fu = process().covariance(OrbitAverage(orbit).atoms(x), Evaluation().atoms(z))
    torch.testing.assert_close(k_fu, right, rtol=1e-10, atol=1e-10)
    printed = torch.stack(
        [kernel(moved, x[i : i + 1]).to_dense().mean() for i, moved in enumerate(orbit.points(x).points)]
    )
    assert (k_fu - printed[:, None]).abs().max() > 0.1
