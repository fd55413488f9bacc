"""Infinitely wide networks on subsets of MNIST, with and without a learned orbit (Talk: "could we use …?").

    python -m orbitwise.experiments.wide_networks --out results/wide_networks.json

Dense, residual and convolutional kernels, one-hot Gaussian codes, hyperparameters, noise and orbit by
evidence. The Gram matrix of each model at the smallest size also goes through the certified sparse engine,
which says how many inducing variables it needs: does that number foretell the test error? The record is
written after every cell, cells that it has already are not run again, and a picture is drawn beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.names import functional_of
from orbitwise.experiments.wide_models import MAIN, Cell, Model, cells
from orbitwise.experiments.wide_sparsity import correlations, draw, sparsity
from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.freezing import freeze_functional
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.calibration import least_noise
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.process.process import Process


class Data(NamedTuple):
    """Images of one size, and labels."""

    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    x_test: Float[Tensor, "t d"]
    y_test: Int[Tensor, " t"]

    @classmethod
    def of(cls, size: int, num_test: int, seed: int, device: str) -> Data:
        """Random training images and the first test images, their pixels averaged down to the size."""
        data = datasets.load("mnist")
        order = np.random.default_rng(seed).permutation(len(data.x_train))

        def rows(images: Any) -> Tensor:
            pictures = torch.from_numpy(np.asarray(images)).reshape(-1, 1, 28, 28).double() / 255
            return torch.nn.functional.interpolate(pictures, size=size, mode="area").flatten(1).to(device)

        def labels(codes: Any) -> Tensor:
            return torch.from_numpy(np.asarray(codes).astype(np.int64)).to(device)

        chosen = order[:10_000]
        return cls(
            rows(data.x_train[chosen]),
            labels(data.y_train[chosen]),
            rows(data.x_test[:num_test]),
            labels(data.y_test[:num_test]),
        )


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
        """Averages over the orbit with fixed nodes, or values."""
        if self.orbit is None:
            return Evaluation()
        generator = torch.Generator(device).manual_seed(seed)
        return freeze_functional(OrbitAverage(self.orbit), num_nodes, generator)


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


@torch.no_grad()
def measure(
    learned: Learned, functional: Functional, cell: Cell, data: Data, num_test: int
) -> tuple[dict[str, Any], Float[Tensor, "n n"]]:
    """Noise and evidence on all rows of the cell, and the test error; kernels in single precision."""
    start = time.process_time()
    process = Process(None, learned.kernel)
    functional = functional.float()
    rows = functional.atoms(data.x[: cell.rows].float())
    targets = one_hot(data.y[: cell.rows], 10) - 0.1
    gram = process.covariance(rows).double()
    noise = least_noise(lambda value: -log_evidence(gram, targets, value), 4 * learned.noise)
    evidence = log_evidence(gram, targets, noise)
    weights = solve_factored(cholesky(gram + noise * torch.eye(len(gram)).to(gram)).lower, targets)
    means = [
        process.covariance(functional.atoms(part.float()), rows).double() @ weights
        for part in data.x_test[:num_test].split(500)
    ]
    functional.double()
    wrong = (torch.cat(means).argmax(1) != data.y_test[:num_test]).double()
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
        found["nodes"] = rows.points.shape[-2]
        found["ranges"] = {name: list(ends) for name, ends in learned.orbit.learned().items()}
    return found, gram


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
        if cell.orbit == "borrowed":
            other = self.choice(Cell(MAIN[0], cell.rows, "learned", cell.size))
            return self.choice(cell._replace(orbit="none"))._replace(orbit=other.orbit)
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
        dear = {"convolutional": options.convolution_rows, "pooled": options.pooled_rows}
        rows = dear.get(cell.model.kind, options.sizes[0])
        rows = min(rows, options.orbit_rows) if cell.orbit == "learned" else rows
        return learn(cell, self.images(cell.size), min(rows, options.sizes[0]), options)

    def run(self, cell: Cell) -> dict[str, Any]:
        """One cell, with its sparsity where its Gram matrix is small."""
        options, data, learned = self.options, self.images(cell.size), self.choice(cell)
        nodes = options.borrowed_nodes if cell.orbit == "borrowed" else options.nodes
        functional = learned.functional(nodes, options.seed, options.device)
        num_test = options.test // 2 if cell.model.kind == "pooled" else options.test
        found, gram = measure(learned, functional, cell, data, num_test)
        if cell.rows == options.sizes[0]:
            targets = one_hot(data.y[: cell.rows], 10) - 0.1
            found["sparsity"] = sparsity(gram, targets, found["noise"], options.tolerances)
        return found


def main() -> None:
    """Read the command line, run the cells that are missing, write record and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=14)
    parser.add_argument("--pooled-size", type=int, default=7)
    parser.add_argument("--invariance", default="affine")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--borrowed-nodes", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--orbit-rows", type=int, default=400)
    parser.add_argument("--convolution-rows", type=int, default=200)
    parser.add_argument("--pooled-rows", type=int, default=60)
    parser.add_argument("--tolerances", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--time-limit", type=float, help="seconds after which no cell is begun")
    parser.add_argument("--out", type=Path, default=Path("results/wide_networks.json"))
    options = parser.parse_args()
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {"cells": {}}
    bench, start = Bench(options, record["cells"]), time.monotonic()
    for cell in cells(options.sizes, options.image_size, options.pooled_size):
        if cell.name in record["cells"]:
            continue
        if options.time_limit is not None and time.monotonic() - start > options.time_limit:
            break
        record["cells"][cell.name] = bench.run(cell)
        record["command"] = {
            name: value for name, value in vars(options).items() if name not in ("out", "time_limit")
        }
        record |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
        record["correlations"] = correlations(record["cells"], options.sizes[0], options.tolerances)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1))
        print(cell.name, f"{100 * record['cells'][cell.name]['test_error']:.2f} %", flush=True)
    draw(record, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
