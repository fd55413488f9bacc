"""The contents of the parts of the page that need more than the model and its predictions.

The text of the page is in `templates`, one file per part.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.report.exploration import Exploration
from orbitwise.report.figures import (
    confusion_figure,
    coverage_figure,
    evidence_figure,
    predicted_figure,
    range_history_figure,
    ranges_figure,
    reliability_figure,
    residual_figure,
    stages_figure,
)
from orbitwise.report.numbers import number, with_error
from orbitwise.report.pictures import Painter
from orbitwise.report.predictions import Judged, Labelled, judge, probability_bands
from orbitwise.report.ranges import Model, Range, learned_ranges, recorded_ranges
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison
from orbitwise.selection.differences import Difference, difference_between

NUM_SAMPLES = 8
NUM_LISTED = 6
MOST_COLUMNS = 6
MOST_MATRIX = 60
"""With more classes than this, no confusion matrix is drawn."""
MOST_OUTPUTS = 3
PACKAGES = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn", "matplotlib")
UNSAID = ("callback", "checkpoint", "verbose")
"""Parameters that do not affect what is learned; they are left out of the call."""
PLAIN = (type(None), bool, int, float, str, tuple, list)


@final
class Row(NamedTuple):
    """A candidate in the table of the comparison, with its learned ranges, and its test error or ""."""

    candidate: Candidate
    ranges: Sequence[Range]
    test_error: str


@final
class Lead(NamedTuple):
    """The lead of the model over another candidate of this name."""

    name: str
    difference: Difference


@final
class Compared(NamedTuple):
    """All candidates by evidence; `own` is the model of the report, None if it is not among them."""

    comparison: Comparison
    own: Candidate | None
    rows: Sequence[Row] = ()

    @property
    def rivals(self) -> list[Lead]:
        """The lead over each other candidate that has an invariance."""
        return [each for each in self._leads if each.name != NO_INVARIANCE]

    @property
    def against(self) -> Lead | None:
        """The lead over no invariance; if the model itself has none, over the best of the others."""
        leads = self._leads
        if leads and self.own is not None and self.own.name == NO_INVARIANCE:
            return min(leads, key=lambda each: each.difference.nats)
        plain = (each for each in leads if each.name == NO_INVARIANCE)
        return next((each._replace(name="no invariance") for each in plain), None)

    @property
    def _leads(self) -> list[Lead]:
        if self.own is None:
            return []
        others = (each for each in self.comparison.candidates if each is not self.own)
        return [Lead(each.name, difference_between(self.own, each)) for each in others]


def compared(
    model: Model,
    comparison: Comparison | None,
    judged: Judged,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
) -> Compared | None:
    """Return the candidates with the model among them, and with test errors if there is a test set.

    `judged` are the predictions of the model itself, which are not computed again.
    """
    if comparison is None:
        return None
    rows = []
    for each in comparison.candidates:
        error = ""
        if X_test is not None and y_test is not None:
            is_judged = each.estimator is model
            error = (judged if is_judged else judge(each.estimator, X_test, y_test, X_test, y_test)).error()
        rows.append(Row(each, learned_ranges(each.estimator), error))
    return Compared(comparison, own_candidate(model, comparison), rows)


def own_candidate(model: Model, comparison: Comparison) -> Candidate | None:
    """The candidate that is this model, even if the model was saved and loaded in the meantime."""
    for candidate in comparison.candidates:
        if candidate.estimator is model or candidate.log_evidence == model.log_evidence_:
            return candidate
    return None


@final
class Strip(NamedTuple):
    """An example as a picture, with pictures of points of its orbit."""

    name: str
    original: str
    moved: Sequence[str]


def strips_of(model: Model, exploration: Exploration, seed: int) -> list[Strip]:
    """Examples with random points of their learned orbits (LIM figure 1), or with elements of finite ones."""
    painter = exploration.painter
    if model.orbit_ is None or not model.orbit_.learned():
        points = exploration.tracks[0].moved[:, 1 : NUM_SAMPLES + 1]
    else:
        points = model.sample_orbit(exploration.rows, n=NUM_SAMPLES, random_state=seed)
    return [
        Strip(name, painter.uri(row), [painter.uri(each) for each in moved])
        for name, row, moved in zip(exploration.names, exploration.rows, points, strict=True)
    ]


def judgement_figures(judged: Judged, seed: int) -> list[list[str]]:
    """Figures of the predictions: one list for all classes, or one list for each of the first outputs."""
    if isinstance(judged, Labelled):
        confusion = confusion_figure(judged) if len(judged.classes) <= MOST_MATRIX else ""
        return [[confusion, reliability_figure(judged)]]
    return [
        [predicted_figure(each, seed), residual_figure(each, seed), coverage_figure(each)]
        for each in judged.outputs[:MOST_OUTPUTS]
    ]


@final
class Example(NamedTuple):
    """One row of the data, its class or measured value, and the prediction.

    `row` counts from 1, as tables of predictions and messages of the command do. `detail` is the confidence
    of the prediction, or its distance from the measured value. `picture` is "" for tables.
    """

    row: int
    name: str
    picture: str
    features: Sequence[float]
    predicted: str
    detail: str
    is_wrong: bool = False


@final
class Extremes(NamedTuple):
    """The most uncertain and the worst predictions."""

    uncertain: Sequence[Example]
    worst: Sequence[Example]


def extremes_of(model: Model, X: ndarray, judged: Judged, painter: Painter | None, seed: int) -> Extremes:
    """Return the most uncertain and the worst predictions.

    For classes, these have the lowest confidence and the lowest probability of the true class. For measured
    targets, they have the largest predicted standard deviation and the largest error in units of it.
    """
    flat = X.reshape(len(X), -1)

    def listed(values: Float[ndarray, " n"]) -> list[Example]:
        rows = np.argsort(-values, kind="stable")[:NUM_LISTED]
        predictions = _predicted(model, judged, rows, seed)
        return [
            Example(
                row + 1,
                judged.name(row),
                "" if painter is None else painter.uri(flat[row]),
                flat[row, :MOST_COLUMNS].tolist() if painter is None else [],
                *prediction,
            )
            for row, prediction in zip(rows.tolist(), predictions, strict=True)
        ]

    if isinstance(judged, Labelled):
        return Extremes(listed(-judged.confidence), listed(judged.losses))
    output = judged.outputs[0]
    return Extremes(listed(output.deviation), listed(np.abs(output.scores)))


def _predicted(
    model: Model, judged: Judged, rows: Int[ndarray, " m"], seed: int
) -> list[tuple[str, str, bool]]:
    """For each row: the prediction, its confidence or its error, and whether the class is wrong."""
    if not isinstance(judged, Labelled):
        first = judged.outputs[0]
        return [
            (
                with_error(float(first.mean[row]), float(first.deviation[row])),
                number(float(first.scores[row]), 1, signed=True),
                False,
            )
            for row in rows
        ]
    assert isinstance(model, InvariantGPClassifier)
    mean, variance = (part[torch.from_numpy(rows)] for part in judged.moments)
    _, low, high = probability_bands(model, mean, variance, seed)
    found = []
    for i, row in enumerate(rows):
        chosen = int(judged.chosen[row])
        share, first, last = (
            number(100 * float(each), 0)
            for each in (judged.probabilities[row, chosen], low[i, chosen], high[i, chosen])
        )
        detail = f"{share} % ({first} to {last} %)"
        found.append((judged.classes[chosen], detail, bool(judged.is_wrong[row])))
    return found


@final
class Learning(NamedTuple):
    """Figures of the evidence and the ranges during learning; "" if there is nothing to draw."""

    evidence: str = ""
    ranges: str = ""
    is_recorded: bool = False


def learning_of(model: Model, ranges: Sequence[Range]) -> Learning:
    """Return figures of how a model was learned.

    A search for ranges is shown by the evidence for each number of nodes, and any other fit by its history.
    Ranges are drawn over iterations if `record_ranges` recorded them, else from start to end.
    """
    search, recorded = getattr(model, "search_", []), recorded_ranges(model)
    evidence = ""
    if search:
        evidence = stages_figure([each["num_nodes"] for each in search], [each["values"] for each in search])
    elif len(model.history_) > 1:
        evidence = evidence_figure(model.history_)
    # a search has several starts, so its ranges do not follow a single path
    if len(recorded) > 1 and not search:
        return Learning(evidence, range_history_figure(recorded), is_recorded=True)
    has_starts = any(each.start is not None for each in ranges)
    return Learning(evidence, ranges_figure(ranges) if has_starts else "")


@final
class Data(NamedTuple):
    """An array of the training data, its fingerprint, and the position of channels in images."""

    name: str
    array: ndarray
    fingerprint: str
    channels: str | None = None


@final
class Reproduction(NamedTuple):
    """How to reproduce the model: the command, the call in Python, the data and the versions."""

    command: str | None
    call: str
    data: Sequence[Data]
    seed: int
    versions: dict[str, str]


def reproduction_of(model: Model, X: ndarray, y: ndarray, command: str | None, seed: int) -> Reproduction:
    """The command, the call in Python, the data and the versions that reproduce a model."""
    # imported here because the package is not complete while this module is imported
    from orbitwise import __version__

    versions = {"orbitwise": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown"
    data = [Data("inputs", X, fingerprint(X), model.channels_), Data("targets", y, fingerprint(y))]
    return Reproduction(command, _call(model), data, seed, versions)


def fingerprint(array: ndarray) -> str:
    """The first digits of the SHA-256 of an array's bytes, which identify the data.

    An array of objects is identified by its text, because it contains only pointers.
    """
    data = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _call(model: Model) -> str:
    """The call in Python that fits the model, with all arguments that differ from their defaults."""
    defaults = inspect.signature(type(model).__init__).parameters
    given = []
    for name, value in model.get_params(deep=False).items():
        default = defaults[name].default
        is_plain = isinstance(value, PLAIN)
        if name in UNSAID or (is_plain and type(value) is type(default) and value == default):
            continue
        given.append(f"{name}={value!r}" if is_plain else f"{name}={type(value).__name__}(…)")
    return f"orbitwise.{type(model).__name__}({', '.join(given)}).fit(X, y)"
