"""The moves of an orbit one by one: paths from the identity through the learned range and out of it.

A path is a list of noise vectors ε of the orbit, all entries at rest but those of one move, so that the orbit
itself moves the examples: nothing here knows how an image is turned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from orbitwise.functionals.averages import drawn_form
from orbitwise.functionals.points import Difference
from orbitwise.orbits.certainty import Unit, unit_of
from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.composed import ComposedOrbit
from orbitwise.orbits.images import CropOrbit
from orbitwise.orbits.modules import ModuleOrbit
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Orbit
from orbitwise.report.numbers import number
from orbitwise.report.ranges import label_of

REACH = 2.0
NUM_POSITIONS = 21
MOST_ELEMENTS = 24
ROWS_AT_ONCE = 256


@final
@dataclass(frozen=True)
class Move:
    """A path of noise. `places` are where it goes, in the unit of `symbol` where there is one.

    `inside` says which places are in the learned range; `rest` is the number of the place nearest to the
    identity. `is_finite` marks elements of a finite orbit, which have no order.
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
    stages = list(drawn.stages) if isinstance(drawn, ComposedOrbit) else [drawn]
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
            taken = any(other.name == move.name for other in moves)
            moves.append(_renamed(move, len(moves) + 1) if taken else move)
    return moves


def drawn_of(orbit: Orbit) -> DrawnOrbit:
    """The orbit whose noise the paths of `moves_of` are."""
    return drawn_form(orbit)


def along(orbit: Orbit, move: Move, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k d"]:
    """The rows of x at every place of the path."""
    noise = move.noise.to(x).expand(len(x), -1, -1)
    with torch.no_grad():
        return drawn_of(orbit).move(x, noise)


def change_of_f(
    model: Any, x: Float[Tensor, "n d"], moved: Float[Tensor, "n k d"]
) -> tuple[Float[ndarray, "n k c"], Float[ndarray, "n k c"]]:
    """Mean and deviation of f(moved x) - f(x) under the posterior, outputs as the model has them inside."""
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


def _put_at_rest(stage: Any, rest: Tensor, draw: Tensor) -> None:
    if not isinstance(stage, DrawnOrbit):
        rest[0] = 1 / (stage.size or 1) - 1  # the cell of the first element
    elif isinstance(stage, CropOrbit) and stage.zooms:
        rest[2] = -1.0
    elif isinstance(stage, PointCloudOrbit) and stage.num_dimensions == 3 and stage.turns:
        rest[4:7] = draw[4:7]  # the axis, about which nothing turns yet


def _moves_of_stage(stage: Any, offset: int, rest: Tensor, draw: Tensor) -> list[Move]:
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
    # more than half a turn to each side is a turn seen before
    reach = max(1.0, min(REACH, math.pi / half)) if name.startswith("angle") else REACH
    at = np.linspace(-reach, reach, NUM_POSITIONS)
    noise = rest.repeat(len(at), 1)
    noise[:, entry] = torch.from_numpy(at)
    places = [unit.convert(middle + half * place) for place in at.tolist()]
    texts = [number(place, _decimals(places), signed=True) + unit.symbol for place in places]
    inside = np.abs(at) <= 1 + 1e-9
    nearest = int(np.abs(middle + half * at).argmin())
    return Move(
        name,
        label_of(name),
        unit.symbol,
        noise,
        tuple(places),
        tuple(texts),
        tuple(inside.tolist()),
        nearest,
    )


def _unbounded(stage: DrawnOrbit, offset: int, first: int, rest: Tensor, draw: Tensor) -> list[Move]:
    """The move that is no interval: a field of displacements, a jitter, a zoom."""
    entries = torch.zeros_like(rest, dtype=torch.bool)
    entries[offset + first : offset + stage.num_noise] = True
    learned = stage.learned()
    at = torch.linspace(0, REACH, NUM_POSITIONS, dtype=torch.float64)
    noise = rest.repeat(len(at), 1)
    if isinstance(stage, CropOrbit):
        if not stage.zooms:
            return []
        name = "log_zoom"
        noise[:, offset + 2] = 2 * at - 1
    else:
        if isinstance(stage, PointCloudOrbit) and not stage.jitters:
            return []
        name = next((each for each in ("amplitude", "jitter", "warp") if each in learned), "jitter")
        noise[:, entries] = torch.where(rest == 0, draw * at[:, None], rest)[:, entries]
    if not bool(entries.any()):
        return []
    unit = unit_of(name, stage.units())
    width = learned[name][1] if name in learned else None
    if width is None:
        places, symbol = at.tolist(), " of the learned width"
    else:
        places, symbol = [unit.convert(width * place) for place in at.tolist()], unit.symbol
    texts = tuple(number(place, _decimals(places)) + symbol for place in places)
    inside = tuple(bool(place <= 1 + 1e-9) for place in at.tolist())
    return [Move(name, label_of(name), symbol, noise, tuple(places), texts, inside, 0)]


def _elements(stage: Orbit, offset: int, rest: Tensor) -> Move:
    size = stage.size or 1
    noise = rest.repeat(size, 1)
    # the middles of the cells that a composition reads
    noise[:, offset] = (2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1
    texts = ("as it is", *(f"element {number} of {size}" for number in range(2, size + 1)))
    places = tuple(float(place) for place in range(size))
    return Move("element", "symmetry", "", noise, places, texts, (True,) * size, 0, is_finite=True)


def _renamed(move: Move, count: int) -> Move:
    values = {**vars(move), "name": f"{move.name}_{count}", "label": f"{move.label} {count}"}
    return Move(**values)


def _decimals(places: list[float]) -> int:
    largest = max(abs(place) for place in places)
    return max(0, 1 - math.floor(math.log10(largest))) if largest > 0 else 0
