"""Parts of the page that show examples: the learned orbit, the explorer, the uncertain and the worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from orbitwise.report.exploration import Exploration
from orbitwise.report.markup import escape, paragraph, section, side_by_side, table, unbroken
from orbitwise.report.moves import Move
from orbitwise.report.numbers import number, with_error
from orbitwise.report.pictures import Painter
from orbitwise.report.predictions import Judged, Labelled, Measured, probability_bands

NUM_SAMPLES = 8
NUM_LISTED = 6
MOST_COLUMNS = 6


def example_name(judged: Judged, row: int) -> str:
    """What an example is, as text: its class, or its measured value."""
    if isinstance(judged, Labelled):
        return judged.classes[judged.codes[row]]
    return number(float(judged.measured[row, 0]))


def orbit_section(
    model: Any, exploration: Exploration, names: Sequence[str], painter: Painter, seed: int
) -> str:
    """Examples, each beside random points of its learned orbit (LIM figure 1), or elements of a finite."""
    rows, strips = exploration.rows, ""
    if model.orbit_ is None or not model.orbit_.learned():
        samples = exploration.tracks[0].moved[:, 1 : NUM_SAMPLES + 1]
        kind, title = "elements of its orbit", "The orbit"
    else:
        samples = model.sample_orbit(rows, n=NUM_SAMPLES, random_state=seed)
        kind, title = "random points of its learned orbit", "The learned orbit"
    for row, name, drawn in zip(rows, names, samples, strict=True):
        first = _picture(painter, row, f"example {name}", "tile original")
        strips += f'<div class="strip">{first}{"".join(_picture(painter, each, "") for each in drawn)}</div>'
    words = (
        f"Framed in blue: real examples. Beside each: {kind}. "
        "f is the average of g over such images, which makes it insensitive to these moves."
    )
    return section("orbit", title, paragraph(words), f'<div class="strips">{strips}</div>')


def explorer_section(moves: Sequence[Move], names: Sequence[str], uris: Sequence[str], judged: Judged) -> str:
    """The part of the page that its script brings to life."""
    buttons = "".join(
        f'<button type="button" class="choice" data-example="{i}" aria-pressed="false">'
        f'<img class="tile" src="{uri}" alt=""><span>{escape(name)}</span></button>'
        for i, (name, uri) in enumerate(zip(names, uris, strict=True))
    )
    sliders = "".join(_slider(i, move) for i, move in enumerate(moves))
    kind = "probability of its own class" if isinstance(judged, Labelled) else "prediction"
    if all(move.is_finite for move in moves):
        words = "Choose an example and an element of its orbit: the prediction stays, by construction."
    else:
        words = (
            'Choose an example and move it. <span class="key">Green</span> is the learned range; beyond it '
            "the model was not told to ignore the move. One move at a time: the others go back to rest."
        )
    body = (
        '<noscript><p class="note">This part needs JavaScript; all else on this page does not.</p></noscript>'
        '<div class="explorer" id="explorer" hidden>'
        f'<div class="choices" role="group" aria-label="Examples">{buttons}</div>'
        '<div class="stage"><canvas id="picture" role="img" aria-label="the moved example"></canvas>'
        '<div class="outcome"><div id="bars"></div></div></div>'
        '<p id="summary" class="summary" aria-live="polite"></p>'
        f'<div class="controls"><div class="sliders">{sliders}</div>'
        f'<figure class="trace"><svg id="trace" role="img" aria-label="{kind} along the move"></svg>'
        f'<figcaption>The {kind} along <span id="along"></span>; the band is one posterior deviation '
        "(16 to 84 %), the green part the learned range.</figcaption></figure></div></div>"
    )
    return section("explorer-section", "Move an example yourself", paragraph(words), body)


def extremes_section(model: Any, X: ndarray, judged: Judged, painter: Painter | None, seed: int) -> str:
    """The most uncertain and the worst predictions."""
    if isinstance(judged, Labelled):
        uncertain = np.argsort(judged.probabilities.max(1), kind="stable")[:NUM_LISTED]
        worst = np.argsort(-judged.losses, kind="stable")[:NUM_LISTED]
        lists = [_labelled_list(model, X, judged, each, painter, seed) for each in (uncertain, worst)]
        none = "" if judged.is_wrong.any() else " (none is wrong)"
        title = f"Worst: least probability given to the true class{none}"
    else:
        uncertain = np.argsort(-judged.deviation[:, 0], kind="stable")[:NUM_LISTED]
        worst = np.argsort(-np.abs(judged.scores[:, 0]), kind="stable")[:NUM_LISTED]
        lists = [_measured_list(model, X, judged, each, painter) for each in (uncertain, worst)]
        title = "Worst: farthest off in predicted deviations"
    titles = ("Most uncertain", title)
    pieces = [f"<div><h3>{each}</h3>{listed}</div>" for each, listed in zip(titles, lists, strict=True)]
    body = "".join(pieces) if painter is None else side_by_side(*pieces)
    words = {"test": "Rows of the test set", "leave-one-out": "Rows of the training set, left out in turn"}
    where = words.get(judged.source, "Rows of the training set")
    return section("extremes", "Examples worth a look", paragraph(f"{where}, counted from 0."), body)


def _labelled_list(
    model: Any, X: ndarray, judged: Labelled, rows: Int[ndarray, " m"], painter: Painter | None, seed: int
) -> str:
    mean, variance = (part[torch.from_numpy(rows)] for part in judged.moments)
    _, low, high = probability_bands(model, mean, variance, seed)
    cells = []
    for place, row in enumerate(rows):
        chosen = int(judged.chosen[row])
        ends = (number(100 * float(end[place, chosen]), 0) for end in (low, high))
        text = f"{number(100 * float(judged.probabilities[row, chosen]), 0)} % ({' to '.join(ends)} %)"
        mark = ' class="wrong"' if chosen != judged.codes[row] else ""
        said = f"<span{mark}>{escape(judged.classes[chosen])}</span> with {text}"
        cells.append((int(row), escape(judged.classes[judged.codes[row]]), said))
    if painter is None:
        headings = ["row", "true", "predicted", *_feature_names(model, X)]
        return table(
            headings, [[str(row), true, said, *_features(X[row])] for row, true, said in cells], numeric=(0,)
        )
    tiles = "".join(
        f"<li>{_picture(painter, X[row].reshape(-1), f'row {row}')}"
        f'<p><b>{true}</b> <span class="faint">row {row}</span><br>predicted {said}</p></li>'
        for row, true, said in cells
    )
    return f'<ul class="listed">{unbroken(tiles)}</ul>'


def _measured_list(
    model: Any, X: ndarray, judged: Measured, rows: Int[ndarray, " m"], painter: Painter | None
) -> str:
    cells = []
    for row in rows.tolist():
        mean, deviation, measured = (
            float(part[row, 0]) for part in (judged.mean, judged.deviation, judged.measured)
        )
        off = number(float(judged.scores[row, 0]), 1, signed=True)
        cells.append((row, with_error(mean, deviation), number(measured), off))
    if painter is None:
        headings = ["row", "predicted", "measured", "off by", *_feature_names(model, X)]
        lines = [
            [str(row), said, measured, f"{off} dev.", *_features(X[row])]
            for row, said, measured, off in cells
        ]
        return table(headings, lines, numeric=range(len(headings)))
    tiles = "".join(
        f"<li>{_picture(painter, X[row].reshape(-1), f'row {row}')}"
        f'<p><b>{measured}</b> <span class="faint">row {row}</span><br>predicted {said} ({off} dev.)</p></li>'
        for row, said, measured, off in cells
    )
    return f'<ul class="listed">{unbroken(tiles)}</ul>'


def thumbnails(exploration: Exploration, painter: Painter) -> list[str]:
    """The chosen examples as pictures."""
    return [painter.uri(row) for row in exploration.rows]


def _feature_names(model: Any, X: ndarray) -> list[str]:
    width = min(X.reshape(len(X), -1).shape[1], MOST_COLUMNS)
    names = getattr(model, "feature_names_in_", None)
    return [escape(names[i]) if names is not None else f"x<sub>{i}</sub>" for i in range(width)]


def _features(row: ndarray) -> list[str]:
    return [number(float(value)) for value in row.reshape(-1)[:MOST_COLUMNS]]


def _picture(painter: Painter, row: Float[ndarray, " d"], words: str, kind: str = "tile") -> str:
    return f'<img class="{kind}" src="{painter.uri(row)}" alt="{escape(words)}">'


def _slider(place: int, move: Move) -> str:
    low, high = (-1.0, 2.0) if move.is_finite else move.learned
    return (
        f'<label class="slider"><span class="name">{escape(move.label)}</span>'
        f'<output id="value-{place}">{escape(move.texts[move.rest])}</output>'
        f'<input type="range" min="0" max="{len(move.places) - 1}" step="1" value="{move.rest}" '
        f'data-move="{place}" style="--low:{low:.4f};--high:{high:.4f}"></label>'
    )
