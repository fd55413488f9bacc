"""
Support and inductive bias
==========================

A model spreads one unit of probability over all data sets that could be seen (Lecture 1.1, figures 2 to
4). What it can produce at all is its support; what it finds likely is its inductive bias. A simple model
puts much on few data sets and nothing on the rest; a flexible one without a bias puts a little on all; a
good one can produce all and puts most where data usually are. Here are *all* data sets of nine plus or
minus signs along a line, and the probability of each: a model draws f, and the signs of f are the data
set.

`python examples/inductive_bias.py --out DIR` writes `inductive_bias.png` and `inductive_bias.json`.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, OrbitAverage
from orbitwise.inference.exact import sample_prior
from orbitwise.kernels import BasisKernel, PolynomialBasis
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import Process
from orbitwise.transforms import negation

parser = argparse.ArgumentParser(description="The probability of all data sets under four models.")
parser.add_argument("--out", type=Path, default=Path("build/inductive_bias"), help="folder for the results")
parser.add_argument("--draws", type=int, default=600_000, help="functions drawn from each model")
options = parser.parse_known_args()[0]
out, num_draws = options.out, options.draws
out.mkdir(parents=True, exist_ok=True)

COUNT = 9
x = torch.linspace(-1, 1, COUNT, dtype=torch.float64)[:, None]


# %%
# Four models
# -----------
# - **simple**: a straight line, so the sign changes once at most: 18 data sets, and no other;
# - **flexible**: an RBF kernel so short that values at different places know nothing of each other;
# - **flexible, with a bias**: a longer RBF kernel. No data set is impossible, smooth ones are likely;
# - **with an invariance**: the same, averaged over x and −x: the support is the 32 symmetric data sets.


def rbf(lengthscale: float) -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


mirror = OrbitAverage(FiniteOrbit(negation(1)))
MODELS = {
    "simple: a straight line": (BasisKernel(PolynomialBasis(1)).double(), Evaluation()),
    "flexible: values that know nothing of each other": (rbf(0.02), Evaluation()),
    "flexible, with an inductive bias: smooth": (rbf(0.3), Evaluation()),
    "with an invariance: smooth, and f(−x) = f(x)": (rbf(0.3), mirror),
}


def frequencies(kernel, functional, generator: torch.Generator) -> Tensor:
    """How often each of the 2⁹ data sets comes out of the model, and hence its evidence."""
    places = 2 ** torch.arange(COUNT)
    counts = torch.zeros(2**COUNT, dtype=torch.float64)
    with torch.no_grad():
        rows = functional.atoms(x)
        process = Process(None, kernel)
        for size in [100_000] * (num_draws // 100_000) or [num_draws]:
            values = sample_prior(process, rows, size, generator)
            codes = ((values > 0) * places[:, None]).sum(0)
            counts += torch.bincount(codes, minlength=2**COUNT)
    return counts / counts.sum()


generator = torch.Generator().manual_seed(0)
evidence = {name: frequencies(*model, generator) for name, model in MODELS.items()}

# %%
# All data sets in order
# ----------------------
# They are sorted by how often the sign changes from one place to the next: from constant to alternating.

signs = 2 * ((torch.arange(2**COUNT)[:, None] // 2 ** torch.arange(COUNT)) % 2) - 1
changes = (signs.diff(dim=1) != 0).sum(1)
symmetric = (signs == signs.flip(1)).all(1)
order = torch.argsort(changes * 2 + ~symmetric, stable=True)
EXAMPLES = {
    "a step": [-1, -1, -1, -1, 1, 1, 1, 1, 1],
    "a hill": [-1, -1, 1, 1, 1, 1, 1, -1, -1],
    "noise": [-1, 1, 1, -1, 1, -1, -1, 1, -1],
}
codes = {
    name: int(((torch.tensor(row) + 1) // 2 * 2 ** torch.arange(COUNT)).sum())
    for name, row in EXAMPLES.items()
}
record: dict = {"num_draws": num_draws, "num_data_sets": 2**COUNT, "models": {}}
for name, probabilities in evidence.items():
    sure = probabilities[probabilities > 0]
    record["models"][name] = {
        "support": int((probabilities > 0).sum()),
        "perplexity": float(torch.exp(-(sure * sure.log()).sum())),
        "share_of_at_most_two_changes": float(probabilities[changes <= 2].sum()),
        "share_of_symmetric": float(probabilities[symmetric].sum()),
        **{what: float(probabilities[code]) for what, code in codes.items()},
    }
    print(f"{name}: ", {key: round(value, 6) for key, value in record["models"][name].items()})
best = {
    what: max(evidence, key=lambda name, code=code: evidence[name][code].item())
    for what, code in codes.items()
}
record["best"] = best
print("most evidence for", best)

# %%
# Picture and numbers
# -------------------

INK, FAINT = "#22303a", "#c9d0d5"
COLOURS = ("#d55e00", "#8b979f", "#0072b2", "#007a5a")
MARKS = {"a step": "#cc79a7", "a hill": "#009e73", "noise": "#5c6770"}
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)
figure = plt.figure(figsize=(14, 8.4), layout="constrained")
grid = figure.add_gridspec(4, 2, width_ratios=(1, 0.42))
place_of = torch.empty_like(order)
place_of[order] = torch.arange(len(order))
starts = [int((changes < k).sum()) for k in range(COUNT)]
LEAST = 0.3 / num_draws
for row, ((name, probabilities), colour) in enumerate(zip(evidence.items(), COLOURS, strict=True)):
    axis = figure.add_subplot(grid[row, 0])
    heights = probabilities[order].clamp_min(LEAST).numpy()
    axis.bar(np.arange(len(order)), heights, width=1.0, color=colour, bottom=0)
    axis.axhline(2.0**-COUNT, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axis.set(yscale="log", ylim=(1e-6, 1), xlim=(-2, len(order) + 1), yticks=[1e-6, 1e-4, 1e-2, 1])
    axis.set_title(name)
    axis.set_ylabel("$p(D\\mid$model$)$")
    for start in starts[1:]:
        axis.axvline(start - 0.5, color="white", linewidth=1.6)
        axis.axvline(start - 0.5, color=FAINT, linewidth=0.6)
    middles = [(a + b) / 2 for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]
    axis.set_xticks(middles, [str(k) for k in range(COUNT)] if row == 3 else [""] * COUNT)
    axis.tick_params(axis="x", length=0)
    for what, code in codes.items():
        height = max(probabilities[code].item(), 1e-6)
        axis.plot(
            place_of[code].item(),
            height,
            "v",
            color=MARKS[what],
            markersize=9,
            markeredgecolor="white",
            clip_on=False,
            zorder=5,
        )
    if row == 0:
        axis.text(len(order), 2.0**-COUNT * 1.5, "all equally", ha="right", fontsize=9.5)
    if row == 3:
        axis.set_xlabel("all 512 data sets of nine signs, by the number of sign changes")
shown = figure.add_subplot(grid[:2, 1])
for level, (what, row) in enumerate(EXAMPLES.items()):
    base = -2.1 * level
    shown.hlines(base, -1.1, 1.1, color=FAINT, linewidth=0.8)
    shown.vlines(x[:, 0], base, base + 0.6 * np.array(row), color=MARKS[what], linewidth=1.6)
    shown.plot(x[:, 0], base + 0.6 * np.array(row), "o", color=MARKS[what], markersize=7)
    shown.text(-1.15, base, what, ha="right", va="center", color=MARKS[what], fontweight="bold")
shown.set(xlim=(-1.6, 1.1), ylim=(-5.2, 0.95), xticks=[-1, 0, 1], yticks=[], xlabel="$x$")
shown.spines["left"].set_visible(False)
shown.set_title("Three data sets")
table = figure.add_subplot(grid[2:, 1])
positions = np.arange(len(codes))
for k, (probabilities, colour) in enumerate(zip(evidence.values(), COLOURS, strict=True)):
    heights = [max(probabilities[code].item(), LEAST) for code in codes.values()]
    table.bar(positions + 0.2 * (k - 1.5), heights, width=0.18, color=colour)
table.axhline(2.0**-COUNT, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
table.set(yscale="log", ylim=(1e-6, 1), ylabel="$p(D\\mid$model$)$")
table.set_xticks(positions, list(codes))
for label, what in zip(table.get_xticklabels(), codes, strict=True):
    label.set(color=MARKS[what], fontweight="bold")
table.tick_params(axis="x", length=0)
table.set_title("Their evidence (no bar: never drawn)")
figure.savefig(out / "inductive_bias.png", dpi=130)
(out / "inductive_bias.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'inductive_bias.png'} and {out / 'inductive_bias.json'}")

# %%
line, *_, mirrored = record["models"].values()
assert line["support"] == 18
assert mirrored["share_of_symmetric"] == 1
