from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from orbitwise.estimators import kernel_machine as module
from orbitwise.estimators.kernel_machine import BANDWIDTHS, Ground, distinct_points, median_distance
from orbitwise.estimators.machine_rows import InvarianceRows, LaplacianRows, invariance_rows
from orbitwise.functionals import Evaluation, Gradient
from orbitwise.inference.optimise.cost import Cost, dense_cost, gradient_search_cost
from orbitwise.losses import EpsilonInsensitive, Logistic, Loss, Multinomial, Squared
from orbitwise.process import Process


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MORE, NEW = seeded(12, 2), seeded(6, 2, seed=1), seeded(5, 2, seed=2)
SIGNS = torch.where(X[:, :1] + X[:, 1:] > 0, 1.0, -1.0).double().mT
ONES = torch.ones(12, dtype=torch.float64)


def estimator(**changes: Any) -> Any:
    settings = {"kernel": None, "bandwidth": "median", "basis": "bias", "invariance": "gradient"} | changes
    made = SimpleNamespace(**settings)
    made._rows = lambda points, width: invariance_rows(made.invariance, points, width, None)
    return made


def ground_of(**changes: Any) -> Ground:
    return Ground.of(estimator(**changes), X, MORE)


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
    ground = ground_of()
    assert ground.bandwidth == median_distance(distinct_points(X, MORE))
    assert ground.process.kernel.lengthscale.item() == pytest.approx(ground.bandwidth, rel=1e-12)
    wide = [each.bandwidth / ground.bandwidth for each in ground.alternatives(estimator(), MORE)]
    assert wide == pytest.approx(list(BANDWIDTHS))
    for fixed in ({"bandwidth": 0.7}, {"kernel": RBFKernel()}):
        ground = ground_of(**fixed)
        assert ground.alternatives(estimator(**fixed), MORE) == [ground]
    given = RBFKernel()
    assert ground_of(kernel=given).process.kernel is not given
    assert given.raw_lengthscale.dtype == torch.float32


def test_grams_are_the_folded_kernel():
    ground = ground_of(bandwidth=1.0)
    slopes, points = Gradient().atoms(distinct_points(X, MORE)), Evaluation().atoms(X)
    cross = ground.process.covariance(slopes, points).detach()
    gram = ground.process.covariance(slopes).detach()
    for strength, found in zip([0.1, 3.0], ground.grams([0.1, 3.0]), strict=True):
        inner = torch.linalg.solve(gram + torch.eye(36).double() / (2 * strength), cross)
        torch.testing.assert_close(found, ground.without_invariances() - cross.mT @ inner, rtol=0, atol=1e-9)
    bare = ground_of(invariance=None)
    torch.testing.assert_close(bare.grams([1.0, 2.0])[1], bare.without_invariances(), rtol=0, atol=1e-12)
    assert torch.equal(ground.basis, torch.ones(12, 1).double())


def values(ground: Ground, loss: Loss, other: Loss, strength: float, **options: Any) -> Tensor:
    targets = options.pop("targets", SIGNS)
    machine, _ = ground.fit(loss, targets, ONES, 2.0, strength, other, "auto", 1e-12, **options)
    return machine.values(Evaluation(), NEW)


def test_weights_and_strengths_scale_the_losses():
    ground = ground_of()
    machine, solutions = ground.fit(Logistic(), SIGNS, 3 * ONES, 2.0, 0.5, Squared(), "auto", 1e-12)
    slopes = machine.values(Gradient(), distinct_points(X, MORE))
    f = machine.values(Evaluation(), X)[:, 0]
    alpha = machine.coefficients[:, 0]
    risk = 0.5 * alpha @ ground.process.covariance(machine.rows).detach() @ alpha
    risk = risk + 6.0 * Logistic().value(f, SIGNS[0]).sum() + 0.5 * (ground.bandwidth * slopes).square().sum()
    assert risk.item() == pytest.approx(solutions[0].objective.item(), rel=1e-7)


def test_a_nearly_squared_loss_of_rows_is_close_to_the_squared_one():
    """A rounded absolute loss is t²/(2·width) + … for small slopes: rows and folding meet there."""
    width = 1e3
    rows = values(ground_of(), Logistic(), EpsilonInsensitive(0.0, width), 2 * width * 0.3)
    folded = values(ground_of(), Logistic(), Squared(), 0.3)
    torch.testing.assert_close(rows, folded, rtol=0, atol=1e-5)


def test_no_strength_is_no_invariance():
    bare = values(ground_of(invariance=None, bandwidth=1.0), Logistic(), Squared(), 1.0)
    torch.testing.assert_close(values(ground_of(bandwidth=1.0), Logistic(), Squared(), 0.0), bare)


def test_a_basis_that_invariances_see_is_not_folded_away():
    """Slopes of a linear basis count as those of the kernel's part do."""
    ground = ground_of(basis="linear")
    assert ground.is_basis_seen
    machine, solutions = ground.fit(Squared(), SIGNS, ONES, 2.0, 1e4, Squared(), "auto", 1e-12)
    assert machine.values(Gradient(), distinct_points(X, MORE)).abs().max() < 1e-2
    assert machine.beta.shape == (3, 1)
    assert len(solutions[0].coefficients) == 12 + 36
    assert not ground_of(basis="bias").is_basis_seen
    assert not ground_of(basis="none").is_basis_seen
    laplacian = Ground(X, X, ground.process, LaplacianRows.of(X, 3, "heat", True), 1.0, "linear")
    assert not laplacian.is_basis_seen


def test_several_outputs_are_single_ones_side_by_side():
    targets = torch.cat([SIGNS, -SIGNS, torch.sign(X[:, 0])[None]])
    ground = ground_of()
    together = values(ground, Logistic(), Squared(), 0.3, targets=targets)
    for column, each in zip(together.mT, targets, strict=True):
        alone = values(ground, Logistic(), Squared(), 0.3, targets=each[None])[:, 0]
        torch.testing.assert_close(column, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("other", [Squared(), EpsilonInsensitive(0.1)])
def test_a_multinomial_loss_of_two_classes_is_a_logistic_one_of_their_difference(other: Loss):
    """½|f₁|² + ½|f₂|² with f₁ = -f₂ = f/2 is ¼|f|²: twice the C, and the strength likewise where squared."""
    codes = torch.stack([(1 - SIGNS[0]) / 2, (1 + SIGNS[0]) / 2])
    if isinstance(other, Squared):
        found = values(ground_of(basis="none"), Multinomial(2), other, 0.3, targets=codes)
        machine, _ = ground_of(basis="none").fit(Logistic(), SIGNS, ONES, 4.0, 0.3, other, "auto", 1e-12)
        torch.testing.assert_close(
            found[:, 1] - found[:, 0], machine.values(Evaluation(), NEW)[:, 0], rtol=0, atol=1e-4
        )
    else:
        found = values(ground_of(), Multinomial(2), other, 0.3, targets=codes)
        torch.testing.assert_close(found[:, 0], -found[:, 1], rtol=0, atol=1e-3)


def test_kernels_are_folded_once_for_the_same_strengths(monkeypatch: pytest.MonkeyPatch):
    ground, folds = ground_of(), []
    fold = InvarianceRows.fold
    monkeypatch.setattr(InvarianceRows, "fold", lambda *given: (folds.append(given[3]), fold(*given))[1])
    first = ground.grams([0.0, 0.3, 2.0])
    assert torch.equal(ground.grams([0.3])[0], first[1])
    assert torch.equal(ground.grams([2.0])[0], first[2])
    assert folds == [[0.3, 2.0]]
    assert not torch.equal(ground.grams([0.5])[0], first[1])
    monkeypatch.setattr(module, "NUMBERS_KEPT", 1)
    torch.testing.assert_close(ground.grams([0.3])[0], first[1])
    assert folds[1:] == [[0.5], [0.3]]


def test_kernels_of_all_points_hold_those_of_the_labelled():
    ground = ground_of()
    kernels = torch.stack(ground.everywhere([0.0, 0.3]))
    assert kernels.shape == (2, 18, 12)
    places = [(ground.points == row).all(-1).nonzero().item() for row in X]
    torch.testing.assert_close(kernels[:, places], ground.grams([0.0, 0.3]), rtol=0, atol=1e-12)
    plain = ground.process.covariance(Evaluation().atoms(ground.points), Evaluation().atoms(X))
    torch.testing.assert_close(kernels[0], plain, rtol=0, atol=0)


def test_a_kernel_without_invariances_is_made_once_and_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
):
    ground, made = ground_of(), []
    covariance = Process.covariance
    monkeypatch.setattr(Process, "covariance", lambda *given: (made.append(1), covariance(*given))[1])
    ground.everywhere([0.1, 0.3, 2.0])
    folding = len(made)
    ground.everywhere([0.3, 2.0])
    assert len(made) == folding
    ground.everywhere([0.0, 0.3, 0.0])
    assert len(made) == folding + 1


def test_points_without_a_label_are_known():
    ground = Ground.of(estimator(), X, torch.cat([MORE, X[:3]]))
    found = ground.points[ground.has_no_label]
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, MORE.tolist()))


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_inputs_whose_squares_are_no_numbers_are_refused(unit: float):
    with pytest.raises(ValueError, match="beyond what double precision can square"):
        median_distance(unit * X)


def test_distances_are_right_where_their_squares_would_not_be():
    for unit in (1e-60, 1e60):
        assert median_distance(unit * X) == pytest.approx(unit * median_distance(X), rel=1e-12)


def test_costs_are_those_of_what_will_be_done(monkeypatch: pytest.MonkeyPatch):
    ground = ground_of()
    assert ground_of(invariance=None).cost(Squared()) == Cost(0.0, 0.0)
    assert ground.cost(Squared()) == dense_cost(36, 18)
    assert ground.cost(EpsilonInsensitive()) == dense_cost(36 + 12, 18)
    graph = Ground(X, X, ground.process, LaplacianRows.of(X, 3, "heat", True), 1.0, "bias")
    assert graph.cost(Squared()) == dense_cost(12, 12).times(2)
    assert "root" not in vars(graph.rows)
    monkeypatch.setattr(module, "LARGEST_DENSE", 30)
    assert ground.cost(Squared()) == gradient_search_cost(18, 2, 12)


def test_kernels_without_derivatives_say_so_before_any_work():
    with pytest.raises(ValueError, match="FiniteDifference"):
        ground_of(kernel=MaternKernel(0.5))
