"""How many inducing variables a kernel needs, by the certified sparse engine, beside its test error.

The engine is given Gram matrices that are there already, as a kernel of row numbers, which also counts the
different entries it asks for: kernel evaluations that a fit from scratch would have had to pay.
"""

from __future__ import annotations

import warnings
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
from orbitwise.inference.sparse import SparseModel
from orbitwise.inference.totals import Observations
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


def certify(gram: Tensor, targets: Float[Tensor, "n c"], noise: float, count: int) -> dict[str, Any]:
    """The engine's bracket with `count` greedy inducing variables: their columns of K, and its diagonal."""
    table, numbers = TableKernel(gram), torch.arange(len(gram), dtype=gram.dtype)[:, None]
    observations = Observations(Evaluation(), numbers, targets.to(gram), None)
    model = SparseModel(Process(None, table), observations, Gaussian(noise, learnable=False).double())
    model.place_inducing(model.choose(count, "greedy", torch.Generator().manual_seed(0)).inducing)  # pyright: ignore
    bracket = model.bracket(refine=False)
    return {
        "inducing": model.num_inducing,
        "lower": bracket.lower,
        "upper": bracket.upper,
        "gap": bracket.upper - bracket.lower,
        "evaluations": table.num_evaluations,
    }


def sparsity(gram: Tensor, targets: Tensor, noise: float, tolerances: list[float]) -> dict[str, Any]:
    """What the estimator settles for at the least tolerance, and the least M certified within each."""
    gram, targets = gram.cpu(), targets.cpu()
    found: dict[str, Any] = {
        "all_evaluations": len(gram) * (len(gram) + 1) // 2,
        "automatic": automatic(gram, targets, noise, min(tolerances)),
        "needed": {},
    }
    known: dict[int, dict[str, Any]] = {}
    for tolerance in tolerances:
        low, high = 0, len(gram)
        while high - low > max(1, len(gram) // 200):
            middle = (low + high) // 2
            if middle not in known:
                known[middle] = certify(gram, targets, noise, middle)
            low, high = (low, middle) if known[middle]["gap"] <= tolerance * len(gram) else (middle, high)
        found["needed"][str(tolerance)] = known.get(high) or certify(gram, targets, noise, high)
    return found


def correlations(cells: dict[str, Any], rows: int, tolerances: list[float]) -> dict[str, Any]:
    """Rank correlations with the test error over the models of one number of rows and one size of images."""
    chosen = comparable(cells, rows)
    if len(chosen) < 3:
        return {}
    errors = [cell["test_error"] for cell in chosen]
    columns = {
        f"inducing at {tolerance} nats a row": [
            cell["sparsity"]["needed"][str(tolerance)]["inducing"] for cell in chosen
        ]
        for tolerance in tolerances
    }
    columns["log evidence"] = [cell["log_evidence"] for cell in chosen]
    found = {}
    for name, values in columns.items():
        if len(set(values)) == 1 or len(set(errors)) == 1:
            continue  # no ranks
        result: Any = spearmanr(values, errors)
        found[name] = {
            "spearman": float(result.statistic),
            "p_value": float(result.pvalue),
            "models": len(errors),
        }
    return found


def comparable(cells: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    """Cells of this many rows and of the largest images."""
    size = max(cell["size"] for cell in cells.values())
    return [cell for cell in cells.values() if cell["rows"] == rows and cell["size"] == size]


COLOURS = {"dense": "tab:blue", "convolutional": "tab:orange", "pooled": "tab:green"}
MARKERS = {"none": "o", "learned": "*", "borrowed": "P"}


def draw(record: dict[str, Any], file: Path) -> None:
    """Test error against the number of inducing variables needed, and against the evidence."""
    rows, tolerances = min(cell["rows"] for cell in record["cells"].values()), record["command"]["tolerances"]
    chosen = comparable(record["cells"], rows)
    tolerance = str(tolerances[len(tolerances) // 2])
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    panels = [
        (f"inducing variables for a gap of {tolerance} nats a row",
         lambda cell: cell["sparsity"]["needed"][tolerance]["inducing"]),
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
        name = {"none": "", "learned": ", learned orbit", "borrowed": ", orbit of a dense one"}[orbit]
        axes[1].scatter([], [], color=COLOURS[kind], marker=MARKERS[orbit], label=kind + name)
    axes[1].legend(fontsize=8)
    size = chosen[0]["size"]
    figure.suptitle(f"Infinitely wide networks, {rows:,} MNIST images of {size}×{size} pixels")
    figure.tight_layout()
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)
