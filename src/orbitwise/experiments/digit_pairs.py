"""InvSVM against virtual samples on pairs of digits, few and unequal labels (RKHS figure 2).

    python -m orbitwise.experiments.digit_pairs --out results/digit_pairs.json

50 labelled images of one digit and 10 of the other; the loss is normalised within each class. InvSVM keeps
the derivatives along the paper's twelve moves small by an ε-insensitive loss; the rival learns the moved
images as samples. Both have the logistic loss and choose all their settings by 5-fold cross-validation of the
error, each class counted the same; the error is measured on all other images of the two digits. The record is
written after every pair, and pairs that it has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.kernel_machine import median_distance
from orbitwise.estimators.machine_fit import stratified_folds
from orbitwise.experiments.records import write_record
from orbitwise.functionals.functional import Block
from orbitwise.functionals.points import Evaluation
from orbitwise.functionals.tangents import PAPER_MOVES, ImageTangent, moved_images
from orbitwise.inference.risk.grams import DenseGram
from orbitwise.inference.risk.machine import basis_rows
from orbitwise.inference.risk.newton import newton
from orbitwise.inference.risk.problem import Problem, Solution, Term
from orbitwise.losses import EpsilonInsensitive, Logistic
from orbitwise.process.process import Process

PAIRS = ((4, 9), (2, 3), (6, 5), (7, 1))
SHAPE = (28, 28)
COUNTS = (50, 10)
BANDWIDTHS = (1.0, 2.0, 4.0)
"""Times the median distance of the labelled images."""
RATES = (1e3, 1e4, 1e5)
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
EPSILONS = (0.02,)
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
    """Labelled images, ±1, the fold of each, and its weight: one over the size of its class."""

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
    """The settings of the least balanced error of the folds, with that error and the held-out loss."""

    error: float
    loss: float
    settings: dict[str, float]


def kernel_process(bandwidth: float, like: Tensor) -> Process:
    """A Gaussian kernel."""
    kernel = RBFKernel().to(like)
    kernel.lengthscale = torch.tensor(bandwidth).to(like)
    return Process(None, kernel)


class Machine(NamedTuple):
    """A way to learn: its rows, and the terms of a grid of settings."""

    name: str
    epsilons: Sequence[float]
    strengths: Sequence[float]

    def rows(self, labels: Labels) -> list[Block]:
        """Labels, and what is added to them: slopes along moves, or moved images."""
        values = Evaluation().atoms(labels.x)
        if self.name == "InvSVM":
            return [values, ImageTangent(SHAPE, PAPER_MOVES).atoms(labels.x)]
        return [values, Evaluation().atoms(moved_images(labels.x, SHAPE).flatten(0, 1))]

    def terms(
        self, labels: Labels, seen: Tensor, epsilon: float, rates: Tensor, strengths: Tensor
    ) -> list[Term]:
        """Those of all λ and ν; `seen` [folds, n] says which labels count."""
        moves = len(PAPER_MOVES)
        weights = rates[:, None, None, None] * (seen * labels.weights)
        if self.name == "InvSVM":
            own = strengths[None, :, None, None] * seen.repeat_interleave(moves, -1)
            weights = weights.expand(-1, len(strengths), -1, -1)
            zeros = torch.zeros(own.shape[-1]).to(labels.x)
            return [
                Term(Logistic(), labels.y, weights),
                Term(EpsilonInsensitive(epsilon), zeros, own.expand(len(rates), -1, -1, -1)),
            ]
        # a sample and its copies share the weight of the sample
        shared = weights / (1 + moves)
        copies = shared.repeat_interleave(moves, -1)
        return [
            Term(Logistic(), labels.y, shared),
            Term(Logistic(), labels.y.repeat_interleave(moves), copies),
        ]


MACHINES = (Machine("InvSVM", EPSILONS, STRENGTHS), Machine("virtual samples", (0.0,), (0.0,)))


@torch.no_grad()
def choose(machine: Machine, labels: Labels, width: float) -> Found:
    """Cross-validate all settings; labels that are held out take their moves with them."""
    rows = machine.rows(labels)
    basis = basis_rows(rows, "bias")
    rates, strengths = (torch.tensor(grid).to(labels.x) for grid in (RATES, machine.strengths))
    numbers = torch.arange(5, device=labels.folds.device)[:, None]
    seen = (labels.folds != numbers).double()
    best = Found(np.inf, np.inf, {})
    for factor in BANDWIDTHS:
        gram = DenseGram(kernel_process(factor * width, labels.x).covariance(rows))
        for epsilon in machine.epsilons:
            terms = machine.terms(labels, seen, epsilon, rates, strengths)
            found = newton(Problem(gram, terms, basis), tolerance=1e-5, max_iterations=60)
            place = labels.folds.expand(*found.values.shape[:2], 1, -1)
            scores = found.values[..., : len(labels.y)].gather(2, place)[:, :, 0]
            wrong = ((scores > 0) != (labels.y > 0)).double()
            errors = (wrong * labels.weights).sum(-1) / 2
            losses = (Logistic().value(scores, labels.y) * labels.weights).sum(-1)
            for i, rate in enumerate(RATES):
                for j, strength in enumerate(machine.strengths):
                    reached = Found(
                        round(errors[i, j].item(), 9),
                        losses[i, j].item(),
                        {"bandwidth": factor, "rate": rate, "strength": strength, "epsilon": epsilon},
                    )
                    best = min(best, reached, key=lambda each: each[:2])
    return best


@torch.no_grad()
def test_error(
    machine: Machine, pair: Pair, chosen: Tensor, labels: Labels, found: Found, width: float
) -> float:
    """Fit to all labels and classify all other images; in percent."""
    settings, rows = found.settings, machine.rows(labels)
    process = kernel_process(settings["bandwidth"] * width, labels.x)
    one = lambda name: torch.tensor([settings[name]]).to(labels.x)  # noqa: E731
    seen = torch.ones_like(labels.y)[None]
    terms = machine.terms(labels, seen, settings["epsilon"], one("rate"), one("strength"))
    problem = Problem(DenseGram(process.covariance(rows)), terms, basis_rows(rows, "bias"))
    solution: Solution = newton(problem, tolerance=1e-7)
    alpha, beta = solution.coefficients.flatten(), solution.beta.flatten()
    scores = torch.cat(
        [
            process.covariance(Evaluation().atoms(part), rows) @ alpha + beta
            for part in pair.images.split(ROWS_AT_ONCE)
        ]
    )
    is_test = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    is_test[chosen] = False
    return 100 * ((scores > 0).long() != pair.is_first)[is_test].double().mean().item()


def run_pair(first: int, second: int, num_draws: int, device: str) -> dict[str, Any]:
    """Errors of both machines for every draw."""
    start = time.perf_counter()
    pair = Pair.of(first, second, device)
    record: dict[str, Any] = {machine.name: {"errors": [], "chosen": []} for machine in MACHINES}
    for seed in range(num_draws):
        chosen = pair.draw(seed)
        labels = Labels.of(pair, chosen, seed)
        width = median_distance(labels.x)
        for machine in MACHINES:
            found = choose(machine, labels, width)
            error = test_error(machine, pair, chosen, labels, found, width)
            record[machine.name]["errors"].append(error)
            record[machine.name]["chosen"].append(found.settings)
    for machine in MACHINES:
        errors = record[machine.name]["errors"]
        record[machine.name] |= {"mean": float(np.mean(errors)), "deviation": float(np.std(errors, ddof=1))}
    return record | {"seconds": time.perf_counter() - start, "test_images": len(pair.images) - sum(COUNTS)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the pairs that are missing, and write the record after each."""
    names = [f"{first}-{second}" for first, second in PAIRS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", nargs="+", choices=names, default=names)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    record: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"pairs": {}}
    for name in chosen.pairs:
        if name not in record["pairs"]:
            first, second = map(int, name.split("-"))
            record["pairs"][name] = run_pair(first, second, chosen.draws, chosen.device)
            shown = {m.name: round(record["pairs"][name][m.name]["mean"], 2) for m in MACHINES}
            print(name, shown, f"{record['pairs'][name]['seconds']:.0f} s", flush=True)
            record |= {"draws": chosen.draws, "device": chosen.device}
            write_record(record, chosen.out)


if __name__ == "__main__":
    main()
