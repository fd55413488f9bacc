"""The report as one HTML file: readable on a phone and in print, interactive, and without any network."""

from __future__ import annotations

import base64
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from orbitwise.estimators.estimator import shortfall
from orbitwise.estimators.validation import layout_of
from orbitwise.report.answer import headline, standing
from orbitwise.report.examples import (
    example_name,
    explorer_section,
    extremes_section,
    orbit_section,
    thumbnails,
)
from orbitwise.report.exploration import Exploration, choose_examples, explore, page_data
from orbitwise.report.judgement import judgement_section, quality
from orbitwise.report.markup import escape, fill, json_text, paragraph, resource
from orbitwise.report.numbers import with_error
from orbitwise.report.pictures import painter_for
from orbitwise.report.predictions import Judged, Labelled, judge
from orbitwise.report.ranges import Range, learned_ranges, orbit_of, range_errors
from orbitwise.report.sections import (
    changes_section,
    comparison_section,
    learning_section,
    ranges_section,
    reproduction_section,
)
from orbitwise.selection.compare import Comparison
from orbitwise.storage.atomic import write_atomically

Progress = Callable[[str], None]


def write_report(
    path: str | os.PathLike[str],
    model: Any,
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
    there in full or not at all; a symbolic link at `path` is replaced, and not followed.
    """
    check_is_fitted(model)
    with warnings.catch_warnings():
        # rows are taken from a table by number here, and lose the names of its columns
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        page = _written(model, X, y, X_test, y_test, comparison, command, title, seed, progress)
    target = Path(path)
    write_atomically(target, page)
    return target


def _written(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike | None,
    y_test: ArrayLike | None,
    comparison: Comparison | None,
    command: str | None,
    title: str | None,
    seed: int,
    progress: Progress | None,
) -> str:
    rows, targets = np.asarray(X), np.asarray(y)
    _tell(progress, "judging predictions")
    judged = judge(model, rows, targets, X_test, y_test)
    shown = rows if X_test is None else np.asarray(X_test)
    _tell(progress, "error bars of the learned ranges")
    ranges = learned_ranges(model)
    exploration, names = _explore(model, shown, judged, seed, progress)
    _tell(progress, "drawing")
    parts = [
        ranges_section(model, ranges) if ranges else "",
        *_example_sections(model, exploration, names, judged, seed),
        "" if comparison is None else _comparison(model, comparison, judged, X_test, y_test),
        judgement_section(judged, seed),
        extremes_section(model, shown, judged, _painter(model, shown), seed),
        learning_section(model, ranges),
        reproduction_section(model, rows, targets, command, seed),
    ]
    heading = "What the model learned" if title is None else title
    answer = _answer(model, ranges, comparison, judged)
    return _page(heading, answer, parts, _data(model, exploration, names, judged))


def _page(heading: str, answer: str, parts: Sequence[str], data: str) -> str:
    script = resource("page.js")
    # only this script may run, so that text that slipped through as HTML could do nothing
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return fill(
        resource("template.html"),
        {
            "title": escape(heading),
            "digest": digest,
            "style": resource("page.css"),
            "answer": answer,
            "parts": "\n".join(part for part in parts if part),
            "data": data,
            "script": script,
        },
    )


def _answer(model: Any, ranges: Sequence[Range], comparison: Comparison | None, judged: Judged) -> str:
    """The answer in a sentence, and what else to know at once."""
    evidence = with_error(model.log_evidence_, model.log_evidence_error_, " nats")
    kind = "" if model.evidence_kind_ == "exact" else f", a {model.evidence_kind_}"
    if hasattr(model, "certificate_"):
        kind += f"; it is at most {with_error(model.certificate_.upper, None, ' nats')}"
    sentences = [*standing(model, comparison), quality(judged), f"Log evidence {evidence}{kind}."]
    pieces = [
        paragraph(escape(headline(model, ranges, comparison)), "answer"),
        paragraph(escape(" ".join(sentences)), "standing"),
    ]
    notes = []
    if not model.converged_:
        reason = shortfall(model) or "more iterations would change these numbers."
        notes.append(f"Learning stopped before it converged. {reason[0].upper()}{reason[1:]}")
    if any(not each.is_known for each in ranges):
        notes.append(range_errors(model).reason)
    if notes:
        pieces.append(paragraph(escape(" ".join(notes)), "note"))
    return "".join(pieces)


def _explore(
    model: Any, shown: ndarray, judged: Judged, seed: int, progress: Progress | None
) -> tuple[Exploration | None, list[str]]:
    orbit = orbit_of(model)
    if orbit is None:
        return None, []
    chosen = choose_examples(judged, seed)
    names = [example_name(judged, int(row)) for row in chosen]
    return explore(model, orbit, shown, judged, chosen, seed, progress), names


def _example_sections(
    model: Any, exploration: Exploration | None, names: Sequence[str], judged: Judged, seed: int
) -> list[str]:
    if exploration is None or not exploration.tracks:
        return []
    sections = []
    if model._image_shape is not None:
        painter = painter_for(exploration.rows, layout_of(model))
        moves = [track.move for track in exploration.tracks]
        uris = thumbnails(exploration, painter)
        sections.append(orbit_section(model, exploration, names, painter, seed))
        sections.append(explorer_section(moves, names, uris, judged))
    unit = "" if isinstance(judged, Labelled) else " (as the targets)"
    tracks = [track for track in exploration.tracks if not track.move.is_finite]
    if tracks:
        sections.append(changes_section(tracks, unit, isinstance(judged, Labelled)))
    return sections


def _comparison(
    model: Any,
    comparison: Comparison,
    judged: Judged,
    X_test: ArrayLike | None,
    y_test: ArrayLike | None,
) -> str:
    tested: list[Judged | None] = [None for _ in comparison.candidates]
    if X_test is not None and y_test is not None:
        tested = [
            judged if each.estimator is model else judge(each.estimator, X_test, y_test, X_test, y_test)
            for each in comparison.candidates
        ]
    name = "test error" if isinstance(judged, Labelled) else "test error (root mean square)"
    return comparison_section(model, comparison, tested, name)


def _painter(model: Any, shown: ndarray) -> Any:
    if model._image_shape is None:
        return None
    flat = shown.reshape(len(shown), -1).astype(np.float64)
    return painter_for(flat[:1000], layout_of(model))


def _data(model: Any, exploration: Exploration | None, names: Sequence[str], judged: Judged) -> str:
    if exploration is None or not exploration.tracks or model._image_shape is None:
        return "null"
    return json_text(page_data(model, exploration, judged, names, layout_of(model)))


def _tell(progress: Progress | None, what: str) -> None:
    if progress is not None:
        progress(what)
