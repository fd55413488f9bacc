import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal

from orbitwise.functionals import Evaluation
from orbitwise.inference.sparse.bounds import (
    Bracket,
    Totals,
    best_q,
    collapsed_bound,
    common_bracket,
    gather_totals,
    safe_bracket,
    upper_bound,
)
from orbitwise.inference.sparse.inducing import greedy_choice, inducing_factor
from orbitwise.inference.sparse.iterative import NoisySystem
from orbitwise.inference.sparse.posterior import SparsePosterior
from tests.inference.sparse_problems import exact_evidence, random_problem

problems = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "count": st.integers(1, 40),
        "width": st.integers(1, 3),
        "outputs": st.integers(1, 2),
        "invariant": st.booleans(),
        "weighted": st.booleans(),
        "mean": st.booleans(),
        "smooth": st.booleans(),
    }
)


def slack(value):
    return 1e-6 * (1 + abs(value))


@settings(max_examples=60, deadline=None)
@given(problem=problems, share=st.floats(0.02, 1.0), steps=st.integers(0, 6))
def test_bounds_bracket_the_evidence(problem, share, steps):
    process, rows, noise, _ = random_problem(**problem)
    size = max(1, round(share * len(rows.x)))
    points = rows.x[:size]
    with torch.no_grad():
        truth = exact_evidence(process, rows, noise).item()
        lower = inducing_factor(process, points)
        totals = gather_totals(process, rows, points, lower, noise)
        titsias = collapsed_bound(totals, noise, tight=False).item()
        tight = collapsed_bound(totals, noise).item()
        above = upper_bound(totals, noise).item()
        preconditioner = NoisySystem(process, rows, noise).preconditioner(points, lower)
        vectors = NoisySystem(process, rows, noise).solve(preconditioner, 0.0, steps).vectors
        solved = NoisySystem(process, rows, noise).bracket(points, lower, vectors)
        iterative = collapsed_bound(solved.totals, noise, quadratic=solved.upper).item()
        better_above = upper_bound(solved.totals, noise, quadratic=solved.lower).item()
    room = slack(truth)
    assert titsias <= tight + room
    assert tight <= iterative + room
    assert iterative <= truth + room
    assert truth <= above + room
    assert truth <= better_above + room


def rounded(totals: Totals, generator: torch.Generator) -> Totals:
    """The totals as another machine might have summed them: every entry off by count·eps of its terms."""
    unit = totals.num_rows * torch.finfo(torch.float64).eps

    def sign(like: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.randint(2, like.shape, generator=generator) - 1

    deviations = totals.gram.diagonal().sqrt()
    gram = unit * sign(totals.gram) * deviations[:, None] * deviations
    residual = unit * sign(totals.trace) * (totals.trace + deviations.square().sum())
    return totals._replace(
        gram=totals.gram + (gram.tril() + gram.tril(-1).mT),
        product=totals.product + unit * sign(totals.product) * deviations[:, None] * totals.square.sqrt(),
        square=totals.square * (1 + unit * sign(totals.square)),
        trace=totals.trace + residual,
        slack=totals.slack * (1 + unit * sign(totals.slack)),
    )


@settings(max_examples=40, deadline=None)
@given(problem=problems, share=st.floats(0.02, 1.0), scale=st.sampled_from([1.0, 1e-7, 1e-14]))
def test_brackets_hold_whatever_the_rounding(problem, share, scale):
    process, rows, noise, generator = random_problem(**problem)
    with torch.no_grad():
        process.kernel.outputscale = scale
        truth = exact_evidence(process, rows, noise).item()
        points = rows.x[: max(1, round(share * len(rows.x)))]
        totals = gather_totals(process, rows, points, inducing_factor(process, points), noise)
        others = [safe_bracket(rounded(totals, generator), noise) for _ in range(4)]
        raw = collapsed_bound(totals, noise).item(), upper_bound(totals, noise).item()
        found = safe_bracket(totals, noise)
    for each in (found, *others):
        assert each.lower <= min(truth, *raw)
        assert max(truth, *raw) <= each.upper
    assert found.upper - found.lower <= raw[1] - raw[0] + 1e-6 * (1 + abs(truth)), "no wider than it must be"
    common = common_bracket([found, *others])
    assert common.lower <= truth <= common.upper


def test_a_constant_moves_both_ends_and_is_rounded_too():
    found = common_bracket([Bracket(-3.0, -1.0), Bracket(-2.5, 0.0)], 1e16, 100)
    assert found.lower < 1e16 - 2.5 < 1e16 - 1 < found.upper
    assert found == pytest.approx((1e16, 1e16), rel=1e-12)


def test_brackets_that_exclude_each_other_are_covered_with_a_warning():
    with pytest.warns(RuntimeWarning, match="contradict each other by 1 nats, more than rounding explains"):
        found = common_bracket([Bracket(-3.0, -2.0), Bracket(-1.0, 0.0)])
    assert found == (-3.0, 0.0)
    with pytest.warns(RuntimeWarning, match="kernel may not be positive definite"):
        assert common_bracket([Bracket(1.0, -1.0)]) == (-1.0, 1.0)


@pytest.mark.parametrize("invariant", [False, True])
def test_the_gap_closes_when_all_rows_are_inducing_variables(invariant):
    process, rows, noise, _ = random_problem(0, 30, invariant=invariant, outputs=2, smooth=False)
    gaps = []
    for size in (2, 8, 16, 30):
        with torch.no_grad():
            inducing = rows.take(slice(0, size)).atoms()
            totals = gather_totals(process, rows, inducing, inducing_factor(process, inducing), noise)
            gaps.append((upper_bound(totals, noise) - collapsed_bound(totals, noise)).item())
    assert gaps == sorted(gaps, reverse=True)
    assert abs(gaps[-1]) < 1e-5


def test_greedy_points_are_better_than_the_first_rows():
    process, rows, noise, _ = random_problem(11, 200)

    def bound(points):
        totals = gather_totals(process, rows, points, inducing_factor(process, points), noise)
        return collapsed_bound(totals, noise).item()

    with torch.no_grad():
        chosen = rows.x[greedy_choice(process, rows.x, 60).index]
        assert bound(chosen) > bound(rows.x[:60])


def test_titsias_bound_is_the_normal_density_less_the_trace():
    process, rows, noise, _ = random_problem(6, 25)
    points = rows.x[:7]
    with torch.no_grad():
        lower = inducing_factor(process, points)
        totals = gather_totals(process, rows, points, lower, noise)
        covariance = process.covariance(Evaluation().lower(points), rows.atoms())
        approximate = covariance.mT @ torch.cholesky_solve(covariance, lower)
        normal = MultivariateNormal(torch.zeros(25).double(), approximate + noise * torch.eye(25).double())
        trace = (process.variance(rows.atoms()) - approximate.diagonal()).sum()
        expected = normal.log_prob(rows.targets[:, 0]) - 0.5 * trace / noise
        torch.testing.assert_close(collapsed_bound(totals, noise, tight=False), expected)


@pytest.mark.parametrize("tight", [True, False])
def test_gradients_are_those_of_finite_differences(tight):
    process, rows, noise, _ = random_problem(8, 20, weighted=True)
    points = rows.x[:5].clone().requires_grad_()
    raw = [process.kernel.raw_outputscale, process.kernel.base_kernel.raw_lengthscale]

    def value(points, noise, *parameters):
        for own, given in zip(raw, parameters, strict=True):
            own.data.copy_(given)
        totals = gather_totals(process, rows, points, inducing_factor(process, points), noise, tight)
        return collapsed_bound(totals, noise, tight)

    mine = torch.autograd.grad(
        value(points, noise, *(p.detach().clone() for p in raw)), [points, noise, *raw]
    )
    given = [each.detach().clone() for each in (points, noise, *raw)]
    for place, slope in enumerate(mine):
        for entry in range(slope.numel()):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [each.clone() for each in given]
                moved[place].view(-1)[entry] += step
                ends.append(value(*moved).item())
            difference = (ends[0] - ends[1]) / 2e-5
            assert slope.reshape(-1)[entry].item() == pytest.approx(difference, rel=1e-4, abs=1e-4)


def test_the_best_q_reaches_the_bound():
    # E_q log p(y | f) - KL at the optimal q is Titsias' bound.
    process, rows, noise, _ = random_problem(9, 25, outputs=2)
    points = rows.x[:7]
    with torch.no_grad():
        lower = inducing_factor(process, points)
        totals = gather_totals(process, rows, points, lower, noise)
        q = best_q(totals, noise)
        moments = SparsePosterior(process, points, q, lower).row_moments(rows.atoms())
        square = (rows.targets - moments.mean).square() + moments.variance
        data = (-0.5 * math.log(2 * math.pi) - 0.5 * noise.log() - 0.5 * square / noise).sum()
        torch.testing.assert_close(data - q.divergence(), collapsed_bound(totals, noise, tight=False))
