"""What people see: a comparison and a model as tables for the terminal, and the picture of a run.

The picture shows what the evidence says of each candidate, and real images with the learned orbit.
"""

from __future__ import annotations

import io
import math
import shutil
import textwrap
import warnings
from collections.abc import Mapping, Sequence
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
from rich.markup import escape
from rich.table import Table

from orbitwise import datasets
from orbitwise.cli.columns import estimator_of
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import EARLIER, Folder, is_earlier
from orbitwise.estimators.estimator import FittedProcess
from orbitwise.estimators.hyperparameters import Hyperparameter, kernel_text
from orbitwise.estimators.validation import layout_of
from orbitwise.report.figures import BLUE, GREY, INK, LIGHT, STYLE, shortened
from orbitwise.report.numbers import with_error
from orbitwise.report.pictures import painter_for
from orbitwise.report.ranges import Model, Range, learned_ranges
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison
from orbitwise.storage import StorageError, describe, load, write_atomically
from orbitwise.storage.container import printable

MOST_HYPERPARAMETERS = 24
Metrics = Mapping[str, Mapping[str, float]]
HEADINGS = {
    "error": ("test error", "{:.2%}"),
    "log_loss": ("log loss", "{:.4f}"),
    "rmse": ("test RMSE", "{:.4g}"),
    "log_density": ("log density", "{:.3f}"),
}


def comparison_table(comparison: Comparison, stopped: Mapping[str, str], metrics: Metrics) -> Table:
    """One row per candidate, by decreasing evidence; the candidate that is kept is bold."""
    kinds = [key for key in HEADINGS if any(key in each for each in metrics.values())]
    table = Table(
        title="Evidence of the training data (in nats, more is better)",
        title_justify="left",
        caption=escape(comparison.verdict) if len(comparison.candidates) > 1 else None,
        caption_justify="left",
    )
    headings = ("invariance", "log evidence", "behind", "per row", *(HEADINGS[kind][0] for kind in kinds))
    for heading in (*headings, "seconds"):
        table.add_column(heading, justify="left" if heading == "invariance" else "right")
    leader = comparison.leader
    for candidate in comparison.candidates:
        notes = ["tie"] if candidate.name in comparison.tied else []
        if not notes and candidate.name in comparison.undecided and candidate is not comparison.best:
            notes = ["undecided"]
        notes += [f"stopped: {stopped[candidate.name]}"] if candidate.name in stopped else []
        name = escape(candidate.name + (f" ({', '.join(notes)})" if notes else ""))
        behind = comparison.difference(leader, candidate).text().removesuffix(" nats")
        error = f" ± {candidate.standard_error:,.1f}" if candidate.standard_error > 0 else ""
        cells = [
            HEADINGS[kind][1].format(metrics.get(candidate.name, {}).get(kind, float("nan")))
            for kind in kinds
        ]
        table.add_row(
            name,
            f"{candidate.log_evidence:,.1f}{error}",
            "" if candidate is leader else behind,
            f"{candidate.per_datum:,.3f}",
            *cells,
            f"{candidate.seconds:.1f}",
            style="bold" if candidate is comparison.best else None,
        )
    return table


def model_table(file: Path) -> Table:
    """A model on one screen: learned ranges, evidence, kernel and noise, data and versions."""
    about, settings, kept, mixed = Folder(file.parent).steadily(lambda: _read(file))
    kernel, learned, left_out = _learned(file)
    table = Table(title=escape(str(file)), title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    error = about["log_evidence_error"]
    spread = f" ± {error:,.1f}" if error > 0 else ""
    shape = about["image_shape"]
    order = f", channels {about['channels']}" if about.get("channels") else ""
    images = f" (images {'x'.join(map(str, shape))}{order})" if shape else ""
    count = settings.get("rows") if isinstance(settings.get("rows"), int) else None
    classes = about.get("classes")
    lines = {
        "model": about["estimator"],
        "invariance": str(kept.get("best", "") or (about["orbit"] or about["functional"])),
        "learned": about["learned_text"],
        "errors": about.get("learned_error_text", ""),
        # kernel machines have one only where it chose their strength
        "log evidence": ""
        if math.isnan(about["log_evidence"])
        else f"{about['log_evidence']:,.2f}{spread} ({about['evidence_kind']})",
        "inference": about["inference"] + ("" if about["converged"] else ", stopped before it converged"),
        "noise": "" if about["noise"] == [] or learned else _number(about["noise"]),
        "kernel": kernel or about["kernel"],
        "inputs": f"{about['n_features']} numbers{images}",
        "rows": f"{count:,} of {settings.get('data', '')}" if isinstance(count, int) else "",
        "target": str(settings.get("target", "")),
        "classes": "" if not classes else ", ".join(classes[:12]) + (" …" if len(classes) > 12 else ""),
        "certificate": about.get("certificate", ""),
        "size": f"{about['num_bytes'] / 1e6:,.1f} MB",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "notes": "; ".join([*about["notes"], *mixed, *left_out]),
    }
    width = shutil.get_terminal_size().columns
    for name, text in lines.items():
        if text:
            table.add_row(name, escape(printable(str(text)[: 6 * width])))
        if name == "kernel" and learned:
            table.add_row("", _hyperparameters(learned))
    return table


def _learned(file: Path) -> tuple[str, list[Hyperparameter], list[str]]:
    """The kernel as text, the hyperparameters, and why these are missing."""
    try:
        model = estimator_of(load(file))
    except StorageError as error:
        # a model with features cannot be loaded without them
        return "", [], [f"hyperparameters were left out: {error}"]
    if not isinstance(model, FittedProcess):
        return "", [], []
    return kernel_text(model.kernel_), model.hyperparameters_, []


def _hyperparameters(learned: Sequence[Hyperparameter]) -> Table:
    """Each hyperparameter with its value and unit; of very many, the first ones and the noise."""
    table = Table(box=None, pad_edge=False)
    table.add_column("hyperparameter", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("in units of", overflow="fold")
    most = MOST_HYPERPARAMETERS
    kept = learned if len(learned) <= most else [*learned[: most - 2], *learned[-2:]]
    for each in kept:
        cells = (printable(each.name), _number(list(each.values)), printable(each.unit))
        table.add_row(*map(escape, cells))
    if len(kept) < len(learned):
        table.add_row(f"… and {len(learned) - len(kept)} more", "", "")
    return table


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """The description of a model, settings and comparison of its run, and why these two are missing."""
    about, folder = describe(file), Folder(file.parent)
    if file.name != folder.model.name or not (folder.settings.is_file() or folder.comparison.is_file()):
        return about, {}, {}, []
    try:
        settings, comparison = folder.one_run()
        notes = [EARLIER.format(folder=folder.path)] if is_earlier(settings, comparison) else []
        return about, settings, comparison, notes
    except CommandError as error:
        return about, {}, {}, [str(error)]


DATASETS = (
    "Sets of scikit-learn can be used at once, as in `orbitwise learn iris --out result`; those of OpenML "
    "are downloaded at each use. Others need a file NAME.npz in the folder that ORBITWISE_DATA names."
)


def datasets_table() -> Table:
    """What can be loaded by name, and from where."""
    table = Table(title="Data sets", title_justify="left", caption=DATASETS, caption_justify="left")
    for heading in ("name", "size", "loaded from", "source"):
        table.add_column(heading, overflow="fold")
    for each in datasets.available():
        table.add_row(each.name, each.shape, each.where, each.source)
    return table


def _number(value: float | list[float]) -> str:
    return ", ".join(f"{each:.4g}" for each in value) if isinstance(value, list) else f"{value:.4g}"


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
