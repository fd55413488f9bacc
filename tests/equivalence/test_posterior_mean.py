"""The posterior mean by itself, with all gradients at a point combined, is the mean of the full moments."""

import pytest
import torch
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from gpytorch.means import ConstantMean

from orbitwise.functionals import DirectionalDerivative, Evaluation, Gradient, OrbitAverage
from orbitwise.inference import exact
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import coordinate_permutations

KERNELS = {
    "radial": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "dot product": lambda: PolynomialKernel(power=3),
    "product": lambda: ProductKernel(RBFKernel(), PolynomialKernel(power=2)),
}


def conditioned(kernel, functional, num_outputs: int = 1) -> exact.ExactPosterior:
    x = torch.randn(6, 3, dtype=torch.float64)
    mean = ConstantMean()
    mean.initialize(constant=0.7)
    process = Process(mean, kernel).double()
    rows = [
        functional.atoms(x[:4]),
        (Gradient() @ functional).atoms(x),
        (Gradient([1]) @ functional).atoms(x),
    ]
    count = sum(block.num_rows for block in rows)
    targets = torch.randn(count, num_outputs, dtype=torch.float64)
    return exact.condition(process, rows, targets, torch.full((count,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_mean_alone_is_the_mean_of_the_moments(kernel, num_outputs, symmetric):
    functional = OrbitAverage(FiniteOrbit(coordinate_permutations(3))) if symmetric else Evaluation()
    posterior = conditioned(kernel(), functional, num_outputs)
    new = torch.randn(5, 3, dtype=torch.float64)
    slope = DirectionalDerivative(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
    with torch.no_grad():
        for outer in (Evaluation(), slope, Gradient()):
            rows = (outer @ functional).atoms(new)
            torch.testing.assert_close(
                posterior.row_mean(rows), posterior.row_moments(rows).mean, rtol=1e-9, atol=1e-9
            )


def test_combined_gradients_are_the_sum_of_their_rows():
    block = (Gradient() @ OrbitAverage(FiniteOrbit(coordinate_permutations(3)))).atoms(
        torch.randn(4, 3).double()
    )
    coefficients = torch.randn(4, 3, dtype=torch.float64)
    process = Process(None, RBFKernel()).double()
    other = Evaluation().atoms(torch.randn(5, 3, dtype=torch.float64))
    with torch.no_grad():
        combined = process.covariance(block.combine(coefficients), other)
        rows = process.covariance(block, other).reshape(4, 3, 5)
    torch.testing.assert_close(combined, (coefficients[..., None] * rows).sum(1))


@torch.no_grad()
def test_evidence_of_a_posterior_is_the_evidence_of_its_targets():
    posterior = conditioned(RBFKernel(), Evaluation(), num_outputs=2)
    noise = torch.full((len(posterior.targets),), 0.1, dtype=torch.float64)
    expected = exact.evidence(posterior.process, posterior.rows, posterior.targets, noise)
    for ours, theirs in zip(posterior.evidence(), expected, strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=1e-10)


def test_kernels_without_slopes_still_predict_values():
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    process = Process(None, PeriodicKernel()).double()
    posterior = exact.condition(process, Evaluation().atoms(x), y, torch.full((6,), 0.1, dtype=torch.float64))
    rows = Evaluation().atoms(torch.randn(4, 3, dtype=torch.float64))
    with torch.no_grad():
        torch.testing.assert_close(posterior.row_mean(rows), posterior.row_moments(rows).mean)
