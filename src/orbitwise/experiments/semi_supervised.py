"""SVM, LapSVM and InvSVM on nine sets with few labels (RKHS table 1), and evidence instead of folds.

    python -m orbitwise.experiments.semi_supervised --out results/semi_supervised.json

Features are scaled to mean zero and length one, the Gaussian kernel has the median distance, InvSVM keeps all
derivatives at all points small; λ, ν and the graph are chosen by 5-fold cross-validation, in which labels
that are held out stay as unlabelled points. The folds are drawn five times and errors averaged, because with
30 labels and 30 settings the random error of one draw of folds would exceed the differences between the
machines. The record is written after every set, and a run that was stopped resumes with the missing sets.

The record has "sets", and in each "cells" called "method/labels": mean and deviation of the error on all
points without a label, in percent, with the errors and the chosen settings of every draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.machines.choosing import (
    least_error,
    rate_grid,
    stratified_folds,
)
from orbitwise.estimators.machines.task import (
    gradient_rows,
    laplacian_rows,
    median_distance,
)
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.functional import Evaluation
from orbitwise.inference.risk.evidence import SquaredEvidence, laplace_evidence
from orbitwise.inference.risk.machines import Scores, fold, held_out_scores, nearest_positive
from orbitwise.inference.risk.problem import DenseGram, Problem, Term, newton
from orbitwise.losses import Hinge, Logistic, Loss, Squared
from orbitwise.process.process import Process

SETS = {
    "heart": "uci_heart",
    "BCI": "ssl_bci",
    "bupa": "uci_bupa",
    "g241c": "ssl_g241c",
    "g241n": "ssl_g241n",
    "Australian": "uci_australian",
    "ionosphere": "uci_ionosphere",
    "sonar": "uci_sonar",
    "USPS": "ssl_usps",
}
LABELS = (30, 60, 90)
RATES = tuple(10.0**power for power in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0))
"""Values of λ times the mean variance of the kernel; with smaller ones only the larger class is predicted."""
STRENGTHS = tuple(10.0**power for power in range(-4, 1))
"""Values of ν in units of the squared bandwidth, so that they do not depend on the scale of the features."""
NEIGHBOURS = (3, 6, 12)
REPEATS = 5
"""The number of draws of folds."""
TOLERANCE = 1e-4
"""The tolerance of folded kernels, which are computed in single precision."""


class Task(NamedTuple):
    """A set with its draws: all points, their classes, and the indices of the labelled points."""

    x: Float[Tensor, "t d"]
    codes: Int[Tensor, " t"]
    draws: Int[Tensor, "r 90"]
    columns: Int[Tensor, " m"]

    @classmethod
    def of(cls, name: str, num_draws: int) -> Task:
        """The set of this name; draws of 30 labels are part of those of 60, these of those of 90."""
        data = datasets.load(SETS[name])
        x = torch.from_numpy(np.asarray(data.x, dtype=np.float64))
        x = x - x.mean(0)
        x = x / torch.linalg.vector_norm(x, dim=0).clamp_min(1e-12)
        codes = torch.from_numpy(np.unique(data.y, return_inverse=True)[1])
        draws = torch.stack([_draw(codes, seed) for seed in range(num_draws)])
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


def families(task: Task, device: str) -> dict[str, Family]:
    """The kernels of the three machines, computed on a device and kept on the processor."""
    task = Task(*(part.to(device) for part in task))
    width = median_distance(task.x)
    task = task._replace(x=task.x.float())
    kernel = RBFKernel().to(task.x)
    kernel.lengthscale = torch.tensor(width).to(task.x)
    process, points = Process(None, kernel), task.x[task.columns]
    with torch.no_grad():
        prior = process.covariance(Evaluation().atoms(task.x), Evaluation().atoms(points))
    # recorded in the units of the features
    strengths = [width**2 * strength for strength in STRENGTHS]
    start = time.perf_counter()
    inner = gradient_rows(task.x, width).invariances(process, task.x, points)
    folded = fold(prior, inner, STRENGTHS, positions=task.columns, tolerance=TOLERANCE)
    gradients = time.perf_counter() - start
    start, graphs, settings = time.perf_counter(), [], []
    for count in NEIGHBOURS:
        rows = laplacian_rows(task.x, count, "heat", True)
        with torch.no_grad():
            part = fold(prior, rows.invariances(process, task.x, points), STRENGTHS, positions=task.columns)
        graphs.append(part.matrices)
        settings += [{"neighbours": count, "strength": strength} for strength in STRENGTHS]
    laplacian = time.perf_counter() - start
    return {
        "SVM": Family(prior[None].double().cpu(), [{}], 0.0),
        "LapSVM": Family(torch.cat(graphs).double().cpu(), settings, laplacian),
        "InvSVM": Family(folded.matrices.double().cpu(), [{"strength": s} for s in strengths], gradients),
    }


class Labels(NamedTuple):
    """Some labelled points: their indices, positions among the columns, targets, classes and folds."""

    rows: Int[Tensor, " n"]
    places: Int[Tensor, " n"]
    targets: Float[Tensor, "1 n"]
    codes: Int[Tensor, " n"]
    folds: Int[Tensor, "s n"]

    @classmethod
    def of(cls, task: Task, draw: int, count: int) -> Labels:
        """The first `count` of a draw."""
        rows = task.draws[draw, :count]
        codes = task.codes[rows]
        places = torch.searchsorted(task.columns, rows)
        folds = torch.stack([stratified_folds(codes, 5, draw + 1000 * i) for i in range(REPEATS)])
        return cls(rows, places, (2.0 * codes - 1).double()[None], codes, folds)

    def own(self, grams: Float[Tensor, "q t m"]) -> Float[Tensor, "q n n"]:
        """The kernels of these points with each other."""
        return nearest_positive(grams[:, self.rows][:, :, self.places])


def rates_of(grams: Float[Tensor, "q n n"]) -> Float[Tensor, "q r"]:
    """λ to choose from, for every kernel."""
    return rate_grid(grams, None, RATES)


def by_folds(grams: Tensor, labels: Labels, loss: Loss) -> tuple[int, float]:
    """The setting and λ of the least cross-validated error, which is averaged over the draws of folds."""
    ones, rates = torch.ones_like(labels.targets[0]), rates_of(grams)
    scores = [
        held_out_scores(grams, ones[:, None], loss, labels.targets, ones, rates, folds)
        for folds in labels.folds
    ]
    values = torch.cat([each.values for each in scores], dim=-1)
    losses = torch.stack([each.losses for each in scores]).mean(0)
    best, _ = least_error(Scores(values, losses), labels.codes.repeat(len(scores)), ones.repeat(len(scores)))
    return best[0], rates[best].item()


def by_laplace(grams: Tensor, labels: Labels, loss: Loss) -> tuple[int, float]:
    """The setting and λ of the greatest Laplace evidence of logistic labels."""
    ones, rates = torch.ones_like(labels.targets[0]), rates_of(grams)
    values = laplace_evidence(grams[:, None], labels.targets[0], ones[:, None], rates[..., None] * ones)
    best = divmod(int(values.argmax()), len(RATES))
    return best[0], rates[best].item()


def by_evidence(grams: Tensor, labels: Labels, loss: Loss) -> tuple[int, float]:
    """The setting and λ of the greatest evidence, with labels as numbers with Gaussian noise."""
    ones, rates = torch.ones_like(labels.targets[0]), rates_of(grams)
    values = torch.stack(
        [
            SquaredEvidence(gram, labels.targets.T, ones[:, None], ones)(rate)
            for gram, rate in zip(grams, rates, strict=True)
        ]
    )
    best = divmod(int(values.argmax()), len(RATES))
    return best[0], rates[best].item()


METHODS: dict[str, tuple[str, Callable[[Tensor, Labels, Loss], tuple[int, float]], Loss]] = {
    "SVM": ("SVM", by_folds, Hinge(0.1)),
    "LapSVM": ("LapSVM", by_folds, Hinge(0.1)),
    "InvSVM": ("InvSVM", by_folds, Hinge(0.1)),
    "InvSVM, Laplace evidence": ("InvSVM", by_laplace, Logistic()),
    "InvSVM, squared evidence": ("InvSVM", by_evidence, Squared()),
}


def test_error(task: Task, gram: Tensor, labels: Labels, loss: Loss, rate: float) -> float:
    """The error on all points without a label, in percent."""
    ones = torch.ones_like(labels.targets[0])
    own = labels.own(gram[None])[0]
    found = newton(Problem(DenseGram(own), [Term(loss, labels.targets[0], rate * ones)], ones[:, None]))
    scores = gram[:, labels.places] @ found.coefficients + found.beta
    is_test = torch.ones(len(task.x), dtype=torch.bool, device=scores.device)
    is_test[labels.rows] = False
    return 100 * ((scores > 0).long() != task.codes)[is_test].double().mean().item()


def run_set(name: str, num_draws: int, device: str) -> dict[str, Any]:
    """All cells of one set."""
    start, worked = time.perf_counter(), time.process_time()
    task = Task.of(name, num_draws)
    kernels = families(task, device)
    record: dict[str, Any] = {
        "points": len(task.x),
        "features": task.x.shape[1],
        "fold_seconds": {family: each.seconds for family, each in kernels.items()},
        "cells": {},
    }
    for method, (family, choose, loss) in METHODS.items():
        for count in LABELS:
            errors, chosen, began = [], [], time.perf_counter()
            for draw in range(num_draws):
                labels = Labels.of(task, draw, count)
                setting, rate = choose(labels.own(kernels[family].grams), labels, loss)
                errors.append(test_error(task, kernels[family].grams[setting], labels, loss, rate))
                chosen.append({**kernels[family].settings[setting], "rate": rate})
            record["cells"][f"{method}/{count}"] = {
                "mean": float(np.mean(errors)),
                "deviation": float(np.std(errors, ddof=1)) if num_draws > 1 else 0.0,
                "errors": errors,
                "chosen": chosen,
                "seconds": time.perf_counter() - began,
            }
    record |= {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - worked}
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the sets that are missing, and write the record after each."""
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=list(SETS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    settings = {"draws": chosen.draws, "device": chosen.device, "repeats": REPEATS}
    record = Record(chosen.out, {"sets": {}})
    if {name: record.values.get(name, value) for name, value in settings.items()} != settings:
        raise ValueError(f"{chosen.out} was made with other settings than {settings}: give another file.")
    record.values |= {**settings, "threads": torch.get_num_threads()}
    sets = record.values["sets"]
    for name in chosen.sets:
        if record.fill(sets, name, partial(run_set, name, chosen.draws, chosen.device)):
            print(name, f"{sets[name]['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
