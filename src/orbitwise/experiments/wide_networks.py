"""Infinitely wide networks on subsets of MNIST, with and without a learned orbit (Talk: "could we use …?").

    python -m orbitwise.experiments.wide_networks --out results/wide_networks.json

Dense, residual and convolutional kernels, one-hot Gaussian codes, hyperparameters, noise and orbit by
evidence. The Gram matrix of each model at the smallest size also goes through the certified sparse engine,
which determines how many inducing variables it needs: does that number predict the test error? The engine
takes a Gram matrix as a kernel of row indices, which also counts the distinct entries that are used: these
are the kernel evaluations that a fit from scratch would need. The record is written after every cell, a run
that was stopped resumes with the missing cells, and a picture is drawn next to the record.

The record has "cells", by model, rows, orbit and size of images: the evidence, the test error and what was
learned; "sparsity" of the models at the smallest size: how many inducing variables bring the lower bound
within each tolerance, in nats per row, of the exact evidence; and "correlations", the rank correlations of
these numbers and of the evidence with the test error.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, final

import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.invariances import functional_of
from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.experiments.records import Record, command_line
from orbitwise.functionals.averages import OrbitAverage, freeze_functional, learnable_orbits
from orbitwise.functionals.functional import Block, Evaluation, Functional
from orbitwise.inference.calibration import least_noise
from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.kernels import WideConvolutionKernel, WideNetworkKernel, log_positive
from orbitwise.likelihoods.dirichlet import one_hot
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.process.process import Process


class Model(NamedTuple):
    """A wide network: "dense", "convolutional" (read out at all positions) or "pooled" (their average)."""

    kind: str
    activation: str
    depth: int
    residual: bool = False

    @property
    def name(self) -> str:
        """The name of the model in the record and in the picture."""
        return f"{self.kind} {'residual ' * self.residual}{self.activation} {self.depth}"

    def kernel(self, size: int) -> ScaleKernel:
        """The kernel, with a scale because the variance of erf networks is bounded."""
        settings: dict[str, Any] = {"activation": self.activation, "residual": self.residual}
        if self.kind == "dense":
            base: Kernel = WideNetworkKernel(self.depth, **settings)
        else:
            pooled = self.kind == "pooled"
            padding = "circular" if pooled else "zero"
            base = WideConvolutionKernel(
                (size, size), self.depth, padding=padding, pooling=pooled, **settings
            )
        return ScaleKernel(base, outputscale_constraint=log_positive()).double()


class Data(NamedTuple):
    """Images of one size, and labels."""

    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    x_test: Float[Tensor, "t d"]
    y_test: Int[Tensor, " t"]

    @classmethod
    def of(cls, size: int, num_test: int, seed: int, device: str) -> Data:
        """Random training images and the first test images, averaged down to `size` × `size` pixels."""
        data = datasets.load("mnist")
        order = np.random.default_rng(seed).permutation(len(data.x_train))

        def rows(images: NDArray[Any]) -> Tensor:
            pictures = torch.from_numpy(np.asarray(images)).reshape(-1, 1, 28, 28).double() / 255
            return torch.nn.functional.interpolate(pictures, size=size, mode="area").flatten(1).to(device)

        def labels(codes: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.asarray(codes).astype(np.int64)).to(device)

        chosen = order[:10_000]
        return cls(
            rows(data.x_train[chosen]),
            labels(data.y_train[chosen]),
            rows(data.x_test[:num_test]),
            labels(data.y_test[:num_test]),
        )


class Cell(NamedTuple):
    """A model on some number of rows, without an orbit or with a learned one."""

    model: Model
    rows: int
    orbit: str
    size: int

    @property
    def name(self) -> str:
        """The key of the cell in the record."""
        return f"{self.model.name} | {self.rows} | {self.orbit} | {self.size}"


DENSE = [Model("dense", activation, depth) for depth in (1, 2, 4) for activation in ("relu", "erf")]
DENSE += [Model("dense", "relu", depth, residual=True) for depth in (2, 4)]
MAIN = [Model("dense", "relu", 2), Model("dense", "erf", 2), Model("dense", "relu", 4, residual=True)]
CONVOLUTIONS = [Model("convolutional", "relu", 2), Model("convolutional", "relu", 3, residual=True)]
OTHERS = [Model("convolutional", "relu", 1), Model("convolutional", "erf", 2)]
POOLED = Model("pooled", "relu", 2)


def cells(sizes: list[int], size: int, pooled_size: int) -> list[Cell]:
    """All cells, the most informative first."""
    small, *large = sizes
    found = [Cell(model, small, orbit, size) for orbit in ("none", "learned") for model in MAIN]
    found += [Cell(model, small, "none", size) for model in CONVOLUTIONS]
    found += [Cell(MAIN[0], rows, orbit, size) for rows in large for orbit in ("none", "learned")]
    found += [Cell(CONVOLUTIONS[0], rows, "none", size) for rows in large]
    found += [Cell(CONVOLUTIONS[0], small, "learned", size)]
    found += [Cell(model, small, "none", size) for model in DENSE if model not in MAIN]
    found += [Cell(model, small, "none", pooled_size) for model in (POOLED, MAIN[0], CONVOLUTIONS[0])]
    found += [Cell(model, small, "none", size) for model in OTHERS]
    for rows in large:
        found += [Cell(POOLED, rows, "none", pooled_size)]
        found += [Cell(model, rows, orbit, size) for model in MAIN[1:] for orbit in ("none", "learned")]
        found += [Cell(model, rows, "none", size) for model in CONVOLUTIONS[1:]]
    return found


@final
class TableKernel(Kernel):
    """k(i, j) = gram[i, j], for inputs that are indices of rows."""

    has_lengthscale = False
    gram: Tensor
    seen: Tensor

    def __init__(self, gram: Float[Tensor, "n n"]) -> None:
        super().__init__()
        self.register_buffer("gram", gram)
        self.register_buffer("seen", torch.zeros_like(gram, dtype=torch.bool))

    @property
    def num_evaluations(self) -> int:
        """The number of distinct pairs that were used; (i, j) and (j, i) are one pair."""
        return int((self.seen | self.seen.T).tril().sum())

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        """Look the entries up, and record which were used."""
        i, j = x1[..., 0].round().long(), x2[..., 0].round().long()
        if not diag:
            i, j = torch.broadcast_tensors(i[..., :, None], j[..., None, :])
        self.seen[i, j] = True
        return self.gram[i, j].to(x1)


class Columns:
    """The sparse engine on a Gram matrix, with inducing variables in the order of the greedy choice.

    The input of each row is its index, so that inducing variables are columns of the Gram matrix. `exact` is
    the evidence with which the bounds are compared.
    """

    def __init__(self, gram: Float[Tensor, "n n"], targets: Float[Tensor, "n c"], noise: float) -> None:
        self.table = TableKernel(gram)
        numbers = torch.arange(len(gram), dtype=gram.dtype)[:, None]
        observations = Observations(Evaluation(), numbers, targets.to(gram), None)
        likelihood = Gaussian(noise, learnable=False).double()
        self.model = SparseModel(Process(None, self.table), observations, likelihood)
        self.order = self.choose(len(gram))
        self.exact = log_evidence(gram, observations.targets, self.model.noise.item())

    def choose(self, count: int) -> Float[Tensor, "u 1"]:
        """The indices of the first rows of the greedy choice."""
        return self.model.choose(count, "greedy", torch.Generator().manual_seed(0)).inducing

    def certify(self, count: int) -> dict[str, Any]:
        """The bracket from `count` columns of K and its diagonal, and the loss of its lower end."""
        self.model.place_inducing(self.order[:count])
        bracket, rows = self.model.bracket(refine=False), self.model.num_rows
        return {
            "inducing": count,
            "lower": bracket.lower,
            "upper": bracket.upper,
            "exact": self.exact,
            "loss": self.exact - bracket.lower,
            "evaluations": rows * count - count * (count - 1) // 2 + rows - count,
        }

    def needed(self, tolerances: Sequence[float]) -> dict[str, dict[str, Any]]:
        """The smallest M whose lower bound is within each tolerance (nats per row) of the exact evidence."""
        certify, found = cache(self.certify), {}
        for tolerance in tolerances:
            most = tolerance * self.model.num_rows
            fewer = bisect_left(
                range(1, len(self.order)), True, key=lambda count, most=most: certify(count)["loss"] <= most
            )
            found[str(tolerance)] = certify(1 + fewer)
        return found


def automatic(gram: Tensor, targets: Float[Tensor, "n c"], noise: float, tolerance: float) -> dict[str, Any]:
    """The choice of the estimator at fixed θ; it refines its bracket with products by all of K."""
    model = SparseGPRegressor(
        TableKernel(gram),
        tolerance=tolerance,
        selection="greedy",
        optimize_inducing=False,
        max_inducing=len(gram),
        noise=noise,
        normalize_y=False,
        max_iterations=0,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(np.arange(len(gram), dtype=float)[:, None], targets.cpu().numpy())
    certificate, kernel = model.certificate_, model.kernel_
    return {
        "inducing": certificate.num_inducing,
        "lower": certificate.lower,
        "upper": certificate.upper,
        "gap": certificate.gap,
        "stopped": certificate.stopped,
        "evaluations": kernel.num_evaluations,
    }


def sparsity(
    gram: Tensor, targets: Tensor, noise: float, common_noise: float, tolerances: list[float]
) -> dict[str, Any]:
    """The inducing variables needed at the noise of the evidence, and at a common noise for all kernels."""
    gram, targets = gram.cpu(), targets.cpu()
    return {
        "all_evaluations": len(gram) * (len(gram) + 1) // 2,
        "noise": noise,
        "at_own_noise": Columns(gram, targets, noise).needed(tolerances[-1:]),
        "common_noise": common_noise,
        "needed": Columns(gram, targets, common_noise).needed(tolerances),
        "automatic": automatic(gram, targets, common_noise, tolerances[0]),
    }


def correlations(record: dict[str, Any]) -> dict[str, Any]:
    """Rank correlations with the test error over the models whose sparsity is known."""
    chosen = [record["cells"][name] for name in record["sparsity"]]
    columns = {
        f"inducing within {tolerance} nats a row": [
            each["needed"][str(tolerance)]["inducing"] for each in record["sparsity"].values()
        ]
        for tolerance in record["command"]["tolerances"]
    }
    columns["log evidence"] = [cell["log_evidence"] for cell in chosen]
    errors = [cell["test_error"] for cell in chosen]
    found = {}
    for name, values in columns.items():
        if len(errors) < 3 or len(set(values)) == 1 or len(set(errors)) == 1:
            continue  # ranks are not defined
        correlation, p_value = spearmanr(values, errors)
        found[name] = {"spearman": correlation, "p_value": p_value, "models": len(errors)}
    return found


COLOURS = {"dense": "tab:blue", "convolutional": "tab:orange", "pooled": "tab:green"}
MARKERS = {"none": "o", "learned": "*"}


def draw(record: dict[str, Any], file: Path) -> None:
    """Test error against the number of inducing variables needed, and against the evidence."""
    tolerances, command = record["command"]["tolerances"], record["command"]
    tolerance = str(tolerances[len(tolerances) // 2])
    chosen = [{**record["cells"][name], **each} for name, each in record["sparsity"].items()]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    panels = [
        (f"inducing variables: bound within {tolerance} nats per row at noise {command['common_noise']}",
         lambda cell: cell["needed"][tolerance]["inducing"]),
        ("log evidence, nats", lambda cell: cell["log_evidence"]),
    ]  # fmt: skip
    for axis, (label, value) in zip(axes, panels, strict=True):
        for cell in chosen:
            kind, orbit = cell["kind"], cell["orbit"]
            place = value(cell), 100 * cell["test_error"]
            size = 140 if orbit == "learned" else 60
            axis.scatter(*place, s=size, color=COLOURS[kind], marker=MARKERS[orbit])
            name = f"{'residual ' * cell['residual']}{cell['activation']} {cell['depth']}"
            axis.annotate(name, place, xytext=(5, 4), textcoords="offset points", fontsize=7)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test error, %")
    for kind, orbit in {(cell["kind"], cell["orbit"]): None for cell in chosen}:
        name = kind + ", learned orbit" * (orbit == "learned")
        axes[1].scatter([], [], color=COLOURS[kind], marker=MARKERS[orbit], label=name)
    axes[1].legend(fontsize=8)
    rows, size = command["sizes"][0], command["image_size"]
    figure.suptitle(f"Infinitely wide networks, {rows:,} MNIST images of {size}×{size} pixels")
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


class Learned(NamedTuple):
    """The choice by evidence: kernel, orbit and noise; the number of rows, and the seconds that it took."""

    kernel: ScaleKernel
    orbit: DrawnOrbit | None
    noise: float
    rows: int
    seconds: float

    def state(self) -> dict[str, Any]:
        """All entries as plain numbers, so that a later run need not learn again."""
        parts = {"kernel": self.kernel, "orbit": self.orbit}
        tensors = {
            name: {key: value.tolist() for key, value in part.named_parameters()}
            for name, part in parts.items()
            if part is not None
        }
        return {**tensors, "noise": self.noise, "rows": self.rows, "seconds": self.seconds}

    @classmethod
    def of(cls, state: dict[str, Any], kernel: ScaleKernel, orbit: DrawnOrbit | None) -> Learned:
        """The entries of a record, put into a new kernel and orbit."""
        with torch.no_grad():
            for name, part in (("kernel", kernel), ("orbit", orbit)):
                for key, value in () if part is None else part.named_parameters():
                    value.copy_(torch.tensor(state[name][key], dtype=value.dtype))
        return cls(kernel, orbit, state["noise"], state["rows"], state["seconds"])

    def functional(self, num_nodes: int, seed: int, device: str) -> Functional:
        """Averages over the orbit with fixed nodes, or values if there is no orbit, in single precision."""
        if self.orbit is None:
            return Evaluation()
        generator = torch.Generator(device).manual_seed(seed)
        return freeze_functional(OrbitAverage(copy.deepcopy(self.orbit)), num_nodes, generator).float()


def learn(cell: Cell, data: Data, rows: int, options: argparse.Namespace) -> Learned:
    """Learn hyperparameters, and the orbit if there is one, by the exact evidence of some rows."""
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
    kernel = classifier.kernel_
    assert isinstance(kernel, ScaleKernel)
    return Learned(kernel, classifier.orbit_, classifier.noise_, rows, time.process_time() - start)


def log_evidence(gram: Float[Tensor, "n n"], targets: Float[Tensor, "n c"], noise: float) -> float:
    """log p(y) of all outputs at a noise variance."""
    lower, (count, outputs) = noisy_root(gram, noise), targets.shape
    fit = (targets * solve_factored(lower, targets)).sum()
    return -0.5 * (fit + outputs * (log_determinant(lower) + count * math.log(2 * math.pi))).item()


def noisy_root(gram: Float[Tensor, "n n"], noise: float) -> Float[Tensor, "n n"]:
    """L with LLᵀ = K + σ²I."""
    return cholesky(gram + noise * torch.eye(len(gram)).to(gram)).lower


@dataclass(frozen=True)
class Rows:
    """The training rows of a cell in single precision; matrices are converted to double."""

    process: Process
    functional: Functional
    data: Data
    num_rows: int

    @property
    def targets(self) -> Float[Tensor, "n 10"]:
        """One-hot codes of the labels less their mean."""
        return one_hot(self.data.y[: self.num_rows], 10) - 0.1

    @torch.no_grad()
    def gram(self) -> Float[Tensor, "n n"]:
        """The covariance of f at the training rows."""
        return self.process.covariance(self.atoms(self.data.x[: self.num_rows])).double()

    @torch.no_grad()
    def cross(self, x: Float[Tensor, "t d"]) -> Float[Tensor, "t n"]:
        """The covariance of f at other rows with f at the training rows, 500 at a time."""
        rows = self.atoms(self.data.x[: self.num_rows])
        parts = [self.process.covariance(self.atoms(part), rows) for part in x.split(500)]
        return torch.cat(parts).double()

    def atoms(self, x: Tensor) -> Block:
        """The rows as atoms of g."""
        return self.functional.atoms(x.float())


def measure(rows: Rows, cell: Cell, learned: Learned, num_test: int) -> dict[str, Any]:
    """Noise and evidence on all rows of the cell, and the test error."""
    start = time.process_time()
    gram, targets = rows.gram(), rows.targets
    noise = least_noise(lambda value: -log_evidence(gram, targets, value), 4 * learned.noise)
    evidence = log_evidence(gram, targets, noise)
    weights = solve_factored(noisy_root(gram, noise), targets)
    means = rows.cross(rows.data.x_test[:num_test]) @ weights
    wrong = (means.argmax(1) != rows.data.y_test[:num_test]).double()
    base = learned.kernel.base_kernel
    assert isinstance(base, WideNetworkKernel | WideConvolutionKernel)
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
    """Runs cells; the choice for one is reused for all others with the same model and orbit."""

    def __init__(self, options: argparse.Namespace, cells: dict[str, Any]) -> None:
        self.options = options
        self.cells = cells
        self.data: dict[int, Data] = {}
        self.learned: dict[tuple[Model, str, int], Learned] = {}

    def images(self, size: int) -> Data:
        """The images of a size, which are read once."""
        if size not in self.data:
            options = self.options
            self.data[size] = Data.of(size, options.test, options.seed, options.device)
        return self.data[size]

    def choice(self, cell: Cell) -> Learned:
        """The choice by evidence for a cell, from few rows if the kernel or the orbit is expensive."""
        key = (cell.model, cell.orbit, cell.size)
        if key not in self.learned:
            self.learned[key] = self.remembered(cell) or self.learn(cell)
        return self.learned[key]

    def remembered(self, cell: Cell) -> Learned | None:
        """The choice in the record for the same model and orbit; None if there is none."""
        options = self.options
        for rows in options.sizes:
            if (found := self.cells.get(cell._replace(rows=rows).name)) is not None:
                orbit = None
                if cell.orbit == "learned":
                    average = functional_of(options.invariance, cell.size**2, (cell.size, cell.size))
                    (orbit,) = learnable_orbits(average.double().to(options.device))
                return Learned.of(found["learned"], cell.model.kernel(cell.size).to(options.device), orbit)
        return None

    def learn(self, cell: Cell) -> Learned:
        """The choice by evidence for a cell, learned now."""
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
        """The sparsity of the model of a cell that was run."""
        options, rows = self.options, self.rows(cell)
        noise = self.cells[cell.name]["noise"]
        return sparsity(rows.gram(), rows.targets, noise, options.common_noise, options.tolerances)


def main() -> None:
    """Read the command line, run the missing cells, and write the record and the picture."""
    parser = command_line(__doc__, "results/wide_networks.json")
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
    parser.add_argument("--time-limit", type=float, help="seconds after which no more cells are started")
    options = parser.parse_args()
    hidden = ("only", "out", "time_limit")
    record = Record(options.out, {"cells": {}, "sparsity": {}})
    found = record.values
    found |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    found["command"] = {name: value for name, value in vars(options).items() if name not in hidden}
    bench, start = Bench(options, found["cells"]), time.monotonic()
    wanted = cells(options.sizes, options.image_size, options.pooled_size)
    compared = [cell for cell in wanted if (cell.rows, cell.size) == (options.sizes[0], options.image_size)]
    for part, chosen, run in (("cells", wanted, bench.run), ("sparsity", compared, bench.sparsity)):
        for cell in chosen:
            is_late = options.time_limit is not None and time.monotonic() - start > options.time_limit
            is_known = part == "cells" or cell.name in found["cells"]
            if is_late or not is_known or options.only not in (None, part):
                continue
            if record.fill(found[part], cell.name, partial(run, cell)):
                record.write(correlations=correlations(found))
                print(part, cell.name, f"{100 * found['cells'][cell.name]['test_error']:.2f} %", flush=True)
    draw(found, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
