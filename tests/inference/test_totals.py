import pytest
import torch

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference.linear_algebra import solve_lower
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse import totals as module
from orbitwise.inference.sparse.bounds import collapsed_bound
from orbitwise.inference.sparse.projection import JITTER, inducing_factor, inducing_rows
from orbitwise.inference.sparse.totals import gather_totals
from orbitwise.orbits import SampledOrbit
from orbitwise.process.process import PAIRS_AT_ONCE
from orbitwise.transforms import Translation
from tests.inference.sparse_problems import random_problem

CASES = [
    {},
    {"weighted": True},
    {"mean": True, "outputs": 2},
    {"invariant": True, "weighted": True, "outputs": 3, "mean": True},
]


def slow_totals(process, rows, inducing, lower, noise):
    """The sums by dense algebra that autograd knows how to differentiate."""
    atoms, weight = rows.atoms(), rows.weights()
    columns = solve_lower(lower, process.covariance(inducing_rows(inducing), atoms))
    residual = process.variance(atoms) - columns.square().sum(0)
    target = rows.targets - process.mean(atoms)[:, None]
    return (
        (columns * weight) @ columns.mT,
        columns @ (weight[:, None] * target),
        (weight[:, None] * target.square()).sum(),
        (weight * residual).sum(),
        torch.log1p(weight * residual / noise).sum(),
    )


def mixture(sums):
    """One number of all sums, with slopes that are not symmetric."""
    generator = torch.Generator().manual_seed(7)
    return sum(
        (part * torch.randn(part.shape, generator=generator, dtype=torch.float64)).sum() for part in sums
    )


@pytest.fixture(params=[True, False], ids=["kept", "recomputed"])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(module, "LEAST_ROWS", 5)
    monkeypatch.setitem(PAIRS_AT_ONCE, "cpu", 40)
    monkeypatch.setattr(module, "KEPT_NUMBERS", 2**26 if request.param else 0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_equal_dense_algebra(case, small_blocks):
    process, rows, noise, _ = random_problem(3, 23, **case)
    rows = Observations(rows.functional, rows.x, rows.targets.requires_grad_(), rows.weight)
    points = rows.x[:6].clone().requires_grad_()
    leaves = [points, noise, rows.targets, *process.parameters()]
    lower = inducing_factor(process, points)
    fast = gather_totals(process, rows, points, lower, noise)
    slow = slow_totals(process, rows, points, lower, noise)
    for mine, theirs in zip(fast[:5], slow, strict=True):
        torch.testing.assert_close(mine, theirs)
    mine = torch.autograd.grad(mixture(fast[:5]), leaves, retain_graph=True)
    theirs = torch.autograd.grad(mixture(slow), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shared", [True, False])
def test_learned_weights_have_gradients_too(shared, small_blocks):
    process, rows, noise, generator = random_problem(3, 23, outputs=3, mean=True)
    shape = (23,) if shared else (23, 3)
    weight = (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()
    rows = Observations(rows.functional, rows.x, rows.targets, weight)
    points = rows.x[:6]
    lower = inducing_factor(process, points)
    outputs = [slice(None)] if shared else [slice(place, place + 1) for place in range(3)]
    each = [
        slow_totals(
            process,
            Observations(
                rows.functional, rows.x, rows.targets[:, part], weight if shared else weight[:, part][:, 0]
            ),
            points,
            lower,
            noise,
        )
        for part in outputs
    ]
    gram = each[0][0] if shared else torch.stack([one[0] for one in each])
    slow = (
        gram,
        torch.cat([one[1] for one in each], dim=1),
        *(sum(part) for part in list(zip(*each, strict=True))[2:]),
    )
    fast = gather_totals(process, rows, points, lower, noise)
    for mine, theirs in zip(fast[:5], slow, strict=True):
        torch.testing.assert_close(mine, theirs)
    leaves = [weight, noise, *process.parameters()]
    mine = torch.autograd.grad(mixture(fast[:5]), leaves, retain_graph=True)
    theirs = torch.autograd.grad(mixture(slow), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_rows_of_f_as_inducing_variables_have_gradients_too(small_blocks):
    process, rows, noise, _ = random_problem(5, 17, invariant=True)
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def value(gather):
        inducing = rows.take(slice(0, 3)).atoms().scale(weights)
        lower = inducing_factor(process, inducing)
        return mixture(gather(process, rows, inducing, lower, noise)[:5])

    leaves = [weights, noise, *process.parameters()]
    mine = torch.autograd.grad(value(gather_totals), leaves)
    theirs = torch.autograd.grad(value(slow_totals), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_gradients_survive_an_ill_conditioned_matrix():
    # Lengthscales far beyond the data: K_uu⁻¹ itself would lose all digits of the slope of the scale.
    process, rows, noise, _ = random_problem(1, 60)
    process.kernel.base_kernel.lengthscale = 8.0
    points = rows.x[:25].clone()

    def value():
        lower = inducing_factor(process, points)
        return collapsed_bound(gather_totals(process, rows, points, lower, noise), noise)

    (slope,) = torch.autograd.grad(value(), [process.kernel.raw_outputscale])
    raw, step = process.kernel.raw_outputscale.data, 1e-4
    with torch.no_grad():
        raw += step
        above = value().item()
        raw -= 2 * step
        below = value().item()
        raw += step
    assert slope.item() == pytest.approx((above - below) / (2 * step), rel=1e-3)


def test_totals_of_parts_add_up():
    process, rows, noise, _ = random_problem(2, 20, weighted=True, outputs=2)
    points = rows.x[:5]
    lower = inducing_factor(process, points)
    whole, first, second = (
        gather_totals(process, rows.take(part), points, lower, noise)
        for part in (slice(None), slice(0, 9), slice(9, None))
    )
    for mine, theirs in zip(first.merge(second), whole, strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(theirs))


def test_without_tightness_no_slack_is_computed():
    process, rows, noise, _ = random_problem(2, 20)
    lower = inducing_factor(process, rows.x[:4])
    assert gather_totals(process, rows, rows.x[:4], lower, noise, tight=False).slack.item() == 0


def test_single_precision_inputs_are_summed_in_double():
    process, rows, noise, _ = random_problem(2, 50)
    single = Observations(rows.functional, rows.x.float(), rows.targets)
    points = rows.x[:8]
    lower = inducing_factor(process, points)
    double = gather_totals(process, rows, points, lower, noise)
    mixed = gather_totals(process, single, points, lower, noise)
    assert mixed.gram.dtype == torch.float64
    torch.testing.assert_close(mixed.gram, double.gram, rtol=1e-3, atol=1e-3)


def test_the_factor_is_that_of_a_slightly_noisy_covariance():
    process, rows, _, _ = random_problem(4, 12)
    lower = inducing_factor(process, rows.x)
    covariance = process.covariance(Evaluation().lower(rows.x))
    jitter = JITTER * covariance.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(lower @ lower.mT, covariance + jitter)


def test_rows_drawn_at_random_are_refused():
    process, rows, noise, _ = random_problem(4, 12)
    drawn = Observations(OrbitAverage(SampledOrbit(Translation(2), -1, 1)), rows.x, rows.targets)
    with pytest.raises(ValueError, match="freeze a drawn orbit"):
        gather_totals(process, drawn, rows.x[:3], inducing_factor(process, rows.x[:3]), noise)
