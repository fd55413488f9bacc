"""A kernel class of one's own that brings its radial profile has derivatives and fast paths everywhere."""

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor, nn

from orbitwise.functionals import DirectionalDerivative, FiniteDifference, Gradient, OrbitAverage
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.process.double_sums import takes_double_sums
from orbitwise.process.gradients import has_products
from orbitwise.process.process import is_rotation_invariant
from orbitwise.transforms import coordinate_permutations
from tests.contracts.orbit_contract import inputs


class InverseRoot(Kernel):
    """κ(q) = 1/√(1 + q)."""

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        left, right = x1 / self.lengthscale, x2 / self.lengthscale
        return self.radial_profile(self.covar_dist(left, right, square_dist=True, diag=diag), 0)

    def radial_profile(self, q: Tensor, order: int) -> Tensor:
        return (1.0, -0.5, 0.75)[order] * (1 + q) ** (-0.5 - order)


class InversePower(InverseRoot):
    """κ(q) = (1 + q)^-b with a learned b."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def radial_profile(self, q: Tensor, order: int) -> Tensor:
        factor = (1.0, -self.power, self.power * (self.power + 1))[order]
        return factor * (1 + q) ** (-self.power - order)


AVERAGE = OrbitAverage(FiniteOrbit(coordinate_permutations(3)))
V = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def test_slopes_are_finite_differences():
    x = inputs(3, rows=4)
    for kernel in (InverseRoot(), ScaleKernel(InversePower())):
        process = Process(None, kernel.double())
        slopes = process.covariance(DirectionalDerivative(V).atoms(x))
        torch.testing.assert_close(
            slopes, process.covariance(FiniteDifference(V).atoms(x)), rtol=1e-4, atol=1e-5
        )
        block = process.covariance(Gradient().atoms(x)).reshape(4, 3, 4, 3)
        torch.testing.assert_close(torch.einsum("ikjl,k,l->ij", block, V, V), slopes)


def test_fast_paths_serve_it_as_far_as_they_are_right():
    atoms = AVERAGE.atoms(inputs(3, rows=4))
    assert is_rotation_invariant(InverseRoot())
    assert has_products(InverseRoot())
    assert takes_double_sums(InverseRoot(), atoms, atoms)
    # a parameter besides the lengthscale needs the general path, where its gradient is right
    assert not takes_double_sums(InversePower(), atoms, atoms)
    kernel = InversePower().double()
    (gradient,) = torch.autograd.grad(Process(None, kernel).covariance(atoms).sum(), kernel.power)
    assert gradient.abs() > 1e-3
