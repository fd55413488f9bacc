"""InvSVM against virtual samples on pairs of digits, few and unequal labels (RKHS figure 2).

    python -m orbitwise.experiments.digit_pairs --out results/digit_pairs.json

50 labelled images of one digit and 10 of the other; the loss is normalised within each class. InvSVM keeps
the derivatives along the paper's twelve moves small by an ε-insensitive loss, or the differences f(moved
image) - f(image); the rival learns the moved images as samples. All have the logistic loss, a Gaussian kernel
of the labels' median distance and no bias (f is in the RKHS, as in RKHS eq. 2) and choose λ and ν by 5-fold
cross-validation of the error, each class counted the same; the error is measured on all other images of the
two digits. The record is written after every draw, and draws that it has already are not run again.

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
from gpytorch.kernels import RBFKernel
from jaxtyping import Float, Int
from joblib import Parallel, delayed
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.machines.task import median_distance, stratified_folds
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.functional import Block, Evaluation
from orbitwise.functionals.points import Difference
from orbitwise.functionals.tangents import PAPER_MOVES, ImageTangent, moved_images, moved_pairs
from orbitwise.inference.risk.problem import DenseGram, Problem, Term, newton
from orbitwise.losses import EpsilonInsensitive, Logistic
from orbitwise.process.process import Process

PAIRS = ((4, 9), (2, 3), (6, 5), (7, 1))
SHAPE = (28, 28)
COUNTS = (50, 10)
RATES = (1e2, 1e3, 1e4)
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
EPSILON = 0.02
ROWS_AT_ONCE = 2048


class Pair(NamedTuple):
    """All images of two digits, and which are of the first."""

    images: Float[Tensor, "n d"]
    is_first: Int[Tensor, " n"]

    @classmethod
    def of(cls, first: int, second: int, device: str) -> Pair:
        """Those of MNIST, with grey levels from 0 to 1."""
        data = datasets.load("mnist")
        images = np.concatenate([data.x_train, data.x_test]).reshape(-1, 784)
        digits = np.concatenate([data.y_train, data.y_test])
        kept = (digits == first) | (digits == second)
        chosen = torch.from_numpy(images[kept]).double() / 255
        return cls(chosen.to(device), torch.from_numpy(digits[kept] == first).long().to(device))

    def draw(self, seed: int, counts: Sequence[int] = COUNTS) -> Int[Tensor, " n"]:
        """The numbers of labelled images: so many of the first digit, so many of the second."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for code, count in zip((1, 0), counts, strict=True):
            own = (self.is_first == code).nonzero()[:, 0].cpu()
            parts.append(own[torch.randperm(len(own), generator=generator)[:count]])
        return torch.cat(parts).to(self.images.device)


class Labels(NamedTuple):
    """Labelled images, ±1, the fold of each, and its weight: one over the size of its class.

    With these weights each class counts the same, both in the loss and in the error of the folds.
    """

    x: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    folds: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]

    @classmethod
    def of(cls, pair: Pair, chosen: Tensor, seed: int) -> Labels:
        """Those of some numbers."""
        codes = pair.is_first[chosen]
        folds = stratified_folds(codes.cpu(), 5, seed).to(codes.device)
        sizes = torch.bincount(codes, minlength=2)
        return cls(pair.images[chosen], (2 * codes - 1).double(), folds, 1 / sizes[codes].double())


class Found(NamedTuple):
    """The settings of the least balanced error of the folds, with that error."""

    error: float
    settings: dict[str, float]


def kernel_process(bandwidth: float, like: Tensor) -> Process:
    """A process with the Gaussian kernel exp(-|x - x'|²/(2 bandwidth²)), where the tensor `like` is."""
    kernel = RBFKernel().to(like)
    kernel.lengthscale = torch.tensor(bandwidth).to(like)
    return Process(None, kernel)


class Machine(NamedTuple):
    """A way to learn: its rows, and the terms of a grid of settings."""

    name: str
    strengths: Sequence[float] = STRENGTHS

    def rows(self, labels: Labels) -> list[Block]:
        """Labels, and what is added to them: slopes along moves, differences, or moved images."""
        values = Evaluation().atoms(labels.x)
        if self.name == "InvSVM":
            return [values, ImageTangent(SHAPE, PAPER_MOVES).atoms(labels.x)]
        if self.name == "virtual samples":
            return [values, Evaluation().atoms(moved_images(labels.x, SHAPE).flatten(0, 1))]
        return [values, Difference().atoms(moved_pairs(labels.x, SHAPE))]

    def terms(self, labels: Labels, seen: Tensor, rates: Tensor, strengths: Tensor) -> list[Term]:
        """Those of all λ and ν; `seen` [folds, n] says which labels count."""
        moves = len(PAPER_MOVES)
        weights = rates[:, None, None, None] * (seen * labels.weights)
        if self.name == "virtual samples":
            # a sample and its copies share the weight of the sample
            shared = weights / (1 + moves)
            copies = shared.repeat_interleave(moves, -1)
            return [
                Term(Logistic(), labels.y, shared),
                Term(Logistic(), labels.y.repeat_interleave(moves), copies),
            ]
        own = strengths[None, :, None, None] * seen.repeat_interleave(moves, -1)
        weights = weights.expand(-1, len(strengths), -1, -1)
        zeros = torch.zeros(own.shape[-1]).to(labels.x)
        return [
            Term(Logistic(), labels.y, weights),
            Term(EpsilonInsensitive(EPSILON), zeros, own.expand(len(rates), -1, -1, -1)),
        ]


MACHINES = (Machine("InvSVM"), Machine("InvSVM, differences"), Machine("virtual samples", (0.0,)))


@torch.no_grad()
def choose(machine: Machine, labels: Labels, width: float) -> Found:
    """Cross-validate all settings; labels that are held out take their moves with them.

    Many settings tie when ten labels stand for a class. Of equal errors the strongest invariance is taken,
    then the lightest loss.
    """
    rows = machine.rows(labels)
    rates, strengths = (torch.tensor(grid).to(labels.x) for grid in (RATES, machine.strengths))
    seen = (labels.folds != torch.arange(5, device=labels.folds.device)[:, None]).double()
    gram = DenseGram(kernel_process(width, labels.x).covariance(rows))
    problem = Problem(gram, machine.terms(labels, seen, rates, strengths))
    values = newton(problem, tolerance=1e-5, max_iterations=60).values[..., : len(labels.y)]
    scores = values.gather(2, labels.folds.expand(*values.shape[:2], 1, -1))[:, :, 0]
    wrong = ((scores > 0) != (labels.y > 0)).double()
    errors = (wrong * labels.weights).sum(-1) / 2
    reached = [
        Found(round(errors[i, j].item(), 9), {"rate": rate, "strength": strength})
        for (i, rate), (j, strength) in itertools.product(enumerate(RATES), enumerate(machine.strengths))
    ]
    return min(reached, key=lambda each: (each.error, -each.settings["strength"], each.settings["rate"]))


@torch.no_grad()
def test_error(
    machine: Machine, pair: Pair, chosen: Tensor, labels: Labels, found: Found, width: float
) -> float:
    """Fit to all labels and classify all other images; in percent."""
    settings, rows = found.settings, machine.rows(labels)
    process = kernel_process(width, labels.x)
    one = lambda name: torch.tensor([settings[name]]).to(labels.x)  # noqa: E731
    terms = machine.terms(labels, torch.ones_like(labels.y)[None], one("rate"), one("strength"))
    solution = newton(Problem(DenseGram(process.covariance(rows)), terms), tolerance=1e-7)
    alpha = solution.coefficients.flatten()
    scores = torch.cat(
        [
            process.covariance(Evaluation().atoms(part), rows) @ alpha
            for part in pair.images.split(ROWS_AT_ONCE)
        ]
    )
    is_test = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    is_test[chosen] = False
    return 100 * ((scores > 0).long() != pair.is_first)[is_test].double().mean().item()


def run_draw(name: str, seed: int, device: str) -> tuple[str, int, dict[str, Any]]:
    """All machines on one draw of a pair: their errors, and what they chose."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    first, second = map(int, name.split("-"))
    pair = Pair.of(first, second, device)
    chosen = pair.draw(seed)
    labels = Labels.of(pair, chosen, seed)
    width, record = median_distance(labels.x), {}
    for machine in MACHINES:
        found = choose(machine, labels, width)
        error = test_error(machine, pair, chosen, labels, found, width)
        record[machine.name] = {"error": error, "held_out_error": 100 * found.error, **found.settings}
    return name, seed, {"machines": record, "seconds": time.perf_counter() - start}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the draws that are missing, and write the record after each."""
    names = [f"{first}-{second}" for first, second in PAIRS]
    parser = command_line(__doc__)
    parser.add_argument("--pairs", nargs="+", choices=names, default=names)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="draws at a time, each on one processor core")
    parser.add_argument("--time-limit", type=float, help="seconds after which no more draws are taken up")
    chosen = parser.parse_args(arguments)
    record = Record(chosen.out, {"pairs": {name: {} for name in names}})
    pairs = record.values["pairs"]
    begun, draws = time.monotonic(), itertools.product(range(chosen.draws), chosen.pairs)
    missing = [(name, seed) for seed, name in draws if str(seed) not in pairs[name]]

    def wanted() -> Iterator[Any]:
        for name, seed in missing:
            if chosen.time_limit is None or time.monotonic() - begun < chosen.time_limit:
                yield delayed(run_draw)(name, seed, chosen.device)

    workers = Parallel(chosen.jobs, return_as="generator_unordered", pre_dispatch=chosen.jobs)
    for name, seed, found in cast("Iterator[tuple[str, int, dict[str, Any]]]", workers(wanted())):
        pairs[name][str(seed)] = found
        record.write(device=chosen.device)
        shown = {each: round(row["error"], 2) for each, row in found["machines"].items()}
        print(name, seed, shown, f"{found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
