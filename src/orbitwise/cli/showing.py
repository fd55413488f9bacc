"""Tables for the terminal: a comparison, a model on one screen, and the available data sets."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from orbitwise import datasets
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import EARLIER, Folder, is_earlier
from orbitwise.selection.compare import Comparison
from orbitwise.storage import describe
from orbitwise.storage.container import printable

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
    """A model on one screen, without loading it: learned ranges, evidence, data and versions."""
    about, settings, kept, mixed = Folder(file.parent).steadily(lambda: _read(file))
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
        "log evidence": f"{about['log_evidence']:,.2f}{spread} ({about['evidence_kind']})",
        "inference": about["inference"] + ("" if about["converged"] else ", stopped before it converged"),
        "noise": "" if about["noise"] == [] else _number(about["noise"]),
        "kernel": about["kernel"],
        "inputs": f"{about['n_features']} numbers{images}",
        "rows": f"{count:,} of {settings.get('data', '')}" if isinstance(count, int) else "",
        "target": str(settings.get("target", "")),
        "classes": "" if not classes else ", ".join(classes[:12]) + (" …" if len(classes) > 12 else ""),
        "certificate": about.get("certificate", ""),
        "size": f"{about['num_bytes'] / 1e6:,.1f} MB",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        "notes": "; ".join([*about["notes"], *mixed]),
    }
    width = shutil.get_terminal_size().columns
    for name, text in lines.items():
        if text:
            table.add_row(name, escape(printable(str(text)[: 6 * width])))
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


def datasets_table() -> Table:
    """What can be loaded by name, and from where."""
    table = Table(title="Data sets", title_justify="left")
    for heading in ("name", "size", "loaded from", "source"):
        table.add_column(heading, overflow="fold")
    for each in datasets.available():
        table.add_row(each.name, each.shape, each.where, each.source)
    return table


def _number(value: float | list[float]) -> str:
    return ", ".join(f"{each:.4g}" for each in value) if isinstance(value, list) else f"{value:.4g}"
