"""What the parts of the page are filled with: small objects that the templates put in words.

The words themselves are in `templates`, one file per part of the page.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.estimator import shortfall
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.report.exploration import Exploration, Track
from orbitwise.report.figures import (
    change_figure,
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
from orbitwise.report.ranges import (
    Model,
    Range,
    RangeErrors,
    learned_ranges,
    recorded_ranges,
    symmetry_phrase,
)
from orbitwise.selection.compare import NO_INVARIANCE, Candidate, Comparison
from orbitwise.selection.differences import Difference, difference_between

NUM_SAMPLES = 8
NUM_LISTED = 6
MOST_COLUMNS = 6
MOST_MATRIX = 60
"""A confusion matrix of more classes than these is not drawn."""
MOST_OUTPUTS = 3
PACKAGES = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn", "matplotlib")
UNSAID = ("callback", "checkpoint", "verbose")
"""Parameters that change nothing of what is learned."""
PLAIN = (type(None), bool, int, float, str, tuple, list)


@final
class Lead(NamedTuple):
    """How far the model is ahead of another candidate; `name` is that of the other."""

    name: str
    difference: Difference


@final
@dataclass(frozen=True)
class Answer:
    """What f does not care about, what the evidence says of it, and what else to know at once."""

    phrases: Sequence[str]
    symmetry: str
    against: Lead | None
    ties: Sequence[Lead]
    better: Sequence[Lead]
    nearest_worse: Lead | None
    evidence: float
    error: float
    kind: str
    upper: float | None
    shortfall: str | None
    is_converged: bool
    no_errors: str


def answer_of(
    model: Model, ranges: Sequence[Range], known: RangeErrors, comparison: Comparison | None
) -> Answer:
    """The answer, with the place of the model among the candidates; ties are called ties."""
    own = None if comparison is None else own_candidate(model, comparison)
    others: list[Candidate] = []
    leads: list[Lead] = []
    if comparison is not None and own is not None:
        others = [each for each in comparison.candidates if each is not own]
        leads = [Lead(each.name, difference_between(own, each)) for each in others]
    rivals = [each for each in leads if each.name != NO_INVARIANCE]
    worse = [each for each in rivals if not each.difference.is_tie and each.difference.nats > 0]
    certificate = certificate_of(model)
    return Answer(
        [each.phrase() for each in ranges],
        "" if ranges else symmetry_phrase(model),
        _against(own, others),
        [each for each in rivals if each.difference.is_tie],
        [each for each in rivals if not each.difference.is_tie and each not in worse],
        min(worse, key=lambda each: each.difference.nats, default=None),
        model.log_evidence_,
        model.log_evidence_error_,
        model.evidence_kind_,
        None if certificate is None else certificate.upper,
        shortfall(model),
        model.converged_,
        "" if all(each.is_known for each in ranges) else known.reason,
    )


def own_candidate(model: Model, comparison: Comparison) -> Candidate | None:
    """The candidate that is this model, also where the model was saved and loaded since."""
    for candidate in comparison.candidates:
        if candidate.estimator is model or candidate.log_evidence == model.log_evidence_:
            return candidate
    return None


def _against(own: Candidate | None, others: Sequence[Candidate]) -> Lead | None:
    """The lead over no invariance, or that of no invariance over the best of the others."""
    plain = next((each for each in others if each.name == NO_INVARIANCE), None)
    if own is None or not others:
        return None
    if own.name == NO_INVARIANCE:
        rival = max(others, key=lambda each: each.score)
        return Lead(rival.name, difference_between(own, rival))
    return None if plain is None else Lead("no invariance", difference_between(own, plain))


def certificate_of(model: Model) -> Certificate | None:
    """The bracket of the log evidence, which sparse models have."""
    return getattr(model, "certificate_", None)


@final
class Strip(NamedTuple):
    """An example as a picture, and pictures of points of its orbit."""

    name: str
    original: str
    moved: Sequence[str]


@final
class Orbits(NamedTuple):
    """Examples, and random points of their learned orbits (LIM figure 1) or elements of a finite one."""

    strips: Sequence[Strip]
    is_finite: bool


def orbits_of(model: Model, exploration: Exploration, seed: int) -> Orbits:
    """The orbits of the chosen examples as pictures."""
    painter, is_finite = exploration.painter, model.orbit_ is None or not model.orbit_.learned()
    if is_finite:
        points = exploration.tracks[0].moved[:, 1 : NUM_SAMPLES + 1]
    else:
        points = model.sample_orbit(exploration.rows, n=NUM_SAMPLES, random_state=seed)
    strips = [
        Strip(name, painter.uri(row), [painter.uri(each) for each in moved])
        for name, row, moved in zip(exploration.names, exploration.rows, points, strict=True)
    ]
    return Orbits(strips, is_finite)


@final
class Change(NamedTuple):
    """The figure of how f changes along one move."""

    label: str
    figure: str


def changes_of(tracks: Sequence[Track], unit: str) -> list[Change]:
    """How f changes along each move that is not one of a finite orbit."""
    return [Change(each.move.label, change_figure(each, unit)) for each in tracks if not each.move.is_finite]


@final
class Row(NamedTuple):
    """A candidate in the table of the comparison."""

    candidate: Candidate
    is_own: bool
    lead: Difference | None
    certificate: Certificate | None
    error_per_row: float
    ranges: Sequence[Range]
    test_error: str


@final
class Compared(NamedTuple):
    """All candidates by evidence."""

    comparison: Comparison
    rows: Sequence[Row]


def compared(
    model: Model, comparison: Comparison, judged: Judged, X_test: ArrayLike | None, y_test: ArrayLike | None
) -> Compared:
    """The table of the comparison; with a test set, the errors there of all candidates."""
    own, rows = own_candidate(model, comparison), []
    for each in comparison.candidates:
        error = ""
        if X_test is not None and y_test is not None:
            is_judged = each.estimator is model
            error = (judged if is_judged else judge(each.estimator, X_test, y_test, X_test, y_test)).error()
        is_best = each is comparison.best
        rows.append(
            Row(
                each,
                each is own,
                None if is_best else comparison.difference(comparison.best, each),
                certificate_of(each.estimator),
                each.standard_error * abs(each.per_datum / (each.log_evidence or 1.0)),
                learned_ranges(each.estimator),
                error,
            )
        )
    return Compared(comparison, rows)


@final
class Judgement(NamedTuple):
    """Predictions with the figures of them: `figures` has one entry per output, or one for all classes."""

    judged: Judged
    figures: Sequence[Sequence[str]]


def judgement_of(judged: Judged, seed: int) -> Judgement:
    """Confusions and reliability, or predictions, residuals and coverage of the first few outputs."""
    if isinstance(judged, Labelled):
        confusion = confusion_figure(judged) if len(judged.classes) <= MOST_MATRIX else ""
        return Judgement(judged, [[confusion, reliability_figure(judged)]])
    figures = [
        [predicted_figure(each, seed), residual_figure(each, seed), coverage_figure(each)]
        for each in judged.outputs[:MOST_OUTPUTS]
    ]
    return Judgement(judged, figures)


@final
class Prediction(NamedTuple):
    """What was predicted, and how sure it was or how far off; `is_wrong`: it is not the true class."""

    predicted: str
    detail: str
    is_wrong: bool = False


@final
class Example(NamedTuple):
    """One row of the data, its class or measured value, and the prediction; `picture` is "" for a table."""

    row: int
    name: str
    picture: str
    features: Sequence[float]
    prediction: Prediction


@final
@dataclass(frozen=True)
class Extremes:
    """The most uncertain and the worst predictions; `names` are those of the columns, where they have any."""

    judged: Judged
    uncertain: Sequence[Example]
    worst: Sequence[Example]
    names: Sequence[str]
    has_pictures: bool


def extremes_of(model: Model, X: ndarray, judged: Judged, painter: Painter | None, seed: int) -> Extremes:
    """The predictions that are worth a look."""
    flat = X.reshape(len(X), -1)

    def listed(values: Float[ndarray, " n"]) -> list[Example]:
        rows = np.argsort(-values, kind="stable")[:NUM_LISTED]
        return [
            Example(
                row,
                judged.name(row),
                "" if painter is None else painter.uri(flat[row]),
                flat[row, :MOST_COLUMNS].tolist() if painter is None else [],
                prediction,
            )
            for row, prediction in zip(rows.tolist(), _predictions(model, judged, rows, seed), strict=True)
        ]

    if isinstance(judged, Labelled):
        lists = listed(-judged.confidence), listed(judged.losses)
    else:
        output = judged.outputs[0]
        lists = listed(output.deviation), listed(np.abs(output.scores))
    names = getattr(model, "feature_names_in_", ())[:MOST_COLUMNS]
    return Extremes(judged, *lists, list(names), painter is not None)


def _predictions(model: Model, judged: Judged, rows: Int[ndarray, " m"], seed: int) -> list[Prediction]:
    if not isinstance(judged, Labelled):
        mean, deviation, scores = judged.mean[:, 0], judged.deviation[:, 0], judged.outputs[0].scores
        texts = [with_error(float(mean[row]), float(deviation[row])) for row in rows]
        return [
            Prediction(text, number(float(score), 1, signed=True))
            for text, score in zip(texts, scores[rows], strict=True)
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
        is_wrong = bool(judged.is_wrong[row])
        found.append(Prediction(judged.classes[chosen], f"{share} % ({first} to {last} %)", is_wrong))
    return found


@final
class Stage(NamedTuple):
    """What was tried on one number of nodes; `values` are the evidence of each start, the best first."""

    num_nodes: int
    values: Sequence[float]
    evaluations: int
    seconds: float


@final
@dataclass(frozen=True)
class Learning:
    """How it was learned: figures, "" where there is nothing to draw, and the stages of a search."""

    is_converged: bool
    stages: Sequence[Stage]
    stopped_by: str
    evidence: str
    ranges: str
    is_recorded: bool
    certificate: Certificate | None


def learning_of(model: Model, ranges: Sequence[Range]) -> Learning:
    """Evidence over time, and ranges over time or from start to end."""
    search, recorded = getattr(model, "search_", []), recorded_ranges(model)
    stages = [
        Stage(each["num_nodes"], sorted(each["values"], reverse=True), each["evaluations"], each["seconds"])
        for each in search
    ]
    evidence, changes = "", ""
    if search:
        evidence = stages_figure([each.num_nodes for each in stages], [each.values for each in stages])
    elif len(model.history_) > 1:
        evidence = evidence_figure(model.history_)
    # a search looks at several starts: its ranges are no single path
    is_recorded = len(recorded) > 1 and not search
    if is_recorded:
        changes = range_history_figure(recorded)
    elif any(each.start is not None for each in ranges):
        changes = ranges_figure(ranges)
    stopped_by = getattr(model, "stopped_by_", "")
    return Learning(
        model.converged_, stages, stopped_by, evidence, changes, is_recorded, certificate_of(model)
    )


@final
class Data(NamedTuple):
    """What was fitted: its shape, type and fingerprint."""

    name: str
    shape: Sequence[int]
    channels: str | None
    dtype: str
    fingerprint: str


@final
@dataclass(frozen=True)
class Reproduction:
    """How to get the model again: the command, the call in Python, the data and the versions."""

    command: str | None
    call: str
    data: Sequence[Data]
    seed: int
    versions: dict[str, str]


def reproduction_of(model: Model, X: ndarray, y: ndarray, command: str | None, seed: int) -> Reproduction:
    """Command, settings, data and versions."""
    parts = (("inputs", X, model.channels_), ("targets", y, None))
    data = [
        Data(name, part.shape, channels, str(part.dtype), fingerprint(part)) for name, part, channels in parts
    ]
    # at import, the package that holds the version is not complete yet
    from orbitwise import __version__

    versions = {"orbitwise": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return Reproduction(command, _call(model), data, seed, versions)


def fingerprint(array: ndarray) -> str:
    """The first digits of the SHA-256 of an array's bytes; of their text where they are objects."""
    data = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _call(model: Model) -> str:
    defaults = inspect.signature(type(model).__init__).parameters
    given = []
    for name, value in model.get_params(deep=False).items():
        default = defaults[name].default
        is_plain = isinstance(value, PLAIN)
        if name in UNSAID or (is_plain and type(value) is type(default) and value == default):
            continue
        given.append(f"{name}={value!r}" if is_plain else f"{name}={type(value).__name__}(…)")
    return f"orbitwise.{type(model).__name__}({', '.join(given)}).fit(X, y)"
