"""Unbiased estimates of quadratic forms of drawn rows, by z-scores at fixed seeds (METHOD 4).

Each case draws one row thousands of times. The estimate's mean must lie within four standard errors of the
truth, and that of the naive estimate, in which draws meet themselves, must not: so the test can tell.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import (
    Atoms,
    Evaluation,
    FeatureMap,
    FiniteDifference,
    Functional,
    OrbitAverage,
    OrbitSum,
    average_minus_value,
)
from orbitwise.orbits import FiniteOrbit, FrozenOrbit, SampledOrbit
from orbitwise.process import Process, group_sums, pair_factors, reduce_quadratic, unbiased_variance
from orbitwise.process.process import pair_covariance
from orbitwise.transforms import Scaling, Translation, coordinate_permutations

NUM_ROWS = 6000
INPUT = [0.4, -0.9, 1.3]


class Case(NamedTuple):
    """A drawn functional, the same functional without draws, and how to reduce it."""

    drawn: Functional
    exact: Functional
    method: str = "halves"


def shift(num_samples: int = 4, num_groups: int = 2) -> SampledOrbit:
    return SampledOrbit(Translation(3), -0.75, 0.75, num_samples=num_samples, num_groups=num_groups)


def all_shifts() -> FrozenOrbit:
    """The same density at Gauss-Legendre nodes, exact to rounding."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes, nodes)], axis=-1)
    product = np.einsum("i,j,k->ijk", weights, weights, weights).ravel() / 8
    return FrozenOrbit(shift(), torch.tensor(grid), torch.tensor(product))


def some(num_samples: int | None = None, num_groups: int = 1, weighted: bool = False) -> FiniteOrbit:
    weights = torch.tensor([1.0, -2.0, 0.5, 1.5, -1.0, 3.0]) if weighted else None
    return FiniteOrbit(
        coordinate_permutations(3), weights=weights, num_samples=num_samples, num_groups=num_groups
    )


def slope(inner: Functional) -> Functional:
    return FiniteDifference(torch.tensor([0.5, 1.0, -0.5]), step=0.5) @ inner


def features(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], dim=-1)


def case(name: str) -> Case:
    average, exact = OrbitAverage(shift()), OrbitAverage(all_shifts())
    return {
        "halves": Case(average, exact),
        "four groups": Case(OrbitAverage(shift(8, 4)), exact),
        "all pairs of one group": Case(OrbitAverage(shift(4, 1)), exact),
        "all pairs of two groups": Case(average, exact, "all_pairs"),
        "finite population": Case(OrbitAverage(some(3)), OrbitAverage(some())),
        "sum of a finite population": Case(OrbitSum(some(3)), OrbitSum(some())),
        "weighted finite population": Case(OrbitAverage(some(4, 1, True)), OrbitAverage(some(weighted=True))),
        "halves without replacement": Case(OrbitAverage(some(4, 2)), OrbitAverage(some())),
        "all pairs without replacement": Case(OrbitAverage(some(4, 2)), OrbitAverage(some()), "all_pairs"),
        "average minus value": Case(average_minus_value(shift()), average_minus_value(all_shifts())),
        "average minus value, all pairs": Case(
            average_minus_value(shift(4, 1)), average_minus_value(all_shifts()), "all_pairs"
        ),
        "finite average minus value": Case(average_minus_value(some(2)), average_minus_value(some())),
        "difference of a drawn average": Case(slope(average), slope(exact)),
        "difference of a drawn average, all pairs": Case(slope(average), slope(exact), "all_pairs"),
        "difference of a finite average": Case(slope(OrbitAverage(some(3))), slope(OrbitAverage(some()))),
        "two independent averages": Case(
            average - 2 * OrbitAverage(some(3)), exact - 2 * OrbitAverage(some())
        ),
        "twice the same orbit": Case(average + 0.5 * average, 1.5 * exact),
        "average of features": Case(
            OrbitAverage(shift()) @ FeatureMap(features), OrbitAverage(all_shifts()) @ FeatureMap(features)
        ),
    }[name]


NAMES = [
    "halves",
    "four groups",
    "all pairs of one group",
    "all pairs of two groups",
    "finite population",
    "sum of a finite population",
    "weighted finite population",
    "halves without replacement",
    "all pairs without replacement",
    "average minus value",
    "average minus value, all pairs",
    "finite average minus value",
    "difference of a drawn average",
    "difference of a drawn average, all pairs",
    "difference of a finite average",
    "two independent averages",
    "twice the same orbit",
    "average of features",
]


def kernel() -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.8
    return kernel


def rows(functional: Functional, count: int) -> Atoms:
    x = torch.tensor([INPUT], dtype=torch.float64).expand(count, -1)
    return functional.atoms(x, torch.Generator().manual_seed(0))


def z_score(estimates: Tensor, truth: Tensor) -> float:
    return float((estimates.mean() - truth) / (estimates.std() / math.sqrt(len(estimates))))


def columns(atoms: Atoms) -> Tensor:
    """a_s = k_u(x_s): the covariance of every atom with five inducing variables."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(5, atoms.points.shape[-1], generator=generator, dtype=torch.float64)
    inducing = Evaluation().atoms(z)
    return Process(None, kernel()).atom_covariance(atoms, inducing)[..., 0]


def form() -> Tensor:
    """Q, neither positive nor negative."""
    root = torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return root @ torch.diag(torch.tensor([2.0, 1.0, 0.5, -0.2, -0.1], dtype=torch.float64)) @ root.T


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_prior_variances_are_unbiased(name: str):
    drawn, exact, method = case(name)
    atoms, process = rows(drawn, NUM_ROWS), Process(None, kernel())
    truth = process.variance(rows(exact, 1))[0]
    estimates = unbiased_variance(process.kernel, atoms, method)
    assert abs(z_score(estimates, truth)) < 4
    assert abs(z_score(process.variance(atoms.frozen()), truth)) > 6
    unreduced = pair_covariance(process.kernel, atoms, atoms)
    torch.testing.assert_close(reduce_quadratic(atoms, unreduced, method), estimates, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_quadratic_forms_of_projections_are_unbiased(name: str):
    drawn, exact, method = case(name)
    atoms, truly = rows(drawn, NUM_ROWS), rows(exact, 1)
    a = columns(atoms)
    mean = (columns(truly) * truly.weights[..., None]).sum(1)[0]
    truth = mean @ form() @ mean
    # r_st = a_s·Q·a_t
    unreduced = torch.einsum("nsu,uv,ntv->nst", a, form(), a)
    estimates = reduce_quadratic(atoms, unreduced, method)
    assert abs(z_score(estimates, truth)) < 4
    naive = torch.einsum("ns,nst,nt->n", atoms.weights, unreduced, atoms.weights)
    assert abs(z_score(naive, truth)) > 6
    # The same from sums over groups, and the draws' pairs with themselves where they have a factor.
    sums, factors = group_sums(atoms, a), pair_factors(atoms, method)
    by_groups = torch.einsum("ngu,uv,gh,nhv->n", sums, form(), factors.between, sums)
    own = torch.einsum("ns,nss->ns", atoms.weights.square(), unreduced)
    by_groups = by_groups + (own * factors.diagonal[atoms.draw]).sum(-1)
    torch.testing.assert_close(by_groups, estimates, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_linear_terms_need_no_correction():
    atoms, truly = rows(OrbitAverage(shift()), NUM_ROWS), rows(OrbitAverage(all_shifts()), 1)
    estimates = group_sums(atoms, columns(atoms)).sum(1)
    truth = group_sums(truly, columns(truly)).sum(1)[0]
    for column, right in zip(estimates.T, truth, strict=True):
        assert abs(z_score(column, right)) < 4


@torch.no_grad()
def test_one_draw_without_replacement_split_into_halves_is_biased():
    """METHOD 4: draw the halves independently, never split one draw."""
    one = rows(OrbitAverage(some(2)), NUM_ROWS)
    split = pair_covariance(kernel(), one, one)[:, 0, 1]
    truth = Process(None, kernel()).variance(rows(OrbitAverage(some()), 1))[0]
    assert abs(z_score(split, truth)) > 6
    assert abs(z_score(unbiased_variance(kernel(), one), truth)) < 4


@torch.no_grad()
def test_gradients_of_the_estimate_are_unbiased():
    """The gradient by the lengthscale, as training takes it."""
    base, drawn = kernel(), SampledOrbit(Scaling(), -0.5, 0.5, num_samples=4)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    exact = FrozenOrbit(drawn, torch.tensor(nodes)[:, None], torch.tensor(weights / 2))
    step, means = 1e-4, []
    atoms, truly = rows(OrbitAverage(drawn), NUM_ROWS), rows(OrbitAverage(exact), 1)
    for sign in (1, -1):
        base.lengthscale = torch.tensor(0.8 + sign * step, dtype=torch.float64)
        means.append((unbiased_variance(base, atoms), Process(None, base).variance(truly)[0]))
    estimates, truth = ((up - down) / (2 * step) for up, down in zip(*means, strict=True))
    assert abs(z_score(estimates, truth)) < 4
    base.lengthscale = torch.tensor(0.8, dtype=torch.float64)
    with torch.enable_grad():
        total = unbiased_variance(base, atoms).mean()
        by_autograd = torch.autograd.grad(total, base.raw_lengthscale)[0] / torch.sigmoid(
            base.raw_lengthscale
        )
    torch.testing.assert_close(by_autograd.squeeze(), estimates.mean(), rtol=1e-4, atol=1e-6)
