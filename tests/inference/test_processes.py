"""What processes tell each other, and sums over rows of which each has its share."""

import copy
import pickle

import pytest
import torch

from orbitwise.functionals import Evaluation
from orbitwise.inference import processes as module
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.processes import ALONE, Processes, ProcessFailedError
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals
from orbitwise.inference.sparse.held_rows import condition, hold_rows
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.iterative import covariance_product
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.likelihoods import Bernoulli, Dirichlet, Gaussian
from tests.inference.several import in_processes
from tests.inference.sparse_problems import random_problem


def test_shares_are_all_rows_once():
    for count in (0, 1, 5, 64):
        found = in_processes(3, lambda each, count=count: list(range(count))[each.share(count)])
        assert [row for rows in found for row in rows] == list(range(count))
        assert in_processes(3, lambda each, count=count: each.counts(count))[1] == [len(x) for x in found]


@pytest.mark.parametrize("small", [0, 2**15], ids=["in parts", "at once"])
def test_sums_are_in_the_order_of_processes_and_have_the_same_bits(small, monkeypatch):
    monkeypatch.setattr(module, "SMALL", small)
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 7, generator=generator, dtype=torch.float64) * 10.0 ** torch.arange(-3, 4)
    more = torch.randn(3, 2, 2, generator=generator, dtype=torch.float64)
    found = in_processes(3, lambda each: each.sum(parts[each.rank], more[each.rank]))
    for first, second in found:
        assert torch.equal(first, (parts[0] + parts[1]) + parts[2])
        assert torch.equal(second, (more[0] + more[1]) + more[2])


def test_rows_are_gathered_in_order():
    rows = torch.arange(14.0).reshape(7, 2)
    for found in in_processes(3, lambda each: each.gather(rows[each.share(7)], 7)):
        assert torch.equal(found, rows)
    few = in_processes(3, lambda each: each.gather(rows[:2][each.share(2)], 2))
    assert all(torch.equal(found, rows[:2]) for found in few)


def test_rows_that_are_not_the_share_are_refused():
    with pytest.raises(ValueError, match="2 of the rows to gather, not 5"):
        in_processes(2, lambda each: each.gather(torch.zeros(5), 4))


def test_the_first_process_decides():
    small, large = {"stop": True}, list(range(5000))
    assert in_processes(3, lambda each: each.from_first(small if each.is_first else None)) == [small] * 3
    assert in_processes(2, lambda each: each.from_first(large if each.is_first else None)) == [large] * 2
    assert in_processes(3, lambda each: each.all_of("x" * each.rank)) == [["", "x", "xx"]] * 3


def test_an_error_in_one_process_is_raised_in_all():
    def fail(error):
        def work(processes):
            def compute():
                if processes.rank == 1:
                    raise error
                return processes.rank

            try:
                return processes.together(compute)
            except Exception as caught:
                return caught

        return in_processes(3, work)

    numerical = fail(ValueError("no factor"))
    assert all(isinstance(each, ValueError) and "no factor" in str(each) for each in numerical)
    other = fail(OSError("no disk"))
    assert isinstance(other[1], OSError)
    assert all(
        isinstance(other[rank], ProcessFailedError) and "no disk" in str(other[rank]) for rank in (0, 2)
    )
    assert in_processes(2, lambda each: each.together(lambda: each.rank)) == [0, 1]


def test_after_leaving_and_in_copies_a_process_is_alone():
    def work(processes):
        assert copy.deepcopy(processes) is processes
        assert pickle.loads(pickle.dumps(processes)).is_alone
        rows = Observations(Evaluation(), torch.zeros(3, 1), torch.zeros(3, 1), processes=processes)
        assert rows.to("cpu").processes is rows.through(rows.functional).processes is processes
        assert rows.take(slice(2)).processes is ALONE
        processes.leave()
        return processes.size, processes.share(5), processes.sum(torch.ones(2))[0].tolist()

    assert in_processes(2, work) == [(1, slice(0, 5), [1.0, 1.0])] * 2


CASES = [
    {"outputs": 2, "mean": True},
    {"invariant": True, "weighted": True},
]


def close(found, expected, tolerance=1e-10):
    scale = expected.abs().max().clamp_min(1e-300)
    return bool(((found - expected).abs() <= tolerance * scale).all())


def bound_and_slopes(case, processes):
    process, rows, noise, _ = random_problem(5, 23, **case)
    weight = None if rows.weight is None else rows.weight.requires_grad_()
    rows = Observations(rows.functional, rows.x, rows.targets.requires_grad_(), weight, processes=processes)
    points = rows.x[:6].clone().requires_grad_()
    leaves = [points, noise, rows.targets, *([] if weight is None else [weight]), *process.parameters()]
    lower = inducing_factor(process, points)
    bound = collapsed_bound(gather_totals(process, rows, points, lower, noise), noise)
    return [bound.detach(), *torch.autograd.grad(bound, leaves)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_bound_and_gradient_are_those_of_one_process(case, size):
    expected = bound_and_slopes(case, ALONE)
    every = in_processes(size, lambda each: bound_and_slopes(case, each))
    for found in every:
        assert all(close(mine, one) for mine, one in zip(found, expected, strict=True))
        # all processes take the same decisions, because they have the same bits
        assert all(torch.equal(mine, first) for mine, first in zip(found, every[0], strict=True))


def test_a_process_without_rows_takes_part():
    def work(processes):
        process, rows, noise, _ = random_problem(5, 2)
        rows = Observations(rows.functional, rows.x, rows.targets, processes=processes)
        lower = inducing_factor(process, rows.x)
        bound = collapsed_bound(gather_totals(process, rows, rows.x, lower, noise), noise)
        return [bound.detach(), *torch.autograd.grad(bound, [noise, *process.parameters()])]

    expected = work(ALONE)
    for found in in_processes(3, work):
        assert all(close(mine, one) for mine, one in zip(found, expected, strict=True))


def test_products_with_the_covariance_are_those_of_one_process():
    def work(processes):
        process, rows, _, generator = random_problem(7, 70, mean=True)
        rows = Observations(rows.functional, rows.x, rows.targets, processes=processes)
        vectors = torch.randn(70, 2, generator=generator, dtype=torch.float64)
        product = covariance_product(process, rows, vectors)
        return product.detach(), *torch.autograd.grad(product.sin().sum(), list(process.kernel.parameters()))

    expected = work(ALONE)
    for found in in_processes(3, work):
        assert all(close(mine, one) for mine, one in zip(found, expected, strict=True))


def test_held_rows_are_those_of_one_process():
    def work(processes):
        process, rows, _, _ = random_problem(9, 31, invariant=True, weighted=True, outputs=2)
        known = (process, rows.functional, rows.x[:5], rows.x, rows.targets)
        held = hold_rows(*known, weight=rows.weight, processes=processes)
        some = torch.tensor([30, 2, 17, 3])
        return [
            held.bound(0.3).reshape(1),
            held.residual(),
            held.log_density(0.3),
            held.leave_one_out(0.3).variance,
            held.held_out_means(0.3, some),
            held.optimum(0.3).mean,
        ]

    with torch.no_grad():
        expected = work(ALONE)
    for found in in_processes(3, work):
        assert all(close(mine.detach(), one) for mine, one in zip(found, expected, strict=True))


@pytest.mark.parametrize("likelihood", [Bernoulli, Dirichlet])
def test_quadratic_likelihoods_are_those_of_one_process(likelihood):
    def work(processes):
        process, rows, _, _ = random_problem(11, 29)
        model = likelihood()
        targets = model.encode_labels((rows.targets[:, 0] > 0).long(), 2)
        rows = Observations(rows.functional, rows.x, targets, processes=processes)
        found = condition(LatentModel(process, rows.functional, model), rows, rows.x[:6])
        sparse = SparseModel(process, rows, model)
        sparse.place_inducing(rows.x[:6])
        sparse.improve_tilt()
        parts = [found.bound().reshape(1), found.rows.leave_one_out(1.0).mean, sparse.bound().reshape(1)]
        tilts = [] if found.tilt is None else [found.tilt, sparse.tilt]
        return [
            part.detach()
            for part in (*parts, *tilts, *torch.autograd.grad(sparse(), process.kernel.parameters()))
        ]

    expected = work(ALONE)
    for found in in_processes(2, work):
        assert all(close(mine, one, 1e-9) for mine, one in zip(found, expected, strict=True))


def test_the_bracket_is_that_of_one_process():
    def work(processes):
        process, rows, _, _ = random_problem(13, 60)
        rows = Observations(rows.functional, rows.x, rows.targets, processes=processes)
        model = SparseModel(process, rows, Gaussian(0.3))
        model.place_inducing(rows.x[:8])
        return torch.tensor([*model.bracket(refine=False), *model.bracket(refine=True)])

    expected = work(ALONE)
    assert all(close(found, expected) for found in in_processes(2, work))
    assert Processes().is_alone
