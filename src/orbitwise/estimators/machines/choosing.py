"""The choice of λ, ν and the bandwidth by labels left out, by their evidence, or by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.estimators.machines.task import MachineTask
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.calibration import label_losses, one_class
from orbitwise.inference.risk.evidence import SquaredEvidence, logistic_evidence
from orbitwise.inference.risk.leaving_out import left_out_scores
from orbitwise.inference.risk.machines import (
    CHOICE_TOLERANCE,
    Scores,
    basis_rows,
    held_out_scores,
    predicted_classes,
    problems_at_once,
)
from orbitwise.inference.risk.problem import DenseGram, Problem, Term, newton
from orbitwise.losses import Logistic

STRENGTHS = (0.0, *(10.0**power for power in range(-5, 4)))
RATES = tuple(10.0 ** (power / 2) for power in range(-4, 9))
"""λ to choose from, divided by the mean variance of the kernel, which invariances lower."""
FINE_RATES = tuple(10.0 ** (power / 20) for power in range(-80, 141))
DOUBT = 0.5
"""Nats by which a choice must be better per step from the usual one."""
LABELS_TO_CHOOSE = 400
"""The most labels by which a strength is chosen with labels left out."""


class Choice(NamedTuple):
    """λ and ν for a task, with their evidence or cross-validated error."""

    rate: float
    strength: float
    score: float
    task: MachineTask


class Usual(NamedTuple):
    """λ times the mean variance of the kernel, ν and the bandwidth before labels have said anything.

    Another setting must be better by a nat for every step away: a factor of √10 in λ, 10 in ν, 2 in the
    bandwidth. No invariance counts as the strength 1e-6.
    """

    rate: float
    strength: float
    bandwidth: float

    def steps_to(self, rates: Float[Tensor, " r"], strength: float, bandwidth: float) -> Float[Tensor, " r"]:
        """The steps to values of λ times the mean variance, with ν and a bandwidth."""
        others = abs(_log(strength) - _log(self.strength)) + abs(math.log2(bandwidth / self.bandwidth))
        return 2 * (rates / self.rate).log10().abs() + others


def rank_by_evidence(
    tasks: Sequence[MachineTask],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
    usual: Usual | None = None,
) -> list[Choice]:
    """Choices by their evidence, summed over outputs, less steps from the usual, the greatest first.

    For logistic labels it is computed by expectation propagation. For squared losses it is that of targets
    with Gaussian noise, where every λ is cheap, and only the best λ of each strength is returned. Scores are
    evidences alone.
    """
    ranked = []
    for task in tasks:
        evidence = _logistic_evidence if isinstance(task.loss, Logistic) else _squared_evidence
        relative = RATES if isinstance(task.loss, Logistic) else FINE_RATES
        for strength, gram in zip(strengths, task.grams(strengths), strict=True):
            grid = rate_grid(gram[None], rates, relative)[0]
            values = total = evidence(task, gram, grid)
            if usual is not None:
                products = grid * gram.diagonal().mean().clamp_min(1e-300)
                total = values - usual.steps_to(products, strength, task.bandwidth)
            places = range(len(grid)) if isinstance(task.loss, Logistic) else [int(total.argmax())]
            ranked += [
                (total[i].item(), Choice(grid[i].item(), strength, values[i].item(), task)) for i in places
            ]
    known = [each for each in ranked if not math.isnan(each[0])]
    return [choice for _, choice in sorted(known or ranked, key=lambda each: -each[0])]


def _squared_evidence(task: MachineTask, gram: Tensor, grid: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
    return SquaredEvidence(gram, task.targets.T, task.basis, task.weights)(grid)


def _logistic_evidence(task: MachineTask, gram: Tensor, grid: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
    count = len(task.targets)
    parts = [
        logistic_evidence(
            gram, task.targets, task.basis, (part[:, None, None] * task.weights).expand(-1, count, -1)
        )
        for part in grid.split(problems_at_once(gram, count))
    ]
    return torch.cat(parts).sum(-1)


def rank_by_cross_validation(
    tasks: Sequence[MachineTask],
    folds: Int[Tensor, " n"],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
) -> list[Choice]:
    """Choices by held-out error; ties are resolved in favour of several predicted classes, then by the loss.

    With few labels, always predicting the larger class often ties with better machines.
    """
    ranked = []
    for task in tasks:
        grams = task.grams(strengths)
        grid = rate_grid(grams, rates)
        scores = held_out_scores(grams, task.basis, task.loss, task.targets, task.weights, grid, folds)
        for (i, j), errors in ranked_errors(scores, task.codes, task.weights).items():
            if math.isfinite(errors.loss):
                ranked.append((errors, Choice(grid[i, j].item(), strengths[i], errors.error, task)))
    if not ranked:
        raise ValueError("Cross-validation found no finite loss: are the inputs scaled sensibly?")
    return [choice for _, choice in sorted(ranked, key=lambda each: each[0])]


class Grid(NamedTuple):
    """Strengths and λ to choose from by labels left out, and the ones that are taken without evidence.

    λ are relative to the mean variance of k̃ unless `rates_are_absolute`.
    """

    strengths: Sequence[float]
    usual_strength: float
    rates: Sequence[float]
    usual_rate: float
    rates_are_absolute: bool = False


def rank_by_labels_left_out(tasks: Sequence[MachineTask], grid: Grid) -> list[Choice]:
    """Choices by the log probability of each label given all others, plus a log prior, the greatest first.

    The prior is `DOUBT` nats for every step of the strengths from the usual one, for another λ, and for
    another task than the first. Few labels hardly distinguish machines, and then the usual one is taken. The
    score is the mean loss of a label.
    """
    ranked = []
    nearest = min(
        range(len(grid.strengths)), key=lambda i: abs(_log(grid.strengths[i]) - _log(grid.usual_strength))
    )
    for number, whole in enumerate(tasks):
        task = whole.thinned(LABELS_TO_CHOOSE)
        grams = task.grams(grid.strengths)
        rates = rate_grid(grams, grid.rates if grid.rates_are_absolute else None, grid.rates)
        scores = left_out_scores(grams, task.basis, task.loss, task.targets, task.weights, rates)
        for i, strength in enumerate(grid.strengths):
            for j, rate in enumerate(grid.rates):
                losses = label_losses(scores[i, j].mT, task.codes) * task.weights
                steps = abs(i - nearest) + (rate != grid.usual_rate) + (number > 0)
                total, loss = losses.sum().item() + DOUBT * steps, (losses.sum() / task.weights.sum()).item()
                if math.isfinite(total):
                    ranked.append(((total, steps), Choice(rates[i, j].item(), strength, loss, whole)))
    if not ranked:
        raise ValueError("Labels left out have no finite loss: are the inputs scaled sensibly?")
    return [choice for _, choice in sorted(ranked, key=lambda each: each[0])]


def _log(strength: float) -> float:
    """The logarithm, with 0 a factor of ten below the least strength of any grid."""
    return math.log10(max(strength, 1e-6))


def first_with_several_classes(choices: Sequence[Choice]) -> Choice:
    """The first choice that predicts several classes at points without labels, else the first of all.

    Few labels hardly distinguish machines, and one that always predicts the larger class is not useful.
    """
    first = len(choices)
    # one task after the other, so that its invariances are folded only once
    for task in {id(each.task): each.task for each in choices}.values():
        places = [place for place in range(first) if choices[place].task is task]
        if places:
            found = _first_of_one_task([choices[place] for place in places])
            first = first if found is None else places[found]
    return choices[first % len(choices)]


@torch.no_grad()
def _first_of_one_task(choices: Sequence[Choice]) -> int | None:
    """The index of the first choice, all of one task, that predicts several classes; None if there is none.

    A machine that predicts one class also does so at lower rates, at which labels have less weight. So after
    the first failure of a strength its highest rate is tried, which may make all others unnecessary.
    """
    task, strengths = choices[0].task, sorted({each.strength for each in choices})
    everywhere = basis_rows([Evaluation().atoms(task.points)], task.basis_name)
    basis, has_no_label, codes = task.basis, task.has_no_label, task.codes

    # one search or decomposition serves all strengths, but a span takes each on its own
    whole = None if task.is_spanned else task.cross_grams(strengths)

    @cache
    def kernel_of(strength: float) -> tuple[Tensor, Tensor]:
        kernel = task.cross_grams([strength])[0] if whole is None else whole[strengths.index(strength)]
        return kernel, task.labelled_part([kernel], [strength])[0]

    def has_several_classes(strength: float, rate: float) -> bool:
        kernel, gram = kernel_of(strength)
        terms = [Term(task.loss, task.targets, rate * task.weights)]
        machine = newton(Problem(DenseGram(gram), terms, basis), tolerance=CHOICE_TOLERANCE)
        scores = machine.coefficients @ kernel.mT + machine.beta @ everywhere.mT
        return one_class(predicted_classes(scores), has_no_label, codes) is None

    failed: dict[float, float] = {}
    for place, choice in enumerate(choices):
        strength, rate = choice.strength, choice.rate
        if strength in failed and rate <= failed[strength]:
            continue
        if has_several_classes(strength, rate):
            return place
        highest = max(each.rate for each in choices if each.strength == strength)
        is_first = strength not in failed and rate < highest
        failed[strength] = highest if is_first and not has_several_classes(strength, highest) else rate
    return None


def rate_grid(
    grams: Float[Tensor, "q n n"], rates: Sequence[float] | None, relative: Sequence[float] = RATES
) -> Float[Tensor, "q r"]:
    """λ to choose from for every kernel: those given, or `relative` divided by the kernel's mean variance."""
    if rates is not None:
        return grams.new_tensor(list(rates)).expand(len(grams), -1)
    variance = grams.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-300)
    return grams.new_tensor(list(relative)) / variance[:, None]


class HeldOut(NamedTuple):
    """Held-out error, whether one class was predicted for all, and the loss; lower is better."""

    error: float
    is_constant: bool
    loss: float


def ranked_errors(
    scores: Scores, codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> dict[tuple[int, int], HeldOut]:
    """The errors of the scores of every strength and λ, by their indices."""
    classes = predicted_classes(scores.values)
    errors = ((classes != codes) * weights).sum(-1) / weights.sum()
    is_constant = (classes == classes[..., :1]).all(-1)
    return {
        (i, j): HeldOut(round(errors[i, j].item(), 12), bool(is_constant[i, j]), scores.losses[i, j].item())
        for i in range(errors.shape[0])
        for j in range(errors.shape[1])
    }


def least_error(
    scores: Scores, codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> tuple[tuple[int, int], HeldOut]:
    """The indices of the best scores, and their errors."""
    errors = ranked_errors(scores, codes, weights)
    best = min(errors, key=lambda at: errors[at])
    return best, errors[best]


def stratified_folds(codes: Int[Tensor, " n"], count: int, seed: int) -> Int[Tensor, " n"]:
    """The fold of every label, with each class distributed evenly over the folds."""
    from sklearn.model_selection import StratifiedKFold  # takes long to import

    folds = torch.zeros_like(codes)
    splits = StratifiedKFold(count, shuffle=True, random_state=seed).split(codes, codes)
    for number, (_, held_out) in enumerate(splits):
        folds[torch.from_numpy(held_out)] = number
    return folds
