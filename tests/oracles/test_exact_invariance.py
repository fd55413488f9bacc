"""An average over a group is invariant exactly: |f(x) - f(hx)| at rounding level for every group shipped."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.orbits import FiniteOrbit, closure
from orbitwise.process import Process
from orbitwise.transforms import (
    LinearMaps,
    block_permutations,
    coordinate_permutations,
    cyclic_shifts,
    exchange_permutations,
    flips,
    negation,
    quarter_turns,
    sign_changes,
    turns,
)


def mirror() -> LinearMaps:
    return LinearMaps(torch.stack([torch.eye(2), torch.diag(torch.tensor([1.0, -1.0]))]).double())


GROUPS = {
    "permutations": (4, 24, lambda: FiniteOrbit(coordinate_permutations(4))),
    "blocks": (6, 6, lambda: FiniteOrbit(block_permutations(3, 2))),
    "exchange": (6, 6, lambda: FiniteOrbit(exchange_permutations(["H", "C", "H", "H", "O", "N"]))),
    "cyclic": (5, 5, lambda: FiniteOrbit(cyclic_shifts(5))),
    "cyclic blocks": (6, 3, lambda: FiniteOrbit(cyclic_shifts(3, 2))),
    "signs": (3, 8, lambda: FiniteOrbit(sign_changes(3))),
    "negation": (3, 2, lambda: FiniteOrbit(negation(3))),
    "flips": (12, 4, lambda: FiniteOrbit(flips((3, 4), vertical=True))),
    "quarter turns": (9, 4, lambda: FiniteOrbit(quarter_turns((3, 3)))),
    "colour quarter turns": (8, 4, lambda: FiniteOrbit(quarter_turns((2, 2, 2)))),
    "dihedral": (9, 8, lambda: closure(quarter_turns((3, 3)), flips((3, 3)))),
    "signed permutations": (3, 48, lambda: closure(coordinate_permutations(3), sign_changes(3))),
    "turns": (2, 7, lambda: FiniteOrbit(turns(7))),
    "turns and mirror": (2, 10, lambda: closure(turns(5), mirror())),
}
KERNELS = {
    "isotropic": lambda width: RBFKernel(),
    "ard": lambda width: MaternKernel(nu=1.5, ard_num_dims=width),
}


def moved(name: str) -> tuple[FiniteOrbit, Tensor]:
    """An orbit, and inputs [n, |G|, d] moved by each of its elements."""
    width, size, build = GROUPS[name]
    orbit = build()
    assert orbit.size == size
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return orbit, orbit.points(x).points


def base(kind: str, name: str) -> Kernel:
    kernel = KERNELS[kind](GROUPS[name][0]).double()
    width = kernel.lengthscale.shape[-1]
    kernel.lengthscale = (GROUPS[name][0] ** 0.5) * torch.linspace(0.7, 1.0, width)
    return kernel


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("name", GROUPS)
@torch.no_grad()
def test_prior_functions_do_not_change_under_the_group(name: str, kind: str):
    """g drawn from the prior as Σ_j a_j k_g(z_j, ·) with a ~ N(0, K_zz⁻¹)."""
    orbit, x = moved(name)
    process, generator = Process(None, base(kind, name)), torch.Generator().manual_seed(1)
    z = Evaluation().atoms(torch.randn(12, x.shape[-1], generator=generator, dtype=torch.float64))
    lower = torch.linalg.cholesky(process.covariance(z) + 1e-8 * torch.eye(12))
    white = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    weights = torch.linalg.solve_triangular(lower.T, white, upper=True)
    rows = OrbitAverage(orbit).atoms(x.flatten(0, 1))
    f = (process.covariance(rows, z) @ weights).unflatten(0, x.shape[:2])
    assert f.std() > 0.05
    assert (f - f[:, :1]).abs().max() < 1e-12 * max(1.0, float(weights.abs().max()))
    # The base function itself is not invariant.
    g = (process.covariance(Evaluation().atoms(x.flatten(0, 1)), z) @ weights).unflatten(0, x.shape[:2])
    assert (g - g[:, :1]).abs().max() > 0.1


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("name", GROUPS)
@torch.no_grad()
def test_joint_prior_samples_do_not_change_under_the_group(name: str, kind: str):
    """A joint draw takes the root of the covariance, and so the root of its rounding."""
    orbit, x = moved(name)
    covariance = Process(None, base(kind, name)).covariance(OrbitAverage(orbit).atoms(x.flatten(0, 1)))
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    white = torch.randn(len(values), 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    f = (vectors @ (values.clamp_min(0).sqrt()[:, None] * white)).unflatten(0, x.shape[:2])
    assert f.std() > 0.05
    assert (f - f[:, :1]).abs().max() < 1e-6
    # var(f(x) - f(hx)) is a difference of covariances, exact to their rounding
    n, size = x.shape[:2]
    within = covariance.reshape(n, size, n, size).diagonal(dim1=0, dim2=2)
    spread = within[0, 0] - within[:, 0] - within[0, :] + within.diagonal(dim1=0, dim2=1).T
    assert spread.abs().max() < 1e-12


@torch.no_grad()
def test_an_anti_symmetric_average_changes_sign_exactly():
    permutations = coordinate_permutations(3)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    orbit = FiniteOrbit(permutations, weights=signs)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = OrbitAverage(orbit).atoms(orbit.points(x).points.flatten(0, 1))
    covariance = Process(None, RBFKernel().double()).covariance(rows).reshape(2, 6, 2, 6)
    torch.testing.assert_close(
        covariance, covariance[:, :1, :, :1] * signs[:, None, None] * signs, rtol=1e-12, atol=1e-12
    )
    assert covariance.abs().max() > 1e-3
