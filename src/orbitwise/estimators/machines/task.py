"""What a kernel machine learns from, its fit, and the choice among several such tasks.

A squared loss of the invariances folds them into the kernel, so that labels, classes, folds and strengths
cost an ordinary machine. Any other loss makes rows of them beside the labels, and so does a basis that they
see, such as linear functions whose slopes should be small. λ, ν and the bandwidth are chosen by the evidence
of the labels, or by cross-validation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from orbitwise.estimators.machines.rows import InvarianceRows
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.optimise.cost import Cost, dense_cost, gradient_search_cost
from orbitwise.inference.risk.evidence import SquaredEvidence, laplace_evidence
from orbitwise.inference.risk.machines import (
    Machine,
    basis_rows,
    gram_of,
    nearest_positive,
    places_among,
    solve,
)
from orbitwise.inference.risk.problem import (
    CopiedGram,
    DenseGram,
    Problem,
    ProductGram,
    Solution,
    Term,
    newton,
)
from orbitwise.losses import Logistic, Loss, Multinomial, Squared
from orbitwise.process.process import Process

STRENGTHS = (0.0, *(10.0**power for power in range(-5, 4)))
RATES = tuple(10.0 ** (power / 2) for power in range(-4, 9))
"""Over the mean variance of the kernel, which invariances lower."""
FINE_RATES = tuple(10.0 ** (power / 20) for power in range(-80, 141))
TOLERANCE = 1e-8
CHOICE_TOLERANCE = 1e-5
"""Of machines that are only compared."""
CHANCE = 0.01
"""Below this probability, rows without a label are not all of one class by chance."""
NEGLECTED = 0.1
NUMBERS_AT_ONCE = 2**25
"""Of Newton's systems that are solved together: 256 MiB."""
SEEN = 1e-9
"""What an invariance may make of a basis function before it counts as seen: rounding."""
NUMBERS_KEPT = 2**25
"""Of folded kernels that are kept: 256 MiB."""
LEAST = 1e-75
"""Of bandwidths, whose fourth powers divide second derivatives."""
PAIRED = 2000
"""Points among which the median distance is computed."""


def median_distance(x: Float[Tensor, "n d"]) -> float:
    """The median distance of different points (of the first 2,000); 1 where all are the same."""
    size = x.abs().max().item() or 1.0
    # squares of what is very large or small would overflow or vanish
    distances = torch.pdist(x[:PAIRED] / size)
    apart = distances[distances > 0]
    found = size * apart.median().item() if len(apart) else 1.0
    if not LEAST < found < 1 / LEAST:
        raise ValueError(
            f"The median distance of the inputs is {found:.1g}, beyond what double precision can square: use "
            "a unit in which inputs are nearer to 1."
        )
    return found


def distinct_points(x: Float[Tensor, "n d"], unlabeled: Float[Tensor, "u d"]) -> Float[Tensor, "t d"]:
    """All points once, in a fixed order: where f should not change does not count twice."""
    return torch.unique(torch.cat([x, unlabeled]), dim=0)


@final
@dataclass(frozen=True)
class MachineTask:
    """What a kernel machine learns from: weighted targets at labelled points x, all points, a kernel."""

    x: Float[Tensor, "n d"]
    targets: Float[Tensor, "c n"]
    weights: Float[Tensor, " n"]
    loss: Loss
    points: Float[Tensor, "t d"]
    process: Process
    rows: InvarianceRows | None
    bandwidth: float
    basis_name: str = "bias"
    invariance_loss: Loss = field(default_factory=Squared)
    _folded: dict[float, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The kernels folded last, by strength: the fit and its calibration ask for those of the choice again."""

    @property
    def basis(self) -> Float[Tensor, "n b"]:
        """The unpenalised functions at the labelled points."""
        return basis_rows([Evaluation().atoms(self.x)], self.basis_name)

    @property
    def codes(self) -> Int[Tensor, " n"]:
        """The numbers of the labels' classes."""
        return decided(self.targets)

    @property
    def has_no_label(self) -> Bool[Tensor, " t"]:
        """Which of the points are without a label."""
        found = torch.ones(len(self.points), dtype=torch.bool, device=self.points.device)
        found[places_among(self.points, self.x)] = False
        return found

    @property
    def is_basis_seen(self) -> bool:
        """Whether an invariance is not zero for all unpenalised functions, which folding takes for granted.

        Smoothness over a graph is asked of the penalised part of f alone, as LapSVM does.
        """
        if self.rows is None or self.rows.graph is not None:
            return False
        return bool((basis_rows(self.rows.blocks, self.basis_name).abs() > SEEN).any())

    @property
    def is_folded(self) -> bool:
        """Whether the invariances become a part of the kernel instead of rows beside the labels."""
        return isinstance(self.invariance_loss, Squared) and not self.is_basis_seen

    @property
    def cost(self) -> Cost:
        """Of folding the invariances, or of the rows that they make beside the labels."""
        if self.rows is None:
            return Cost(0.0, 0.0)
        count, (num_points, width) = len(self.x), self.points.shape
        others = 0 if self.is_folded else count
        if self.rows.is_searched(self.process, others):
            # solvers of other losses take some hundred products
            return gradient_search_cost(num_points, width, count if self.is_folded else 4)
        # a graph is decomposed before it is folded
        decompositions = 1 if self.rows.graph is None else 2
        return dense_cost(self.rows.num_rows + others, num_points).times(decompositions)

    @torch.no_grad()
    def gram(self, strength: float) -> Float[Tensor, "n n"]:
        """The kernel of the labelled points with the invariances folded in."""
        if self.rows is not None and strength > 0:
            return self.grams([strength])[0]
        return self.process.covariance(Evaluation().atoms(self.x))

    def grams(self, strengths: Sequence[float]) -> Float[Tensor, "q n n"]:
        """The kernels of the labelled points for every strength."""
        return self.labelled_part(self.cross_grams(strengths), strengths)

    @torch.no_grad()
    def cross_grams(self, strengths: Sequence[float]) -> list[Float[Tensor, "t n"]]:
        """The kernels of all points with the labelled ones, the invariances folded in, for every strength."""
        asked = [each for each in strengths if self.rows is not None and each > 0]
        folded = self._folded
        if self.rows is not None and not set(asked) <= folded.keys():
            folded.clear()
            found = self.rows.fold(self.process, self.x, asked, self.points).matrices
            if found.numel() > NUMBERS_KEPT:
                folded = {}
            folded.update(zip(asked, found, strict=True))
        kernels = {each: folded[each] for each in asked}
        if len(asked) < len(strengths):
            points, x = (Evaluation().atoms(each) for each in (self.points, self.x))
            plain = self.process.covariance(points, x)
            kernels |= {each: plain for each in strengths if each not in kernels}
        return [kernels[each] for each in strengths]

    def labelled_part(
        self, kernels: Sequence[Float[Tensor, "t n"]], strengths: Sequence[float]
    ) -> Float[Tensor, "q n n"]:
        """The rows of the labelled points in kernels of all points, folded with these strengths."""
        places = places_among(self.points, self.x)
        found = torch.stack([each[places] for each in kernels])
        is_folded = [self.rows is not None and each > 0 for each in strengths]
        # an unfinished search may leave negative eigenvalues
        found[is_folded] = nearest_positive(found[is_folded])
        return found

    def fit(
        self,
        rate: float,
        strength: float,
        solver: str = "auto",
        generator: torch.Generator | None = None,
        tolerance: float = TOLERANCE,
    ) -> tuple[Machine, list[Solution]]:
        """The machine of one output for every row of targets, or of one multinomial loss for all."""
        rows = self.rows if strength > 0 else None
        blocks = [Evaluation().atoms(self.x), *([] if rows is None else rows.blocks)]
        if rows is None or self.is_folded:
            gram, extra, basis = DenseGram(self.gram(strength)), [], self.basis
        else:
            gram, basis = gram_of(self.process, blocks), basis_rows(blocks, self.basis_name)
            extra = [Term(self.invariance_loss, torch.zeros_like(rows.weights), strength * rows.weights)]
        # one output after the other: their Newton steps differ in number, and memory stays that of one
        solutions = [
            solve(problem, solver, None, tolerance, generator)
            for problem in self._problems(gram, rate * self.weights, extra, basis)
        ]
        coefficients = torch.stack([found.coefficients for found in solutions], -1)
        beta = torch.stack([found.beta for found in solutions], -1)
        if isinstance(self.loss, Multinomial):
            coefficients, beta = (
                each[:, 0].unflatten(0, (-1, self.loss.num_classes)) for each in (coefficients, beta)
            )
        if rows is not None and self.is_folded:
            more = rows.coefficients(self.process, self.x, strength, coefficients)
            coefficients = torch.cat([coefficients, more])
        return Machine(self.process, blocks, coefficients, beta, self.basis_name), solutions

    def _problems(
        self, gram: DenseGram | ProductGram, weights: Tensor, extra: list[Term], basis: Tensor
    ) -> list[Problem]:
        if not isinstance(self.loss, Multinomial):
            return [Problem(gram, [Term(self.loss, each, weights), *extra], basis) for each in self.targets]
        count = self.loss.num_classes
        terms = [Term(self.loss, self.targets.T.flatten(), weights.repeat_interleave(count))]
        terms += [
            Term(each.loss, each.targets.repeat_interleave(count), each.weights.repeat_interleave(count))
            for each in extra
        ]
        return [Problem(CopiedGram(gram, count), terms, torch.kron(basis, torch.eye(count).to(basis)))]


class Choice(NamedTuple):
    """λ and ν for a task, with their evidence or cross-validated error."""

    rate: float
    strength: float
    score: float
    task: MachineTask


def rank_by_evidence(
    tasks: Sequence[MachineTask],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
) -> list[Choice]:
    """Choices by their evidence, summed over outputs, the greatest first.

    It is Laplace's for logistic labels; for squared losses it is that of targets with Gaussian noise, where
    every λ costs next to nothing and the best one stands for its strength.
    """
    choices = []
    for task in tasks:
        evidence = _laplace_evidence if isinstance(task.loss, Logistic) else _squared_evidence
        for strength, gram in zip(strengths, task.grams(strengths), strict=True):
            scored = evidence(task, gram, rates)
            choices += [Choice(rate, strength, value, task) for rate, value in scored]
    known = [each for each in choices if not math.isnan(each.score)]
    return sorted(known or choices, key=lambda each: -each.score)


def _squared_evidence(
    task: MachineTask, gram: Tensor, rates: Sequence[float] | None
) -> list[tuple[float, float]]:
    grid = rate_grid(gram[None], rates, FINE_RATES)[0]
    value, place = SquaredEvidence(gram, task.targets.T, task.basis, task.weights)(grid).max(0)
    return [(grid[place].item(), value.item())]


def _laplace_evidence(
    task: MachineTask, gram: Tensor, rates: Sequence[float] | None
) -> list[tuple[float, float]]:
    grid, count = rate_grid(gram[None], rates)[0], len(task.targets)
    parts = [
        laplace_evidence(
            gram, task.targets, task.basis, (part[:, None, None] * task.weights).expand(-1, count, -1)
        )
        for part in grid.split(_at_once(gram, count))
    ]
    return list(zip(grid.tolist(), torch.cat(parts).sum(-1).tolist(), strict=True))


def rank_by_cross_validation(
    tasks: Sequence[MachineTask],
    folds: Int[Tensor, " n"],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
) -> list[Choice]:
    """Choices by held-out error; of equal ones, those that predict several classes, then by the loss.

    With few labels, predicting the larger class always often ties with machines that know more.
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


def first_that_tells(choices: Sequence[Choice]) -> Choice:
    """The first choice whose machine predicts several classes at points without a label, or the first of all.

    Few labels hardly tell machines apart, and one that always predicts the larger class is no answer.
    """
    first = len(choices)
    # one task after the other, so that its invariances are folded once and then forgotten
    for task in {id(each.task): each.task for each in choices}.values():
        places = [place for place in range(first) if choices[place].task is task]
        if places:
            found = _first_of_task([choices[place] for place in places])
            first = first if found is None else places[found]
    return choices[first % len(choices)]


@torch.no_grad()
def _first_of_task(choices: Sequence[Choice]) -> int | None:
    """The place of the first choice that tells, all of one task; None where none does.

    A machine that predicts one class does so at a lower rate, too, where labels count less. So the highest
    rate of a strength is tried after its first failure, and may spare all others.
    """
    task, strengths = choices[0].task, sorted({each.strength for each in choices})
    kernels = task.cross_grams(strengths)
    grams = task.labelled_part(kernels, strengths)
    everywhere = basis_rows([Evaluation().atoms(task.points)], task.basis_name)
    basis, has_no_label, codes = task.basis, task.has_no_label, task.codes

    def tells(strength: float, rate: float) -> bool:
        at = strengths.index(strength)
        terms = [Term(task.loss, task.targets, rate * task.weights)]
        machine = newton(Problem(DenseGram(grams[at]), terms, basis), tolerance=CHOICE_TOLERANCE)
        scores = machine.coefficients @ kernels[at].mT + machine.beta @ everywhere.mT
        return one_class(decided(scores), has_no_label, codes) is None

    silent: dict[float, float] = {}
    for place, choice in enumerate(choices):
        strength, rate = choice.strength, choice.rate
        if strength in silent and rate <= silent[strength]:
            continue
        if tells(strength, rate):
            return place
        highest = max(each.rate for each in choices if each.strength == strength)
        is_first = strength not in silent and rate < highest
        silent[strength] = highest if is_first and not tells(strength, highest) else rate
    return None


def one_class(
    predicted: Int[Tensor, " t"], has_no_label: Bool[Tensor, " t"], codes: Int[Tensor, " n"]
) -> str | None:
    """The kind of rows, "training" or "unlabelled", that are all `predicted` to be of one class; or None.

    With few labels in many dimensions the training rows are always fitted, so the unlabelled rows are checked
    as well. These count as of one class if the others have less than a `NEGLECTED` part of their share of
    the labels, unless it may be chance that all of these rows are of one class.
    """
    if len(predicted) < 2 and len(codes.unique()) < 2:
        return None
    if bool((predicted == predicted[0]).all()):
        return "training"
    others = predicted[has_no_label]
    if len(others) == 0:
        return None
    most = others.mode().values
    share = (codes == most).double().mean().item()
    is_chance = share ** len(others) >= CHANCE
    left = (others != most).double().mean().item()
    return "unlabelled" if left < NEGLECTED * (1 - share) and not is_chance else None


def rate_grid(
    grams: Float[Tensor, "q n n"], rates: Sequence[float] | None, relative: Sequence[float] = RATES
) -> Float[Tensor, "q r"]:
    """λ to choose from for every kernel: those given, or `relative` ones over the kernel's mean variance."""
    if rates is not None:
        return grams.new_tensor(list(rates)).expand(len(grams), -1)
    variance = grams.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(1e-300)
    return grams.new_tensor(list(relative)) / variance[:, None]


class Scores(NamedTuple):
    """Held-out scores of every label, strength and λ, and their losses."""

    values: Float[Tensor, "q r c n"]
    losses: Float[Tensor, "q r"]


def held_out_scores(
    grams: Float[Tensor, "q n n"],
    basis: Float[Tensor, "n b"],
    loss: Loss,
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    rates: Float[Tensor, "q r"],
    folds: Int[Tensor, " n"],
) -> Scores:
    """Decision values of labels by machines that did not see them; all folds, classes and λ in one batch.

    A label that is held out has weight 0; its point stays among those of the invariances, as unlabelled ones
    do (RKHS 6.2).
    """
    count = int(folds.max()) + 1
    seen = (folds != torch.arange(count, device=folds.device)[:, None]).to(weights) * weights
    place = folds.expand(len(grams), 1, len(targets), -1)
    step = _at_once(grams[0], count * len(targets))
    found = torch.empty(*rates.shape, *targets.shape, dtype=weights.dtype, device=weights.device)
    for part in (slice(first, first + step) for first in range(0, len(grams), step)):
        batch, solution = DenseGram(grams[part, None, None]), None
        # from light losses to heavy ones, each from where the last one ended
        for j in rates.mean(0).argsort().tolist():
            weighed = rates[part, j, None, None, None] * seen[:, None, :]
            terms = [Term(loss, targets, weighed.expand(-1, -1, len(targets), -1))]
            solution = newton(Problem(batch, terms, basis), solution, CHOICE_TOLERANCE)
            found[part, j] = solution.values.gather(1, place[part])[:, 0]
    held_out = (weights * loss.value(found, targets)).sum(-1).sum(-1) / weights.sum()
    return Scores(found, held_out)


class HeldOut(NamedTuple):
    """The error of held-out labels, whether one class was predicted for all, and the loss: less is better."""

    error: float
    is_constant: bool
    loss: float


def ranked_errors(
    scores: Scores, codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> dict[tuple[int, int], HeldOut]:
    """The errors of the scores of every strength and λ, by their places."""
    classes = decided(scores.values)
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
    """The place of the best scores, and their errors."""
    errors = ranked_errors(scores, codes, weights)
    best = min(errors, key=lambda at: errors[at])
    return best, errors[best]


def decided(scores: Float[Tensor, "*batch c n"]) -> Int[Tensor, "*batch n"]:
    """The numbers of the classes that scores decide for."""
    return (scores[..., 0, :] > 0).long() if scores.shape[-2] == 1 else scores.argmax(-2)


def stratified_folds(codes: Int[Tensor, " n"], count: int, seed: int) -> Int[Tensor, " n"]:
    """The number of the fold of every label, each class spread evenly over the folds."""
    folds = torch.zeros_like(codes)
    splits = StratifiedKFold(count, shuffle=True, random_state=seed).split(codes, codes)
    for number, (_, held_out) in enumerate(splits):
        folds[torch.from_numpy(held_out)] = number
    return folds


def _at_once(gram: Tensor, problems: int) -> int:
    return max(1, NUMBERS_AT_ONCE // (problems * gram.numel()))
