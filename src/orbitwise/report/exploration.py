"""A handful of examples moved along every path, and what the model says there: the page's grid of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from orbitwise.estimators.forms import Layout
from orbitwise.estimators.validation import check_inputs, layout_of
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.orbit import Orbit
from orbitwise.report.moves import Move, along, change_of_f, moves_of
from orbitwise.report.pictures import Painter, painter_for
from orbitwise.report.predictions import Judged, Labelled, probability_bands

NUM_EXAMPLES = 6
MOST_BARS = 10
MOST_BYTES = 1_500_000
"""Pixels of all pictures of the grid together; larger images are shown smaller."""


@final
@dataclass(frozen=True)
class Track:
    """One move of all examples: where they are, how f changes, the prediction with its 16 % and 84 % ends.

    Predictions are [n k c], c classes or outputs.
    """

    move: Move
    moved: Float[ndarray, "n k d"]
    change: Float[ndarray, "n k"]
    deviation: Float[ndarray, "n k"]
    middle: Float[ndarray, "n k c"]
    low: Float[ndarray, "n k c"]
    high: Float[ndarray, "n k c"]


@final
@dataclass(frozen=True)
class Exploration:
    """The chosen examples (their numbers in the judged set), and their tracks."""

    chosen: Int[ndarray, " n"]
    rows: Float[ndarray, "n d"]
    tracks: tuple[Track, ...]


def choose_examples(judged: Judged, seed: int, count: int = NUM_EXAMPLES) -> Int[ndarray, " m"]:
    """Examples of different classes, or spread over the measured values."""
    if isinstance(judged, Labelled):
        order = np.random.default_rng(seed).permutation(len(judged.codes))
        turn = np.zeros(len(order), dtype=np.int64)
        seen = np.zeros(len(judged.classes), dtype=np.int64)
        for place, row in enumerate(order):
            turn[place] = seen[judged.codes[row]]
            seen[judged.codes[row]] += 1
        # one of each class before a second of any
        first = order[np.argsort(turn, kind="stable")][:count]
        return first[np.argsort(judged.codes[first], kind="stable")]
    order = np.argsort(judged.measured[:, 0], kind="stable")
    return order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(np.int64))]


def explore(
    model: Any,
    orbit: Orbit,
    X: ArrayLike,
    judged: Judged,
    chosen: Int[ndarray, " n"],
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Move the chosen rows of X along every move of the orbit, and predict them there."""
    x = check_inputs(model, np.asarray(X)[chosen]).to(model._place) - model._background
    layout, tracks = layout_of(model), []
    for move in moves_of(orbit, seed):
        if progress is not None:
            progress(f"moving examples: {move.label}")
        moved = along(orbit, move, x)
        if moved.shape[-1] != x.shape[-1]:
            continue
        change, deviation = own_change(model, judged, chosen, *change_of_f(model, x, moved))
        pixels = layout.outward(moved.cpu().numpy() + model._background)
        bands = _predict(model, pixels, seed)
        tracks.append(Track(move, pixels, change, deviation, *bands))
    return Exploration(chosen, layout.outward(x.cpu().numpy() + model._background), tuple(tracks))


def own_change(
    model: Any,
    judged: Judged,
    chosen: Int[ndarray, " n"],
    mean: Float[ndarray, "n k c"],
    deviation: Float[ndarray, "n k c"],
) -> tuple[Float[ndarray, "n k"], Float[ndarray, "n k"]]:
    """The change of the one output that counts: the score of the example's own class, or the first target."""
    if not isinstance(judged, Labelled):
        scale = float(model._scale[0])
        return scale * mean[..., 0], scale * deviation[..., 0]
    codes, columns = judged.codes[chosen], mean.shape[-1]
    column, sign = np.minimum(codes, columns - 1), np.ones(len(codes))
    if columns < len(judged.classes):
        # a column of two classes speaks for the second, a stick for its own class, the last against it
        last = codes == 0 if isinstance(model.likelihood_, Gaussian) else codes == columns
        sign = np.where(last, -1.0, 1.0)
    rows = np.arange(len(codes))
    return sign[:, None] * mean[rows, :, column], deviation[rows, :, column]


def page_data(
    model: Any, exploration: Exploration, judged: Judged, names: Sequence[str], layout: Layout | Sequence[int]
) -> dict[str, Any]:
    """Everything that the page's script needs, as plain data; probabilities in thousandths."""
    tracks = exploration.tracks
    painter = _painter(exploration, layout)
    is_labelled = isinstance(judged, Labelled)
    examples: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        shown, own = [0], 0
        if isinstance(judged, Labelled):
            peaks = np.max([track.middle[i].max(0) for track in tracks], axis=0)
            peaks[judged.codes[exploration.chosen[i]]] = 2.0
            shown = np.sort(np.argsort(-peaks, kind="stable")[:MOST_BARS]).tolist()
            own = shown.index(judged.codes[exploration.chosen[i]])
        examples.append(
            {
                "name": name,
                "shown": [judged.classes[each] if isinstance(judged, Labelled) else "f" for each in shown],
                "own": own,
                "sheet": painter.sprite(_sheet(tracks, i)),
                "answers": [_answers(track, i, shown, is_labelled) for track in tracks],
            }
        )
    height, width = painter.size
    return {
        "kind": "classes" if is_labelled else "number",
        "height": height,
        "width": width,
        "start": _telling(tracks, examples),
        "span": 0.0 if isinstance(judged, Labelled) else 0.2 * float(np.std(judged.measured[:, 0])),
        "moves": [
            {
                "label": track.move.label,
                "texts": track.move.texts,
                "inside": track.move.inside,
                "rest": track.move.rest,
                "finite": track.move.is_finite,
            }
            for track in tracks
        ],
        "examples": examples,
    }


def _predict(model: Any, pixels: Float[ndarray, "n k d"], seed: int) -> tuple[ndarray, ndarray, ndarray]:
    rows = pixels.reshape(-1, pixels.shape[-1])
    if hasattr(model, "classes_"):
        mean, variance = (part.cpu() for part in model.moments(rows))
        bands = probability_bands(model, mean, variance, seed)
    else:
        with torch.no_grad():
            mean, deviation = model.predict(rows, return_std=True, include_noise=False)
        bands = (mean, mean - deviation, mean + deviation)
    shape = (*pixels.shape[:2], -1)
    first, second, third = (band.reshape(shape) for band in bands)
    return first, second, third


def _painter(exploration: Exploration, layout: Layout | Sequence[int]) -> Painter:
    rows, step = exploration.rows, 1
    count = sum(track.moved.shape[1] for track in exploration.tracks) * len(rows)
    painter = painter_for(rows, layout)
    while count * painter.size[0] * painter.size[1] * painter.num_channels > MOST_BYTES:
        step += 1
        painter = painter_for(rows, layout, step)
    return painter


def _sheet(tracks: Sequence[Track], example: int) -> Float[ndarray, "r k d"]:
    """One row of pictures for each move; finite moves with fewer places are filled up with their last."""
    longest = max(track.moved.shape[1] for track in tracks)
    rows = [track.moved[example] for track in tracks]
    return np.stack([np.concatenate([row, np.repeat(row[-1:], longest - len(row), axis=0)]) for row in rows])


def _telling(tracks: Sequence[Track], examples: Sequence[dict[str, Any]]) -> list[int]:
    """The example and the move whose prediction changes most: a page should open where there is something."""
    spans = [
        [
            float(np.ptp([place[each["own"]][0] for place in each["answers"][move]]))
            for move in range(len(tracks))
        ]
        for each in examples
    ]
    example, move = np.unravel_index(int(np.argmax(spans)), (len(examples), len(tracks)))
    return [int(example), int(move)]


def _answers(track: Track, example: int, shown: Sequence[int], is_labelled: bool) -> list[list[list[float]]]:
    """[place][shown class or output][middle, low, high]."""
    bands = np.stack([track.middle[example], track.low[example], track.high[example]], axis=-1)[:, shown]
    if is_labelled:
        return np.round(1000 * bands).astype(int).tolist()
    return [[[float(f"{value:.7g}") for value in band] for band in place] for place in bands.tolist()]
