"""How many images a learned invariance is worth: the error of MNIST against the number of training images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from orbitwise.reproduce.images import (
    COLOURS,
    RBF,
    difference_error,
    fitted,
    legend,
    load_images,
    mean_over,
    orbit_of,
    source_of,
)
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import over_seeds

LEARNED = "affine+deformation"
MODELS = (RBF, LEARNED)


def run(
    images: Mapping[str, Any], model: str, settings: Mapping[str, Any], seed: int, device: str
) -> Numbers:
    """One fit to a random part of the training images."""
    found = load_images(**images, seed=seed)
    return fitted(found, orbit_of(model, found.shape), settings, seed, device)[1]


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Both models on every size; at full scale the classifier chooses its engine."""
    source = source_of(setting, (60, 1000, 60_000))
    sizes = setting.pick((40, 80), (40, 130, 400), (312, 1250, 5000, 20_000, 60_000))
    found = {}
    for size in sizes:
        settings: dict[str, Any] = setting.pick(
            {"inference": "collapsed", "num_inducing": 20, "num_nodes": 2, "max_iterations": 2},
            {"inference": "exact", "num_nodes": 16, "max_iterations": 30},
            {"num_inducing": "auto" if size <= 5000 else min(size, 40_000)},
        )
        for model in MODELS:
            for seed in setting.seeds:
                options = {
                    "images": {**source, "num_train": size},
                    "model": model,
                    "settings": settings,
                    "seed": seed,
                }
                drawn = model == LEARNED
                seconds = setting.pick(
                    1.0, 2 + (size / 50) ** 1.7 if drawn else 1.0, (40.0 if drawn else 10.0) + size / 500
                )
                found[f"{model}, {size} images, seed {seed}"] = Cell(run, options, seconds, (source["data"],))
    return found


def errors(numbers: Cells, model: str) -> dict[int, list[Numbers]]:
    """The fits of a model by the number of images."""
    groups = dict.fromkeys(name.rpartition(", seed ")[0] for name in numbers)
    own = [group for group in groups if group.startswith(f"{model}, ")]
    return {int(group.split(", ")[1].split()[0]): over_seeds(numbers, group) for group in own}


def worth(plain: Mapping[int, float], error: float) -> float:
    """How many images the model without an invariance needs for this error: by straight lines of logarithms.

    Infinite where it never gets there. Below its smallest size the line of the first two is extended.
    """
    sizes, values = np.log(list(plain)), np.log(np.maximum(list(plain.values()), 1e-3))
    for first in range(len(sizes) - 1):
        if values[first + 1] <= math.log(error):
            slope = (values[first + 1] - values[first]) / (sizes[first + 1] - sizes[first])
            # more images that do not help are worth none
            more = (math.log(error) - values[first]) / slope if slope < 0 else 0.0
            return float(np.exp(sizes[first] + more))
    return math.inf


def claims(numbers: Cells) -> list[Claim]:
    """At every size the learned invariance errs less, and what it is worth in images."""
    plain, learned = errors(numbers, RBF), errors(numbers, LEARNED)
    means = {size: mean_over(fits, "error") for size, fits in plain.items()}
    own = {size: mean_over(fits, "error") for size, fits in learned.items()}
    shown = "; ".join(f"{size:,} images {own[size]:.2f} % against {means[size]:.2f} %" for size in means)
    decided = all(
        means[size] - own[size]
        > 2 * difference_error(plain[size][0], learned[size][0]) / math.sqrt(len(plain[size]))
        for size in means
    )
    is_lower = all(own[size] < means[size] for size in means)
    values = []
    for size, error in own.items():
        count = worth(means, max(error, 1e-3))
        last = max(means)
        values.append(
            f"{size:,} images as {count:,.0f}" if count <= last else f"{size:,} images as more than {last:,}"
        )
    return [
        Claim(
            "At every size the learned invariance has the lower error",
            "not in the paper",
            shown,
            "holds" if decided else "undecided" if is_lower else "does not hold",
            "" if decided else "some difference is within two standard errors",
        ),
        Claim(
            "What a learned invariance is worth in images",
            "not in the paper",
            f"with it, {', '.join(values)} without it",
            "holds" if is_lower else "does not hold",
            "" if is_lower else "at some size it errs more",
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error, log loss and evidence per image against the number of images."""
    figure.set_size_inches(10.5, 3.3)
    axes = figure.subplots(1, 3)
    for model in MODELS:
        for place, (size, fits) in enumerate(errors(numbers, model).items()):
            for axis, key in zip(axes, ("error", "log_loss", "log_evidence"), strict=True):
                share = size if key == "log_evidence" else 1
                values = [fit[key] / share for fit in fits]
                look = {"color": COLOURS[model], "label": model if place == 0 else None}
                axis.plot([size] * len(values), values, ".", markersize=4, **look)
        fits_of = errors(numbers, model)
        for axis, key in zip(axes, ("error", "log_loss", "log_evidence"), strict=True):
            means = [
                mean_over(fits, key) / (size if key == "log_evidence" else 1)
                for size, fits in fits_of.items()
            ]
            axis.plot(list(fits_of), means, color=COLOURS[model])
    for axis in axes[:2]:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(ScalarFormatter())
    legend(axes[0], "test error", "training images", "%", logarithmic=True)
    legend(axes[1], "log loss", "training images", "nats", logarithmic=True)
    legend(axes[2], "bound or evidence per image", "training images", "nats", logarithmic=True)
    sizes = list(errors(numbers, RBF))
    for axis in axes:
        axis.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
        axis.xaxis.set_minor_locator(NullLocator())


RESULT = Result(
    name="subsets",
    title="How many images a learned invariance is worth",
    source="beside LIM, section 1",
    printed="Nothing: the paper does not ask how many images an invariance is worth.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 3, 3),
)
