"""
Digits, and what their class does not care about
================================================

LIM figure 1: how far may a digit be turned, stretched, sheared, moved and bent before it is another one?
The ranges are parameters of the prior, and the *marginal likelihood of the training labels* learns them: no
validation set, and no augmented copies of the data.

`python examples/learned_orbit.py --out DIR` writes `learned_orbit.png` and `learned_orbit.json`. The digits
are the 8×8 ones of scikit-learn; `--mnist` takes those of MNIST from the folder that ORBITWISE_DATA names.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

from orbitwise import compare, datasets
from orbitwise.orbits.certainty import Certainty, unit_of

parser = argparse.ArgumentParser(description="Learned orbits of digits (LIM figure 1).")
parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for picture and numbers")
parser.add_argument("--num-train", type=int, default=300)
parser.add_argument("--num-test", type=int, default=1500, help="at most")
parser.add_argument("--num-nodes", type=int, default=8, help="points of the orbit that learning looks at")
parser.add_argument("--max-iterations", type=int, default=15)
parser.add_argument("--mnist", action="store_true", help="28×28 images, where ORBITWISE_DATA has them")
arguments = parser.parse_known_args()[0]
arguments.out.mkdir(parents=True, exist_ok=True)
console = Console(width=120)

# %%
# Data
# ----

data = datasets.load("mnist" if arguments.mnist else "digits")
images, labels = (data.x_train, data.y_train) if arguments.mnist else (data.x, data.y)
if arguments.mnist:
    images, labels = images[:3000], labels[:3000]
image_shape = images.shape[1:]
images = images.reshape(len(images), -1).astype(np.float64)
order = np.random.default_rng(0).permutation(len(images))
train, test = order[: arguments.num_train], order[arguments.num_train :][: arguments.num_test]

# %%
# Which invariance do the labels support?
# ---------------------------------------
#
# Ranges are searched for from several starts of natural size. The evidence is exact for the fixed points of
# the orbit that are used; the error is its deviation over other choices of these points.

comparison = compare(
    images[train],
    labels[train],
    invariances=(None, "rotation", "affine", "affine+deformation"),
    image_shape=image_shape,
    num_nodes=arguments.num_nodes,
    max_iterations=arguments.max_iterations,
    random_state=0,
)
console.print(comparison.table())
models = {candidate.name: candidate.estimator for candidate in comparison.candidates}
test_errors = {
    name: float(np.mean(model.predict(images[test]) != labels[test])) for name, model in models.items()
}
for name, error in test_errors.items():
    console.print(f"{name:20s} test error {100 * error:.2f} % of {len(test)} digits, which no model has seen")

# %%
# How far?
# --------
#
# The number after ± is one standard error of the upper end, from the curvature of the evidence and from
# changes with other points of the orbit. A range that is zero, or that is smaller than its uncertainty, is
# shown with the 95 % interval of its end instead. Few points (`--num-nodes`) are fast, but make ranges too
# narrow.


def ranges(model) -> list[dict]:
    """The upper end of each learned range with how sure it is, in the units of the orbit."""
    rows = []
    errors, intervals = model.orbit_errors_, model.orbit_intervals_
    for name, interval in model.orbit_.learned().items():
        unit = unit_of(name, model.orbit_.units())
        known = Certainty(name, unit, interval, errors[name], intervals[name])
        rows.append(
            {
                "name": name,
                "end": unit.convert(interval[1]),
                "error": known.shown_error,
                "unit": unit.symbol,
                "certainty": known.text(),
            }
        )
    return rows


learned = {name: ranges(models[name]) for name in ("rotation", "affine+deformation")}
table = Table(title="Learned ranges (upper ends)", title_justify="left", title_style="bold")
for heading in ("invariance", "range", "upper end", "how sure"):
    table.add_column(heading, justify="right" if heading == "upper end" else "left")
for name, rows in learned.items():
    for row in rows:
        table.add_row(name, row["name"], f"{row['end']:.3g}{row['unit']}", row["certainty"])
    table.add_section()
console.print(table)
chosen = models["affine+deformation"]
console.print(f"affine+deformation: {chosen.orbit_.describe()}")

summary = {
    "num_train": len(train),
    "candidates": [
        {
            "invariance": candidate.name,
            "log_evidence": candidate.log_evidence,
            "standard_error": candidate.standard_error,
            "test_error": test_errors[candidate.name],
            "seconds": candidate.seconds,
        }
        for candidate in comparison.candidates
    ],
    "learned": learned,
}
(arguments.out / "learned_orbit.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")

# %%
# A picture
# ---------
#
# An original in its frame, and random points of its learned orbit: f is the average of g over such images.

NUM_DIGITS, NUM_SAMPLES, INK, BLUE = 6, 8, "#22303a", "#0072b2"
plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 11, "text.color": INK})
rows = np.array([train[labels[train] == digit][0] for digit in np.unique(labels[train])[:10]])
rows = rows[[2, 3, 4, 5, 7, 9]] if len(rows) == 10 else rows[:NUM_DIGITS]
samples = chosen.sample_orbit(images[rows], n=NUM_SAMPLES, random_state=0)
figure = plt.figure(figsize=(10.2, 7.4))
figure.text(0.03, 0.962, "Digits and their learned orbits", fontsize=14, fontweight="bold", va="center")
figure.text(
    0.03, 0.925, f"affine maps and deformations, learned from the labels of {len(train)} images", va="center"
)
size, step = (0.1, 0.1 * 10.2 / 7.4), (0.104, 0.144)
for i, row in enumerate(rows):
    for j, image in enumerate([images[row], *samples[i]]):
        left = 0.03 + j * step[0] + (0.014 if j else 0)
        axes = figure.add_axes((left, 0.755 - i * step[1], *size))
        axes.imshow(
            image.reshape(image_shape), cmap="gray_r", vmin=0, vmax=images.max(), interpolation="nearest"
        )
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=BLUE if j == 0 else "#dfe4e7", linewidth=2.6 if j == 0 else 0.8)
figure.savefig(arguments.out / "learned_orbit.png", dpi=140)
console.print(f"wrote {arguments.out / 'learned_orbit.png'} and {arguments.out / 'learned_orbit.json'}")

# %%
evidence = {candidate.name: candidate.log_evidence for candidate in comparison.candidates}
assert evidence["none"] == min(evidence.values()), "every invariance here is worth something"
