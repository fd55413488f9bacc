"""The figures of the report as SVG images, byte for byte the same each time they are drawn.

Each figure is one narrow panel, so that a page can show them side by side or one below the other.
"""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import resources
from typing import Concatenate, ParamSpec

import matplotlib
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy import ndarray

from orbitwise.orbits.orbit import Interval
from orbitwise.report.exploration import Track
from orbitwise.report.numbers import number, wilson
from orbitwise.report.predictions import LEVELS, Labelled, Output
from orbitwise.report.ranges import Range, label_of

P = ParamSpec("P")

INK, GREY, LIGHT = "#1f2d3a", "#66757f", "#dfe5e9"
BLUE, ORANGE, GREEN, PALE = "#0072b2", "#d55e00", "#007a5a", "#e3f1ea"
COLOURS = (BLUE, ORANGE, GREEN, "#9a5b8f", "#8a6d00", "#3b8ea5", "#7a4419", GREY)
WIDTH, HEIGHT, SMALL_WIDTH = 4.0, 2.9, 3.4
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MOST_CLASSES = 12
"""With more classes than this, cells are drawn without their counts."""
MOST_POINTS = 400

with resources.as_file(resources.files("orbitwise.report") / "templates" / "figures.mplstyle") as _file:
    STYLE = matplotlib.rc_params_from_file(_file, use_default_template=False)
"""The style of all figures, including those of the command."""


def panel(
    height: float = HEIGHT, width: float = WIDTH
) -> Callable[[Callable[Concatenate[Axes, P], None]], Callable[P, str]]:
    """Turn a function that draws into axes into one that returns the drawing as a data URI of an SVG image.

    The size is in inches, and the style is `STYLE`. Text stays text, in fonts of the reader's system, and
    equal drawings have equal bytes.

    Examples
    --------
    >>> @panel()
    ... def line(axes, values):
    ...     axes.plot(values)
    >>> line([1, 2])[:26]
    'data:image/svg+xml;base64,'
    """

    def decorate(draw: Callable[Concatenate[Axes, P], None]) -> Callable[P, str]:
        @wraps(draw)
        def drawn(*arguments: P.args, **named: P.kwargs) -> str:
            with matplotlib.rc_context(STYLE), warnings.catch_warnings():
                # the browser has fonts for all scripts
                warnings.filterwarnings("ignore", message="(?s).*[Gg]lyph")
                figure = Figure(figsize=(width, height), layout="constrained")
                FigureCanvasSVG(figure)
                axes = figure.add_subplot()
                axes.set_axisbelow(True)
                draw(axes, *arguments, **named)
                file = io.BytesIO()
                figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
            text = re.sub(r"'DejaVu Sans'(, sans-serif)?", FONTS, file.getvalue().decode())
            return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()

        return drawn

    return decorate


def shortened(text: str, length: int = 14) -> str:
    """A name shortened to fit beside a tick."""
    return text if len(text) <= length else text[: length - 1] + "…"


@panel()
def evidence_figure(axes: Axes, history: Sequence[float]) -> None:
    """The gain in log evidence since the first iteration."""
    values = np.array(history, dtype=np.float64)
    steps, finite = np.arange(1, len(values) + 1), np.isfinite(values)
    start = values[finite][0] if finite.any() else 0.0
    marker = None if len(values) > 60 else "."
    axes.plot(steps[finite], values[finite] - start, color=BLUE, marker=marker, zorder=3)
    axes.set(xlabel="iteration", ylabel="nats gained since the first")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.margins(x=0.02)


@panel()
def stages_figure(axes: Axes, num_nodes: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    """The evidence found on each number of nodes: the best start filled, the others open."""
    names, best = [f"{number:,}" for number in num_nodes], [max(found) for found in values]
    for place, found in enumerate(values):
        for value in found:
            axes.plot(place, value, "o", color="white", markeredgecolor=BLUE, markersize=6.5, zorder=2)
    axes.plot(range(len(best)), best, color=BLUE, marker="o", markersize=6.5, zorder=3)
    axes.set(xlabel="nodes", ylabel="log evidence (nats)")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 0)))


@panel()
def ranges_figure(axes: Axes, ranges: Sequence[Range]) -> None:
    """Each range at its start and at its end, as multiples of its start.

    Whiskers are 95 % intervals. Ranges that the data do not determine are orange diamonds.
    """
    starts = [(each, _width(each.start)) for each in ranges if each.start is not None]
    known = [(each, start) for each, start in starts if start > 0]
    _set_height(axes, max(1.5, 0.8 + 0.34 * len(known)))
    sizes = [_width((each.low, each.high)) / start for each, start in known]
    widest = 1.3 * max(1.0, *sizes)
    for row, ((each, start), size) in enumerate(zip(reversed(known), reversed(sizes), strict=True)):
        axes.plot([1, size], [row, row], color=BLUE, linewidth=2.4, zorder=2)
        axes.plot(1, row, "o", color="white", markeredgecolor=BLUE, markersize=6.5, zorder=3)
        if each.certainty.ends is not None:
            away = [[abs(end - each.high) / start] for end in each.certainty.ends]
            axes.errorbar(size, row, xerr=away, color=INK, capsize=3, linewidth=1.2, zorder=4)
        shape, colour = ("o", BLUE) if each.certainty.is_determined else ("D", ORANGE)
        axes.plot(size, row, shape, color=colour, markersize=6.5, zorder=5)
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(known)), [shortened(each.label, 20) for each, _ in reversed(known)])
    axes.set_xlabel("size of the range, as a multiple of its start")
    axes.set_xlim(-0.03 * widest, widest)
    axes.set_ylim(-0.6, len(known) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))


@panel()
def range_history_figure(axes: Axes, history: Sequence[Mapping[str, Interval]]) -> None:
    """The size of every range after each iteration, as multiples of the first."""
    names = [name for name in history[0] if _width(history[0][name]) > 0]
    _set_height(axes, 3.0 + 0.2 * math.ceil(len(names) / 2))
    for place, name in enumerate(names):
        sizes = [_width(ranges[name]) / _width(history[0][name]) for ranges in history]
        colour, dash = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "--"
        axes.plot(range(1, len(sizes) + 1), sizes, color=colour, linestyle=dash, label=label_of(name))
    axes.set_yscale("log")
    axes.set(xlabel="iteration", ylabel="multiple of the first")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=1 if len(names) < 3 else 2)


@panel(height=2.3, width=SMALL_WIDTH)
def change_figure(axes: Axes, track: Track, unit: str) -> None:
    """f(moved x) - f(x) along a move: a line per example, and their mean with the posterior deviation."""
    move, places = track.move, np.array(track.move.places)
    middle = track.change.mean(0)
    # the standard deviation of the change of one example, not of the mean over examples
    spread = np.sqrt(np.square(track.deviation).mean(0))
    inside = places[np.array(move.inside)]
    if not move.is_finite:
        axes.axvspan(inside[0], inside[-1], color=PALE, zorder=0, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.plot(places, track.change.T, color=BLUE, linewidth=0.7, alpha=0.45)
    axes.fill_between(places, middle - spread, middle + spread, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(places, middle, color=BLUE, linewidth=2.2, marker="." if move.is_finite else None)
    symbol = f" ({move.symbol.strip()})" if move.symbol.strip() else ""
    axes.set(xlabel=f"{move.label}{symbol}", ylabel=f"change of f{unit}")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0)


@panel(height=3.7)
def confusion_figure(axes: Axes, judged: Labelled) -> None:
    """The confusion matrix; shades are shares of the true class.

    Up to `MOST_CLASSES` classes have their counts written into the cells, mistakes in orange.
    """
    counts = judged.confusion()
    size, edges = len(counts), np.arange(len(counts) + 1) - 0.5
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.grid(visible=False)
    axes.pcolormesh(edges, edges, np.ma.masked_equal(shares, 0), cmap="Blues", vmin=0, vmax=1.1)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    if size <= MOST_CLASSES:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[row, column] > 0.55 else INK if row == column else ORANGE
            weight, text = "normal" if row == column else "bold", f"{counts[row, column]:,}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8.5, color=colour, weight=weight)
    step = max(1, size // MOST_CLASSES)
    names = [shortened(name, 9) for name in judged.classes][::step]
    turn = 45 if max(len(name) for name in names) > 3 else 0
    axes.set_xticks(range(0, size, step), names, rotation=turn, ha="right" if turn else "center")
    axes.set_yticks(range(0, size, step), names)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted", ylabel="true")


@panel(height=3.7)
def reliability_figure(axes: Axes, judged: Labelled) -> None:
    """The share of right predictions against the confidence in them, with 95 % intervals.

    Larger dots mean more predictions; on the dashed line the confidence is correct.
    """
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    for confidence, hits, low, high, count in judged.reliability():
        axes.plot([confidence] * 2, [low, high], color=BLUE, linewidth=1.4)
        axes.plot(confidence, hits, "o", color=BLUE, markersize=4 + 7 * np.sqrt(count / judged.count))
    axes.set(xlabel="confidence of the prediction", ylabel="share that is right")
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal")


@panel(height=3.1, width=SMALL_WIDTH)
def predicted_figure(axes: Axes, output: Output, seed: int = 0) -> None:
    """Measured against predicted, with the standard deviation of the prediction."""
    chosen = some(len(output.mean), seed)
    mean, measured = output.mean[chosen], output.measured[chosen]
    both = np.concatenate([mean, measured])
    ends = [both.min(), both.max()]
    axes.plot(ends, ends, color=GREY, linewidth=1, linestyle="--")
    bars = {"xerr": output.deviation[chosen], "ecolor": "#9cc7e0", "elinewidth": 0.9}
    axes.errorbar(mean, measured, fmt="o", color=BLUE, markersize=3, **bars)
    axes.set(xlabel="predicted", ylabel="measured")


@panel(height=3.1, width=SMALL_WIDTH)
def residual_figure(axes: Axes, output: Output, seed: int = 0) -> None:
    """Residuals, in predicted standard deviations, against predictions; 95 % should lie in the band."""
    chosen = some(len(output.mean), seed)
    mean, scores = output.mean[chosen], output.scores[chosen]
    axes.axhspan(-1.96, 1.96, color="#eef3f7", zorder=0, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    outside = np.abs(scores) > 1.96
    for part, colour in ((~outside, BLUE), (outside, ORANGE)):
        axes.plot(mean[part], scores[part], "o", color=colour, markersize=3)
    axes.set(xlabel="predicted", ylabel="residual in predicted deviations")


@panel(height=3.1, width=SMALL_WIDTH)
def coverage_figure(axes: Axes, output: Output) -> None:
    """The share of targets in intervals against the share that they should contain, with 95 % intervals."""
    shares, count = output.coverage(), len(output.mean)
    low, high = np.array([wilson(share * count, count) for share in shares]).T
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    axes.fill_between(LEVELS, low, high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(LEVELS, shares, color=BLUE)
    axes.set(xlabel="share that intervals should contain", ylabel="share that they contain")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def some(count: int, seed: int) -> Int[ndarray, " m"]:
    """All rows, or at most `MOST_POINTS` random ones, because more points overlap in a figure."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, MOST_POINTS, replace=False))


def _width(interval: Interval) -> float:
    return (interval[1] - interval[0]) / (1 if interval[0] == 0 else 2)


def _set_height(axes: Axes, height: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(height)
