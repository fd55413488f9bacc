"""
Total variation keeps a jump
============================

The total variation `∫|f′(x)|dx` is not linear in f, but it is an absolute loss of functionals that are: the
slopes f′(x) at the nodes of a quadrature (RKHS section 7). A squared loss of the same slopes pays for a
jump by its height squared over its width: where it is weak it leaves the noise, where it is strong it
smears the jump. The absolute loss pays for the height alone. Coordinates picked by steepness are few.

`python examples/total_variation.py --out DIR` writes `total_variation.png` and `total_variation.json`.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from orbitwise.functionals import Evaluation, total_variation
from orbitwise.inference.risk import DenseGram, Problem, Solution, Term, coordinate_descent, newton
from orbitwise.losses import EpsilonInsensitive, Loss, Squared
from orbitwise.process import Process

parser = argparse.ArgumentParser(description="Squared against absolute slopes on a noisy step function.")
parser.add_argument("--out", type=Path, default=Path("build/total_variation"), help="folder for the results")
parser.add_argument("--num-nodes", type=int, default=400, help="slopes in [0, 1]")
parser.add_argument("--most", type=int, default=120, help="coordinates that may be picked")
options = parser.parse_known_args()[0]
out, num_nodes, most = options.out, options.num_nodes, options.most
out.mkdir(parents=True, exist_ok=True)

NUM_DATA, NOISE, LENGTHSCALE, RATE = 80, 0.15, 0.02, 300.0
CLOSE = 0.01
"""How far above the least risk, relatively, counts as close."""


# %%
# Data: two jumps
# ---------------


def truth(x: Tensor) -> Tensor:
    return 1.0 * (x > 0.35) - 0.6 * (x > 0.7)


generator = torch.Generator().manual_seed(0)
x = torch.rand(NUM_DATA, 1, generator=generator, dtype=torch.float64).sort(0).values
y = truth(x[:, 0]) + NOISE * torch.randn(NUM_DATA, generator=generator, dtype=torch.float64)
grid = torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None]

# %%
# Rows
# ----
# Both values at the data and slopes at the nodes are rows; a constant is not penalised. The kernel is narrow
# and the labels have large weights, so that the slopes, not `|f|²`, keep f from following the noise.

kernel = RBFKernel().double()
kernel.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
process = Process(None, kernel).requires_grad_(False)
variation = total_variation(0.0, 1.0, num_nodes)
rows = [Evaluation().atoms(x), variation.slope.atoms(variation.points)]


def beside(left: list, right: list) -> Tensor:
    """Covariances of all rows on the left with all on the right."""
    return torch.cat([torch.cat([process.covariance(one, two) for two in right], 1) for one in left])


gram, to_grid = DenseGram(beside(rows, rows)), beside([Evaluation().atoms(grid)], rows)
basis = torch.cat([torch.ones(NUM_DATA, 1), torch.zeros(num_nodes, 1)]).double()
penalties: dict[str, tuple[Loss, tuple[float, ...]]] = {
    "squared": (Squared(), (1e-3, 3e-3, 1e-2, 0.1)),
    "absolute": (EpsilonInsensitive(0.0, width=0.2), (0.1, 0.3, 0.5, 1.0)),
}


def problem_of(loss: Loss, strength: float) -> Problem:
    """Σ (f(x_i) - y_i)² + strength ∫ loss(f′), both RATE times against ½|f|²."""
    labels = Term(Squared(), y, torch.full_like(y, RATE))
    slopes = Term(loss, torch.zeros_like(variation.weights), RATE * strength * variation.weights)
    return Problem(gram, [labels, slopes], basis)


def curve(solution: Solution) -> Tensor:
    return to_grid @ solution.coefficients + solution.beta


def error(f: Tensor) -> float:
    return (f - truth(grid[:, 0])).square().mean().sqrt().item()


# %%
# Each penalty at its best
# ------------------------
# The strength is the one, of four, with the least error from the true function, so that neither penalty loses
# by its strength. Newton's method on all rows finds the least risk; then coordinates are picked one by one,
# each where the risk falls most steeply.

fits, record = {}, {}
for name, (loss, strengths) in penalties.items():
    solved = {strength: newton(problem_of(loss, strength)) for strength in strengths}
    strength = min(solved, key=lambda each: error(curve(solved[each])))
    problem, least = problem_of(loss, strength), solved[strength].objective.item()
    picked = coordinate_descent(problem, "steepest", growth=0.0, tolerance=1e-5, max_coordinates=most)
    f, strongest = curve(picked), curve(solved[max(strengths)])
    excess = [risk / least - 1 for risk in picked.history]
    fits[name] = (f, picked, excess, strongest)
    record[name] = {
        "strength": strength,
        "error": error(f),
        "error_of_least_risk": error(curve(solved[strength])),
        "error_of_strongest": error(strongest),
        "total_variation": f.diff().abs().sum().item(),
        "steepest_slope": (f.diff().abs().max() / (grid[1, 0] - grid[0, 0])).item(),
        "coordinates": next((count for count, part in enumerate(excess) if part <= CLOSE), None),
        "excess": excess[-1],
    }
    print(
        f"{name:8s} slopes, strength {strength}: error {record[name]['error']:.3f}, total variation "
        f"{record[name]['total_variation']:.2f}, steepest slope {record[name]['steepest_slope']:.0f}; "
        f"{record[name]['coordinates']} of {gram.num_rows} coordinates come within {100 * CLOSE:.0f} %"
        " of the least risk"
    )
print(f"true total variation 1.60, noise {NOISE}, {NUM_DATA} data, {num_nodes} slopes")

# %%
# Coordinates drawn at random, a fifth more each round, need more of them.

GROWTH = 0.2
problem = problem_of(penalties["absolute"][0], record["absolute"]["strength"])
seeded = torch.Generator().manual_seed(0)
random = coordinate_descent(
    problem, "random", growth=GROWTH, tolerance=1e-5, max_coordinates=most, generator=seeded
)
counts = [0]
while counts[-1] < most and len(counts) < len(random.history):
    counts.append(min(most, counts[-1] + max(1, int(GROWTH * counts[-1]))))
least = min(fits["absolute"][1].history) / (1 + fits["absolute"][2][-1])
random_excess = [risk / least - 1 for risk in random.history]
record["random"] = {"coordinates": counts[-1], "excess": random_excess[-1]}
print(
    f"{counts[-1]} coordinates: {random_excess[-1]:.1e} above the least risk by chance, "
    f"{record['absolute']['excess']:.1e} by steepness"
)

# %%
# Picture and numbers
# -------------------

INK, FAINT, SQUARED, ABSOLUTE = "#22303a", "#c9d0d5", "#d55e00", "#0072b2"
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12.5,
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
figure, axes = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained", width_ratios=(1, 1, 0.85))
titles = {"squared": "Squared slopes  $\\int f'^2$", "absolute": "Absolute slopes  $\\int |f'|$"}
places = torch.cat([x[:, 0], variation.points[:, 0]])
for axis, (name, (f, picked, _, strongest)), colour in zip(
    axes, fits.items(), (SQUARED, ABSOLUTE), strict=False
):
    axis.plot(x[:, 0], y, "o", color="#8b979f", markersize=4, markeredgewidth=0, label="data")
    axis.plot(grid[:, 0], truth(grid[:, 0]), color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="truth")
    axis.plot(grid[:, 0], f, color=colour, linewidth=2.4, label="$f$")
    if name == "squared":
        axis.plot(grid[:, 0], strongest, color=colour, linewidth=1.2, alpha=0.7, label="stronger")
    chosen = places[picked.coefficients != 0]
    axis.plot(
        chosen, torch.full_like(chosen, -0.62), "|", color=colour, markersize=9, alpha=0.7, label="picked"
    )
    axis.set(xlim=(0, 1), ylim=(-0.72, 1.55), xlabel="$x$")
    axis.set_title(titles[name], pad=24)
    size = record[name]["total_variation"]
    note = f"error {record[name]['error']:.3f}    total variation {size:.1f} (true 1.6)"
    axis.text(0, 1.025, note, transform=axis.transAxes, fontsize=10.5)
    axis.legend(
        frameon=False,
        ncols=5,
        loc="center",
        bbox_to_anchor=(0.5, 0.13),
        fontsize=9.5,
        columnspacing=1,
        handlelength=1.4,
        handletextpad=0.4,
    )
axes[2].semilogy(counts, random_excess, color="#8b979f", linewidth=2.2, label="absolute, random")
axes[2].semilogy(fits["absolute"][2], color=ABSOLUTE, linewidth=2.4, label="absolute, steepest")
axes[2].semilogy(fits["squared"][2], color=SQUARED, linewidth=2.4, label="squared, steepest")
axes[2].axhline(CLOSE, color=INK, linewidth=1, linestyle=(0, (4, 3)))
axes[2].set_title("Few coordinates are enough", pad=24)
axes[2].text(0, 1.025, f"of {gram.num_rows} rows", transform=axes[2].transAxes, fontsize=10.5)
axes[2].set(xlim=(0, most), xlabel="coordinates picked", ylabel="risk above the least, relative")
axes[2].grid(axis="y", color=FAINT, linewidth=0.6)
axes[2].legend(frameon=False, fontsize=10, loc="lower left")
figure.savefig(out / "total_variation.png", dpi=140)
record = {"num_data": NUM_DATA, "num_nodes": num_nodes, "noise": NOISE, **record}
(out / "total_variation.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'total_variation.png'} and {out / 'total_variation.json'}")

# %%
assert record["absolute"]["error"] < record["squared"]["error"]
