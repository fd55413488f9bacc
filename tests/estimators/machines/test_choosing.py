"""What is chosen, against dense algebra and one machine after the other."""

import math
import weakref

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from orbitwise.estimators.machines import choosing
from orbitwise.estimators.machines.choosing import (
    RATES,
    Choice,
    Usual,
    first_with_several_classes,
    rank_by_cross_validation,
    rank_by_evidence,
    rate_grid,
)
from orbitwise.estimators.machines.machine import TrainingRows
from orbitwise.estimators.machines.task import MachineTask
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Evaluation, Gradient
from orbitwise.inference.calibration import one_class
from orbitwise.inference.risk import DenseGram, Problem, Term, newton
from orbitwise.inference.risk.evidence import logistic_evidence
from orbitwise.inference.risk.machines import held_out_scores, predicted_classes
from orbitwise.losses import Logistic, Loss, Squared, SquaredHinge


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MORE = seeded(10, 2), seeded(8, 2, seed=1)
SIGNS = torch.where(X[:, 0] > 0, 1.0, -1.0).double()[None]
WEIGHTS = torch.linspace(0.5, 2, 10, dtype=torch.float64)
STRENGTHS, RATE = [0.0, 0.3], [0.3, 10.0]
FOLDS = torch.arange(10) % 3


def task_of(
    width: float = 1.0,
    basis: str = "bias",
    loss: Loss | None = None,
    targets: Tensor = SIGNS,
    weights: Tensor = WEIGHTS,
) -> MachineTask:
    data = TrainingRows(X, targets, weights, MORE)
    model = InvariantSVC(bandwidth=width, basis=basis)
    return model._task(data, Logistic() if loss is None else loss)


def settings(choice: Choice) -> tuple[float, float, float]:
    return choice.rate, choice.strength, choice.task.bandwidth


def folded(task: MachineTask, strength: float) -> Tensor:
    """The covariance of f given slopes that vanish, by dense algebra."""
    assert task.rows is not None
    rows, points = task.rows.blocks, Evaluation().atoms(X)
    prior = task.process.covariance(points).detach()
    if strength == 0:
        return prior
    cross = task.process.covariance(rows, points).detach()
    gram = task.process.covariance(rows).detach() + torch.eye(36).double() / (2 * strength)
    return prior - cross.mT @ torch.linalg.solve(gram, cross)


def test_squared_evidence_chooses_as_dense_gaussian_processes_do():
    """All settings by brute force: the density of labels, at the best scale of the prior."""
    tasks = [task_of(width, "none", Squared()) for width in (0.5, 1.0, 2.0)]
    scores = {}
    for task in tasks:
        for strength in STRENGTHS:
            for rate in RATE:
                covariance = folded(task, strength) + torch.diag(1 / (2 * rate * WEIGHTS))
                scale = (SIGNS[0] @ torch.linalg.solve(covariance, SIGNS[0])).item() / 10
                density = multivariate_normal(np.zeros(10), scale * covariance.numpy())
                scores[rate, strength, task.bandwidth] = density.logpdf(SIGNS[0].numpy())
    found = rank_by_evidence(tasks, STRENGTHS, RATE)[0]
    best = max(scores, key=lambda key: scores[key])
    assert settings(found) == best
    assert found.score == pytest.approx(scores[best], abs=1e-6)


def test_the_fine_grid_of_rates_is_at_least_as_good():
    task = task_of(loss=Squared())
    given = rank_by_evidence([task], STRENGTHS, RATE)[0]
    free = rank_by_evidence([task], STRENGTHS)[0]
    assert free.score >= given.score - 1e-3


def test_squared_evidence_is_conditional_on_the_invariance():
    """log p(y, Lf = 0) - log p(Lf = 0) of one Gaussian over labels and slopes."""
    task, strength, rate = task_of(1.0, "none", Squared(), weights=torch.ones(10).double()), 0.3, 3.0
    found = rank_by_evidence([task], [strength], [rate])[0]
    rows = [Evaluation().atoms(X), Gradient().atoms(torch.unique(torch.cat([X, MORE]), dim=0))]
    covariance = task.process.covariance(rows).detach()
    noise = torch.cat([torch.full((10,), 1 / (2 * rate)), torch.full((36,), 1 / (2 * strength))]).double()
    covariance = (covariance + torch.diag(noise)).numpy()

    def conditional(scale: float) -> float:
        targets = np.r_[SIGNS[0].numpy(), np.zeros(36)]
        both = multivariate_normal(np.zeros(46), scale * covariance).logpdf(targets)
        return both - multivariate_normal(np.zeros(36), scale * covariance[10:, 10:]).logpdf(np.zeros(36))

    scales = np.exp(np.linspace(-4, 4, 4001))
    assert found.score == pytest.approx(max(conditional(each) for each in scales[::10]), abs=1e-3)


def test_logistic_evidence_is_summed_over_outputs_and_searched_over_all():
    targets = torch.cat([SIGNS, -SIGNS.flip(1)])
    tasks = [task_of(width, targets=targets) for width in (0.5, 2.0)]
    scores = {}
    for task in tasks:
        for strength in STRENGTHS:
            for rate in RATE:
                each = [
                    logistic_evidence(folded(task, strength), y, task.basis, rate * WEIGHTS) for y in targets
                ]
                scores[rate, strength, task.bandwidth] = sum(value.item() for value in each)
    found = rank_by_evidence(tasks, STRENGTHS, RATE)[0]
    best = max(scores, key=lambda key: scores[key])
    assert settings(found) == best
    assert found.score == pytest.approx(scores[best], abs=1e-4)


@pytest.mark.parametrize("loss", [Logistic(), Squared()])
def test_what_is_usual_is_left_only_for_greater_evidence(loss: Loss):
    """A nat per factor of √10 in λ, of 10 in ν (none counts as 1e-6) and of 2 in the bandwidth."""
    tasks, strengths = [task_of(width, loss=loss) for width in (1.0, 2.0)], [0.0, 0.03, 0.3]
    alone = {settings(each): each.score for each in rank_by_evidence(tasks, strengths, RATE)}
    rate, strength, width = 10.0, 0.3, 1.0
    usual = Usual(rate * folded(tasks[0], strength).diagonal().mean().item(), strength, width)
    ranked = rank_by_evidence(tasks, strengths, RATE, usual)
    totals = []
    for choice in ranked:
        variance = folded(choice.task, choice.strength).diagonal().mean().item()
        steps = abs(math.log(choice.rate * variance / usual.rate, math.sqrt(10)))
        steps += {0.3: 0, 0.03: 1, 0.0: math.log10(0.3e6)}[choice.strength]
        steps += math.log2(choice.task.bandwidth)
        totals.append(choice.score - steps)
        if isinstance(loss, Logistic):
            assert choice.score == pytest.approx(alone[settings(choice)], abs=1e-4)
    assert totals == pytest.approx(sorted(totals, reverse=True), abs=1e-4)
    assert [settings(each) for each in ranked] != list(alone)


def held_out_by_hand(gram: Tensor, loss: Loss, y: Tensor, rate: float) -> Tensor:
    """A machine for every fold, of the kernel between the labels that it sees."""
    found, ones = torch.zeros(10).double(), torch.ones(10, 1).double()
    for fold in range(3):
        seen, out = (torch.nonzero(mask)[:, 0] for mask in (fold != FOLDS, fold == FOLDS))
        problem = Problem(
            DenseGram(gram[seen][:, seen]), [Term(loss, y[seen], rate * WEIGHTS[seen])], ones[seen]
        )
        solution = newton(problem, tolerance=1e-12)
        found[out] = gram[out][:, seen] @ solution.coefficients + solution.beta
    return found


@pytest.mark.parametrize(("loss", "at_once"), [(Logistic(), 2**25), (SquaredHinge(), 1)])
def test_held_out_scores_are_those_of_machines_of_the_other_folds(loss: Loss, at_once: int, monkeypatch):
    monkeypatch.setattr("orbitwise.inference.risk.machines.SYSTEMS_AT_ONCE", at_once)
    task, targets = task_of(), torch.cat([SIGNS, -SIGNS.flip(1)])
    grams = torch.stack([folded(task, strength) for strength in STRENGTHS])
    rates = rate_grid(grams, RATE)
    found = held_out_scores(grams, task.basis, loss, targets, WEIGHTS, rates, FOLDS)
    assert found.values.shape == (2, 2, 2, 10)
    for i in range(2):
        for j, rate in enumerate(RATE):
            expected = torch.stack([held_out_by_hand(grams[i], loss, y, rate) for y in targets])
            torch.testing.assert_close(found.values[i, j], expected, rtol=0, atol=5e-3)
            mean = (WEIGHTS * loss.value(expected, targets)).sum() / WEIGHTS.sum()
            assert found.losses[i, j].item() == pytest.approx(mean.item(), rel=1e-2)


def test_cross_validation_takes_the_least_error_then_the_least_loss():
    tasks, codes = [task_of(width) for width in (0.5, 2.0)], (SIGNS[0] > 0).long()
    reached = {}
    for task in tasks:
        for strength in STRENGTHS:
            for rate in RATE:
                scores = held_out_by_hand(folded(task, strength), Logistic(), SIGNS[0], rate)
                wrong = ((scores > 0).long() != codes).double()
                error = (wrong * WEIGHTS).sum().item() / WEIGHTS.sum().item()
                constant = bool(((scores > 0) == (scores[0] > 0)).all())
                loss = (WEIGHTS * Logistic().value(scores, SIGNS[0])).sum().item() / WEIGHTS.sum().item()
                reached[rate, strength, task.bandwidth] = (round(error, 9), constant, loss)
    found = rank_by_cross_validation(tasks, FOLDS, STRENGTHS, RATE)[0]
    best = min(reached, key=lambda key: reached[key])
    assert settings(found) == best
    assert found.score == pytest.approx(reached[best][0], abs=1e-9)


def test_constant_machines_are_tried_twice_a_strength_with_one_task_in_memory(monkeypatch):
    """Kernels of three bandwidths, too large to keep: each is folded once, and gone before the next."""
    monkeypatch.setattr("orbitwise.estimators.machines.task.NUMBERS_KEPT", 0)
    tasks, strengths = [task_of(width) for width in (0.5, 1.0, 2.0)], [0.0, 0.1, 0.3, 1.0]
    choices = [
        Choice(rate, strength, 0.0, task)
        for rate in (1.0, 0.1, 10.0)
        for strength in strengths
        for task in tasks
    ]
    alive, most, folded_widths, tried = weakref.WeakSet(), [], [], []
    cross_grams = MachineTask.cross_grams

    def followed(self: MachineTask, asked: list[float]) -> list[Tensor]:
        folded_widths.append(self.bandwidth)
        found = cross_grams(self, asked)
        alive.update(found)
        most.append(len(alive))
        return found

    monkeypatch.setattr(MachineTask, "cross_grams", followed)
    monkeypatch.setattr(choosing, "one_class", lambda *given: tried.append(1) or "training")
    assert first_with_several_classes(choices) is choices[0]
    # the first rate of a strength and the highest
    assert len(tried) == 3 * 8
    assert folded_widths == [0.5, 1.0, 2.0]
    assert max(most) <= len(strengths)


def test_the_first_choice_that_tells_is_taken_whatever_its_task(monkeypatch):
    tasks = [task_of(0.5), task_of(2.0)]
    choices = [Choice(rate, 0.1, 0.0, task) for rate in (1e-6, 100.0) for task in tasks]
    assert first_with_several_classes(choices) is choices[2]
    assert first_with_several_classes(choices[1:]) is choices[2]


def test_rates_are_over_the_variance_of_the_kernel_unless_given():
    grams = torch.stack([folded(task_of(), strength) for strength in STRENGTHS])
    variance = grams.diagonal(dim1=-2, dim2=-1).mean(-1)
    torch.testing.assert_close(
        rate_grid(grams, None) * variance[:, None],
        torch.tensor(RATES, dtype=torch.float64).expand(2, -1),
        rtol=1e-12,
        atol=0,
    )
    assert rate_grid(grams, [0.1, 7.0]).tolist() == [[0.1, 7.0]] * 2


def test_classes_are_decided_by_signs_or_by_the_greatest():
    assert predicted_classes(torch.tensor([[-1.0, 0.0, 2.0]])).tolist() == [0, 0, 1]
    assert predicted_classes(torch.tensor([[1.0, 0.0], [0.5, 2.0], [-1.0, math.pi]])).tolist() == [0, 2]


def test_one_class_for_all_rows_is_seen_and_chance_is_not():
    codes = torch.tensor([0, 0, 0, 1])
    has_no_label = torch.arange(30) >= 4
    varied = torch.arange(30) % 2
    assert one_class(varied, has_no_label, codes) is None
    assert one_class(torch.zeros(30, dtype=torch.int64), has_no_label, codes) == "training"
    by_heart = torch.where(has_no_label, 0, torch.arange(30) == 3).long()
    assert one_class(by_heart, has_no_label, codes) == "unlabelled"
    nearly, often = by_heart.repeat(20), by_heart.repeat(20)
    nearly[10], often[10::30] = 1, 1
    assert one_class(nearly, has_no_label.repeat(20), codes) == "unlabelled"
    assert one_class(often, has_no_label.repeat(20), codes) is None
    # three quarters of the labels: twelve such rows come of chance in 3 % of all cases, 26 in 0.06 %
    assert one_class(by_heart[:16], has_no_label[:16], codes) is None
    assert one_class(by_heart[:4], has_no_label[:4], codes) is None
    # one point that was labelled twice, and one that was labelled once
    assert one_class(codes[:1], has_no_label[:1], codes) == "training"
    assert one_class(codes[:1], has_no_label[:1], codes[:1]) is None
