"""Where inducing points go: on orbits, distinct, and greedily where the prior is least explained."""

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, Gradient, OrbitAverage
from orbitwise.inference.sparse.inducing import (
    cluster_centres,
    greedy_choice,
    inducing_factor,
    project,
    random_orbit_points,
)
from orbitwise.orbits import FiniteOrbit, SampledOrbit
from orbitwise.process import Process
from orbitwise.transforms import Rotation, coordinate_permutations


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = seeded(30, 2)


@pytest.fixture
def process() -> Process:
    return Process(None, RBFKernel().double()).requires_grad_(False)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def slow_choice(covariance: Tensor, count: int) -> list[int]:
    """The same choice by conditioning the whole matrix again and again."""
    chosen: list[int] = []
    for _ in range(count):
        left = covariance.diagonal().clone()
        if chosen:
            part = covariance[:, chosen]
            left = left - (part @ torch.linalg.inv(covariance[chosen][:, chosen]) * part).sum(-1)
        left[chosen] = -1
        chosen.append(int(left.argmax()))
    return chosen


def test_random_points_lie_on_orbits_of_different_inputs():
    points = random_orbit_points(OrbitAverage(SampledOrbit(Rotation(), -1.0, 1.0)), X, 20, generator(), 7)
    assert points.shape == (20, 2)
    radii = (points.norm(dim=1)[:, None] - X.norm(dim=1)).abs()
    assert radii.min(1).values.max() < 1e-12
    assert len(radii.argmin(1).unique()) == 20
    assert not torch.allclose(points, X[radii.argmin(1)]), "moved"
    assert not points.requires_grad


def test_inputs_repeat_moved_otherwise():
    drawn = OrbitAverage(SampledOrbit(Rotation(), -1.0, 1.0))
    points = random_orbit_points(drawn, X, 70, generator())
    assert len(points) == len(points.unique(dim=0)) == 70


def test_there_are_no_more_points_than_distinct_ones():
    doubled = torch.cat([X, X[:10]])
    points = random_orbit_points(Evaluation(), doubled, 40, generator())
    assert sorted(points.tolist()) == sorted(X.tolist())
    flips = OrbitAverage(FiniteOrbit(coordinate_permutations(2)))
    assert len(random_orbit_points(flips, X[:3], 50, generator())) <= 6


def test_gradient_rows_have_points_too():
    assert random_orbit_points(Gradient(), X, 5, generator()).shape == (5, 2)


def test_greedy_points_are_those_of_the_slow_choice(process):
    covariance = process.covariance(Evaluation().atoms(X))
    assert greedy_choice(process, X, 8).index.tolist() == slow_choice(covariance, 8)


def test_greedy_points_leave_less_unexplained_than_random_ones(process):
    functional = OrbitAverage(SampledOrbit(Rotation(), -0.5, 0.5)).requires_grad_(False)
    rows = Evaluation().atoms(random_orbit_points(functional, X, 300, generator()))

    def unexplained(points: Tensor) -> float:
        return project(process, points, inducing_factor(process, points), rows).residual.max().item()

    candidates = random_orbit_points(functional, X, 300, generator())
    greedy = unexplained(candidates[greedy_choice(process, candidates, 25).index])
    seeds = (torch.Generator().manual_seed(seed) for seed in range(5))
    random = [unexplained(random_orbit_points(functional, X, 25, seed)) for seed in seeds]
    assert greedy < 0.5 * min(random)


def test_duplicates_are_skipped_and_ties_take_the_first(process):
    tripled = torch.cat([X[:5], X[:5], X[:5]])
    chosen = greedy_choice(process, tripled, 15).index
    assert sorted(chosen.tolist()) == [0, 1, 2, 3, 4]
    assert int(chosen[0]) == 0, "a stationary kernel has equal variances"


def test_single_precision_chooses_the_same_and_skips_duplicates(process):
    double, single = (
        greedy_choice(process, X.to(dtype), 8).index for dtype in (torch.float64, torch.float32)
    )
    assert double.tolist() == single.tolist()
    assert len(greedy_choice(process, torch.cat([X, X]).float(), 60).index) <= 30


def test_it_stops_where_nothing_is_left_to_explain():
    kernel = RBFKernel().double()
    kernel.lengthscale = 1e3
    chosen = greedy_choice(Process(None, kernel).requires_grad_(False), X, 30).index
    assert 1 <= len(chosen) < 10


def test_no_matrix_of_all_candidates_is_formed(process, monkeypatch):
    """O(C·M): one row of covariances for every point taken."""
    shapes = []
    covariance = Process.covariance

    def watched(self, left, right=None, row_block=None):
        result = covariance(self, left, right, row_block)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(Process, "covariance", watched)
    greedy_choice(process, X, 6)
    assert shapes == [(1, 30)] * 6


@pytest.mark.parametrize("count", [0, -3])
def test_there_is_at_least_one_point(process, count):
    with pytest.raises(ValueError, match="at least one inducing point"):
        random_orbit_points(Evaluation(), X, count, generator())
    with pytest.raises(ValueError, match="at least one inducing point"):
        greedy_choice(process, X, count)


def test_the_trace_left_is_that_of_the_choice_and_ends_it(process: Process):
    found = greedy_choice(process, X, 8)
    assert len(found.trace) == 9
    assert (found.trace.diff() < 1e-12 * found.trace[0]).all()
    rows = Evaluation().lower(X)
    cross = process.covariance(Evaluation().lower(X[found.index]), rows)
    lower = torch.linalg.cholesky(process.covariance(Evaluation().lower(X[found.index])))
    left = process.variance(rows) - torch.linalg.solve_triangular(lower, cross, upper=False).square().sum(0)
    torch.testing.assert_close(found.trace[-1], left.sum())
    enough = float(found.trace[5])
    assert len(greedy_choice(process, X, 8, enough=enough).index) == 5


def test_a_minimum_separation_keeps_the_matrix_well_conditioned(process: Process):
    line = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    sizes = []
    for separation in (1e-2, 1e-4, 1e-8):
        index = greedy_choice(process, line, 100, separation).index
        values = torch.linalg.eigvalsh(process.covariance(Evaluation().lower(line[index])))
        assert values[0] > 0.01 * separation
        sizes.append(len(index))
    assert sizes == sorted(sizes)
    assert sizes[-1] < 30


def test_rows_of_f_can_be_chosen_among(process: Process):
    rows = OrbitAverage(FiniteOrbit(coordinate_permutations(2))).double().atoms(torch.cat([X, X.flip(1)]))
    found = greedy_choice(process, rows, 50).index
    assert len(found) <= len(X)  # a permuted row is the same row of f


def test_cluster_centres_are_distinct_and_no_more_than_there_are_points():
    centres = cluster_centres(X, 5, generator())
    assert centres.shape == (5, 2)
    assert len(torch.unique(centres, dim=0)) == 5
    assert len(cluster_centres(X[:3].repeat(4, 1), 10, generator())) == 3
