"""Figures of what was learned: evidence and ranges over time, and how f changes along each move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy import ndarray

from orbitwise.orbits.ranges import Interval
from orbitwise.report.drawing import BLUE, COLOURS, GREY, INK, ORANGE, PALE, SMALL_WIDTH, shortened, svg_uri
from orbitwise.report.moves import Move
from orbitwise.report.numbers import number
from orbitwise.report.ranges import Range, label_of


def evidence_figure(history: Sequence[float]) -> str:
    """The gain in log evidence since the first iteration."""
    values = np.array(history, dtype=np.float64)

    def draw(axes: Axes) -> None:
        steps = np.arange(1, len(values) + 1)
        finite = np.isfinite(values)
        start = values[finite][0] if finite.any() else 0.0
        many = len(values) > 60
        axes.plot(steps[finite], values[finite] - start, color=BLUE, marker=None if many else ".", zorder=3)
        axes.set(xlabel="iteration", ylabel="nats gained since the first")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.margins(x=0.02)

    return svg_uri(draw)


def stages_figure(search: Sequence[Mapping[str, Any]]) -> str:
    """The evidence found on each number of nodes: the best start filled, the others open."""
    names = [f"{stage['num_nodes']:,}" for stage in search]

    def draw(axes: Axes) -> None:
        best = [max(stage["values"]) for stage in search]
        for place, stage in enumerate(search):
            for value in stage["values"]:
                axes.plot(place, value, "o", color="white", markeredgecolor=BLUE, markersize=6.5, zorder=2)
        axes.plot(range(len(best)), best, color=BLUE, marker="o", markersize=6.5, zorder=3)
        axes.set(xlabel="nodes", ylabel="log evidence (nats)")
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.4, len(names) - 0.6)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 0)))

    return svg_uri(draw)


def ranges_figure(ranges: Sequence[Range]) -> str:
    """Each range from where it started to where it ended, as multiples of its start."""
    known = [each for each in ranges if each.start is not None and _width(each.start) > 0]

    def draw(axes: Axes) -> None:
        sizes = [_width((each.low, each.high)) / _width(each.start or (0.0, 1.0)) for each in known]
        widest = 1.3 * max(1.0, *sizes)
        for row, (each, size) in enumerate(zip(reversed(known), reversed(sizes), strict=True)):
            axes.plot([1, size], [row, row], color=BLUE, linewidth=2.4, zorder=2)
            axes.plot(1, row, "o", color="white", markeredgecolor=BLUE, markersize=6.5, zorder=3)
            ends = each.certainty.ends
            if ends is not None:
                away = [[abs(end - each.high) / _width(each.start or (0.0, 1.0))] for end in ends]
                axes.errorbar(size, row, xerr=away, color=INK, capsize=3, linewidth=1.2, zorder=4)
            is_sure = each.certainty.is_determined
            axes.plot(
                size,
                row,
                "o" if is_sure else "D",
                color=BLUE if is_sure else ORANGE,
                markersize=6.5,
                zorder=5,
            )
        axes.axvline(1, color=GREY, linewidth=0.8, zorder=1)
        axes.set_yticks(range(len(known)), [shortened(each.label, 20) for each in reversed(known)])
        axes.set_xlabel("size of the range, as a multiple of its start")
        axes.set_xlim(-0.03 * widest, widest)
        axes.set_ylim(-0.6, len(known) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))

    return svg_uri(draw, height=max(1.5, 0.8 + 0.34 * len(known)))


def range_history_figure(history: Sequence[Mapping[str, Interval]]) -> str:
    """The size of every range after each iteration, as multiples of the first."""
    names = [name for name in history[0] if _width(history[0][name]) > 0]

    def draw(axes: Axes) -> None:
        highest = []
        for place, name in enumerate(names):
            sizes = [_width(ranges[name]) / _width(history[0][name]) for ranges in history]
            highest += sizes
            colour, dash = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "--"
            axes.plot(range(1, len(sizes) + 1), sizes, color=colour, linestyle=dash, label=label_of(name))
        axes.set_yscale("log")
        axes.set(xlabel="iteration", ylabel="multiple of the first")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _plain_ticks(axes, highest)
        columns = 1 if len(names) < 3 else 2
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=columns)

    return svg_uri(draw, height=3.0 + 0.2 * math.ceil(len(names) / 2))


def change_figure(
    move: Move, mean: Float[ndarray, "n k"], deviation: Float[ndarray, "n k"], unit: str
) -> str:
    """f(moved x) - f(x) along a move: a line for each example, their mean with its posterior deviation."""
    places = np.array(move.places)
    middle = mean.mean(0)
    # the deviation of one example's change, not of the mean over the examples
    spread = np.sqrt(np.square(deviation).mean(0))

    def draw(axes: Axes) -> None:
        low, high = (places[[i for i, inside in enumerate(move.inside) if inside][end]] for end in (0, -1))
        if not move.is_finite:
            axes.axvspan(low, high, color=PALE, zorder=0, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.plot(places, mean.T, color=BLUE, linewidth=0.7, alpha=0.45)
        axes.fill_between(places, middle - spread, middle + spread, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(places, middle, color=BLUE, linewidth=2.2, marker="." if move.is_finite else None)
        symbol = f" ({move.symbol.strip()})" if move.symbol.strip() else ""
        axes.set(xlabel=f"{move.label}{symbol}", ylabel=f"change of f{unit}")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0)

    return svg_uri(draw, height=2.3, width=SMALL_WIDTH)


def _width(interval: Interval) -> float:
    return (interval[1] - interval[0]) / (1 if interval[0] == 0 else 2)


def _plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at 1, 2, 5, 10, … and their inverses on the upright axis, written as plain numbers."""
    span = [1.0, *(value for value in values if value > 0)]
    low, high = min(span) * 0.8, max(span) * 1.25
    ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
    axes.yaxis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_ylim(low, high)
