"""How many inducing variables a kernel needs, by the certified sparse engine, beside its test error.

The engine is given Gram matrices that are there already, as a kernel of row numbers, which also counts the
different entries it asks for: kernel evaluations that a fit from scratch would have had to pay.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.functionals.points import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.model import SparseModel
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process


@final
class TableKernel(Kernel):
    """k(i, j) = gram[i, j], for inputs that are numbers of rows."""

    has_lengthscale = False
    gram: Tensor
    seen: Tensor

    def __init__(self, gram: Float[Tensor, "n n"]) -> None:
        super().__init__()
        self.register_buffer("gram", gram)
        self.register_buffer("seen", torch.zeros_like(gram, dtype=torch.bool))

    @property
    def num_evaluations(self) -> int:
        """Different pairs asked for, (i, j) and (j, i) being one."""
        return int((self.seen | self.seen.T).tril().sum())

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        i, j = x1[..., 0].round().long(), x2[..., 0].round().long()
        if not diag:
            i, j = torch.broadcast_tensors(i[..., :, None], j[..., None, :])
        self.seen[i, j] = True
        return self.gram[i, j].to(x1)


class Columns:
    """The engine on a Gram matrix, with inducing variables in the order of the greedy choice."""

    def __init__(self, gram: Float[Tensor, "n n"], targets: Float[Tensor, "n c"], noise: float) -> None:
        self.table = TableKernel(gram)
        numbers = torch.arange(len(gram), dtype=gram.dtype)[:, None]
        observations = Observations(Evaluation(), numbers, targets.to(gram), None)
        likelihood = Gaussian(noise, learnable=False).double()
        self.model = SparseModel(Process(None, self.table), observations, likelihood)
        self.order = self.choose(len(gram))
        self.exact = exact.evidence(
            self.model.process, observations.atoms(), observations.targets, self.model.noise.expand(len(gram))
        ).value.item()

    def choose(self, count: int) -> Float[Tensor, "u 1"]:
        """The numbers of the first rows of the greedy choice."""
        return self.model.choose(count, "greedy", torch.Generator().manual_seed(0)).inducing  # pyright: ignore

    def certify(self, count: int) -> dict[str, Any]:
        """The bracket from `count` columns of K and its diagonal, and how far below the truth it begins."""
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
        """The least M whose lower bound is within each tolerance, in nats a row, of the exact evidence."""
        known: dict[int, dict[str, Any]] = {}
        found = {}
        for tolerance in tolerances:
            low, high = 0, len(self.order)
            while high - low > 1:
                middle = (low + high) // 2
                if middle not in known:
                    known[middle] = self.certify(middle)
                is_enough = known[middle]["loss"] <= tolerance * self.model.num_rows
                low, high = (low, middle) if is_enough else (middle, high)
            found[str(tolerance)] = known.get(high) or self.certify(high)
        return found


def automatic(gram: Tensor, targets: Float[Tensor, "n c"], noise: float, tolerance: float) -> dict[str, Any]:
    """What the estimator settles for, θ being fixed; its bracket is refined with products by all of K."""
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
        "evaluations": kernel.num_evaluations,  # pyright: ignore
    }


def sparsity(
    gram: Tensor, targets: Tensor, noise: float, common_noise: float, tolerances: list[float]
) -> dict[str, Any]:
    """Inducing variables needed at the noise of the evidence, and at one noise for all kernels."""
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
            continue  # no ranks
        result: Any = spearmanr(values, errors)
        found[name] = {"spearman": result.statistic, "p_value": result.pvalue, "models": len(errors)}
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
        (f"inducing variables: bound within {tolerance} nats a row at noise {command['common_noise']}",
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
