"""
Covariance matrices, lengthscales, and where the RBF kernel comes from
======================================================================

A Gaussian process says how values at different places go together: `k(x, x′) = exp(−|x − x′|²/2l²)`
says that near places have like values, and the lengthscale l says what is near (Lecture 2.5, figure 9). The
same kernel is a linear model with infinitely many bumps: J bumps of width l side by side, each with an
independent weight, tend to an RBF kernel as J grows. Its lengthscale is √2·l, not l as the lecture
prints: the product of two bumps, `exp(−(x−c)²/2l²)·exp(−(x′−c)²/2l²)`, integrates over c to a multiple
of `exp(−(x−x′)²/4l²)`.

`python examples/covariance_and_lengthscale.py --out DIR` writes `covariance_and_lengthscale.png` and
`.json`.
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation
from orbitwise.inference.exact import sample_prior
from orbitwise.kernels import BasisKernel, BumpBasis
from orbitwise.process import Process

parser = argparse.ArgumentParser(description="Lengthscales, and the RBF kernel as a limit of bumps.")
parser.add_argument("--out", type=Path, default=Path("build/covariance_and_lengthscale"), help="folder")
out = parser.parse_known_args()[0].out
out.mkdir(parents=True, exist_ok=True)

LENGTHSCALES, WIDTH, SPAN = (0.15, 0.6, 2.5), 0.6, 12.0
NUMBERS = (8, 12, 20, 28, 48, 100, 200)
x = torch.linspace(-3, 3, 181, dtype=torch.float64)[:, None]


def rbf(lengthscale: float) -> RBFKernel:
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


# %%
# Three lengthscales
# ------------------
# The covariance matrix of 181 places, its profile along one row, and functions drawn with it.

matrices = {length: Process(None, rbf(length)).covariance(Evaluation().atoms(x)) for length in LENGTHSCALES}
draws = {
    length: sample_prior(
        Process(None, rbf(length)), Evaluation().atoms(x), 3, torch.Generator().manual_seed(6)
    )
    for length in LENGTHSCALES
}


def crossings(values: Tensor) -> float:
    """How often a function changes its sign from one place to the next, per unit of x."""
    return ((values[1:] * values[:-1]) < 0).double().sum(0).mean().item() / 6


rates = {}
for length in LENGTHSCALES:
    many = sample_prior(
        Process(None, rbf(length)), Evaluation().atoms(x), 2000, torch.Generator().manual_seed(1)
    )
    rates[length] = crossings(many)
    # Rice's formula: a process with this kernel crosses zero 1/(π l) times a unit
    rice = 1 / (math.pi * length)
    print(f"l = {length}: {rates[length]:.3f} zero crossings a unit, {rice:.3f} by Rice's formula")


# %%
# Bumps tend to an RBF kernel of lengthscale √2·l
# -----------------------------------------------
# J bumps of width l, spread over [−12, 12] so that the ends are far away, each weight with the variance
# that makes the limit's variance 1: spacing/(√π·l).


def bumps(number: int) -> BasisKernel:
    centres = torch.linspace(-SPAN, SPAN, number, dtype=torch.float64)[:, None]
    kernel = BasisKernel(BumpBasis(centres, WIDTH)).double().requires_grad_(False)
    kernel.variance = 2 * SPAN / (number - 1) / (math.sqrt(math.pi) * WIDTH)
    return kernel


# places that no regular grid of centres meets in the same way
inside = torch.linspace(-1.7, 1.9, 91, dtype=torch.float64)[:, None]
limit, printed = (rbf(length)(inside).to_dense() for length in (math.sqrt(2) * WIDTH, WIDTH))
errors = {n: (bumps(n)(inside).to_dense() - limit).abs().max().item() for n in NUMBERS}
wrong = {n: (bumps(n)(inside).to_dense() - printed).abs().max().item() for n in NUMBERS}
for n in NUMBERS:
    print(f"J = {n:4d}: {errors[n]:.1e} from lengthscale √2·l, {wrong[n]:.1e} from lengthscale l")

# %%
# Picture and numbers
# -------------------

INK, FAINT = "#22303a", "#c9d0d5"
COLOURS = ("#d55e00", "#0072b2", "#007a5a")
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
figure = plt.figure(figsize=(14.5, 10.2), layout="constrained")
grid = figure.add_gridspec(3, 6, height_ratios=(1, 0.72, 0.9))
for column, (length, colour) in enumerate(zip(LENGTHSCALES, COLOURS, strict=True)):
    top = figure.add_subplot(grid[0, 2 * column : 2 * column + 2])
    image = top.imshow(matrices[length].numpy(), cmap="magma", vmin=0, vmax=1, extent=(-3, 3, 3, -3))
    top.set_title(f"$l = {length}$", color=colour)
    top.set(xticks=[-3, 0, 3], yticks=[-3, 0, 3], xlabel="$x'$")
    if column == 0:
        top.set_ylabel("$x$")
    if column == 2:
        figure.colorbar(image, ax=top, label="$k(x, x')$", ticks=[0, 0.5, 1], shrink=0.9)
    below = figure.add_subplot(grid[1, 2 * column : 2 * column + 2])
    for k, values in enumerate(draws[length].T):
        below.plot(x[:, 0], values, color=colour, linewidth=1.8, alpha=(1, 0.65, 0.4)[k])
    below.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    below.set(xlim=(-3, 3), ylim=(-3, 3), yticks=[-2, 0, 2], xlabel="$x$")
    if column == 0:
        below.set_ylabel("draws of $f$")
profile = figure.add_subplot(grid[2, :2])
distance = torch.linspace(0, 3, 301)
for length, colour in zip(LENGTHSCALES, COLOURS, strict=True):
    profile.plot(
        distance,
        torch.exp(-0.5 * (distance / length) ** 2),
        color=colour,
        linewidth=2.4,
        label=f"$l = {length}$",
    )
profile.set(xlim=(0, 3), ylim=(0, 1.04), xlabel="distance $\\tau$", ylabel="$k(\\tau)$")
profile.set_title("How far values go together")
profile.legend(frameon=False)
limits = figure.add_subplot(grid[2, 2:4])
line = torch.linspace(-3, 3, 401, dtype=torch.float64)[:, None]
centre = torch.tensor([[0.25]], dtype=torch.float64)
for n, shade in zip((12, 20, 28), ("#bcd4e6", "#7fb0d4", "#2f86bf"), strict=True):
    limits.plot(
        line[:, 0], bumps(n)(line, centre).to_dense()[:, 0], color=shade, linewidth=2, label=f"{n} bumps"
    )
limits.plot(
    line[:, 0],
    rbf(math.sqrt(2) * WIDTH)(line, centre).to_dense()[:, 0],
    "--",
    color=INK,
    linewidth=1.5,
    label="RBF, $\\sqrt{2}\\,l$",
)
limits.plot(
    line[:, 0],
    rbf(WIDTH)(line, centre).to_dense()[:, 0],
    ":",
    color="#d55e00",
    linewidth=1.8,
    label="RBF, $l$ (as printed)",
)
limits.set(xlim=(-3, 3), ylim=(0, 1.75), xlabel="$x$", ylabel="$k(x, 0.25)$", yticks=[0, 0.5, 1])
limits.set_title(f"Bumps of width $l = {WIDTH}$ tend to an RBF kernel")
limits.legend(frameon=False, fontsize=9.5, ncols=2, loc="upper center")
falls = figure.add_subplot(grid[2, 4:])
falls.semilogy(
    NUMBERS,
    [max(errors[n], 1e-16) for n in NUMBERS],
    "o-",
    color=INK,
    linewidth=2,
    label="from RBF, $\\sqrt{2}\\,l$",
)
falls.semilogy(
    NUMBERS, list(wrong.values()), "o:", color="#d55e00", linewidth=2, label="from RBF, $l$ (as printed)"
)
falls.set(xscale="log", xlabel="bumps $J$ on $[-12, 12]$", ylabel="greatest difference", ylim=(1e-17, 10))
falls.set_xticks(NUMBERS, [str(n) for n in NUMBERS])
falls.minorticks_off()
falls.set_title("To rounding, and only for $\\sqrt{2}\\,l$")
falls.legend(frameon=False, fontsize=10, loc="lower left")
figure.savefig(out / "covariance_and_lengthscale.png", dpi=130)
record = {
    "crossings": {str(length): rate for length, rate in rates.items()},
    "width": WIDTH,
    "differences": {str(n): value for n, value in errors.items()},
    "differences_as_printed": {str(n): value for n, value in wrong.items()},
}
(out / "covariance_and_lengthscale.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'covariance_and_lengthscale.png'} and {out / 'covariance_and_lengthscale.json'}")

# %%
# Functions cross zero 1/(πl) times per unit (Rice), and the largest difference falls to rounding.

assert all(abs(rate * math.pi * length - 1) < 0.05 for length, rate in rates.items())
assert list(errors.values())[-1] < 1e-12
