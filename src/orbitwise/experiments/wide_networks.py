"""Infinitely wide networks on subsets of MNIST, with and without a learned orbit (Talk: "could we use …?").

    python -m orbitwise.experiments.wide_networks --out results/wide_networks.json

Dense, residual and convolutional kernels, one-hot Gaussian codes, hyperparameters, noise and orbit by
evidence. The Gram matrix of each model at the smallest size also goes through the certified sparse engine,
which says how many inducing variables it needs: does that number foretell the test error? The record is
written after every cell, cells that it has already are not run again, and a picture is drawn beside it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.invariances import functional_of
from orbitwise.experiments.records import write_record
from orbitwise.experiments.wide_models import Cell, Data, Model, cells
from orbitwise.experiments.wide_sparsity import correlations, draw, sparsity
from orbitwise.functionals.averages import OrbitAverage, freeze_functional
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.calibration import least_noise
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.process.process import Process


class Learned(NamedTuple):
    """What evidence chose, from how many rows."""

    kernel: ScaleKernel
    orbit: DrawnOrbit | None
    noise: float
    rows: int
    seconds: float

    def state(self) -> dict[str, Any]:
        """All of it as plain numbers, so that a later run need not learn again."""
        parts = {"kernel": self.kernel, "orbit": self.orbit}
        tensors = {
            name: {key: value.tolist() for key, value in part.named_parameters()}
            for name, part in parts.items()
            if part is not None
        }
        return {**tensors, "noise": self.noise, "rows": self.rows, "seconds": self.seconds}

    @classmethod
    def of(cls, state: dict[str, Any], kernel: ScaleKernel, orbit: DrawnOrbit | None) -> Learned:
        """That of a record, in a new kernel and orbit."""
        with torch.no_grad():
            for name, part in (("kernel", kernel), ("orbit", orbit)):
                for key, value in () if part is None else part.named_parameters():
                    value.copy_(torch.tensor(state[name][key], dtype=value.dtype))
        return cls(kernel, orbit, state["noise"], state["rows"], state["seconds"])

    def functional(self, num_nodes: int, seed: int, device: str) -> Functional:
        """Averages over the orbit with fixed nodes, or values, in single precision."""
        if self.orbit is None:
            return Evaluation()
        generator = torch.Generator(device).manual_seed(seed)
        return freeze_functional(OrbitAverage(copy.deepcopy(self.orbit)), num_nodes, generator).float()


def learn(cell: Cell, data: Data, rows: int, options: argparse.Namespace) -> Learned:
    """Hyperparameters, and the orbit where there is one, by the exact evidence of some rows."""
    start = time.process_time()
    classifier = InvariantGPClassifier(
        cell.model.kernel(cell.size),
        options.invariance if cell.orbit == "learned" else None,
        image_shape=(cell.size, cell.size),
        inference="exact",
        num_nodes=options.nodes,
        max_iterations=options.iterations,
        random_state=options.seed,
        device=options.device,
    )
    classifier.fit(data.x[:rows].cpu().numpy(), data.y[:rows].cpu().numpy())
    kernel: Any = classifier.kernel_
    return Learned(kernel, classifier.orbit_, classifier.noise_, rows, time.process_time() - start)


def log_evidence(gram: Float[Tensor, "n n"], targets: Float[Tensor, "n c"], noise: float) -> float:
    """log p(y) of all outputs at a noise variance."""
    lower = cholesky(gram + noise * torch.eye(len(gram)).to(gram)).lower
    count, outputs = targets.shape
    fit = (targets * solve_factored(lower, targets)).sum()
    constant = count * math.log(2 * math.pi)
    return -0.5 * (fit + outputs * (log_determinant(lower) + constant)).item()


class Rows(NamedTuple):
    """The training rows of a cell, in single precision; matrices are made double."""

    process: Process
    functional: Functional
    data: Data
    count: int

    @property
    def targets(self) -> Float[Tensor, "n 10"]:
        return one_hot(self.data.y[: self.count], 10) - 0.1

    @torch.no_grad()
    def gram(self) -> Float[Tensor, "n n"]:
        return self.process.covariance(self.atoms(self.data.x[: self.count])).double()

    @torch.no_grad()
    def cross(self, x: Float[Tensor, "t d"]) -> Float[Tensor, "t n"]:
        rows = self.atoms(self.data.x[: self.count])
        parts = [self.process.covariance(self.atoms(part), rows) for part in x.split(500)]
        return torch.cat(parts).double()

    def atoms(self, x: Tensor) -> Block:
        """Rows of g's values."""
        return self.functional.atoms(x.float())


def measure(rows: Rows, cell: Cell, learned: Learned, num_test: int) -> dict[str, Any]:
    """Noise and evidence on all rows of the cell, and the test error."""
    start = time.process_time()
    gram, targets = rows.gram(), rows.targets
    noise = least_noise(lambda value: -log_evidence(gram, targets, value), 4 * learned.noise)
    evidence = log_evidence(gram, targets, noise)
    weights = solve_factored(cholesky(gram + noise * torch.eye(len(gram)).to(gram)).lower, targets)
    means = rows.cross(rows.data.x_test[:num_test]) @ weights
    wrong = (means.argmax(1) != rows.data.y_test[:num_test]).double()
    base: Any = learned.kernel.base_kernel
    found = {
        **cell.model._asdict(),
        "rows": cell.rows,
        "orbit": cell.orbit,
        "size": cell.size,
        "log_evidence": evidence,
        "test_error": wrong.mean().item(),
        "num_test": num_test,
        "noise": noise,
        "outputscale": learned.kernel.outputscale.item(),
        "weight_variance": base.weight_variance.item(),
        "bias_variance": base.bias_variance.item(),
        "learned": learned.state(),
        "seconds": time.process_time() - start,
    }
    if learned.orbit is not None:
        found["nodes"] = rows.atoms(rows.data.x[:1]).points.shape[-2]
        found["ranges"] = {name: list(ends) for name, ends in learned.orbit.learned().items()}
    return found


class Bench:
    """Runs cells; what was learned for one, now or in the record, serves others of its model and orbit."""

    def __init__(self, options: argparse.Namespace, cells: dict[str, Any]) -> None:
        self.options = options
        self.cells = cells
        self.data: dict[int, Data] = {}
        self.learned: dict[tuple[Model, str, int], Learned] = {}

    def images(self, size: int) -> Data:
        if size not in self.data:
            options = self.options
            self.data[size] = Data.of(size, options.test, options.seed, options.device)
        return self.data[size]

    def choice(self, cell: Cell) -> Learned:
        """What evidence chooses for a cell, from few rows where kernels or orbits are dear."""
        key = (cell.model, cell.orbit, cell.size)
        if key not in self.learned:
            self.learned[key] = self.remembered(cell) or self.learn(cell)
        return self.learned[key]

    def remembered(self, cell: Cell) -> Learned | None:
        """What the record has of the same model and orbit."""
        options = self.options
        for rows in options.sizes:
            if (found := self.cells.get(cell._replace(rows=rows).name)) is not None:
                orbit = None
                if cell.orbit == "learned":
                    shape = (cell.size, cell.size)
                    average: Any = functional_of(options.invariance, cell.size**2, shape)
                    orbit = average.orbit.double().to(options.device)
                return Learned.of(found["learned"], cell.model.kernel(cell.size).to(options.device), orbit)
        return None

    def learn(self, cell: Cell) -> Learned:
        options = self.options
        with_orbit = cell.orbit == "learned"
        rows = {
            "dense": options.orbit_rows if with_orbit else options.sizes[0],
            "convolutional": options.convolution_orbit_rows if with_orbit else options.convolution_rows,
            "pooled": options.pooled_rows,
        }
        return learn(cell, self.images(cell.size), min(rows[cell.model.kind], options.sizes[0]), options)

    def rows(self, cell: Cell) -> Rows:
        """The training rows of a cell in single precision, lowered to atoms."""
        options, learned = self.options, self.choice(cell)
        functional = learned.functional(options.nodes, options.seed, options.device)
        return Rows(Process(None, learned.kernel), functional, self.images(cell.size), cell.rows)

    def run(self, cell: Cell) -> dict[str, Any]:
        """One cell."""
        num_test = self.options.test // 2 if cell.model.kind == "pooled" else self.options.test
        return measure(self.rows(cell), cell, self.choice(cell), num_test)

    def sparsity(self, cell: Cell) -> dict[str, Any]:
        """How sparse the model of a cell that was run is."""
        options, rows = self.options, self.rows(cell)
        noise = self.cells[cell.name]["noise"]
        return sparsity(rows.gram(), rows.targets, noise, options.common_noise, options.tolerances)


def main() -> None:
    """Read the command line, run the cells that are missing, write record and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=14)
    parser.add_argument("--pooled-size", type=int, default=7)
    parser.add_argument("--invariance", default="affine")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--orbit-rows", type=int, default=400)
    parser.add_argument("--convolution-rows", type=int, default=200)
    parser.add_argument("--convolution-orbit-rows", type=int, default=60)
    parser.add_argument("--pooled-rows", type=int, default=60)
    parser.add_argument("--tolerances", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--common-noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=["cells", "sparsity"], help="one of the two parts of the record")
    parser.add_argument("--time-limit", type=float, help="seconds after which no cell is begun")
    parser.add_argument("--out", type=Path, default=Path("results/wide_networks.json"))
    options = parser.parse_args()
    record: dict[str, Any] = {"cells": {}, "sparsity": {}}
    if options.out.is_file():
        record |= json.loads(options.out.read_text())
    bench, start = Bench(options, record["cells"]), time.monotonic()
    wanted = cells(options.sizes, options.image_size, options.pooled_size)
    compared = [cell for cell in wanted if (cell.rows, cell.size) == (options.sizes[0], options.image_size)]
    for part, chosen, run in (("cells", wanted, bench.run), ("sparsity", compared, bench.sparsity)):
        for cell in chosen:
            is_late = options.time_limit is not None and time.monotonic() - start > options.time_limit
            is_known = part == "cells" or cell.name in record["cells"]
            is_wanted = options.only in (None, part) and is_known
            if is_late or not is_wanted or cell.name in record[part]:
                continue
            record[part][cell.name] = run(cell)
            write(record, options)
            print(part, cell.name, f"{100 * record['cells'][cell.name]['test_error']:.2f} %", flush=True)
    draw(record, options.out.with_suffix(".png"))


def write(record: dict[str, Any], options: argparse.Namespace) -> None:
    """The record as it stands."""
    hidden = ("only", "out", "time_limit")
    record["command"] = {name: value for name, value in vars(options).items() if name not in hidden}
    record |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    record["correlations"] = correlations(record)
    write_record(record, options.out)


if __name__ == "__main__":
    main()
