"""The report as one HTML file: readable on a phone and in print, interactive, and without any network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy import ndarray
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from orbitwise.inference.disk import write_atomically
from orbitwise.report.contents import (
    Answer,
    Change,
    Compared,
    Extremes,
    Judgement,
    Learning,
    Orbits,
    Reproduction,
    answer_of,
    changes_of,
    compared,
    extremes_of,
    judgement_of,
    learning_of,
    orbits_of,
    reproduction_of,
)
from orbitwise.report.exploration import Exploration, choose_examples, explore, page_data
from orbitwise.report.figures import MOST_POINTS
from orbitwise.report.numbers import mean_with_error, number, share, with_error
from orbitwise.report.pictures import painter_for
from orbitwise.report.predictions import Judged, Labelled, judge
from orbitwise.report.ranges import Model, Range, learned_ranges, orbit_of, range_errors
from orbitwise.selection.compare import Comparison

Progress = Callable[[str], None]
PAINTED_ROWS = 1000
"""The brightness of pictures is that of so many rows."""


@final
@dataclass(frozen=True)
class Page:
    """All that the page shows; parts that a model does not have are None or empty."""

    title: str
    is_labelled: bool
    answer: Answer
    ranges: Sequence[Range]
    exploration: Exploration | None
    orbits: Orbits | None
    changes: Sequence[Change]
    comparison: Compared | None
    judgement: Judgement
    extremes: Extremes
    learning: Learning
    reproduction: Reproduction
    data: dict[str, object] | None


def write_report(
    path: str | os.PathLike[str],
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    comparison: Comparison | None = None,
    command: str | None = None,
    title: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write what a fitted model has learned to one self-contained HTML file at `path`.

    X and y are the training data as they were given to `fit`. Predictions are judged on the test set, or
    without one by leave-one-out where the posterior is exact, else on the training set, and the page says
    which. `command` is what reproduces the model. `progress` is told what is being computed. The file is
    written in full or not at all; a symbolic link at `path` is replaced, and not followed.
    """
    page = page_of(model, X, y, X_test, y_test, comparison, command, title, seed, progress)
    target = Path(path)
    write_atomically(target, rendered(page))
    return target


def page_of(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    comparison: Comparison | None = None,
    command: str | None = None,
    title: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Page:
    """What the page of a model shows, with the arguments of `write_report`."""
    check_is_fitted(model)
    tell = (lambda what: None) if progress is None else progress
    rows, targets = np.asarray(X), np.asarray(y)
    shown = rows if X_test is None else np.asarray(X_test)
    with warnings.catch_warnings():
        # rows are taken from a table by number here, and lose the names of its columns
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        tell("judging predictions")
        judged = judge(model, rows, targets, X_test, y_test)
        tell("error bars of the learned ranges")
        known = range_errors(model)
        ranges = learned_ranges(model, known)
        exploration = _explored(model, shown, judged, seed, tell)
        tracks = () if exploration is None else exploration.tracks
        tell("drawing")
        is_labelled, layout, painter = isinstance(judged, Labelled), model.form_, None
        if layout.image_shape is None:
            exploration = None  # there is no picture to move
        else:
            painter = painter_for(shown.reshape(len(shown), -1).astype(np.float64)[:PAINTED_ROWS], layout)
        return Page(
            "What the model learned" if title is None else title,
            is_labelled,
            answer_of(model, ranges, known, comparison),
            ranges,
            exploration,
            None if exploration is None else orbits_of(model, exploration, seed),
            changes_of(tracks, "" if is_labelled else " (as the targets)"),
            None if comparison is None else compared(model, comparison, judged, X_test, y_test),
            judgement_of(judged, seed),
            extremes_of(model, shown, judged, painter, seed),
            learning_of(model, ranges),
            reproduction_of(model, rows, targets, command, seed),
            None if exploration is None else page_data(exploration, judged),
        )


def _explored(
    model: Model, shown: ndarray, judged: Judged, seed: int, progress: Progress
) -> Exploration | None:
    orbit = orbit_of(model)
    if orbit is None:
        return None
    found = explore(model, orbit, shown, judged, choose_examples(judged, seed), seed, progress)
    return found if found.tracks else None


def rendered(page: Page, template: str = "page.html") -> str:
    """The whole page, or the part of one template; whatever is not part of a template is escaped."""
    templates = Environment(
        loader=PackageLoader("orbitwise.report"),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    templates.filters |= {"number": number, "unbroken": unbroken}
    templates.globals |= {"with_error": with_error, "mean_with_error": mean_with_error, "share": share}
    templates.globals |= {"most_points": MOST_POINTS}
    script = resource("page.js")
    # only this script may run, so that text that slipped through as HTML could do nothing
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = Markup(resource("page.css"))
    return templates.get_template(template).render(
        page=page, style=style, script=Markup(script), digest=digest
    )


def printable(value: object) -> object:
    """Text from outside with a mark in place of each character that cannot be printed; all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in value)


def unbroken(piece: str) -> Markup:
    """A piece of HTML in which numbers stay on one line with their units and errors."""
    return Markup(re.sub(r"(?<=\d)\s(?=%|±|nats\b|× 10)|(?<=±) (?=\d)", "\u00a0", escape(piece)))


def resource(name: str) -> str:
    """The text of a file beside the templates."""
    return resources.files("orbitwise.report").joinpath("templates", name).read_text(encoding="utf-8")
