from dataclasses import replace
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from orbitwise.estimators.machines import task as module
from orbitwise.estimators.machines.machine import BANDWIDTHS, TrainingRows
from orbitwise.estimators.machines.task import (
    InvarianceRows,
    MachineTask,
    distinct_points,
    laplacian_rows,
    median_distance,
    neighbour_distance,
)
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Evaluation, Gradient
from orbitwise.inference.optimise.cost import Cost, dense_cost, gradient_search_cost
from orbitwise.losses import EpsilonInsensitive, Logistic, Loss, Multinomial, Squared
from orbitwise.process import Process


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MORE, NEW = seeded(12, 2), seeded(6, 2, seed=1), seeded(5, 2, seed=2)
SIGNS = torch.where(X[:, :1] + X[:, 1:] > 0, 1.0, -1.0).double().mT
ONES = torch.ones(12, dtype=torch.float64)


def task_of(
    loss: Loss | None = None,
    other: Loss | None = None,
    targets: Tensor = SIGNS,
    unlabeled: Tensor = MORE,
    **settings: Any,
) -> MachineTask:
    model = InvariantSVC(**settings, invariance_loss=Squared() if other is None else other)
    data = TrainingRows(X, targets, ONES, unlabeled)
    return model._task(data, Logistic() if loss is None else loss)


def test_the_distance_of_neighbours_is_that_of_points_from_everywhere(monkeypatch: pytest.MonkeyPatch):
    # sparse at one end, where the first of the sorted points are
    places = torch.cat([100.0 * torch.arange(10), 1000.0 + torch.arange(90)]).double()
    assert neighbour_distance(places[:10, None], 1) == pytest.approx(100.0)
    monkeypatch.setattr(module, "PAIRED", 10)
    for shift in (0.0, 1e8):
        assert neighbour_distance(places[:, None] + shift, 1) == pytest.approx(1.0)


def test_the_median_distance_is_that_of_different_points(monkeypatch: pytest.MonkeyPatch):
    x = torch.tensor([[0.0], [0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    # 0-1, 0-3, 0-7 twice each, 1-3, 1-7, 3-7
    assert median_distance(x) == torch.tensor([1.0, 1, 3, 3, 7, 7, 2, 6, 4]).median().item()
    assert median_distance(x[:2]) == 1.0
    assert median_distance(x[:1]) == 1.0
    monkeypatch.setattr(module, "PAIRED", 3)
    assert median_distance(x) == 1.0


def test_points_are_distinct_and_in_a_fixed_order():
    found = distinct_points(X, torch.cat([MORE, X[:3]]))
    assert found.shape == (18, 2)
    assert torch.equal(found, distinct_points(MORE, X))


def test_bandwidths():
    task = task_of()
    assert task.bandwidth == median_distance(distinct_points(X, MORE))
    assert task.process.kernel.lengthscale.item() == pytest.approx(task.bandwidth, rel=1e-12)
    wide = [each.bandwidth / task.bandwidth for each in InvariantSVC()._at_bandwidths(task)]
    assert wide == pytest.approx(list(BANDWIDTHS))
    for fixed in ({"bandwidth": 0.7}, {"kernel": RBFKernel()}):
        task = task_of(**fixed)
        assert InvariantSVC(**fixed)._at_bandwidths(task) == [task]
    given = RBFKernel()
    assert task_of(kernel=given).process.kernel is not given
    assert given.raw_lengthscale.dtype == torch.float32


def test_grams_are_the_folded_kernel():
    task = task_of(bandwidth=1.0, basis="bias")
    slopes, points = Gradient().atoms(distinct_points(X, MORE)), Evaluation().atoms(X)
    cross = task.process.covariance(slopes, points).detach()
    gram = task.process.covariance(slopes).detach()
    for strength, found in zip([0.1, 3.0], task.grams([0.1, 3.0]), strict=True):
        inner = torch.linalg.solve(gram + torch.eye(36).double() / (2 * strength), cross)
        torch.testing.assert_close(found, task.gram(0) - cross.mT @ inner, rtol=0, atol=1e-9)
    bare = task_of(invariance=None)
    torch.testing.assert_close(bare.grams([1.0, 2.0])[1], bare.gram(0), rtol=0, atol=1e-12)
    assert torch.equal(task.basis, torch.ones(12, 1).double())


def values(task: MachineTask, strength: float) -> Tensor:
    machine, _ = task.fit(2.0, strength, tolerance=1e-12)
    return machine.values(Evaluation(), NEW)


def test_weights_and_strengths_scale_the_losses():
    task = replace(task_of(), weights=3 * ONES)
    machine, solutions = task.fit(2.0, 0.5, tolerance=1e-12)
    slopes = machine.values(Gradient(), distinct_points(X, MORE))
    f = machine.values(Evaluation(), X)[:, 0]
    alpha = machine.coefficients[:, 0]
    risk = 0.5 * alpha @ task.process.covariance(machine.rows).detach() @ alpha
    risk = risk + 6.0 * Logistic().value(f, SIGNS[0]).sum() + 0.5 * (task.bandwidth * slopes).square().sum()
    assert risk.item() == pytest.approx(solutions[0].objective.item(), rel=1e-7)


def test_a_nearly_squared_loss_of_rows_is_close_to_the_squared_one():
    """A rounded absolute loss is t²/(2·width) + … for small slopes: rows and folding meet there."""
    width = 1e3
    rows = values(task_of(other=EpsilonInsensitive(0.0, width)), 2 * width * 0.3)
    folded = values(task_of(), 0.3)
    torch.testing.assert_close(rows, folded, rtol=0, atol=1e-5)


def test_no_strength_is_no_invariance():
    bare = values(task_of(invariance=None, bandwidth=1.0), 1.0)
    torch.testing.assert_close(values(task_of(bandwidth=1.0), 0.0), bare)


def test_a_basis_that_invariances_see_is_not_folded_away():
    """Slopes of a linear basis count as those of the kernel's part do."""
    task = task_of(Squared(), basis="linear")
    assert task.penalises_basis
    machine, solutions = task.fit(2.0, 1e4, tolerance=1e-12)
    assert machine.values(Gradient(), distinct_points(X, MORE)).abs().max() < 1e-2
    assert machine.beta.shape == (3, 1)
    assert len(solutions[0].coefficients) == 12 + 36
    assert not task_of(basis="bias").penalises_basis
    assert not task_of(basis="none").penalises_basis
    assert not replace(task, rows=laplacian_rows(X, 3, "heat", True)).penalises_basis


def test_several_outputs_are_single_ones_side_by_side():
    targets = torch.cat([SIGNS, -SIGNS, torch.sign(X[:, 0])[None]])
    together = values(task_of(targets=targets), 0.3)
    for column, each in zip(together.mT, targets, strict=True):
        alone = values(task_of(targets=each[None]), 0.3)[:, 0]
        torch.testing.assert_close(column, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("other", [Squared(), EpsilonInsensitive(0.1)])
def test_a_multinomial_loss_of_two_classes_is_a_logistic_one_of_their_difference(other: Loss):
    """½|f₁|² + ½|f₂|² with f₁ = -f₂ = f/2 is ¼|f|²: twice the C, and the strength likewise where squared."""
    codes = torch.stack([(1 - SIGNS[0]) / 2, (1 + SIGNS[0]) / 2])
    if isinstance(other, Squared):
        found = values(task_of(Multinomial(2), other, codes, basis="none"), 0.3)
        machine, _ = task_of(Logistic(), other, basis="none").fit(4.0, 0.3, tolerance=1e-12)
        torch.testing.assert_close(
            found[:, 1] - found[:, 0], machine.values(Evaluation(), NEW)[:, 0], rtol=0, atol=1e-4
        )
    else:
        found = values(task_of(Multinomial(2), other, codes), 0.3)
        torch.testing.assert_close(found[:, 0], -found[:, 1], rtol=0, atol=1e-3)


def test_kernels_are_folded_once_for_the_same_strengths(monkeypatch: pytest.MonkeyPatch):
    task, folds = task_of(), []
    fold = InvarianceRows.fold
    monkeypatch.setattr(InvarianceRows, "fold", lambda *given: (folds.append(given[3]), fold(*given))[1])
    first = task.grams([0.0, 0.3, 2.0])
    assert torch.equal(task.grams([0.3])[0], first[1])
    assert torch.equal(task.grams([2.0])[0], first[2])
    assert folds == [[0.3, 2.0]]
    assert not torch.equal(task.grams([0.5])[0], first[1])
    monkeypatch.setattr(module, "NUMBERS_KEPT", 1)
    torch.testing.assert_close(task.grams([0.3])[0], first[1])
    assert folds[1:] == [[0.5], [0.3]]


def test_kernels_of_all_points_hold_those_of_the_labelled():
    task = task_of()
    kernels = torch.stack(task.cross_grams([0.0, 0.3]))
    assert kernels.shape == (2, 18, 12)
    places = [(task.points == row).all(-1).nonzero().item() for row in X]
    torch.testing.assert_close(kernels[:, places], task.grams([0.0, 0.3]), rtol=0, atol=1e-12)
    plain = task.process.covariance(Evaluation().atoms(task.points), Evaluation().atoms(X))
    torch.testing.assert_close(kernels[0], plain, rtol=0, atol=0)


def test_a_kernel_without_invariances_is_made_once_and_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
):
    task, made = task_of(), []
    covariance = Process.covariance
    monkeypatch.setattr(Process, "covariance", lambda *given: (made.append(1), covariance(*given))[1])
    task.cross_grams([0.1, 0.3, 2.0])
    folding = len(made)
    task.cross_grams([0.3, 2.0])
    assert len(made) == folding
    task.cross_grams([0.0, 0.3, 0.0])
    assert len(made) == folding + 1


def test_points_without_a_label_are_known():
    task = task_of(unlabeled=torch.cat([MORE, X[:3]]))
    found = task.points[task.has_no_label]
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, MORE.tolist()))


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_inputs_whose_squares_are_no_numbers_are_refused(unit: float):
    with pytest.raises(ValueError, match="beyond what double precision can square"):
        median_distance(unit * X)


def test_distances_are_right_where_their_squares_would_not_be():
    for unit in (1e-60, 1e60):
        assert median_distance(unit * X) == pytest.approx(unit * median_distance(X), rel=1e-12)


def test_costs_are_those_of_what_will_be_done(monkeypatch: pytest.MonkeyPatch):
    task = task_of()
    assert task_of(invariance=None).cost == Cost(0.0, 0.0)
    assert task.cost == dense_cost(36, 18)
    assert task_of(other=EpsilonInsensitive()).cost == dense_cost(36 + 12, 18)
    rows = laplacian_rows(X, 3, "heat", True)
    assert replace(task, points=X, rows=rows).cost == dense_cost(12, 12)
    assert not {"root", "laplacian"} & vars(rows.graph).keys()
    assert task_of(functions="points").cost == dense_cost(18, 12)
    monkeypatch.setattr(module, "LARGEST_DENSE", 30)
    assert task.cost == gradient_search_cost(18, 2, 12)


def test_kernels_without_derivatives_say_so_before_any_work():
    with pytest.raises(ValueError, match="FiniteDifference"):
        task_of(kernel=MaternKernel(0.5))


def test_a_thinned_task_keeps_labels_of_each_class_and_all_points():
    task = task_of()
    thinned = task.thinned(6)
    assert len(thinned.x) <= 7
    assert len(thinned.codes.unique()) == 2
    assert torch.equal(thinned.points, task.points)
    assert all(any(torch.equal(row, x) for x in X) for row in thinned.x)
    assert task.thinned(12) is task
    spanned = task_of(functions="points")
    assert spanned.thinned(6).span is spanned.span


@pytest.mark.parametrize("loss", [Logistic(), Squared()])
def test_combinations_of_the_points_have_the_risk_that_is_said_and_the_least(loss: Loss):
    task = task_of(loss, functions="points", basis="bias", bandwidth=1.0)
    machine, solutions = task.fit(2.0, 0.5, tolerance=1e-12)
    points = distinct_points(X, MORE)
    (block,) = machine.rows
    assert torch.equal(block.points[:, 0], points)
    gram = task.process.covariance(block).detach()

    def risk(alpha: Tensor) -> float:
        machine.coefficients = alpha
        slopes = machine.values(Gradient(), points)
        f = machine.values(Evaluation(), X)[:, 0]
        total = 0.5 * (alpha * (gram @ alpha)).sum() + 2 * loss.value(f, SIGNS[0]).sum()
        return float(total + 0.5 * slopes.square().sum())

    alpha = machine.coefficients
    least = risk(alpha)
    assert least == pytest.approx(solutions[0].objective.item(), rel=1e-6)
    for seed in range(4):
        assert risk(alpha + 1e-2 * seeded(18, 1, seed=seed)) > least
    everything, more = task_of(loss, basis="bias", bandwidth=1.0).fit(2.0, 0.5, tolerance=1e-12)
    assert more[0].objective.item() < least < 1.2 * more[0].objective.item()
    assert len(everything.coefficients) == 12 + 36


def test_many_rows_are_taken_at_the_points(monkeypatch: pytest.MonkeyPatch):
    assert not task_of().is_spanned
    monkeypatch.setattr(module, "MANY_ROWS", 35)
    assert task_of().is_spanned
    assert not task_of(functions="all").is_spanned
    assert not task_of(other=EpsilonInsensitive(), functions="points").is_spanned
    assert not task_of(functions="points", basis="linear").is_spanned


def test_rows_of_any_kind_are_taken_at_the_points():
    """Parts of rows, weighted, against their whole covariance."""
    rows = InvarianceRows([Gradient().atoms(X), Gradient([1]).atoms(MORE)], seeded(30, seed=4).exp())
    process = task_of(bandwidth=1.0).process
    points = Evaluation().atoms(X)
    seen = rows.weights.sqrt()[:, None] * process.covariance(rows.blocks, points)
    gram, places = process.covariance(points), torch.arange(3)
    found = rows.span(process, X).fold(0.3, places)
    expected = (gram @ torch.linalg.solve(gram + 0.6 * seen.mT @ seen, gram))[:, :3]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
