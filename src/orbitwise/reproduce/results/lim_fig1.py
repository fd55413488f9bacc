"""LIM figure 1: samples of the invariance that was learned from images of digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from orbitwise.reproduce.images import RBF, fitted, load_images, mean_over, orbit_of, source_of
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.tables import over_seeds

AFFINE = "affine"
DIGITS, NUM_SAMPLES = (2, 3, 5, 7, 9), 7
LEAST = {"angle": 0.02, "log_scale_x": 0.02, "shear": 0.02}
"""Half-widths of ranges that are worth the name: about one degree, two per cent."""
WORDS = {"angle": "rotation", "log_scale_x": "scale", "shear": "shear"}


def run(
    images: Mapping[str, Any], model: str, settings: Mapping[str, Any], seed: int, device: str
) -> Numbers:
    """One fit with both ends of every range learned; with an orbit, also samples for some digits."""
    found = load_images(**images, seed=seed)
    orbit = orbit_of(model, found.shape, two_sided=True)
    classifier, numbers = fitted(found, orbit, settings, seed, device)
    if orbit is not None and seed == 0:
        shown = [int(np.flatnonzero(found.y_test == digit)[0]) for digit in DIGITS]
        samples = classifier.sample_orbit(found.x_test[shown], NUM_SAMPLES, random_state=0)
        samples = np.asarray(samples).reshape(len(shown), NUM_SAMPLES, *found.shape)
        numbers |= {
            "examples": found.x_test[shown].round(2).tolist(),
            "samples": samples.round(2).tolist(),
        }
    return numbers


def cells(setting: Setting) -> Mapping[str, Cell]:
    """The affine model and, for its evidence, the RBF."""
    source = source_of(setting, (60, 300, 60_000))
    settings: dict[str, Any] = setting.pick(
        {"inference": "exact", "num_nodes": 2, "max_iterations": 2},
        {"inference": "exact", "num_nodes": 16, "max_iterations": 30},
        {"inference": "variational", "num_inducing": 4000, "num_steps": 1800},
    )
    return {
        f"{model}, seed {seed}": Cell(
            run,
            {"images": source, "model": model, "settings": settings, "seed": seed},
            setting.pick(1.0, 25.0 if model == AFFINE else 1.0, 45.0),
            (source["data"],),
        )
        for seed in setting.seeds
        for model in (AFFINE, RBF)
    }


def claims(numbers: Cells) -> list[Claim]:
    """The caption: the method becomes insensitive to the moves that the samples show."""
    affine, plain = (over_seeds(numbers, model) for model in (AFFINE, RBF))
    text, is_wide = [], True
    for name, least in LEAST.items():
        ends = np.array([fit["ranges"].get(name, (0.0, 0.0)) for fit in affine]).mean(0)
        text.append(f"{WORDS[name]} {ends[0]:+.2f} to {ends[1]:+.2f}")
        is_wide = is_wide and bool((ends[1] - ends[0]) / 2 >= least)
    gain = mean_over(affine, "log_evidence") - mean_over(plain, "log_evidence")
    return [
        Claim.of(
            "The method becomes insensitive to rotations, shears and scalings of the digits",
            "a picture of samples",
            f"{', '.join(text)} (radians, log of the scale); bound {gain:+,.0f} nats against RBF",
            is_wide and gain > 0,
            "a range is next to nothing, or the bound prefers none",
        )
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Each digit in a frame, and its samples beside it."""
    shown = numbers[f"{AFFINE}, seed 0"]
    figure.set_size_inches(1.0 * (NUM_SAMPLES + 1), 1.05 * len(DIGITS))
    axes = figure.subplots(len(DIGITS), NUM_SAMPLES + 1)
    for row, example, samples in zip(axes, shown["examples"], shown["samples"], strict=True):
        for axis, image in zip(row, [example, *samples], strict=True):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            for side in axis.spines.values():
                side.set(visible=axis is row[0], color="tab:red", linewidth=2)


RESULT = Result(
    name="lim-fig1",
    title="Samples of the invariance that was learned from images of digits",
    source="LIM, figure 1 (and section 5.2)",
    printed="Pictures of samples for some digits; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
