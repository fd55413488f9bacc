"""
How many inducing variables are enough?
=======================================

The Talk's demo: lower and upper bounds on the log evidence meet as inducing variables are added, so the
quality of a sparse Gaussian process can be *measured*. And the number needed for a fixed quality grows
only like a power of log N for a smooth kernel and Gaussian inputs (Burt et al.), so the cost is close to
linear in the number of rows.

`python examples/certified_sparse.py --out DIR` writes `certified_sparse.png` and `certified_sparse.json`.
"""

import argparse
import json
import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from rich.console import Console
from rich.table import Table

from orbitwise import SparseGPRegressor
from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.bounds import collapsed_bound, gather_totals, upper_bound
from orbitwise.inference.sparse.inducing import greedy_choice, inducing_factor
from orbitwise.inference.sparse.iterative import NoisySystem
from orbitwise.process import Process

parser = argparse.ArgumentParser(description="Bounds that meet, and what they cost (Talk; Burt et al.).")
parser.add_argument("--out", type=Path, default=Path("build/certified_sparse"), help="folder for the results")
parser.add_argument("--doublings", type=int, default=7, help="of 250 rows, for the cost against N")
arguments = parser.parse_known_args()[0]
out = arguments.out
out.mkdir(parents=True, exist_ok=True)

NOISE = torch.tensor(0.3**2, dtype=torch.float64)


# %%
# Bounds that meet
# ----------------
# Hyperparameters are held where the evidence of all rows is best, so that only M changes.


def data(count: int, width: int, seed: int = 0) -> Observations:
    """Gaussian inputs, and a function of them with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return Observations(Evaluation(), x, torch.sin(3 * x).sum(1, keepdim=True) + 0.3 * noise)


def process_of(lengthscale: float) -> Process:
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = lengthscale
    return Process(None, kernel).double().requires_grad_(False)


def brackets(process: Process, rows: Observations, points: torch.Tensor) -> dict[str, float]:
    """All bounds with these inducing points."""
    lower = inducing_factor(process, points)
    totals = gather_totals(process, rows, points, lower, NOISE)
    system = NoisySystem(process, rows, NOISE)
    vectors = system.solve(system.preconditioner(points, lower), 1e-4, 100).vectors
    solved = system.bracket(points, lower, vectors)
    return {
        "titsias": collapsed_bound(totals, NOISE, tight=False).item(),
        "tight": collapsed_bound(totals, NOISE).item(),
        "cg": collapsed_bound(solved.totals, NOISE, quadratic=solved.upper).item(),
        "upper": upper_bound(totals, NOISE).item(),
        "upper_cg": upper_bound(solved.totals, NOISE, quadratic=solved.lower).item(),
    }


rows, process = data(300, 1), process_of(0.5)
truth = exact.evidence(process, rows.atoms(), rows.targets, NOISE.expand(300)).value.item()
order = rows.x[greedy_choice(process, rows.x, 30).index]
sizes = range(4, len(order) + 1, 2)
curves = [brackets(process, rows, order[:size]) for size in sizes]

# %%
# The estimator does all this by itself
# -------------------------------------

model = SparseGPRegressor(random_state=0).fit(rows.x.numpy(), rows.targets[:, 0].numpy())
print(model.certificate_)

# %%
# What a fixed accuracy costs
# ---------------------------
# The least M for which the bounds are within one nat of each other, by greedy choice, as N doubles.


def enough(process: Process, rows: Observations, most: int) -> tuple[int, float]:
    """The least M with a bracket of one nat, by bisection, and the seconds of one pass with it."""
    chosen = rows.x[greedy_choice(process, rows.x, most).index]

    def gap(size: int) -> float:
        points = chosen[:size]
        totals = gather_totals(process, rows, points, inducing_factor(process, points), NOISE)
        return (upper_bound(totals, NOISE) - collapsed_bound(totals, NOISE)).item()

    low, high = 1, len(chosen)
    assert gap(high) <= 1.0, "raise the number of inducing points"
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if gap(middle) <= 1.0 else (middle + 1, high)
    start = time.perf_counter()
    gap(low)
    return low, time.perf_counter() - start


counts = [250 * 2**i for i in range(arguments.doublings + 1)]
costs = {
    width: [enough(process_of(lengthscale), data(count, width), most) for count in counts]
    for width, lengthscale, most in ((1, 0.5, 60), (2, 1.0, 600))
}

# %%
# Picture and numbers
# -------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
styles = {
    "upper": ("upper bound", "tab:red", "-"),
    "upper_cg": ("upper bound, solved", "tab:red", ":"),
    "cg": ("lower bound, solved (cg)", "tab:blue", ":"),
    "tight": ("lower bound, tight", "tab:blue", "-"),
    "titsias": ("lower bound, Titsias", "tab:blue", "--"),
}
left.axhline(truth, color="black", linewidth=1, label="log evidence")
for name, (label, colour, style) in styles.items():
    left.plot(sizes, [curve[name] for curve in curves], color=colour, linestyle=style, label=label)
left.set_ylim(truth - 150, truth + 200)
left.set(xlabel="inducing variables M", ylabel="nats", title="Bounds meet as M grows")
left.legend(fontsize=8)
for width, colour in ((1, "tab:green"), (2, "tab:purple")):
    sizes_needed = [size for size, _ in costs[width]]
    right.plot(counts, sizes_needed, "o-", color=colour, label=f"{width} column{'s' * (width > 1)}")
    slope = np.polyfit(np.log(np.log(counts)), np.log(sizes_needed), 1)
    right.plot(counts, np.exp(np.polyval(slope, np.log(np.log(counts)))), ":", color=colour, linewidth=1)
    right.annotate(
        f"(log N)^{slope[0]:.1f}",
        (counts[-2], sizes_needed[-2]),
        (-8, 4),
        textcoords="offset points",
        ha="right",
    )
right.set(xscale="log", xlabel="rows N", ylabel="M for a gap of one nat", title="A power of log N is enough")
right.legend(fontsize=8)
figure.savefig(out / "certified_sparse.png", dpi=150)

table = Table(title="least M for a gap of one nat")
for heading in ("rows", "M, 1 column", "M, 2 columns"):
    table.add_column(heading, justify="right")
for place, count in enumerate(counts):
    table.add_row(f"{count:,}", *(str(costs[width][place][0]) for width in (1, 2)))
Console().print(table)
record = {
    "log_evidence": truth,
    "bounds": [{"num_inducing": size, **curve} for size, curve in zip(sizes, curves, strict=True)],
    "certificate": {"lower": model.certificate_.lower, "upper": model.certificate_.upper},
    "costs": [
        {"columns": width, "rows": count, "num_inducing": size, "log_rows": math.log(count)}
        for width, pairs in costs.items()
        for count, (size, _) in zip(counts, pairs, strict=True)
    ],
}
(out / "certified_sparse.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
print(f"wrote {out / 'certified_sparse.png'}")
