import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy import stats

from orbitwise.functionals import OrbitAverage
from orbitwise.functionals.functional import Atoms
from orbitwise.orbits import JitterOrbit, SampledOrbit
from orbitwise.orbits.nodes import MOST_SOBOL, Noise
from orbitwise.orbits.orbit import drawn_points
from orbitwise.process.unbiased import unbiased_variance
from orbitwise.transforms import Translation
from tests.contracts.orbit_contract import seeded

LIKE = torch.zeros((), dtype=torch.float64)
MIXED = Noise((("uniform", 2), ("normal", 3), ("uniform", 1)))


def test_runs_follow_each_other():
    assert MIXED.num_entries == 6
    assert MIXED.is_normal.tolist() == [False, False, True, True, True, False]
    assert Noise((("uniform", 2),)) + Noise((("normal", 3), ("uniform", 1))) == MIXED


@pytest.mark.parametrize("draws", ["random", "sobol"])
def test_entries_have_their_densities(draws: str):
    if draws == "random":
        noise = MIXED.draw((4000,), seeded(), LIKE)
    else:
        # one point of each of many sets: a random shift makes every single point a plain draw
        noise = MIXED.sobol(4000, 2, 4, seeded(), LIKE)[:, 5]
    assert noise.shape == (4000, 6)
    for column, is_normal in zip(noise.T, MIXED.is_normal, strict=True):
        law = stats.norm() if is_normal else stats.uniform(-1, 2)
        assert stats.kstest(column.numpy(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_and_emptiness(dtype: torch.dtype):
    like = torch.zeros((), dtype=dtype)
    assert MIXED.draw((2, 3), seeded(), like).dtype == dtype
    assert MIXED.sobol(2, 2, 4, seeded(), like).dtype == dtype
    assert Noise().draw((2, 3), seeded(), like).shape == (2, 3, 0)
    assert Noise().sobol(2, 2, 4, seeded(), like).shape == (2, 8, 0)
    assert MIXED.sobol(2, 2, 4, seeded(), like).isfinite().all()


def test_a_sobol_set_has_one_point_in_every_cell():
    noise = Noise((("uniform", 3),)).sobol(5, 2, 16, seeded(), LIKE)
    assert noise.shape == (5, 32, 3)
    for row in noise.reshape(10, 16, 3):
        for column in row.T:
            assert ((column + 1) * 8).floor().sort().values.tolist() == list(range(16))


@pytest.mark.parametrize("count", [1, 3, 7])
def test_any_number_of_points(count: int):
    assert MIXED.sobol(2, 3, count, seeded(), LIKE).shape == (2, 3 * count, 6)


def test_rows_and_groups_have_sets_of_their_own():
    noise = Noise((("uniform", 2),)).sobol(3, 2, 8, seeded(), LIKE)
    assert len(noise.flatten().unique()) == noise.numel()


def test_entries_beyond_the_most_are_plain_draws():
    whole = Noise((("uniform", 2), ("normal", MOST_SOBOL + 10)))
    noise = whole.sobol(50, 2, 16, seeded(), LIKE)
    assert noise.shape == (50, 32, MOST_SOBOL + 12)
    means = noise.reshape(100, 16, -1).mean(1)
    assert (means[:, :2].std(0) < 0.03).all(), "even"
    assert (means[:, MOST_SOBOL:].std(0) > 0.15).all(), "about 1/√16"


def test_the_global_random_state_serves_where_there_is_no_generator():
    torch.manual_seed(5)
    first = MIXED.sobol(2, 2, 4, None, LIKE)
    torch.manual_seed(5)
    assert torch.equal(MIXED.sobol(2, 2, 4, None, LIKE), first)


def rbf() -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    return kernel


def closed_form(width: float, dimension: int) -> float:
    """E k(x + θε, x + θε') of an RBF of lengthscale 1."""
    return (1 / (1 + 2 * width**2)) ** (dimension / 2)


@torch.no_grad()
@pytest.mark.parametrize("num_samples", [4, 16])
def test_sobol_halves_are_unbiased(num_samples: int):
    width, rows = 0.8, 4000
    x = torch.zeros(rows, 2, dtype=torch.float64)
    errors = {}
    for draws in ("random", "sobol"):
        orbit = JitterOrbit(2, width, num_samples=num_samples, draws=draws)
        estimates = unbiased_variance(rbf(), OrbitAverage(orbit).atoms(x, seeded()))
        errors[draws] = estimates.std() / math.sqrt(rows)
        assert abs(estimates.mean() - closed_form(width, 2)) < 4 * errors[draws]
    assert errors["sobol"] < errors["random"] * (1 if num_samples == 4 else 0.75), "and vary less"


@torch.no_grad()
def test_one_sobol_set_over_both_halves_is_biased():
    width, rows = 0.8, 4000
    orbit = JitterOrbit(2, width, num_samples=4)
    whole = orbit.randomness.sobol(rows, 1, 4, seeded(), LIKE)
    moved = drawn_points(orbit.move(torch.zeros(rows, 2, dtype=torch.float64), whole), 2)
    zeros = torch.zeros(4, dtype=torch.long)
    atoms = Atoms(moved.points, moved.weights, None, zeros, moved.draw, moved.groups)
    estimates = unbiased_variance(rbf(), atoms)
    error = estimates.std() / math.sqrt(rows)
    assert abs(estimates.mean() - closed_form(width, 2)) > 10 * error


@torch.no_grad()
def test_uniform_sobol_halves_are_unbiased():
    """x + α with α uniform on [-1, 1]: E k is a double integral, here by Gauss–Legendre."""
    rows = 4000
    orbit = SampledOrbit(Translation(1), -1.0, 1.0, num_samples=8, draws="sobol")
    x = torch.zeros(rows, 1, dtype=torch.float64)
    estimates = unbiased_variance(rbf(), OrbitAverage(orbit).atoms(x, seeded()))
    frozen = OrbitAverage(orbit.freeze(20, rule="gauss")).atoms(x[:1])
    truth = unbiased_variance(rbf(), frozen)[0]
    assert abs(estimates.mean() - truth) < 4 * estimates.std() / math.sqrt(rows)
