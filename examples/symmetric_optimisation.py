"""
Five turbines on a ridge
========================

Bayesian optimisation of a symmetric function: a kernel that knows the symmetry needs fewer evaluations.

Where should five turbines stand along a ridge? Their order means nothing, so the yield is invariant to
permutations of the five coordinates. `FunctionalKernel` gives a BoTorch `SingleTaskGP` that symmetry, and
everything else of BoTorch stays as it is.

A site has its own wind, and turbines that stand close take wind from each other. One evaluation is an
expensive simulation. Every evaluation tells the same about all 120 orders of the five places, if the model
knows that they are the same.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orbitwise.functionals import OrbitAverage
from orbitwise.orbits import FiniteOrbit
from orbitwise.process import FunctionalKernel
from orbitwise.transforms import coordinate_permutations

NUM_TURBINES = 5
# place, height and width of the windy spots, and how far a turbine takes wind from another
PEAKS = torch.tensor([[0.14, 1.0, 0.10], [0.42, 0.8, 0.16], [0.71, 1.1, 0.11], [0.93, 0.6, 0.13]])
REACH = 0.15
COLOURS = {"plain": "#8a8f98", "invariant": "#0b6e99"}

parser = argparse.ArgumentParser(description="Bayesian optimisation of a symmetric function.")
parser.add_argument(
    "--out", type=Path, default=Path("results"), help="folder for the picture and the numbers"
)
parser.add_argument("--seeds", type=int, default=4, help="number of independent runs")
parser.add_argument("--start", type=int, default=6, help="random evaluations to start with")
parser.add_argument("--steps", type=int, default=14, help="evaluations that the model chooses")
options = parser.parse_args()

# %%
# The function
# ------------
#
# The yield is the sum of the wind at the five places, minus what neighbours take from each other.


def yields(x: Tensor) -> Tensor:
    """The yield of turbines at x [n, 5], each between 0 and 1."""
    place, height, width = PEAKS.to(x).unbind(-1)
    wind = (height * torch.exp(-0.5 * ((x[..., None] - place) / width).square())).sum((-1, -2))
    apart = x[..., :, None] - x[..., None, :]
    taken = torch.exp(-0.5 * (apart / REACH).square()).sum((-1, -2)) - x.shape[-1]
    return wind - taken / 2


def best_yield() -> float:
    """The best yield: the best of a grid, where by symmetry ordered places are enough, then uphill."""
    grid = torch.combinations(
        torch.linspace(0, 1, 26, dtype=torch.float64), NUM_TURBINES, with_replacement=True
    )
    x = grid[yields(grid).argmax()][None].requires_grad_()
    search = torch.optim.LBFGS([x], max_iter=50, line_search_fn="strong_wolfe")

    def downhill() -> Tensor:
        search.zero_grad()
        loss = -yields(x).sum()
        loss.backward()
        return loss

    search.step(downhill)
    return float(yields(x.detach().clamp(0, 1)))


# %%
# The two kernels
# ---------------
#
# They differ in one line. The average over all orders has a larger variance where places coincide, because
# fewer of its 120 points are different; an acquisition function would go there for that reason alone. So the
# rows are normalised: every place has the same prior variance.


def kernel(name: str) -> Kernel:
    base = RBFKernel(lengthscale_prior=LogNormalPrior(-1.5, 0.7))
    if name == "invariant":
        orbit = FiniteOrbit(coordinate_permutations(NUM_TURBINES))
        return ScaleKernel(FunctionalKernel(base, OrbitAverage(orbit), normalize=True))
    return ScaleKernel(base)


# %%
# The loop
# --------
#
# Fit, maximise the expected improvement, evaluate, repeat. Both start from the same random places.


def optimise(name: str, seed: int) -> list[float]:
    """The best yield so far after every evaluation."""
    torch.manual_seed(seed)
    x = torch.rand(options.start, NUM_TURBINES, dtype=torch.float64)
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, NUM_TURBINES)
    for _ in range(options.steps):
        y = yields(x)[:, None]
        model = SingleTaskGP(x, y, train_Yvar=torch.full_like(y, 1e-5), covar_module=kernel(name))
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 25}}
        )
        candidate, _ = optimize_acqf(
            LogExpectedImprovement(model, best_f=y.max()),
            bounds,
            q=1,
            num_restarts=2,
            raw_samples=32,
            options={"maxiter": 25},
        )
        x = torch.cat([x, candidate])
    return yields(x).cummax(0).values.tolist()


console = Console(width=100)
# A fit that stops at its limit of iterations is good enough for the next point.
warnings.filterwarnings("ignore", module="botorch")
truth, seconds, runs = best_yield(), {}, {}
for name in COLOURS:
    begin = time.perf_counter()
    runs[name] = torch.tensor([optimise(name, seed) for seed in range(options.seeds)], dtype=torch.float64)
    seconds[name] = time.perf_counter() - begin

# %%
# What the symmetry is worth
# --------------------------
#
# The table shows how far the best yield found stays below the best there is, with standard errors over
# independent runs. Runs of both kernels start from the same places, so their difference is known better than
# either of them.

short = {name: 100 * (1 - run / truth) for name, run in runs.items()}
short["difference"] = short["plain"] - short["invariant"]
mean = {name: each.mean(0) for name, each in short.items()}
error = {name: each.std(0) / math.sqrt(options.seeds) for name, each in short.items()}
total = options.start + options.steps
shown = sorted({*range(options.start, total, max(1, options.steps // 4)), total})

table = Table(title=f"Shortfall of the best yield, % (mean ± s.e. of {options.seeds} runs)")
table.add_column("evaluations", justify="right")
for name in short:
    table.add_column(name, justify="right")
for count in shown:
    table.add_row(
        str(count), *(f"{mean[name][count - 1]:.1f} ± {error[name][count - 1]:.1f}" for name in short)
    )
table.add_row("seconds a run", *(f"{seconds[name] / options.seeds:.1f}" for name in COLOURS), "")
console.print(table)

options.out.mkdir(parents=True, exist_ok=True)
numbers = {
    "best": truth,
    "start": options.start,
    "seconds": seconds,
    "best_so_far": {name: run.tolist() for name, run in runs.items()},
}
(options.out / "symmetric_optimisation.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")

# %%
plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
figure, axis = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
chosen = torch.arange(options.start, total + 1)
for name, colour in COLOURS.items():
    middle, spread = mean[name][options.start - 1 :], error[name][options.start - 1 :]
    axis.fill_between(chosen, middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)
    axis.plot(chosen, middle, color=colour, linewidth=2.4, label=f"{name} kernel")
axis.set(xlim=(options.start, total), xlabel="evaluations", ylabel="shortfall of the best yield, %")
axis.set_ylim(bottom=0)
axis.xaxis.set_major_locator(MaxNLocator(integer=True))
axis.set_title("Five turbines: their order does not matter", loc="left")
axis.grid(axis="y", color="#e6e6e6", linewidth=0.6)
axis.legend(frameon=False)
figure.savefig(options.out / "symmetric_optimisation.png", dpi=140)
console.print(f"wrote {options.out / 'symmetric_optimisation.png'} and symmetric_optimisation.json")

# %%
# With all runs and steps the kernel that knows the symmetry ends closer to the best.

if options.seeds >= 4 and options.steps >= 14:
    assert mean["invariant"][-1] < mean["plain"][-1]
else:
    assert all(run.max() <= truth for run in runs.values())
