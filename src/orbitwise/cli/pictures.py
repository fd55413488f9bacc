"""One picture of a run: what the evidence says of each candidate, and the learned orbit of real images."""

from __future__ import annotations

import io
import textwrap
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from orbitwise.estimators.validation import layout_of
from orbitwise.report.figures import BLUE, GREY, INK, LIGHT, STYLE, shortened
from orbitwise.report.numbers import with_error
from orbitwise.report.pictures import painter_for
from orbitwise.report.ranges import Model, Range, learned_ranges
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison
from orbitwise.storage import write_atomically

NUM_EXAMPLES, NUM_SAMPLES = 4, 7
TILE, GAP, PARTING = 1.0, 0.12, 0.3
"""The side of an image, the gap between images, and the gap after the real images."""
EVIDENCE_WIDTH, HEIGHT = 4.6, 3.9
DOTS_PER_INCH = 160
LINE_LENGTH, MOST_LINES = 88, 4


def write_picture(
    file: Path, comparison: Comparison, X: NDArray[np.float64], y: NDArray[Any], seed: int = 0
) -> Path | None:
    """Write a PNG of the comparison and of the learned orbit; None if there is neither to show."""
    model = comparison.best_estimator
    has_orbit = model.orbit_ is not None and layout_of(model).image_shape is not None
    has_rivals = len(comparison.candidates) > 1
    if not has_orbit and not has_rivals:
        return None
    width = HEIGHT * (NUM_SAMPLES + 1 + PARTING) / NUM_EXAMPLES * 0.78
    widths = [EVIDENCE_WIDTH] * has_rivals + [width] * has_orbit
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # names of candidates may be in any script
        warnings.filterwarnings("ignore", message="(?s).*[Gg]lyph")
        figure = Figure(
            (sum(widths), HEIGHT), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1), facecolor="white"
        )
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
        if has_rivals:
            draw_evidence(panels[0], comparison)
        if has_orbit:
            draw_orbit(panels[-1], model, X[examples_of(y, NUM_EXAMPLES)], seed)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomically(file, content.getvalue())
    return file


def draw_evidence(axes: Axes, comparison: Comparison) -> None:
    """How much more evidence each candidate has than no invariance, or than the worst, with its error."""
    candidates = comparison.candidates
    plain = next((each for each in candidates if each.name == NO_INVARIANCE), candidates[-1])
    leads = [comparison.difference(each, plain) for each in candidates]
    others = [place for place, each in enumerate(candidates) if each is not plain]
    ends = [leads[i].nats + sign * leads[i].error for i in others for sign in (-1, 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    axes.axvline(0, color=GREY, linewidth=1.0, zorder=1)
    for row, (each, found) in enumerate(zip(candidates, leads, strict=True)):
        colour = BLUE if each is comparison.best else GREY
        if each is plain:
            axes.plot(0, row, "o", color="white", markeredgecolor=GREY, markersize=8, zorder=3)
            continue
        bar = found.error if found.error > 0 else None
        axes.errorbar(
            found.nats, row, xerr=bar, fmt="o", color=colour, markersize=8, capsize=4, linewidth=1.6
        )
        axes.annotate(
            with_error(found.nats, found.error, signed=True),
            (found.nats, row),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=INK if each is comparison.best else GREY,
            weight="bold" if each is comparison.best else "normal",
        )
    axes.set_yticks(range(len(candidates)), [_name(each, comparison) for each in candidates])
    axes.set_ylim(len(candidates) - 0.5, -0.7)
    room = 0.16 * (high - low)
    axes.set_xlim(low - room, high + room)
    axes.set_axisbelow(True)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"log evidence beyond {shortened(plain.name)!r}, in nats (± standard error)")
    axes.set_title("What the training data support", loc="left")


def draw_orbit(axes: Axes, model: Model, rows: NDArray[np.float64], seed: int) -> None:
    """Real images in frames, each with random points of its learned orbit."""
    painter = painter_for(rows, layout_of(model))
    height, width = painter.size
    ratio = height / width
    samples = model.sample_orbit(rows, n=NUM_SAMPLES, random_state=seed)
    for line, (row, drawn) in enumerate(zip(rows, samples, strict=True)):
        top = line * ratio * (TILE + GAP)
        for column, pixels in enumerate(painter.pixels(np.concatenate([row[None], drawn]))):
            left = column * (TILE + GAP) + (PARTING if column else 0.0)
            place = (left, left + TILE, top + ratio * TILE, top)
            shown = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
            axes.imshow(
                shown, cmap="gray", vmin=0, vmax=255, extent=place, interpolation="bicubic", aspect="equal"
            )
            colour, line_width = (LIGHT, 0.8) if column else (BLUE, 2.0)
            size = (TILE, ratio * TILE)
            axes.add_patch(
                Rectangle((left, top), *size, fill=False, edgecolor=colour, linewidth=line_width, zorder=3)
            )
    axes.set_xlim(-0.06, (NUM_SAMPLES + 1) * (TILE + GAP) + PARTING)
    axes.set_ylim(len(rows) * ratio * (TILE + GAP), -0.06)
    axes.set_axis_off()
    axes.set_anchor("NW")
    ranges = learned_ranges(model)
    which = "the orbit learned from them" if ranges else "their orbit"
    axes.set_title(f"Real images, and random points of {which}", loc="left")
    lines = textwrap.wrap(", ".join(_range(each) for each in ranges), LINE_LENGTH)
    axes.text(
        0.0,
        -0.01,
        "\n".join(lines[:MOST_LINES]) + (" …" if len(lines) > MOST_LINES else ""),
        transform=axes.transAxes,
        va="top",
        color=GREY,
        fontsize=8.5,
        linespacing=1.35,
    )


def examples_of(y: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Rows of different classes, or spread over the values of the target."""
    values = y if y.ndim == 1 else y[:, 0]
    _, first = np.unique(values, return_index=True)
    return first[np.unique(np.linspace(0, len(first) - 1, count).round().astype(np.int64))]


def _range(each: Range) -> str:
    """A range with its error; lines break only between ranges."""
    label = "smooth over" if each.name.startswith("smoothness") else each.label
    return f"{label} {each.text()}{each.remark()}".replace(" ", "\N{NO-BREAK SPACE}")


def _name(candidate: Candidate, comparison: Comparison) -> str:
    name = shortened(candidate.name, 20).replace("+", " +\n")
    return f"{name} (tie)" if candidate.name in comparison.tied else name
