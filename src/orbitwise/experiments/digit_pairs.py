"""InvSVM against virtual samples on pairs of digits, few and unequal labels (RKHS figure 2).

    python -m orbitwise.experiments.digit_pairs --out results/digit_pairs.json

50 labelled images of one digit and 10 of the other; the loss is normalised within each class. InvSVM keeps
the derivatives along the paper's twelve moves small by an ε-insensitive loss, or the differences f(moved
image) - f(image); its rival learns from the moved images as additional samples. All have the logistic loss, a
Gaussian kernel whose width is the median distance of the labelled images, and no bias (f is in the RKHS, as
in RKHS eq. 2). They choose λ and ν by 5-fold cross-validation of the error, in which both classes weigh the
same; the test error is measured on all other images of the two digits. The record is written after every
draw, and a run that was stopped resumes with the draws that are missing.

The record has "pairs": for each pair and each draw the test error and the held-out error of every machine, in
percent, and the λ ("rate") and ν ("strength") that cross-validation chose.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray

from orbitwise import datasets
from orbitwise.estimators.machines.choosing import stratified_folds
from orbitwise.estimators.machines.task import median_distance
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.tangents import PAPER_MOVES, ImageTangent, moved_images
from orbitwise.losses import EpsilonInsensitive

Array = NDArray[np.float64]

PAIRS = ((4, 9), (2, 3), (6, 5), (7, 1))
SHAPE = (28, 28)
COUNTS = (50, 10)
RATES = (1e2, 1e3, 1e4)
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
EPSILON = 0.02
VIRTUAL = "virtual samples"
MACHINES: dict[str, Functional | str | None] = {
    "InvSVM": ImageTangent(SHAPE, PAPER_MOVES),
    "InvSVM, differences": "differences",
    VIRTUAL: None,
}
"""The machines by name, each with what should vanish."""


class Labels(NamedTuple):
    """Labelled images, whether each is of the first digit, and its weight: one over the size of its class."""

    x: Array
    is_first: NDArray[np.bool_]
    weights: Array

    @classmethod
    def of(cls, x: Array, is_first: NDArray[np.bool_]) -> Labels:
        """Images whose two classes weigh the same, in the loss and in the error of the folds."""
        return cls(x, is_first, 1 / np.where(is_first, is_first.sum(), (~is_first).sum()))

    def part(self, chosen: NDArray[np.bool_]) -> Labels:
        """Some of these images, with the weights that they have among all."""
        return Labels(self.x[chosen], self.is_first[chosen], self.weights[chosen])

    def with_copies(self) -> Labels:
        """Each image followed by its moved copies, which share its weight."""
        copies = moved_images(torch.from_numpy(self.x), SHAPE).numpy()
        size = 1 + copies.shape[1]
        x = np.concatenate([self.x[:, None], copies], axis=1).reshape(-1, self.x.shape[1])
        return Labels(x, self.is_first.repeat(size), (self.weights / size).repeat(size))


class Found(NamedTuple):
    """The settings with the smallest balanced error on held-out images, and that error."""

    error: float
    rate: float
    strength: float


def images_of(first: int, second: int) -> tuple[Array, NDArray[np.bool_]]:
    """All images of two digits in MNIST, with grey levels from 0 to 1, and which are of the first digit."""
    data = datasets.load("mnist")
    images = np.concatenate([data.x_train, data.x_test]).reshape(-1, 784)
    digits = np.concatenate([data.y_train, data.y_test])
    kept = (digits == first) | (digits == second)
    return images[kept] / 255.0, digits[kept] == first


def draw(is_first: NDArray[np.bool_], seed: int, counts: Sequence[int] = COUNTS) -> NDArray[np.int64]:
    """The numbers of labelled images: `counts[0]` of the first digit and `counts[1]` of the second."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for own, count in zip((is_first, ~is_first), counts, strict=True):
        rows = np.flatnonzero(own)
        parts.append(rows[torch.randperm(len(rows), generator=generator)[:count].numpy()])
    return np.concatenate(parts)


def fit(machine: str, labels: Labels, width: float, rate: float, strength: float) -> InvariantSVC:
    """Learn from labelled images, or with virtual samples also from their moved copies."""
    if machine == VIRTUAL:
        labels = labels.with_copies()
    model = InvariantSVC(
        invariance=MACHINES[machine],
        C=rate,
        strength=strength,
        invariance_loss=EpsilonInsensitive(EPSILON),
        bandwidth=width,
        basis="none",
        image_shape=SHAPE,
    )
    return model.fit(labels.x, labels.is_first, sample_weight=labels.weights)


def choose(
    machine: str,
    labels: Labels,
    folds: NDArray[np.int64],
    width: float,
    rates: Sequence[float] = RATES,
    strengths: Sequence[float] = STRENGTHS,
) -> Found:
    """Cross-validate all settings; a held-out image takes its moves with it.

    Many settings tie, because one class has only ten labels. Among equal errors the strongest invariance is
    taken, then the smallest weight of the labels.
    """
    found = []
    for rate, strength in itertools.product(rates, (0.0,) if machine == VIRTUAL else strengths):
        wrong = np.zeros(len(folds), dtype=bool)
        for fold in np.unique(folds):
            held_out = folds == fold
            model = fit(machine, labels.part(~held_out), width, rate, strength)
            wrong[held_out] = model.predict(labels.x[held_out]) != labels.is_first[held_out]
        error = round(float(labels.weights[wrong].sum()) / 2, 9)
        found.append(Found(error, rate, strength))
    return min(found, key=lambda each: (each.error, -each.strength, each.rate))


def run_draw(name: str, seed: int) -> tuple[str, int, dict[str, Any]]:
    """All machines on one draw of a pair: their errors, and what they chose."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    first, second = map(int, name.split("-"))
    images, is_first = images_of(first, second)
    chosen = draw(is_first, seed)
    labels = Labels.of(images[chosen], is_first[chosen])
    folds = stratified_folds(torch.from_numpy(labels.is_first).long(), 5, seed).numpy()
    width, record = median_distance(torch.from_numpy(labels.x)), {}
    others = np.delete(np.arange(len(images)), chosen)
    for machine in MACHINES:
        found = choose(machine, labels, folds, width)
        model = fit(machine, labels, width, found.rate, found.strength)
        wrong = model.predict(images[others]) != is_first[others]
        record[machine] = {
            "error": 100 * float(wrong.mean()),
            "held_out_error": 100 * found.error,
            "rate": found.rate,
            "strength": found.strength,
        }
    return name, seed, {"machines": record, "seconds": time.perf_counter() - start}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the draws that are missing, and write the record after each."""
    names = [f"{first}-{second}" for first, second in PAIRS]
    parser = command_line(__doc__)
    parser.add_argument("--pairs", nargs="+", choices=names, default=names)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="draws at a time, each on one processor core")
    parser.add_argument("--time-limit", type=float, help="seconds after which no more draws are started")
    chosen = parser.parse_args(arguments)
    record = Record(chosen.out, {"pairs": {name: {} for name in names}})
    pairs = record.values["pairs"]
    begun, draws = time.monotonic(), itertools.product(range(chosen.draws), chosen.pairs)
    missing = [(name, seed) for seed, name in draws if str(seed) not in pairs[name]]

    def wanted() -> Iterator[Any]:
        for name, seed in missing:
            if chosen.time_limit is None or time.monotonic() - begun < chosen.time_limit:
                yield delayed(run_draw)(name, seed)

    workers = Parallel(chosen.jobs, return_as="generator_unordered", pre_dispatch=chosen.jobs)
    for name, seed, found in cast("Iterator[tuple[str, int, dict[str, Any]]]", workers(wanted())):
        pairs[name][str(seed)] = found
        record.write()
        shown = {each: round(row["error"], 2) for each, row in found["machines"].items()}
        print(name, seed, shown, f"{found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
