"""A few examples moved along every move of an orbit, and the predictions there.

A move is a path of noise vectors ε in which only the entries of one parameter change. The orbit itself moves
the examples by this noise, so nothing here depends on the kind of orbit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.validation import InputForm, check_inputs
from orbitwise.functionals.averages import drawn_form
from orbitwise.functionals.points import Difference
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.certainty import Unit, unit_of
from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.images import CropOrbit
from orbitwise.orbits.modules import ModuleOrbit
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Orbit
from orbitwise.report.numbers import number
from orbitwise.report.pictures import Painter, painter_for
from orbitwise.report.predictions import Judged, Labelled, probability_bands
from orbitwise.report.ranges import Model, label_of

REACH = 2.0
"""The length of a path, in half-widths of the learned range."""
NUM_POSITIONS = 21
MOST_ELEMENTS = 24
ROWS_AT_ONCE = 256
NUM_EXAMPLES = 6
MOST_BARS = 10
MOST_BYTES = 1_500_000
"""The most pixels in all pictures together; larger images are drawn smaller."""


@final
@dataclass(frozen=True)
class Move:
    """One move of an orbit as a path: a list of positions, each with the noise that moves an example there.

    Attributes
    ----------
    name, label : str
        The parameter, such as "angle", and its plain name, such as "rotation".
    symbol : str
        The unit of the positions, such as "°"; "" if there is none.
    noise : tensor of shape (places, entries)
        The noise vectors of the path; all entries but those of this move are constant.
    places : tuple of float
        The positions of the path, in its unit.
    texts : tuple of str
        The positions as text.
    inside : tuple of bool
        Which positions lie in the learned range.
    rest : int
        The index of the position nearest to the identity.
    is_finite : bool
        Whether the positions are elements of a finite orbit, which have no order.
    """

    name: str
    label: str
    symbol: str
    noise: Float[Tensor, "k q"]
    places: tuple[float, ...]
    texts: tuple[str, ...]
    inside: tuple[bool, ...]
    rest: int
    is_finite: bool = False

    @property
    def learned(self) -> tuple[float, float]:
        """The learned range as fractions of the path."""
        last = max(len(self.places) - 1, 1)
        within = [i for i, inside in enumerate(self.inside) if inside]
        return within[0] / last, within[-1] / last


def moves_of(orbit: Orbit, seed: int = 0) -> list[Move]:
    """Every move of an orbit; a field of noise is one move, along one draw of it."""
    drawn = orbit.source if isinstance(orbit, FrozenOrbit) else orbit
    if not isinstance(drawn, DrawnOrbit):
        if drawn.size is None or drawn.size > MOST_ELEMENTS:
            return []
        drawn = ComposedOrbit(drawn)
    stages = (
        [each for each in drawn.stages if isinstance(each, Orbit)]
        if isinstance(drawn, ComposedOrbit)
        else [drawn]
    )
    like = torch.zeros((), dtype=torch.float64)
    draw = drawn.randomness.draw((), torch.Generator().manual_seed(seed), like)
    rest, offsets, offset = torch.zeros_like(draw), [], 0
    for stage in stages:
        offsets.append(offset)
        offset += stage.num_noise if isinstance(stage, DrawnOrbit) else 1
        _put_at_rest(stage, rest[offsets[-1] : offset], draw[offsets[-1] : offset])
    moves: list[Move] = []
    for stage, offset in zip(stages, offsets, strict=True):
        for move in _moves_of_stage(stage, offset, rest, draw):
            if any(other.name == move.name for other in moves):
                count = len(moves) + 1
                move = replace(move, name=f"{move.name}_{count}", label=f"{move.label} {count}")
            moves.append(move)
    return moves


def along(orbit: Orbit, move: Move, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k d"]:
    """Return t(x) for each row of x and each position of the path."""
    noise = move.noise.to(x).expand(len(x), -1, -1)
    with torch.no_grad():
        return drawn_form(orbit).move(x, noise)


def change_of_f(
    model: Model, x: Float[Tensor, "n d"], moved: Float[Tensor, "n k d"]
) -> tuple[Float[ndarray, "n k c"], Float[ndarray, "n k c"]]:
    """Return the posterior mean and standard deviation of f(moved x) - f(x), in units of the latent function.

    The standard deviation is that of the difference: if f is nearly invariant, it is small even if f is
    uncertain.
    """
    pairs = torch.stack([moved, x[:, None].expand_as(moved)], dim=2).flatten(0, 1)
    functional = Difference() @ model.functional_
    with torch.no_grad():
        parts = [
            model.posterior_.row_moments(functional.atoms(part))
            for part in pairs.to(x.device).split(ROWS_AT_ONCE)
        ]
    mean = torch.cat([part.mean for part in parts])
    variance = torch.cat([part.variance.reshape(len(part.mean), -1) for part in parts]).expand_as(mean)
    shape = (*moved.shape[:2], mean.shape[-1])
    return mean.reshape(shape).cpu().numpy(), variance.clamp_min(0).sqrt().reshape(shape).cpu().numpy()


def _put_at_rest(stage: Orbit, rest: Tensor, draw: Tensor) -> None:
    if not isinstance(stage, DrawnOrbit):
        rest[0] = 1 / (stage.size or 1) - 1  # the cell of the first element
    elif isinstance(stage, CropOrbit) and stage.zooms:
        rest[2] = -1.0
    elif isinstance(stage, PointCloudOrbit) and stage.num_dimensions == 3 and stage.turns:
        rest[4:7] = draw[4:7]  # the axis, about which nothing turns yet


def _moves_of_stage(stage: Orbit, offset: int, rest: Tensor, draw: Tensor) -> list[Move]:
    if isinstance(stage, ModuleOrbit):
        return []
    if not isinstance(stage, DrawnOrbit):
        return [_elements(stage, offset, rest)] if (stage.size or MOST_ELEMENTS + 1) <= MOST_ELEMENTS else []
    bounds, units = getattr(stage, "bounds", None), stage.units()
    names = () if bounds is None else bounds.names
    ranges = {} if bounds is None else bounds.intervals()
    moves = [
        _bounded(name, ranges[name], unit_of(name, units), offset + i, rest)
        for i, name in enumerate(names)
        if name in ranges and ranges[name][0] < ranges[name][1]
    ]
    return moves + _unbounded(stage, offset, len(names), rest, draw)


def _bounded(name: str, interval: tuple[float, float], unit: Unit, entry: int, rest: Tensor) -> Move:
    middle, half = (interval[0] + interval[1]) / 2, (interval[1] - interval[0]) / 2
    # turns by more than half a circle repeat others
    reach = max(1.0, min(REACH, math.pi / half)) if name.startswith("angle") else REACH
    at = np.linspace(-reach, reach, NUM_POSITIONS)
    noise = rest.repeat(len(at), 1)
    noise[:, entry] = torch.from_numpy(at)
    places = [unit.convert(middle + half * place) for place in at.tolist()]
    nearest = int(np.abs(middle + half * at).argmin())
    return _move(name, unit.symbol, places, noise, np.abs(at), nearest, signed=True)


def _unbounded(stage: DrawnOrbit, offset: int, first: int, rest: Tensor, draw: Tensor) -> list[Move]:
    """The move that is not an interval: a displacement field, a jitter or a zoom."""
    entries = torch.zeros_like(rest, dtype=torch.bool)
    entries[offset + first : offset + stage.num_noise] = True
    learned = stage.learned()
    at = np.linspace(0, REACH, NUM_POSITIONS)
    noise = rest.repeat(len(at), 1)
    if isinstance(stage, CropOrbit):
        if not stage.zooms:
            return []
        name = "log_zoom"
        noise[:, offset + 2] = torch.from_numpy(2 * at - 1)
    else:
        if isinstance(stage, PointCloudOrbit) and not stage.jitters:
            return []
        name = next((each for each in ("amplitude", "jitter", "warp") if each in learned), "jitter")
        drawn = draw * torch.from_numpy(at)[:, None]
        noise[:, entries] = torch.where(rest == 0, drawn, rest)[:, entries]
    if not bool(entries.any()):
        return []
    unit = unit_of(name, stage.units())
    width = learned[name][1] if name in learned else None
    if width is None:
        places, symbol = at.tolist(), " of the learned width"
    else:
        places, symbol = [unit.convert(width * place) for place in at.tolist()], unit.symbol
    return [_move(name, symbol, places, noise, at, 0)]


def _move(
    name: str,
    symbol: str,
    places: list[float],
    noise: Tensor,
    size: Float[ndarray, " k"],
    rest: int,
    signed: bool = False,
) -> Move:
    """A move to these positions, which lie in the learned range if their `size` is at most 1."""
    largest = max(abs(place) for place in places)
    decimals = max(0, 1 - math.floor(math.log10(largest))) if largest > 0 else 0
    texts = tuple(number(place, decimals, signed) + symbol for place in places)
    inside = tuple((size <= 1 + 1e-9).tolist())
    return Move(name, label_of(name), symbol, noise, tuple(places), texts, inside, rest)


def _elements(stage: Orbit, offset: int, rest: Tensor) -> Move:
    size = stage.size or 1
    noise = rest.repeat(size, 1)
    # a composition reads the middles of equal cells of [-1, 1]
    noise[:, offset] = (2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1
    texts = ("as it is", *(f"element {number} of {size}" for number in range(2, size + 1)))
    places = tuple(float(place) for place in range(size))
    return Move("element", "symmetry", "", noise, places, texts, (True,) * size, 0, is_finite=True)


@final
@dataclass(frozen=True)
class Track:
    """One move of all n examples to all k positions, and the predictions there.

    Attributes
    ----------
    moved : array of shape (n, k, d)
        The moved examples.
    change, deviation : array of shape (n, k)
        Posterior mean and standard deviation of f(moved x) - f(x), for the true class of each example or for
        the first output.
    middle, low, high : array of shape (n, k, c)
        The prediction for each of c classes or outputs, and its 16 % and 84 % quantiles over the posterior.
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
    """The chosen examples (their indices in the judged set, their names and rows), and their tracks."""

    chosen: Int[ndarray, " n"]
    names: tuple[str, ...]
    rows: Float[ndarray, "n d"]
    tracks: tuple[Track, ...]
    layout: InputForm

    @property
    def painter(self) -> Painter:
        """The painter that turns rows of pixels into pictures."""
        return painter_for(self.rows, self.layout)


def choose_examples(judged: Judged, seed: int, count: int = NUM_EXAMPLES) -> Int[ndarray, " m"]:
    """Examples of different classes, or spread over the measured values."""
    if isinstance(judged, Labelled):
        order = np.random.default_rng(seed).permutation(judged.count)
        turn = np.zeros(len(order), dtype=np.int64)
        seen = np.zeros(len(judged.classes), dtype=np.int64)
        for place, row in enumerate(order):
            turn[place] = seen[judged.codes[row]]
            seen[judged.codes[row]] += 1
        # one example of each class before a second one of any class
        first = order[np.argsort(turn, kind="stable")][:count]
        return first[np.argsort(judged.codes[first], kind="stable")]
    order = np.argsort(judged.measured[:, 0], kind="stable")
    return order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(np.int64))]


def explore(
    model: Model,
    orbit: Orbit,
    X: ArrayLike,
    judged: Judged,
    chosen: Int[ndarray, " n"],
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Exploration:
    """Move the chosen rows of X along every move of the orbit, and predict the moved rows.

    Parameters
    ----------
    X : array-like
        The inputs, in the same form as the training inputs.
    judged : Labelled or Measured
        The predictions for the rows of X, with the true classes or targets.
    chosen : array of int
        The indices of the rows.
    seed : int, default=0
        Seeds the displacement field of a random deformation, and the draws for probability bands.
    progress : callable, default=None
        Called with a few words before each move.
    """
    layout, tracks = model.form_, []
    x = check_inputs(model, np.asarray(X)[chosen]).to(model.device_) - layout.background
    for move in moves_of(orbit, seed):
        if progress is not None:
            progress(f"moving examples: {move.label}")
        moved = along(orbit, move, x)
        if moved.shape[-1] != x.shape[-1]:
            continue
        change, deviation = own_change(model, judged, chosen, *change_of_f(model, x, moved))
        pixels = layout.outward(moved.cpu().numpy() + layout.background)
        tracks.append(Track(move, pixels, change, deviation, *_predict(model, pixels, seed)))
    rows = layout.outward(x.cpu().numpy() + layout.background)
    return Exploration(chosen, tuple(judged.name(int(row)) for row in chosen), rows, tuple(tracks), layout)


def own_change(
    model: Model,
    judged: Judged,
    chosen: Int[ndarray, " n"],
    mean: Float[ndarray, "n k c"],
    deviation: Float[ndarray, "n k c"],
) -> tuple[Float[ndarray, "n k"], Float[ndarray, "n k"]]:
    """The change of one output: the score of the example's true class, or the first target."""
    if not isinstance(judged, Labelled):
        assert not isinstance(model, InvariantGPClassifier)
        scale = float(model.target_scale_.scale[0])
        return scale * mean[..., 0], scale * deviation[..., 0]
    codes, columns = judged.codes[chosen], mean.shape[-1]
    column, sign = np.minimum(codes, columns - 1), np.ones(len(codes))
    if columns < len(judged.classes):
        # with two classes, a positive f favours the second; in stick-breaking, stick k favours class k,
        # and the last stick disfavours the last class
        assert isinstance(model, InvariantGPClassifier)
        last = codes == 0 if isinstance(model.likelihood_, Gaussian) else codes == columns
        sign = np.where(last, -1.0, 1.0)
    rows = np.arange(len(codes))
    return sign[:, None] * mean[rows, :, column], deviation[rows, :, column]


def _predict(model: Model, pixels: Float[ndarray, "n k d"], seed: int) -> tuple[ndarray, ndarray, ndarray]:
    rows = pixels.reshape(-1, pixels.shape[-1])
    if isinstance(model, InvariantGPClassifier):
        mean, variance = (part.cpu() for part in model.moments(rows))
        bands = probability_bands(model, mean, variance, seed)
    else:
        with torch.no_grad():
            mean, deviation = model.predict(rows, return_std=True, include_noise=False)
        bands = (mean, mean - deviation, mean + deviation)
    shape = (*pixels.shape[:2], -1)
    first, second, third = (band.reshape(shape) for band in bands)
    return first, second, third


def page_data(exploration: Exploration, judged: Judged) -> dict[str, object]:
    """All data for the script of the page; probabilities are in thousandths."""
    tracks, painter = exploration.tracks, _small_painter(exploration)
    examples, spans = [], []
    for i, (row, name) in enumerate(zip(exploration.chosen, exploration.names, strict=True)):
        shown, own, outputs = [0], 0, ["f"]
        if isinstance(judged, Labelled):
            peaks = np.max([track.middle[i].max(0) for track in tracks], axis=0)
            peaks[judged.codes[row]] = 2.0
            shown = np.sort(np.argsort(-peaks, kind="stable")[:MOST_BARS]).tolist()
            own, outputs = shown.index(judged.codes[row]), [judged.classes[each] for each in shown]
        answers = [_answers(track, i, shown, isinstance(judged, Labelled)) for track in tracks]
        spans.append([float(np.ptp(np.array(places)[:, own, 0])) for places in answers])
        sheet = painter.sprite(_sheet(tracks, i))
        examples.append({"name": name, "shown": outputs, "own": own, "sheet": sheet, "answers": answers})
    # the page starts with the example and the move whose prediction changes most
    start = np.unravel_index(int(np.argmax(spans)), (len(examples), len(tracks)))
    height, width = painter.size
    return {
        "kind": "classes" if isinstance(judged, Labelled) else "number",
        "height": height,
        "width": width,
        "start": [int(place) for place in start],
        "span": 0.0 if isinstance(judged, Labelled) else 0.2 * judged.outputs[0].spread,
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


def _small_painter(exploration: Exploration) -> Painter:
    """A painter whose pictures of all examples at all places have at most `MOST_BYTES` pixels."""
    step, painter = 1, exploration.painter
    count = sum(track.moved.shape[1] for track in exploration.tracks) * len(exploration.rows)
    while count * painter.size[0] * painter.size[1] * painter.num_channels > MOST_BYTES:
        step += 1
        painter = replace(painter, step=step)
    return painter


def _sheet(tracks: Sequence[Track], example: int) -> Float[ndarray, "r k d"]:
    """One row of pictures per move; shorter rows are filled with copies of their last picture."""
    longest = max(track.moved.shape[1] for track in tracks)
    rows = [track.moved[example] for track in tracks]
    return np.stack([np.concatenate([row, np.repeat(row[-1:], longest - len(row), axis=0)]) for row in rows])


def _answers(track: Track, example: int, shown: Sequence[int], is_labelled: bool) -> list[list[list[float]]]:
    """The bands as [position][shown class or output][middle, low, high]."""
    bands = np.stack([track.middle[example], track.low[example], track.high[example]], axis=-1)[:, shown]
    if is_labelled:
        return np.round(1000 * bands).astype(int).tolist()
    return [[[float(f"{value:.7g}") for value in band] for band in place] for place in bands.tolist()]
