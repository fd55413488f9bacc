"""
Two moons with two labels
=========================

RKHS figure 1. A kernel machine sees one label of each moon and, at every point, labelled or not, that f
should be flat there. As the strength ν of that wish grows, f can change only where there are no points, and
the boundary moves into the gap between the moons. Above: logistic loss of labels, squared loss of slopes.
Below: hinge loss, ε-insensitive loss. ε has the unit of a slope, and slopes are small once ν is large: with
the usual ε = 0.1 nearly all of them are free, so it is 0.01 here.

`python examples/two_moons.py --out DIR` writes `two_moons.png` and `two_moons.json`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from sklearn.datasets import make_moons

from orbitwise import InvariantSVC
from orbitwise.functionals import Gradient
from orbitwise.losses import EpsilonInsensitive

parser = argparse.ArgumentParser(description="Two moons, two labels, flat at all points (RKHS figure 1).")
parser.add_argument("--out", type=Path, default=Path("build/two_moons"), help="folder for the results")
parser.add_argument("--draws", type=int, default=10, help="further pairs of labels")
options = parser.parse_known_args()[0]
out = options.out
out.mkdir(parents=True, exist_ok=True)

STRENGTHS, BANDWIDTH, EPSILON = (0.0, 0.01, 0.1, 1.0), 0.25, 0.01
x, y = map(np.asarray, make_moons(200, noise=0.05, random_state=1))
rng = np.random.default_rng(0)


def draw(num_labels: int) -> np.ndarray:
    """Rows to label, as many of each moon."""
    each = [rng.choice(np.flatnonzero(y == label), num_labels // 2, replace=False) for label in (0, 1)]
    return np.concatenate(each)


def fit(labelled: np.ndarray, **settings: Any) -> tuple[Any, float]:
    """A machine, and its accuracy on the points without a label."""
    others = np.setdiff1d(np.arange(len(x)), labelled)
    # the name "gradient" counts slopes in bandwidths; the functional, as the figure does, in units of x
    machine = InvariantSVC(invariance=Gradient(), bandwidth=BANDWIDTH, **settings)
    machine.fit(x[labelled], y[labelled], unlabeled=x[others])
    return machine, float(machine.score(x[others], y[others]))


# %%
# The figure's machines
# ---------------------
# The two labels are those in the middle of the moons' arcs; further pairs are drawn at random.

rows: dict[str, dict[str, Any]] = {
    "logistic, squared": {"loss": "logistic", "invariance_loss": "squared"},
    f"hinge, ε = {EPSILON}": {"loss": "hinge", "invariance_loss": EpsilonInsensitive(EPSILON)},
    "hinge, ε = 0.1": {"loss": "hinge", "invariance_loss": "epsilon_insensitive"},
}
middles = np.array([[0.0, 1.0], [1.0, -0.5]])
pair = np.array(
    [np.flatnonzero(y == label)[((x[y == label] - middles[label]) ** 2).sum(1).argmin()] for label in (0, 1)]
)
pairs = [draw(2) for _ in range(options.draws)]
machines: dict[str, list[Any]] = {}
record: dict[str, Any] = {"strengths": STRENGTHS, "accuracy": {}, "drawn_accuracy": {}}
print(f"accuracy on unlabelled points; in brackets the mean over {len(pairs)} random pairs of labels")
print(" " * 18 + "".join(f"{f'ν = {strength:g}':>16s}" for strength in STRENGTHS))
for name, settings in rows.items():
    fitted = [fit(pair, C=1.0, strength=strength, **settings) for strength in STRENGTHS]
    drawn = [
        np.mean([fit(each, C=1.0, strength=strength, **settings)[1] for each in pairs] or [np.nan])
        for strength in STRENGTHS
    ]
    machines[name] = [machine for machine, _ in fitted]
    record["accuracy"][name] = [accuracy for _, accuracy in fitted]
    record["drawn_accuracy"][name] = [float(each) for each in drawn]
    cells = [f"{one:.3f} ({mean:.3f})" for (_, one), mean in zip(fitted, drawn, strict=True)]
    print(f"{name:18s}" + "".join(f"{cell:>16s}" for cell in cells))

# %%
# The strength by evidence
# ------------------------
# Two labels do not determine how flat f should be, because any two labels can be separated: what is usual
# decides then, and the evidence is that of a coin. Eight labels do.
# The evidence of the labels, given that slopes vanish, chooses ν and C with no label held out.

for count in (2, 8):
    labelled = pair if count == 2 else draw(count)
    chosen, accuracy = fit(labelled, strength="evidence")
    _, without = fit(labelled, strength=0.0, C=1.0)
    record[f"evidence_{count}"] = {
        "strength": chosen.strength_,
        "C": chosen.C_,
        "log_evidence": chosen.log_evidence_,
        "accuracy": accuracy,
        "accuracy_without": without,
    }
    print(
        f"{count} labels, by evidence: ν = {chosen.strength_:g}, C = {chosen.C_:.3g}, log evidence "
        f"{chosen.log_evidence_:.2f}, accuracy {accuracy:.3f} ({without:.3f} with ν = 0, C = 1)"
    )

# %%
# Picture and numbers
# -------------------

INK, BLUE, RED = "#22303a", "#0072b2", "#d55e00"
plt.rcParams.update({"font.size": 11, "text.color": INK, "axes.edgecolor": "#c9d0d5", "axes.labelcolor": INK})
shades = LinearSegmentedColormap.from_list("moons", ["#5fa9d6", "#d8e9f4", "#fdfdfd", "#fbe3d3", "#ee9a5f"])
low, high = x.min(0) - 0.35, x.max(0) + 0.35
across, up = np.linspace(low[0], high[0], 161), np.linspace(low[1], high[1], 121)
grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
shown = dict(list(machines.items())[:2])
figure, axes = plt.subplots(2, 4, figsize=(15, 5.6), layout="constrained", sharex=True, sharey=True)
for line, (name, row) in zip(axes, shown.items(), strict=True):
    for axis, machine, strength, accuracy in zip(line, row, STRENGTHS, record["accuracy"][name], strict=True):
        surface = machine.decision_function(grid).reshape(len(up), len(across))
        # f shrinks as ν grows, so every panel has its own scale
        largest = np.abs(machine.decision_function(x)).max()
        levels = largest * np.linspace(-1.2, 1.2, 25)
        axis.contourf(across, up, surface, levels=levels, cmap=shades, extend="both")
        axis.contour(across, up, surface, levels=[0.0], colors=INK, linewidths=2.2)
        for label, colour, marker in ((0, BLUE, "o"), (1, RED, "s")):
            own = y == label
            axis.scatter(*x[own].T, s=13, color=colour, alpha=0.75, linewidths=0)
            axis.scatter(
                *x[pair[label]],
                s=130,
                color=colour,
                marker=marker,
                edgecolors="white",
                linewidths=2,
                zorder=3,
            )
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[], aspect="equal")
        axis.set_title(f"$\\nu$ = {strength:g}", loc="left", fontweight="bold", fontsize=12.5)
        axis.set_title(f"accuracy {100 * accuracy:.1f} %", loc="right", fontsize=10.5)
labels = (
    "logistic loss of labels,\nsquared loss of slopes",
    "hinge loss of labels,\nε-insensitive loss of slopes",
)
for axis, label in zip(axes[:, 0], labels, strict=True):
    axis.set_ylabel(label, fontsize=12)
figure.savefig(out / "two_moons.png", dpi=140)
(out / "two_moons.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
print(f"wrote {out / 'two_moons.png'} and {out / 'two_moons.json'}")

# %%
for name in ("logistic, squared", f"hinge, ε = {EPSILON}"):
    assert record["accuracy"][name][0] < 0.9 < 0.99 < record["accuracy"][name][-1]
