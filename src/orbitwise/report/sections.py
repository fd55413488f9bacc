"""Parts of the page about the fit: what was learned, the comparison, how it was learned, how to repeat it."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy import ndarray

from orbitwise.report.answer import candidate_of
from orbitwise.report.exploration import Track
from orbitwise.report.figures import (
    change_figure,
    evidence_figure,
    range_history_figure,
    ranges_figure,
    stages_figure,
)
from orbitwise.report.judgement import brief_error
from orbitwise.report.markup import escape, figure, paragraph, section, side_by_side, table
from orbitwise.report.numbers import number, with_error
from orbitwise.report.predictions import Judged
from orbitwise.report.ranges import Range, interval_text, learned_ranges, range_errors
from orbitwise.report.recording import recorded_ranges
from orbitwise.selection.compare import Candidate, Comparison

PACKAGES = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn", "matplotlib")
NOTHING = "–"
UNSAID = ("callback", "checkpoint", "verbose")
"""Parameters that change nothing of what is learned."""
PLAIN = (type(None), bool, int, float, str, tuple, list)


def ranges_section(model: Any, ranges: Sequence[Range]) -> str:
    """The learned ranges with their errors and where they started."""
    rows = [
        [
            escape(each.label),
            f"<b>{escape(each.text())}</b>",
            escape(each.error_text()),
            escape(interval_text(each.start, each.unit)) if each.start is not None else "not known",
        ]
        for each in ranges
    ]
    words = (
        "Moves that the model was free to ignore, and how far the evidence of the training targets let each "
        "of them go. After ± stands the standard error of the upper end, from the curvature of the evidence "
        "and from what other points of the orbit would change. Where a range is zero, at its limit or known "
        "to less than itself, the 95 % interval stands instead."
    )
    notes = ""
    if any(not each.is_known for each in ranges):
        notes = paragraph(escape(range_errors(model).reason), "note")
    return section(
        "ranges", "What was learned", paragraph(words), table(_RANGE_HEADINGS, rows, (1, 2, 3)), notes
    )


_RANGE_HEADINGS = ("move", "learned range", "how sure", "started at")


def comparison_section(
    model: Any, comparison: Comparison, tested: Sequence[Judged | None], test_name: str
) -> str:
    """All candidates by evidence; differences with their standard errors, ties called ties."""
    own = candidate_of(model, comparison)
    headings = ["invariance", "log evidence", "behind the best", "per row", "learned", test_name, "seconds"]
    rows = []
    for candidate, judged in zip(comparison.candidates, tested, strict=True):
        name = escape(candidate.name)
        rows.append(
            [
                f'<b>{name}</b> <span class="faint">this report</span>' if candidate is own else name,
                with_error(candidate.log_evidence, candidate.standard_error) + _bracket(candidate),
                _behind(candidate, comparison),
                with_error(candidate.per_datum, _per_row(candidate)),
                _learned(candidate),
                "" if judged is None else brief_error(judged),
                number(candidate.seconds, 1),
            ]
        )
    if all(judged is None for judged in tested):
        headings, rows = headings[:5] + headings[6:], [row[:5] + row[6:] for row in rows]
    if all(row[4] == NOTHING for row in rows):
        headings, rows = headings[:4] + headings[5:], [row[:4] + row[5:] for row in rows]
    numeric = [i for i in range(len(headings)) if headings[i] not in ("invariance", "learned")]
    kinds = sorted({each.evidence_kind for each in comparison.candidates})
    words = (
        "The evidence is log p(targets) of the training data, in nats: it rewards what explains them and "
        f"charges for what could have explained anything. Here it is {' or '.join(map(escape, kinds))}. "
        "A difference of n nats is odds of eⁿ to 1. The error after ± says how far other points of the "
        "orbit, or more of them, would move it. Differences are taken on the same points for all candidates, "
        "so they are surer than the evidence itself. Candidates within two standard errors, or within 1.1 "
        "nats (odds of 3 to 1), of the most evidence are a tie, of which the simplest is the best. Evidence "
        "without ± "
        "was computed with nothing drawn; the error bar of a range without brackets was not computed."
    )
    return section(
        "comparison",
        "Which invariance do the data support?",
        table(headings, rows, numeric),
        paragraph(escape(comparison.verdict)),
        paragraph(words, "small"),
    )


def changes_section(tracks: Sequence[Track], unit: str, is_labelled: bool) -> str:
    """How f changes along each move, with its uncertainty."""
    what = "the score f of an example's own class" if is_labelled else "f"
    words = (
        f"How much {what} changes when an example is moved: flat means insensitive. Thin lines are examples, "
        "the thick line is their mean, and the band one posterior standard deviation of the change of a "
        "single example. Green is the learned range."
    )
    figures = [
        figure(change_figure(track.move, track.change, track.deviation, unit), escape(track.move.label))
        for track in tracks
    ]
    return section(
        "changes", "How f changes along each move", paragraph(words), side_by_side(*figures, small=True)
    )


def learning_section(model: Any, ranges: Sequence[Range]) -> str:
    """Evidence over time, and ranges over time or from start to end."""
    pieces = []
    search = getattr(model, "search_", [])
    ended = "Learning converged." if model.converged_ else "Learning stopped before it converged."
    if search:
        words = (
            f"{ended} It ended: {escape(model.stopped_by_)}. Each filled circle is the best that was "
            "found on so many nodes (points that stand for the orbit), each open one another start. On few "
            "nodes the evidence is that of a coarser model, so that more of them change it."
        )
        pieces.append(figure(stages_figure(search), "Evidence while the nodes double", words))
    elif len(model.history_) > 1:
        words = (
            f"{ended} A step down is a change of what is computed (more points of the orbit, more inducing "
            "points), not a step back."
        )
        pieces.append(figure(evidence_figure(model.history_), "Evidence", words))
    recorded = recorded_ranges(model)
    # a search looks at several starts: its ranges are no single path
    if len(recorded) > 1 and not search:
        words = "The size of each range after every iteration, as a multiple of the first."
        pieces.append(figure(range_history_figure(recorded), "Learned ranges", words))
    elif any(each.start is not None for each in ranges):
        words = (
            "From where it was given (open circle) to the end (filled) with its 95 % interval; an orange "
            "diamond is an end known to less than itself, or whose error bar was not computed."
        )
        pieces.append(figure(ranges_figure(ranges), "Learned ranges, start and end", words))
    certificate = getattr(model, "certificate_", None)
    if certificate is not None:
        pieces.append(f"<div><h3>Certificate</h3>{paragraph(escape(certificate))}</div>")
    if not pieces:
        return ""
    return section("learning", "How it was learned", side_by_side(*pieces), _stages(search))


def _stages(search: Sequence[Mapping[str, Any]]) -> str:
    """What was tried on each number of nodes, and what it cost."""
    rows = [
        [
            number(stage["num_nodes"], 0),
            number(max(stage["values"]), 1),
            ", ".join(number(value, 1) for value in sorted(stage["values"], reverse=True)[1:]) or NOTHING,
            number(stage["evaluations"], 0),
            number(stage["seconds"], 1),
        ]
        for stage in search
    ]
    return table(_STAGE_HEADINGS, rows, range(len(_STAGE_HEADINGS))) if rows else ""


_STAGE_HEADINGS = ("nodes", "best log evidence", "other starts", "evaluations", "seconds")


def reproduction_section(model: Any, X: ndarray, y: ndarray, command: str | None, seed: int) -> str:
    """Command, settings, data and versions."""
    call = _call(model)
    shown = call if command is None else command
    settings = "" if command is None else f"<p>The model, as Python:</p><pre>{escape(call)}</pre>"
    versions = {"orbitwise": _own_version(), "python": platform.python_version(), **_versions()}
    channels = getattr(model, "channels_", None)
    order = f" (images, channels {channels})" if channels is not None else ""
    data = [
        ["inputs", "×".join(map(str, X.shape)) + order, escape(X.dtype), fingerprint(X)],
        ["targets", "×".join(map(str, y.shape)), escape(y.dtype), fingerprint(y)],
    ]
    return section(
        "reproduction",
        "How to reproduce it",
        f"<pre>{escape(shown)}</pre>",
        settings,
        table(["training data", "shape", "type", "SHA-256 begins"], data),
        paragraph(f"Random parts of this report were drawn with seed {seed}."),
        paragraph(
            "Versions: " + ", ".join(f"{name} {escape(version)}" for name, version in versions.items()),
            "small",
        ),
    )


def fingerprint(array: ndarray) -> str:
    """The first digits of the SHA-256 of an array's bytes; of their text where they are objects."""
    data = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _behind(candidate: Candidate, comparison: Comparison) -> str:
    if candidate is comparison.best:
        return "best"
    difference = comparison.difference(comparison.best, candidate)
    ahead = "ahead by " if difference.nats < 0 else ""
    tie = " <b>(undecided)</b>" if candidate.name in comparison.undecided else ""
    tie = " <b>(tie)</b>" if candidate.name in comparison.tied else tie
    return ahead + difference.text().replace(" nats", "") + tie


def _bracket(candidate: Candidate) -> str:
    certificate = getattr(candidate.estimator, "certificate_", None)
    return "" if certificate is None else f"<br>at most {number(certificate.upper, 1)}"


def _learned(candidate: Candidate) -> str:
    ranges = learned_ranges(candidate.estimator)
    return escape(", ".join(each.phrase() for each in ranges)) if ranges else NOTHING


def _per_row(candidate: Candidate) -> float:
    """The standard error of the evidence a row."""
    return candidate.standard_error * abs(candidate.per_datum / (candidate.log_evidence or 1.0))


def _call(model: Any) -> str:
    defaults = inspect.signature(type(model).__init__).parameters
    given = []
    for name, value in model.get_params(deep=False).items():
        default = defaults[name].default
        is_plain = isinstance(value, PLAIN)
        if name in UNSAID or (is_plain and type(value) is type(default) and value == default):
            continue
        given.append(f"{name}={value!r}" if is_plain else f"{name}={type(value).__name__}(…)")
    return f"orbitwise.{type(model).__name__}({', '.join(given)}).fit(X, y)"


def _own_version() -> str:
    # At import, the package that holds the version is not complete yet.
    from orbitwise import __version__

    return __version__


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
