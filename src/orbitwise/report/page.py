"""The report as one interactive HTML file that needs no network, readable on a phone and in print."""

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
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from orbitwise.estimators.convergence import shortfall
from orbitwise.inference.disk import write_atomically
from orbitwise.report.contents import (
    Compared,
    Extremes,
    Learning,
    Reproduction,
    Strip,
    compared,
    extremes_of,
    judgement_figures,
    learning_of,
    reproduction_of,
    strips_of,
)
from orbitwise.report.exploration import Exploration, choose_examples, explore, page_data
from orbitwise.report.figures import MOST_POINTS, change_figure
from orbitwise.report.numbers import mean_with_error, number, share, with_error
from orbitwise.report.pictures import painter_for
from orbitwise.report.predictions import Judged, Labelled, judge
from orbitwise.report.ranges import Model, Range, learned_ranges, orbit_of, range_errors, symmetry_phrase
from orbitwise.selection.compare import Comparison

Progress = Callable[[str], None]
PAINTED_ROWS = 1000
"""The number of rows from which the brightness of pictures is computed."""


@final
@dataclass(frozen=True)
class Page:
    """The contents of the page; parts that a model does not have are None or empty.

    Attributes
    ----------
    judged : Labelled or Measured
        Predictions with the true classes or targets.
    ranges : sequence of Range
        The learned ranges.
    no_errors : str
        Why ranges have no error bars; "" if they have.
    compared : Compared or None
        The model among other candidates.
    exploration : Exploration or None
        Examples of images, moved along every move of the orbit.
    strips : sequence of Strip
        These examples with points of their orbits.
    changes : dict of str to str
        Figures of the change of f, by the label of the move.
    figures : sequence of sequences of str
        Figures of the predictions: one list for all classes, or one per output.
    extremes, learning, reproduction : Extremes, Learning and Reproduction
        Examples worth a look, how the model was learned, and how to reproduce it.
    data : dict or None
        The data for the script of the page.
    """

    title: str
    model: Model
    judged: Judged
    ranges: Sequence[Range]
    no_errors: str
    compared: Compared | None
    exploration: Exploration | None
    strips: Sequence[Strip]
    changes: dict[str, str]
    figures: Sequence[Sequence[str]]
    extremes: Extremes
    learning: Learning
    reproduction: Reproduction
    data: dict[str, object] | None

    @property
    def is_labelled(self) -> bool:
        """Whether targets are classes, not numbers."""
        return isinstance(self.judged, Labelled)


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
    """Write a report on a fitted model to one self-contained HTML file.

    Predictions are judged on the test set. Without a test set they are judged by leave-one-out if the
    posterior is exact, and on the training set otherwise; the page says which.

    Parameters
    ----------
    path : str or path-like
        The file. It is written in full or not at all; a symbolic link is replaced, not followed.
    model : InvariantGPClassifier, InvariantGPRegressor or SparseGPRegressor
        The fitted model.
    X, y : array-like
        The training data that were passed to `fit`.
    X_test, y_test : array-like, default=None
        The test set: both or neither.
    comparison : Comparison, default=None
        The result of `compare`, to show the model among the other candidates.
    command : str, default=None
        The command that reproduces the model.
    title : str, default=None
        The heading of the page.
    seed : int, default=0
        Seeds the choice of examples and points, and the draws for bands.
    progress : callable, default=None
        Called with a short description of each step.

    Returns
    -------
    Path
        The file.
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
    """The contents of the page; the arguments are those of `write_report`."""
    check_is_fitted(model)
    tell = (lambda what: None) if progress is None else progress
    rows, targets = np.asarray(X), np.asarray(y)
    shown = rows if X_test is None else np.asarray(X_test)
    with warnings.catch_warnings():
        # rows are taken from a table by index here, without the names of its columns
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        tell("judging predictions")
        judged = judge(model, rows, targets, X_test, y_test)
        tell("error bars of the learned ranges")
        known = range_errors(model)
        ranges = learned_ranges(model, known)
        orbit, exploration = orbit_of(model), None
        if orbit is not None:
            exploration = explore(model, orbit, shown, judged, choose_examples(judged, seed), seed, tell)
        tell("drawing")
        unit = "" if isinstance(judged, Labelled) else " (as the targets)"
        changes = {}
        if exploration is not None:
            moving = [each for each in exploration.tracks if not each.move.is_finite]
            changes = {each.move.label: change_figure(each, unit) for each in moving}
        painter = None
        if model.form_.image_shape is None or exploration is None or not exploration.tracks:
            exploration = None  # only images can be moved on the page
        if model.form_.image_shape is not None:
            painted = shown.reshape(len(shown), -1).astype(np.float64)[:PAINTED_ROWS]
            painter = painter_for(painted, model.form_)
        return Page(
            "What the model learned" if title is None else title,
            model,
            judged,
            ranges,
            "" if all(each.is_known for each in ranges) else known.reason,
            compared(model, comparison, judged, X_test, y_test),
            exploration,
            [] if exploration is None else strips_of(model, exploration, seed),
            changes,
            judgement_figures(judged, seed),
            extremes_of(model, shown, judged, painter, seed),
            learning_of(model, ranges),
            reproduction_of(model, rows, targets, command, seed),
            None if exploration is None else page_data(exploration, judged),
        )


def rendered(page: Page, template: str = "page.html") -> str:
    """Return the HTML of the whole page, or of the part of one template.

    Everything that is not part of a template is escaped, and an undefined name in a template is an error.
    """
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
    functions = (mean_with_error, share, shortfall, symmetry_phrase, with_error)
    templates.globals |= {each.__name__: each for each in functions} | {"most_points": MOST_POINTS}
    script = resource("page.js")
    # only this script may run, so that text that was not escaped by mistake would be harmless
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = Markup(resource("page.css"))
    return templates.get_template(template).render(
        page=page, style=style, script=Markup(script), digest=digest
    )


def printable(value: object) -> object:
    """Text with "�" in place of each character that cannot be printed; other values unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else "�" for each in value)


def unbroken(piece: str) -> Markup:
    """A piece of HTML in which there are no line breaks between numbers and their units and errors."""
    return Markup(re.sub(r"(?<=\d)\s(?=%|±|nats\b|× 10)|(?<=±) (?=\d)", "\u00a0", escape(piece)))


def resource(name: str) -> str:
    """The text of a file in the folder of the templates."""
    return resources.files("orbitwise.report").joinpath("templates", name).read_text(encoding="utf-8")
