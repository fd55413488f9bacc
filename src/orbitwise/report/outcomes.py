"""Figures of predictions beside what was true: confusions and reliability, or residuals and coverage."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from numpy import ndarray
from scipy.stats import norm

from orbitwise.report.drawing import BLUE, GREY, INK, ORANGE, SMALL_WIDTH, shortened, svg_uri
from orbitwise.report.numbers import wilson
from orbitwise.report.predictions import Labelled

MOST_CLASSES = 12
"""Cells of more classes than these are drawn without their counts."""
MOST_POINTS = 400
LEVELS = np.linspace(0.05, 0.95, 19)


def confusion_counts(judged: Labelled) -> Int[ndarray, "k k"]:
    """How many examples of each true class (row) were given each class (column)."""
    size = len(judged.classes)
    counts = np.bincount(judged.codes * size + judged.chosen, minlength=size * size)
    return counts.reshape(size, size)


def confusion_figure(judged: Labelled) -> str:
    """The confusion matrix; shades are shares of the true class."""
    counts = confusion_counts(judged)
    size = len(counts)

    def draw(axes: Axes) -> None:
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        shown = np.ma.masked_equal(shares, 0)
        axes.grid(visible=False)
        axes.pcolormesh(
            np.arange(size + 1) - 0.5, np.arange(size + 1) - 0.5, shown, cmap="Blues", vmin=0, vmax=1.1
        )
        axes.set_aspect("equal")
        axes.invert_yaxis()
        if size <= MOST_CLASSES:
            for row, column in zip(*np.nonzero(counts), strict=True):
                colour = "white" if shares[row, column] > 0.55 else INK if row == column else ORANGE
                weight = "normal" if row == column else "bold"
                text = f"{counts[row, column]:,}"
                axes.text(
                    column, row, text, ha="center", va="center", fontsize=8.5, color=colour, weight=weight
                )
        step = max(1, size // MOST_CLASSES)
        names = [shortened(name, 9) for name in judged.classes][::step]
        turn = 45 if max(len(name) for name in names) > 3 else 0
        axes.set_xticks(range(0, size, step), names, rotation=turn, ha="right" if turn else "center")
        axes.set_yticks(range(0, size, step), names)
        axes.tick_params(length=0)
        axes.set(xlabel="predicted", ylabel="true")

    return svg_uri(draw, height=3.7)


def reliability(judged: Labelled, num_bins: int = 10) -> list[tuple[float, float, float, float, int]]:
    """(mean confidence, share right, its Wilson interval, count) of each bin that is not empty."""
    confidence, right = judged.probabilities.max(1), ~judged.is_wrong
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    found = []
    for each in np.unique(bins):
        chosen = bins == each
        count = int(chosen.sum())
        hits = int(right[chosen].sum())
        found.append((float(confidence[chosen].mean()), hits / count, *wilson(hits, count), count))
    return found


def reliability_figure(judged: Labelled) -> str:
    """The share of right predictions against the confidence in them, with 95 % intervals."""
    points = reliability(judged)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
        for confidence, hits, low, high, count in points:
            axes.plot([confidence] * 2, [low, high], color=BLUE, linewidth=1.4)
            axes.plot(
                confidence, hits, "o", color=BLUE, markersize=4 + 7 * np.sqrt(count / len(judged.codes))
            )
        axes.set(xlabel="confidence of the prediction", ylabel="share that is right")
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal")

    return svg_uri(draw, height=3.7)


def predicted_figure(
    mean: Float[ndarray, " n"],
    deviation: Float[ndarray, " n"],
    measured: Float[ndarray, " n"],
    seed: int = 0,
) -> str:
    """Measured against predicted, with the deviation of the prediction."""
    chosen = some(len(mean), seed)

    def draw(axes: Axes) -> None:
        both = np.concatenate([mean[chosen], measured[chosen]])
        ends = [both.min(), both.max()]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle="--")
        axes.errorbar(
            mean[chosen],
            measured[chosen],
            xerr=deviation[chosen],
            fmt="o",
            color=BLUE,
            ecolor="#9cc7e0",
            elinewidth=0.9,
            markersize=3,
        )
        axes.set(xlabel="predicted", ylabel="measured")

    return svg_uri(draw, height=3.1, width=SMALL_WIDTH)


def residual_figure(
    mean: Float[ndarray, " n"],
    deviation: Float[ndarray, " n"],
    measured: Float[ndarray, " n"],
    seed: int = 0,
) -> str:
    """Residuals in predicted deviations against the prediction; 95 % should lie in the band."""
    chosen = some(len(mean), seed)
    scores = (measured - mean) / np.maximum(deviation, 1e-300)

    def draw(axes: Axes) -> None:
        axes.axhspan(-1.96, 1.96, color="#eef3f7", zorder=0, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.8)
        outside = np.abs(scores[chosen]) > 1.96
        for part, colour in ((~outside, BLUE), (outside, ORANGE)):
            axes.plot(mean[chosen][part], scores[chosen][part], "o", color=colour, markersize=3)
        axes.set(xlabel="predicted", ylabel="residual in predicted deviations")

    return svg_uri(draw, height=3.1, width=SMALL_WIDTH)


def coverage(scores: Float[ndarray, " n"]) -> Float[ndarray, " l"]:
    """The share of measurements inside the central interval of each of `LEVELS`."""
    return np.array([np.mean(np.abs(scores) <= norm.ppf(0.5 + level / 2)) for level in LEVELS])


def coverage_figure(scores: Float[ndarray, " n"]) -> str:
    """How many measurements lie in intervals that should hold so many, with 95 % intervals of the share."""
    shares = coverage(scores)
    low, high = np.array([wilson(share * len(scores), len(scores)) for share in shares]).T

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
        axes.fill_between(LEVELS, low, high, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(LEVELS, shares, color=BLUE)
        axes.set(xlabel="intervals that should hold", ylabel="share that they hold")
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")

    return svg_uri(draw, height=3.1, width=SMALL_WIDTH)


def some(count: int, seed: int) -> Int[ndarray, " m"]:
    """All rows, or as many as can be told apart in a figure."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, MOST_POINTS, replace=False))
