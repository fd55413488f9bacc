"""Plain data augmentation of the same Gaussian process beside an invariance: error, calibration, evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from orbitwise.reproduce.images import (
    RBF,
    Images,
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

MOVES = "affine+deformation"
COPIES = 4
AUGMENTED, INVARIANT, LEARNED = "augmented", "invariant", "invariance learned"
WIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes of the moves, in units of ordinary ones."""
COLOURS = {AUGMENTED: "tab:red", INVARIANT: "tab:blue", LEARNED: "tab:green", RBF: "tab:grey"}


def run(
    images: Mapping[str, Any],
    model: str,
    width: float,
    copies: int,
    settings: Mapping[str, Any],
    seed: int,
    device: str,
) -> Numbers:
    """One fit; `width` is the size of the moves of the copies, or of the invariance."""
    found = load_images(**images, seed=seed)
    orbit, learns = None, found
    if model == AUGMENTED:
        learns = with_copies(found, width, copies, seed)
    elif model != RBF:
        orbit = orbit_of(MOVES, found.shape, width, learned=model == LEARNED)
    numbers = fitted(learns, orbit, settings, seed, device)[1]
    right = 1 - numbers["error"] / 100
    return numbers | {"num_rows": len(learns.y), "overconfidence": 100 * (numbers["confidence"] - right)}


def with_copies(images: Images, width: float, copies: int, seed: int) -> Images:
    """The images and moved copies of each, with the labels of their originals."""
    orbit = orbit_of(MOVES, images.shape, width, learned=False)
    assert orbit is not None
    rows = torch.from_numpy(images.x).flatten(1)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        moved = torch.cat([orbit.points(part, generator).points[:, :copies] for part in rows.split(1000)])
    together = torch.cat([rows[:, None], moved.to(rows)], dim=1).flatten(0, 1)
    x = together.reshape(-1, *images.shape).numpy()
    return images._replace(x=x, y=np.repeat(images.y, copies + 1))


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Every size of the moves, by copies and by an invariance; none, and learned."""
    source = source_of(setting, (30, 200, 2000))
    widths = setting.pick((1.0,), (0.1, 0.5, 1.0, 2.0), WIDTHS)
    models = [
        (RBF, 0.0),
        *((model, width) for width in widths for model in (AUGMENTED, INVARIANT)),
        (LEARNED, 1.0),
    ]
    settings = {
        "inference": "exact",
        "num_nodes": setting.pick(2, 16, 32),
        "max_iterations": setting.pick(2, 30, 40),
    }
    found = {}
    for seed in setting.seeds:
        for model, width in models:
            options = {
                "images": source,
                "model": model,
                "width": width,
                "copies": COPIES,
                "settings": settings,
                "seed": seed,
            }
            seconds = setting.pick(0.6, 8.0, 15.0)
            found[f"{model} {width:g}, seed {seed}"] = Cell(run, options, seconds, (source["data"],))
    return found


def by_width(numbers: Cells, model: str) -> dict[float, list[Numbers]]:
    """The fits of a model by the size of the moves."""
    groups = dict.fromkeys(name.rpartition(", seed ")[0] for name in numbers)
    own = [group for group in groups if group.rpartition(" ")[0] == model]
    return {float(group.rpartition(" ")[2]): over_seeds(numbers, group) for group in own}


def evidence_per_row(fits: list[Numbers]) -> float:
    """The mean evidence per row that was learned from, copies included."""
    return float(np.mean([fit["log_evidence"] / fit["num_rows"] for fit in fits]))


def claims(numbers: Cells) -> list[Claim]:
    """What LIM section 1 says of data augmentation."""
    plain, copied, invariant = (by_width(numbers, model) for model in (RBF, AUGMENTED, INVARIANT))
    (learned,) = by_width(numbers, LEARNED).values()
    (base,) = plain.values()

    def best(fits: Mapping[float, list[Numbers]], key: str, sign: float) -> float:
        return min(fits, key=lambda width: sign * mean_over(fits[width], key))

    least = best(copied, "error", 1.0)
    mine = mean_over(learned, "error")
    theirs, none = mean_over(copied[least], "error"), mean_over(base, "error")
    spread = 2 * difference_error(learned[0], copied[least][0])
    chosen = max(copied, key=lambda width: evidence_per_row(copied[width]))
    cost = mean_over(copied[chosen], "error")
    ours = best(invariant, "log_evidence", -1.0)
    our_error = mean_over(invariant[ours], "error")
    our_least = min(mean_over(fits, "error") for fits in invariant.values())
    over = [mean_over(fits, "overconfidence") for fits in (copied[least], learned)]
    losses = [mean_over(fits, "log_loss") for fits in (copied[least], learned)]
    seconds = [mean_over(fits, "fit_seconds") for fits in (copied[least], learned)]
    return [
        Claim(
            "An invariance generalises as augmentation with moved copies does",
            "no number",
            f"learned {mine:.2f} % in {seconds[1]:.0f} s, the best of {len(copied)} sizes of copies "
            f"{theirs:.2f} % in {seconds[0]:.0f} s, neither {none:.2f} %",
            "holds" if mine <= theirs + spread else "does not hold",
            "" if mine <= theirs + spread else "copies are better by more than two standard errors",
        ),
        Claim.of(
            "By adding data that are not true observations, the posterior may become overconfident",
            "no number",
            f"confidence less accuracy {over[0]:+.2f} % with copies and {over[1]:+.2f} % with the learned "
            f"invariance; log loss {losses[0]:.3f} and {losses[1]:.3f}",
            over[0] > over[1] and losses[0] > losses[1],
            "copies are not less calibrated here",
        ),
        Claim.of(
            "The marginal likelihood of augmented data can no longer be used to compare models",
            "no number",
            f"the evidence per row of augmented data prefers moves of {chosen:g} times the ordinary size "
            f"(error {cost:.2f} %, least {theirs:.2f} %); that of invariant models {ours:g} times "
            f"({our_error:.2f} %, least {our_least:.2f} %)",
            cost - theirs > our_error - our_least,
            "it happens to choose as well",
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error, evidence per row and overconfidence against the size of the moves."""
    figure.set_size_inches(11, 3.4)
    axes = figure.subplots(1, 3)

    def values(fits: list[Numbers]) -> tuple[float, float, float]:
        return mean_over(fits, "error"), evidence_per_row(fits), mean_over(fits, "overconfidence")

    for model, colour in COLOURS.items():
        found = {width: values(fits) for width, fits in by_width(numbers, model).items()}
        for place, axis in enumerate(axes):
            heights = [each[place] for each in found.values()]
            if model in (AUGMENTED, INVARIANT):
                axis.plot(list(found), heights, color=colour, marker=".", label=model)
            else:
                axis.axhline(heights[0], color=colour, linestyle="--", label=model)
    size = "size of the moves"
    legend(axes[0], "test error", size, "%", logarithmic=True)
    legend(axes[1], "evidence per row", size, "nats", logarithmic=True)
    legend(axes[2], "confidence less accuracy", size, "%", logarithmic=True)


RESULT = Result(
    name="lim-augmentation",
    title="Plain data augmentation of the same Gaussian process beside an invariance",
    source="LIM, section 1",
    printed="Statements without numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
)
