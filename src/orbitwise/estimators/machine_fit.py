"""The fit of kernel machines: how λ, ν and the bandwidth are chosen, then solve, certify, calibrate.

Choices are made by the evidence of the labels, or by cross-validation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from orbitwise.estimators.kernel_machine import BANDWIDTHS, Ground
from orbitwise.estimators.machine_inputs import Labelled, signed_targets
from orbitwise.estimators.machine_rows import LaplacianRows
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.calibration import cautious_scale, two_columns
from orbitwise.inference.optimise.cost import check_cost
from orbitwise.inference.risk.evidence import SquaredEvidence, laplace_evidence
from orbitwise.inference.risk.problem import DenseGram, Problem, Solution, Term
from orbitwise.inference.risk.problem import newton
from orbitwise.losses import Logistic, Loss, Multinomial, Squared

STRENGTHS = (0.0, *(10.0**power for power in range(-5, 4)))
SLOPE_STRENGTHS = tuple(strength for strength in STRENGTHS if strength <= 10)
"""Of slopes in bandwidths: more leaves f flat, and costs a search the most."""
RATES = tuple(10.0 ** (power / 2) for power in range(-4, 9))
"""Over the mean variance of the kernel, which invariances lower."""
FINE_RATES = tuple(10.0 ** (power / 20) for power in range(-80, 141))
CHOICE_TOLERANCE = 1e-5
"""Of machines that are only compared."""
CHANCE = 0.01
"""Below this, rows without a label are not all of one class by chance."""
NEGLECTED = 0.1
NUMBERS_AT_ONCE = 2**25
"""Of Newton's systems that are solved together: 256 MiB."""


class Choice(NamedTuple):
    """What was chosen, the evidence or the cross-validated error, and the ground it stands on."""

    rate: float
    strength: float
    bandwidth: float
    score: float
    ground: Ground


def by_squared_evidence(
    grounds: Sequence[Ground],
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
    loss: Loss | None = None,
) -> Choice:
    """The greatest restricted evidence of targets with Gaussian noise; every λ costs next to nothing.

    With a `loss` targets are labels, and a machine that says one class for all is passed over.
    """
    found = []
    for ground in grounds:
        for strength, gram in zip(strengths, ground.grams(strengths), strict=True):
            grid = rate_grid(gram[None], rates, FINE_RATES)[0]
            evidence = SquaredEvidence(gram, targets.T, ground.basis, weights)(grid)
            value, place = evidence.max(0)
            found.append(Choice(grid[place].item(), strength, ground.bandwidth, value.item(), ground))
    return first_that_tells(_by_score(found), loss, targets, weights)


def by_laplace_evidence(
    grounds: Sequence[Ground],
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
) -> Choice:
    """The greatest evidence of logistic labels by Laplace's approximation, summed over one-vs-rest.

    A machine that says one class for all is passed over.
    """
    found = []
    for ground in grounds:
        for strength, gram in zip(strengths, ground.grams(strengths), strict=True):
            grid = rate_grid(gram[None], rates)[0]
            values = torch.cat(
                [
                    laplace_evidence(
                        gram,
                        targets,
                        ground.basis,
                        (part[:, None, None] * weights).expand(-1, len(targets), -1),
                    )
                    for part in grid.split(_at_once(gram, len(targets)))
                ]
            ).sum(-1)
            found += [
                Choice(rate, strength, ground.bandwidth, value, ground)
                for rate, value in zip(grid.tolist(), values.tolist(), strict=True)
            ]
    return first_that_tells(_by_score(found), Logistic(), targets, weights)


def _by_score(choices: list[Choice]) -> list[Choice]:
    """The greatest score first; the first of equal ones."""
    known = [each for each in choices if not math.isnan(each.score)]
    return sorted(known or choices, key=lambda each: -each.score)


def first_that_tells(
    choices: Sequence[Choice],
    loss: Loss | None,
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
) -> Choice:
    """The first choice whose machine says several classes at points without a label, or the first of all.

    Few labels hardly tell machines apart, and one that says the larger class always is no answer. Targets
    without a `loss` of labels are numbers.
    """
    if loss is None:
        return choices[0]
    grounds = {id(each.ground): each.ground for each in choices}
    first = len(choices)
    # one ground after the other, so that its invariances are folded once and then forgotten
    for ground in grounds.values():
        places = [place for place in range(first) if choices[place].ground is ground]
        if places:
            found = _first_of_ground([choices[place] for place in places], loss, targets, weights)
            first = first if found is None else places[found]
    return choices[first % len(choices)]


@torch.no_grad()
def _first_of_ground(
    choices: Sequence[Choice], loss: Loss, targets: Float[Tensor, "c n"], weights: Float[Tensor, " n"]
) -> int | None:
    """Where the first choice that tells stands, all of one ground; None where none does.

    A machine that says one class does so at a lower rate, too, where labels count less. So the highest rate
    of a strength is tried after its first failure, and may spare all others.
    """
    ground, strengths = choices[0].ground, sorted({each.strength for each in choices})
    kernels = ground.everywhere(strengths)
    grams = ground.among_labelled(kernels, strengths)
    basis, everywhere, has_no_label = ground.basis, ground.basis_everywhere, ground.has_no_label

    def tells(strength: float, rate: float) -> bool:
        at = strengths.index(strength)
        problem = Problem(DenseGram(grams[at]), [Term(loss, targets, rate * weights)], basis)
        machine = newton(problem, tolerance=CHOICE_TOLERANCE)
        said = decided(machine.coefficients @ kernels[at].mT + machine.beta @ everywhere.mT)
        return one_class(said, has_no_label, decided(targets)) is None

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
    said: Int[Tensor, " t"], has_no_label: Bool[Tensor, " t"], codes: Int[Tensor, " n"]
) -> str | None:
    """The kind of rows, "training" or "unlabelled", for which one class is `said` for all; None for neither.

    With few labels in many dimensions the training rows are always fitted, so the unlabelled rows are checked
    as well. There a class is said for all if the others have less than a `NEGLECTED` part of their share of
    the labels, unless it may be chance that all of these rows are of one class.
    """
    if len(said) < 2 and len(codes.unique()) < 2:
        return None
    if bool((said == said[0]).all()):
        return "training"
    others = said[has_no_label]
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
    """Held-out scores of every label, strength and λ: [strengths, rates, classes, n]."""

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


def by_cross_validation(
    grounds: Sequence[Ground],
    loss: Loss,
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    folds: Int[Tensor, " n"],
    codes: Int[Tensor, " n"],
    strengths: Sequence[float] = STRENGTHS,
    rates: Sequence[float] | None = None,
) -> Choice:
    """The least held-out error; of equal ones, one that says several classes, then the least loss.

    With few labels, saying the larger class always often ties with machines that know more. A machine that
    says one class for all points without a label is passed over.
    """
    found = []
    for ground in grounds:
        grams = ground.grams(strengths)
        grid = rate_grid(grams, rates)
        scores = held_out_scores(grams, ground.basis, loss, targets, weights, grid, folds)
        for (i, j), reached in ranked_errors(scores, codes, weights).items():
            choice = Choice(grid[i, j].item(), strengths[i], ground.bandwidth, reached[0], ground)
            found.append((reached, choice))
    found = sorted((each for each in found if math.isfinite(each[0][2])), key=lambda each: each[0])
    if not found:
        raise ValueError("Cross-validation found no finite loss: are the inputs scaled sensibly?")
    return first_that_tells([choice for _, choice in found], loss, targets, weights)


Reached = tuple[float, bool, float]
"""An error, whether one class was said for all, and the loss: less is better."""


def least_error(
    scores: Scores, codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> tuple[tuple[int, int], Reached]:
    """The place of the best scores, and their error, whether they say one class always, and their loss."""
    reached = ranked_errors(scores, codes, weights)
    best = min(reached, key=lambda at: reached[at])
    return best, reached[best]


def ranked_errors(
    scores: Scores, codes: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> dict[tuple[int, int], Reached]:
    """What the scores of every strength and λ reached."""
    classes = decided(scores.values)
    errors = ((classes != codes) * weights).sum(-1) / weights.sum()
    is_constant = (classes == classes[..., :1]).all(-1)
    return {
        (i, j): (round(errors[i, j].item(), 12), bool(is_constant[i, j]), scores.losses[i, j].item())
        for i in range(errors.shape[0])
        for j in range(errors.shape[1])
    }


def decided(scores: Float[Tensor, "*batch c n"]) -> Int[Tensor, "*batch n"]:
    """The numbers of the classes that scores decide for."""
    return (scores[..., 0, :] > 0).long() if scores.shape[-2] == 1 else scores.argmax(-2)


def _at_once(gram: Tensor, problems: int) -> int:
    return max(1, NUMBERS_AT_ONCE // (problems * gram.numel()))


TOLERANCE = 1e-8
ACCEPTED = 1e-4
"""A gap that is larger than this part of the risk deserves a warning."""
ROUNDING = 64 * np.finfo(np.float64).eps
"""A gap below this part of the risk of f = 0 is nothing but rounding."""
BALANCE = "class_weight='balanced', or label more rows"
ALONE = f"Raise C, use {BALANCE}"
CHOOSE = f"Raise C, lower strength, use strength='cross_validation' or {BALANCE}"
"""What to do where one class is predicted for all rows, without an invariance and with one."""


def label_loss(loss: Loss, name: Any) -> Loss:
    """The loss, if it is one of labels."""
    if not (loss.takes_labels or isinstance(loss, Squared)):
        raise ValueError(f"loss must be one of labels, such as 'logistic' or 'hinge', not {name!r}.")
    return loss


def settle(
    estimator: Any,
    data: Labelled,
    loss: Loss,
    weights: torch.Tensor,
    invariance_loss: Loss,
    seed: int,
) -> Ground:
    """The ground and the strengths that were asked for, or those that evidence or cross-validation choose."""
    ground = Ground.of(estimator, data.x, data.unlabeled)
    announce(estimator, ground, invariance_loss)
    for chosen in ("log_evidence_", "evidence_kind_", "cv_error_"):
        vars(estimator).pop(chosen, None)
    if not isinstance(estimator.strength, str):
        estimator.C_, estimator.strength_ = float(estimator.C), float(estimator.strength)
        estimator.bandwidth_ = ground.bandwidth
        return ground
    if not isinstance(invariance_loss, Squared):
        raise ValueError(f"strength={estimator.strength!r} goes with invariance_loss='squared'.")
    check_basis(estimator, ground)
    targets = signed_targets(data.codes, len(estimator.classes_))
    strengths, rates = asked_grids(estimator)
    if estimator.strength == "evidence":
        grounds = ground.alternatives(estimator, data.unlabeled)
        choice = _by_evidence(loss, grounds, targets, weights, strengths, rates)
        estimator.log_evidence_ = choice.score
        estimator.evidence_kind_ = "laplace" if isinstance(loss, Logistic) else "exact"
    else:
        smallest = int(torch.bincount(data.codes).min())
        if smallest < 2:
            raise ValueError("strength='cross_validation' needs at least two labels of every class.")
        folds = stratified_folds(data.codes, min(estimator.num_folds, smallest), seed)
        grounds = estimator._grounds(ground, data)
        choice = by_cross_validation(grounds, loss, targets, weights, folds, data.codes, strengths, rates)
        estimator.cv_error_ = choice.score
    estimator.C_, estimator.strength_, estimator.bandwidth_ = choice[:3]
    return choice.ground


def announce(estimator: Any, ground: Ground, invariance_loss: Loss) -> None:
    """Warn of a fit that takes long, and raise a ValueError for one that memory cannot do."""
    if estimator.strength == 0:
        return
    is_free = estimator.kernel is None and estimator.bandwidth == "median"
    count = len(BANDWIDTHS) if estimator.strength == "evidence" and is_free else 1
    rows = 0 if ground.rows is None else len(ground.rows.weights)
    what, cheaper = f"{rows:,} rows of its invariance at", ["pass fewer unlabelled rows"]
    if isinstance(ground.rows, LaplacianRows):
        what = "the graph of"
        if estimator.strength == "cross_validation":
            count = len(estimator.neighbours)
            cheaper.append("try fewer numbers of neighbours")
    else:
        cheaper.append("reduce the features (PCA)")
        if estimator.invariance != "graph":
            cheaper.append("use invariance='graph'")
    if len(cheaper) > 1:
        cheaper[-1] = f"or {cheaper[-1]}"
    check_cost(
        ground.cost(invariance_loss).times(count),
        f"{type(estimator).__name__}.fit with {what} {len(ground.points):,} points",
        ", ".join(cheaper),
    )


def check_basis(estimator: Any, ground: Ground) -> None:
    """Raise a ValueError where an invariance sees the basis, so that it cannot be folded and chosen."""
    if ground.is_basis_seen:
        raise ValueError(
            f"strength={estimator.strength!r} goes with a basis that the invariance does not see, but it is "
            f"not zero for all functions of basis={estimator.basis!r}: use basis='bias' or 'none'."
        )


def asked_grids(estimator: Any) -> tuple[Sequence[float], list[float] | None]:
    """The strengths and λ to choose from; None for λ stands for the usual ones."""
    usual = SLOPE_STRENGTHS if estimator.invariance == "gradient" else STRENGTHS
    strengths = usual if estimator.strengths is None else [float(each) for each in estimator.strengths]
    return strengths, None if estimator.Cs is None else [float(each) for each in estimator.Cs]


def _by_evidence(
    loss: Loss,
    grounds: list[Ground],
    targets: torch.Tensor,
    weights: torch.Tensor,
    strengths: Sequence[float],
    rates: Sequence[float] | None,
) -> Choice:
    if isinstance(loss, Logistic):
        return by_laplace_evidence(grounds, targets, weights, strengths, rates)
    if isinstance(loss, Squared):
        return by_squared_evidence(grounds, targets, weights, strengths, rates, loss)
    raise ValueError("strength='evidence' goes with loss='logistic' or 'squared'.")


def fit_classifier(
    estimator: Any,
    ground: Ground,
    loss: Loss,
    codes: torch.Tensor,
    weights: torch.Tensor,
    invariance_loss: Loss,
    seed: int,
) -> None:
    """Set `machine_`, its certificate and the scale of probabilities; C_ and strength_ are known."""
    count = len(estimator.classes_)
    is_joint = isinstance(loss, Multinomial)
    codes_of_all = torch.nn.functional.one_hot(codes, count).T.double() if is_joint else None
    targets = signed_targets(codes, count) if codes_of_all is None else codes_of_all
    estimator.machine_, solutions = ground.fit(
        loss,
        targets,
        weights,
        estimator.C_,
        estimator.strength_,
        invariance_loss,
        getattr(estimator, "solver", "auto"),
        TOLERANCE,
        torch.Generator().manual_seed(seed),
    )
    certify(estimator, solutions)
    with torch.no_grad():
        said = decided(estimator.machine_.values(Evaluation(), ground.points).mT)
    warn_of_one_class(estimator, said, ground.has_no_label, codes)
    estimator.scale_ = 0.5 if len(targets) == 1 else 1.0
    smallest = int(torch.bincount(codes).min())
    if smallest >= 2 and not is_joint:
        estimator.scale_ = _held_out_scale(
            estimator, ground, loss, codes, weights, stratified_folds(codes, min(5, smallest), seed)
        )


def certify(estimator: Any, solutions: list[Solution], sizes: Tensor | None = None) -> None:
    """Remember risk, gap and iterations of every output, and warn of a gap that is not small.

    `sizes` are the risks of f = 0: against their rounding even a wide gap in a tiny risk means nothing.
    """
    estimator.objective_ = np.array([found.objective.item() for found in solutions])
    estimator.gap_ = np.array([found.gap.item() for found in solutions])
    estimator.n_iter_ = np.array([found.iterations for found in solutions])
    rounding = 0.0 if sizes is None else ROUNDING * sizes.numpy()
    if (estimator.gap_ > np.maximum(ACCEPTED * estimator.objective_, rounding)).any():
        warnings.warn(
            f"The solver stopped with a gap of up to {estimator.gap_.max():.2g} in a risk of "
            f"{estimator.objective_.max():.2g}: scale the inputs, lower C, or widen the losses.",
            ConvergenceWarning,
            stacklevel=4,
        )


def warn_of_one_class(
    estimator: Any, said: Tensor, has_no_label: Tensor, codes: Tensor, advice: str = CHOOSE
) -> None:
    """Warn where one class is `said` for all training rows, or for all unlabelled ones."""
    kind = one_class(said, has_no_label, codes)
    if kind is None or len(estimator.classes_) == 1:
        return
    rows = said if kind == "training" else said[has_no_label]
    most = rows.mode().values
    count = int((rows == most).sum())
    share = f"{count:,} of {len(rows):,}"
    if count == len(rows):
        share = f"all {count:,}" if count > 1 else "all"  # rows that are equal count as one here
    if getattr(estimator, "unlabeled_label", 0) is None and any(each == -1 for each in estimator.classes_):
        advice += "; if -1 marks rows without a label, pass unlabeled_label=-1"
    warnings.warn(
        f"{type(estimator).__name__} predicts class {estimator.classes_[int(most)]!s} for {share} {kind} "
        f"rows, although the labels have {len(estimator.classes_)} classes. {advice}.",
        UserWarning,
        stacklevel=4,
    )


def stratified_folds(codes: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """The number of the fold of every label, each class spread evenly over the folds."""
    folds = torch.zeros_like(codes)
    splits = StratifiedKFold(count, shuffle=True, random_state=seed).split(codes, codes)
    for number, (_, held_out) in enumerate(splits):
        folds[torch.from_numpy(held_out)] = number
    return folds


def _held_out_scale(
    estimator: Any,
    ground: Ground,
    loss: Loss,
    codes: torch.Tensor,
    weights: torch.Tensor,
    folds: torch.Tensor,
) -> float:
    """The softmax's scale that suits labels held out in turn; invariances count as if squared."""
    strength = estimator.strength_
    grams = ground.grams([strength]) if strength > 0 else ground.without_invariances()[None]
    targets = signed_targets(codes, len(estimator.classes_))
    rates = torch.full((1, 1), estimator.C_, dtype=torch.float64)
    scores = held_out_scores(grams, ground.basis, loss, targets, weights, rates, folds)
    return cautious_scale(two_columns(scores.values[0, 0].T), codes, weights)
