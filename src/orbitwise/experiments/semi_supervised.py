"""SVM, LapSVM, InvSVM and their rivals on sets with few labels (RKHS table 1); evidence instead of folds.

Features are scaled to mean zero and length one, the Gaussian kernel has the median distance, InvSVM keeps all
derivatives at all points small; λ, ν and the graph are chosen by 5-fold cross-validation, in which labels
that are held out stay as unlabelled points. No invariance is one of the settings. The folds are drawn several
times and errors averaged, because with 30 labels and 100 settings the random error of one draw of folds would
exceed the differences between the machines. `reproduce/results/rkhs_table1.py` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.machines.choosing import (
    Usual,
    least_error,
    rate_grid,
    stratified_folds,
)
from orbitwise.estimators.machines.task import (
    gradient_rows,
    laplacian_rows,
    median_distance,
    neighbour_distance,
)
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.risk.evidence import logistic_evidence
from orbitwise.inference.risk.machines import Scores, fold, held_out_scores, nearest_positive
from orbitwise.inference.risk.problem import DenseGram, Problem, Term, newton
from orbitwise.losses import Hinge, Logistic, Loss
from orbitwise.process.process import Process

LABELS = (30, 60, 90)
RATES = tuple(10.0 ** (power / 2) for power in (-2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10))
"""Values of λ times the mean variance of the kernel."""
STRENGTHS = tuple(10.0**power for power in range(-5, 3))
"""Values of ν in units of the squared bandwidth, which serve features of any scale; 0 is tried, too."""
GRAPH_STRENGTHS = tuple(10.0**power for power in range(-5, 5))
NEIGHBOURS = (3, 6, 12)
USUAL = Usual(100.0, 1e-3, 1.0)
"""What evidence departs from, as in `InvariantSVC`."""
Functions = Literal["all", "points"]
"""Whether f may be any function, as in the paper, or a combination of k at the points."""
TOLERANCE = 1e-4
"""The tolerance of folded kernels, which are computed in single precision."""


class Task(NamedTuple):
    """A set with its draws: all points, their classes, and the indices of the labelled points."""

    x: Float[Tensor, "t d"]
    codes: Int[Tensor, " t"]
    draws: Int[Tensor, "r 90"]
    columns: Int[Tensor, " m"]

    @classmethod
    def of(cls, name: str, seeds: Sequence[int]) -> Task:
        """The set of this name; draws of 30 labels are part of those of 60, these of those of 90."""
        data = datasets.load(name)
        return cls.of_rows(np.asarray(data.x, dtype=np.float64), np.asarray(data.y), seeds)

    @classmethod
    def of_rows(cls, rows: NDArray[np.float64], classes: NDArray[Any], seeds: Sequence[int]) -> Task:
        """Rows of two classes."""
        x = torch.from_numpy(rows)
        x = x - x.mean(0)
        x = x / torch.linalg.vector_norm(x, dim=0).clamp_min(1e-12)
        codes = torch.from_numpy(np.unique(classes, return_inverse=True)[1])
        draws = torch.stack([_draw(codes, seed) for seed in seeds])
        return cls(x, codes, draws, draws.unique())


def _draw(codes: Tensor, seed: int) -> Tensor:
    """The first 90 points of a random order in which any first n points have the class shares of the set."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(seed))
    drawn = codes[order]
    place = torch.empty(len(codes), dtype=torch.float64)
    for code in codes.unique():
        own = (drawn == code).nonzero()[:, 0]
        place[own] = (torch.arange(len(own), dtype=torch.float64) + 0.5) / len(own)
    return order[place.argsort(stable=True)[: LABELS[-1]]]


class Family(NamedTuple):
    """Kernels k̃ between all points and the labelled ones, one for each setting, and the seconds they took.

    k̃ = k - k(·, L) (I/ν + L k L)⁻¹ L k is the kernel of the RKHS norm plus ν times the squares of the
    functionals L, which are slopes or differences between neighbours: an SVM with k̃ is LapSVM or InvSVM.
    """

    grams: Float[Tensor, "q t m"]
    settings: list[dict[str, float]]
    seconds: float


def families(task: Task, device: str, functions: Functions = "all") -> dict[str, Family]:
    """The kernels of the three machines, computed on a device and kept on the processor.

    The first kernel of each is that without an invariance.
    """
    task = Task(*(part.to(device) for part in task))
    width = median_distance(task.x)
    if functions == "all":
        task = task._replace(x=task.x.float())
    kernel = RBFKernel().to(task.x)
    kernel.lengthscale = torch.tensor(width).to(task.x)
    process, points = Process(None, kernel), task.x[task.columns]
    with torch.no_grad():
        prior = process.covariance(Evaluation().atoms(task.x), Evaluation().atoms(points))
    start, rows = time.process_time(), gradient_rows(task.x, width)
    if functions == "all":
        inner = rows.invariances(process, task.x, points)
        folded = fold(prior, inner, STRENGTHS, positions=task.columns, tolerance=TOLERANCE).matrices
    else:
        span = rows.span(process, task.x)
        folded = torch.stack([span.fold(strength, task.columns) for strength in STRENGTHS])
    gradients = time.process_time() - start
    start, graphs = time.process_time(), [prior[None]]
    settings: list[dict[str, float]] = [{"neighbours": 0, "strength": 0.0}]
    for count in NEIGHBOURS:
        rows = laplacian_rows(task.x, count, "heat", True)
        with torch.no_grad():
            inner = rows.invariances(process, task.x, points)
            graphs.append(fold(prior, inner, GRAPH_STRENGTHS, positions=task.columns).matrices)
        settings += [{"neighbours": count, "strength": strength} for strength in GRAPH_STRENGTHS]
    laplacian = time.process_time() - start
    slopes = [{"strength": strength} for strength in (0.0, *STRENGTHS)]
    return {
        "SVM": Family(prior[None].double().cpu(), [{"strength": 0.0}], 0.0),
        "LapSVM": Family(torch.cat(graphs).double().cpu(), settings, laplacian),
        "InvSVM": Family(torch.cat([prior[None], folded]).double().cpu(), slopes, gradients),
    }


class Labels(NamedTuple):
    """Some labelled points: their indices, positions among the columns, targets, classes and folds."""

    rows: Int[Tensor, " n"]
    places: Int[Tensor, " n"]
    targets: Float[Tensor, "1 n"]
    codes: Int[Tensor, " n"]
    folds: Int[Tensor, "s n"]

    @classmethod
    def of(cls, task: Task, draw: int, count: int, repeats: int) -> Labels:
        """The first `count` of a draw, with so many draws of folds."""
        rows = task.draws[draw, :count]
        codes = task.codes[rows]
        places = torch.searchsorted(task.columns, rows)
        folds = torch.stack([stratified_folds(codes, 5, draw + 1000 * i) for i in range(repeats)])
        return cls(rows, places, (2.0 * codes - 1).double()[None], codes, folds)

    def own(self, grams: Float[Tensor, "q t m"]) -> Float[Tensor, "q n n"]:
        """The kernels of these points with each other."""
        return nearest_positive(grams[:, self.rows][:, :, self.places])


def rates_of(grams: Float[Tensor, "q n n"]) -> Float[Tensor, "q r"]:
    """λ to choose from, for every kernel."""
    return rate_grid(grams, None, RATES)


class Chosen(NamedTuple):
    """The indices of the chosen kernel and λ."""

    kernel: int
    rate: int


def by_folds(grams: Tensor, labels: Labels, loss: Loss) -> Chosen:
    """The kernel and λ of the least cross-validated error, which is averaged over the draws of folds."""
    ones, rates = torch.ones_like(labels.targets[0]), rates_of(grams)
    scores = [
        held_out_scores(grams, ones[:, None], loss, labels.targets, ones, rates, folds)
        for folds in labels.folds
    ]
    values = torch.cat([each.values for each in scores], dim=-1)
    losses = torch.stack([each.losses for each in scores]).mean(0)
    # labels of large weight are separated by the same machine, whatever their weight: the smallest is taken
    losses = losses.round(decimals=2)
    best, _ = least_error(Scores(values, losses), labels.codes.repeat(len(scores)), ones.repeat(len(scores)))
    return Chosen(*best)


def by_evidence(grams: Tensor, labels: Labels, loss: Loss) -> Chosen:
    """The kernel and λ of the greatest evidence of logistic labels, less what is unusual."""
    ones, rates = torch.ones_like(labels.targets[0]), rates_of(grams)
    values = logistic_evidence(grams[:, None], labels.targets[0], ones[:, None], rates[..., None] * ones)
    steps = torch.stack(
        [
            USUAL.steps_to(torch.tensor(RATES, dtype=torch.float64), strength, 1.0)
            for strength in (0.0, *STRENGTHS)
        ]
    )
    return Chosen(*divmod(int((values - steps).argmax()), len(RATES)))


METHODS: dict[str, tuple[str, Callable[[Tensor, Labels, Loss], Chosen], Loss]] = {
    "SVM": ("SVM", by_folds, Hinge(0.1)),
    "LapSVM": ("LapSVM", by_folds, Hinge(0.1)),
    "InvSVM": ("InvSVM", by_folds, Hinge(0.1)),
    "InvSVM, evidence": ("InvSVM", by_evidence, Logistic()),
}


def test_errors(
    task: Task, grams: Float[Tensor, "q t m"], labels: Labels, loss: Loss, rates: Float[Tensor, "q r"]
) -> Float[Tensor, "q r"]:
    """The errors on all points without a label, in percent, for every kernel and λ."""
    ones, own = torch.ones_like(labels.targets[0]), labels.own(grams)
    is_test = torch.ones(len(task.x), dtype=torch.bool)
    is_test[labels.rows] = False
    found, solution = torch.empty(rates.shape), None
    # from light losses to heavy ones, each starting from the solution before
    for j in rates.mean(0).argsort().tolist():
        terms = [Term(loss, labels.targets[0].expand(len(own), -1), rates[:, j, None] * ones)]
        solution = newton(Problem(DenseGram(own), terms, ones[:, None]), solution)
        scores = (grams[:, :, labels.places] @ solution.coefficients[..., None])[..., 0] + solution.beta
        found[:, j] = 100 * ((scores > 0).long() != task.codes)[:, is_test].double().mean(-1)
    return found


Classifier = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]
"""The classes of all points, from the points, their classes, and which of these may be seen."""


def spread_labels(kernel: str, neighbours: int = 7) -> Classifier:
    """Scikit-learn's label spreading, with neighbours or with a Gaussian kernel.

    The width of the latter is the median distance of the sixth neighbour: with the median distance of all
    points every point has the same neighbours, and the larger class is predicted for all.
    """

    def predict(x: NDArray[Any], codes: NDArray[Any], labelled: NDArray[Any]) -> NDArray[Any]:
        known = np.full(len(x), -1)
        known[labelled] = codes[labelled]
        width = neighbour_distance(torch.from_numpy(x), 6)
        model = LabelSpreading(kernel=kernel, n_neighbors=neighbours).set_params(gamma=0.5 / width**2)
        return model.fit(x, known).transduction_

    return predict


def invariant_svc(strength: str) -> Classifier:
    """The estimator, as users call it."""

    def predict(x: NDArray[Any], codes: NDArray[Any], labelled: NDArray[Any]) -> NDArray[Any]:
        model = InvariantSVC(strength=strength, random_state=0)
        others = np.setdiff1d(np.arange(len(x)), labelled)
        return model.fit(x[labelled], codes[labelled], unlabeled=x[others]).predict(x)

    return predict


CLASSIFIERS: dict[str, Classifier] = {
    "InvariantSVC()": invariant_svc("auto"),
    "InvariantSVC(strength='evidence')": invariant_svc("evidence"),
    "LabelSpreading, rbf": spread_labels("rbf"),
    "LabelSpreading, 7 neighbours": spread_labels("knn", 7),
    "LabelSpreading, 20 neighbours": spread_labels("knn", 20),
}


def run_draw(
    task: Task, seed: int, counts: Sequence[int], repeats: int, device: str, functions: Functions
) -> dict[str, Any]:
    """All machines on the one draw of a task, for every number of labels.

    Each has its test error in percent, what was chosen, and the seconds of the processor to choose, of which
    folding serves all numbers of labels. `grid` has the errors of InvSVM with all settings.
    """
    kernels, record = families(task, device, functions), {}
    for count in counts:
        labels = Labels.of(task._replace(draws=task.draws.expand(seed + 1, -1)), seed, count, repeats)
        found: dict[str, Any] = {}
        for method, (family, choose, loss) in METHODS.items():
            began, own = time.process_time(), labels.own(kernels[family].grams)
            chosen = choose(own, labels, loss)
            seconds = time.process_time() - began
            grams, rates = kernels[family].grams[[chosen.kernel]], rates_of(own)[[chosen.kernel]]
            setting = kernels[family].settings[chosen.kernel]
            error = test_errors(task, grams, labels, loss, rates[:, [chosen.rate]]).item()
            rate = RATES[chosen.rate]
            found[method] = {"error": error, **setting, "rate": rate, "seconds": seconds}
        for name, classifier in CLASSIFIERS.items():
            began, rows = time.process_time(), labels.rows.numpy()
            predicted = classifier(task.x.numpy(), task.codes.numpy(), rows)
            seconds = time.process_time() - began
            wrong = np.delete(predicted != task.codes.numpy(), rows)
            found[name] = {"error": 100 * float(wrong.mean()), "seconds": seconds}
        inv = kernels["InvSVM"].grams
        grid = test_errors(task, inv, labels, Hinge(0.1), rates_of(labels.own(inv)))
        record[str(count)] = {"methods": found, "grid": grid.round(decimals=2).tolist()}
    folding = {family: each.seconds for family, each in kernels.items()}
    return {"points": len(task.x), "features": task.x.shape[1], "folding": folding, "labels": record}
