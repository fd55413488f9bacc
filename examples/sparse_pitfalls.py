"""
Two ways to go wrong, and what mends them
=========================================

Nyström's approximation takes Q for K among the data and keeps exact covariances with queries: its variance
can be *negative* (Talk). The variational posterior with the same inducing points is a Gaussian process, so
its variance never is. And hyperparameters chosen by the training loss of the posterior mean overfit, while
the marginal likelihood, here by its lower bound, trades fit for complexity (Talk, last slides).

`python examples/sparse_pitfalls.py --out DIR` writes `sparse_pitfalls.png` and `sparse_pitfalls.json`.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise.functionals import Evaluation
from orbitwise.inference import exact
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse import nystrom
from orbitwise.inference.sparse.bounds import best_q, collapsed_bound, gather_totals
from orbitwise.inference.sparse.inducing import greedy_choice, inducing_factor
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.process import Process

parser = argparse.ArgumentParser(description="Nyström's negative variance; training loss against evidence.")
parser.add_argument("--out", type=Path, default=Path("build/sparse_pitfalls"), help="folder for the results")
out = parser.parse_known_args()[0].out
out.mkdir(parents=True, exist_ok=True)


def process_of(lengthscale: float) -> Process:
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = lengthscale
    return Process(None, kernel).double().requires_grad_(False)


def draw(count: int, seed: int) -> Observations:
    generator = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return Observations(Evaluation(), x, torch.sin(2 * x) + 0.3 * torch.cos(5 * x) + 0.25 * noise)


# %%
# Negative variance
# -----------------
# Forty rows, six inducing points that are too few for the lengthscale, little noise.

rows, queries = draw(40, 0), torch.linspace(-0.5, 6.5, 281, dtype=torch.float64)[:, None]
process, noise = process_of(0.4), torch.tensor(0.25**2, dtype=torch.float64)
points = torch.linspace(0.3, 5.7, 6, dtype=torch.float64)[:, None]
asked = Evaluation().atoms(queries)


def variational(process: Process, rows: Observations, noise: torch.Tensor, points: torch.Tensor):
    lower = inducing_factor(process, points)
    totals = gather_totals(process, rows, points, lower, noise)
    return SparsePosterior(process, points, best_q(totals, noise), lower), collapsed_bound(
        totals, noise
    ).item()


variances = {
    "exact": exact.condition(process, rows.atoms(), rows.targets, noise.expand(40))
    .row_moments(asked)
    .variance,
    "Nyström": nystrom.condition(process, rows, noise, points, "nystrom").row_moments(asked).variance,
    "subset of regressors": nystrom.condition(process, rows, noise, points, "sor")
    .row_moments(asked)
    .variance,
    "variational": variational(process, rows, noise, points)[0].row_moments(asked).variance[:, 0],
}

# %%
# Training loss against the marginal likelihood
# ---------------------------------------------
# For each lengthscale the noise is chosen from a grid: by the least training error of the posterior mean, or
# by the largest bound.

train, test = draw(40, 3), draw(400, 4)
lengthscales, noises = np.geomspace(0.02, 5, 33), np.geomspace(1e-4, 1, 17)
grid = []
for lengthscale in lengthscales:
    process = process_of(float(lengthscale))
    chosen = train.x[greedy_choice(process, train.x, 40).index]
    for value in noises:
        posterior, bound = variational(process, train, torch.tensor(value), chosen)
        errors = [
            float((posterior.row_mean(part.atoms()) - part.targets).square().mean().sqrt())
            for part in (train, test)
        ]
        row = {"lengthscale": float(lengthscale), "noise": float(value), "bound": bound}
        grid.append(row | {"training": errors[0], "test": errors[1]})
by_loss = min(grid, key=lambda row: row["training"])
by_evidence = max(grid, key=lambda row: row["bound"])
for name, row in (("training loss", by_loss), ("marginal likelihood", by_evidence)):
    print(
        f"by {name:20s} lengthscale {row['lengthscale']:.3f}, noise {row['noise']:.4f}: "
        f"training error {row['training']:.3f}, test error {row['test']:.3f}"
    )

# %%
# Picture and numbers
# -------------------

figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
for (name, variance), colour in zip(
    variances.items(), ("black", "tab:red", "tab:orange", "tab:blue"), strict=True
):
    axes[0, 0].plot(queries[:, 0], variance, color=colour, label=name)
axes[0, 0].axhspan(-2, 0, color="tab:red", alpha=0.08)
axes[0, 0].set_ylim(-1.0, 1.1)
axes[0, 0].plot(points[:, 0], torch.full((6,), -0.93), "k^", markersize=5)
least = float(variances["Nyström"].min())
axes[0, 0].annotate(f"Nyström falls to {least:.0f}", (0.98, 0.2), xycoords="axes fraction", ha="right")
axes[0, 0].set(title="Variance of f, six inducing points (▲)", xlabel="x", ylabel="variance")
axes[0, 0].legend(fontsize=8)
best = [
    min((row for row in grid if row["lengthscale"] == each), key=lambda row: -row["bound"])
    for each in lengthscales
]
axes[0, 1].plot(lengthscales, [row["training"] for row in best], color="tab:green", label="training error")
axes[0, 1].plot(lengthscales, [row["test"] for row in best], color="tab:purple", label="test error")
axes[0, 1].set(xscale="log", xlabel="lengthscale (noise by evidence)", ylabel="root mean square error")
axes[0, 1].set_title("The evidence peaks where the test error is least")
twin = axes[0, 1].twinx()
twin.plot(lengthscales, [row["bound"] for row in best], color="tab:blue", linestyle="--", label="bound")
twin.set_ylabel("lower bound on the log evidence, nats", color="tab:blue")
axes[0, 1].legend(fontsize=8, loc="upper left")
for axis, row, name in (
    (axes[1, 0], by_loss, "training loss"),
    (axes[1, 1], by_evidence, "marginal likelihood"),
):
    process = process_of(row["lengthscale"])
    chosen = train.x[greedy_choice(process, train.x, 40).index]
    moments = variational(process, train, torch.tensor(row["noise"]), chosen)[0].row_moments(asked)
    mean, deviation = moments.mean[:, 0], (moments.variance[:, 0] + row["noise"]).sqrt()
    axis.plot(queries[:, 0], mean, color="tab:blue")
    axis.fill_between(queries[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2)
    axis.plot(train.x[:, 0], train.targets[:, 0], "k.", markersize=5)
    axis.plot(
        queries[:, 0], torch.sin(2 * queries[:, 0]) + 0.3 * torch.cos(5 * queries[:, 0]), "k:", linewidth=1
    )
    axis.set(title=f"chosen by {name}: test error {row['test']:.2f}", ylim=(-2.5, 2.5), xlabel="x")
figure.savefig(out / "sparse_pitfalls.png", dpi=150)
record = {
    "least_variance": {name: float(variance.min()) for name, variance in variances.items()},
    "by_training_loss": by_loss,
    "by_marginal_likelihood": by_evidence,
}
(out / "sparse_pitfalls.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
print(f"wrote {out / 'sparse_pitfalls.png'}")

# %%
assert record["least_variance"]["Nyström"] < 0, "Nyström's variance can be negative"
assert by_evidence["test"] < by_loss["test"]
