"""How many inducing points are enough: M climbs a fixed ladder, hyperparameters held, until rows gain little.

The loss of a rung is the mean loss of a training row that is predicted from all others (or, under
likelihoods that leave nothing out in closed form, the bound per row). A rung depends on its number alone, not
on the climb. Time and memory only end the climb sooner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.optimise.cost import free_memory
from orbitwise.inference.optimise.training import INTERRUPTED, OUT_OF_MEMORY, why_cut_short
from orbitwise.inference.optimise.watching import Phase, Reporter
from orbitwise.inference.sparse.held_rows import HeldRows
from orbitwise.inference.sparse.inducing import Inducing
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.process.process import Moments

FIRST = 1000
"""The first rung above the inducing points that hyperparameters were learned with."""
RELATIVE_GAIN = 0.02
"""A rung that lowers the loss by less than this share is the last, or by less than its standard error."""
LEAST_GAIN = 0.01
"""Gains below this many nats per row are negligible if the loss is minus a log density."""
ROWS_AT_ONCE = 16_384
SHARE_OF_MEMORY = 0.8
"""The share of free memory that is used, so that other programs have some as well."""
NUMBER = 8

ENOUGH, COMPLETE, GIVEN = "enough", "complete", "given"
OUT_OF_TIME, TOO_LARGE, FAILED = "max_seconds", "memory", "failed"
CUT_SHORT = (OUT_OF_TIME, TOO_LARGE, FAILED, INTERRUPTED)
REASONS = {
    ENOUGH: "more inducing points hardly predict better",
    COMPLETE: "there is one point per row",
    GIVEN: "the number was given",
    OUT_OF_TIME: "max_seconds was reached",
    TOO_LARGE: "more would not fit into memory",
    FAILED: "more could not be computed",
    INTERRUPTED: "it was interrupted",
}
"""Why a climb ended, in words."""


@final
@dataclass(frozen=True)
class Place:
    """A posterior by some inducing points, with the bound of its frozen rows, and what each row costs.

    `noise` is the variance of Gaussian noise under which the bound is greatest, and `label_noise` the one to
    predict labels with. `left_out` has the moments of each row given all others, at the noise that predicts,
    where they were computed. `losses` has one entry for all rows where none can be left out.
    """

    posterior: SparsePosterior
    bound: float
    losses: Float[Tensor, " n"]
    tilt: Tensor | None = None
    residual: Tensor | None = None
    held: HeldRows | None = None
    noise: float | None = None
    label_noise: float | None = None
    left_out: Moments | None = None


class Rung(NamedTuple):
    """A number of inducing points, the mean loss of a row with it, and the seconds that it took.

    `gain` is by how much the loss fell from the rung before, and `gain_error` its standard error; they are
    NaN for the first.
    """

    num_inducing: int
    loss: float
    gain: float
    gain_error: float
    seconds: float


@final
@dataclass(frozen=True)
class Size:
    """The sizes that determine memory and time of a rung; each of several processes holds its own rows.

    With `streams` it holds none of the rows.
    """

    num_rows: int
    num_atoms: int
    width: int
    num_grams: int = 1
    is_weighted: bool = False
    num_processes: int = 1
    streams: bool = False

    def memory(self, num_inducing: int) -> float:
        """Bytes that a rung holds at once, in addition to the rung before it, which has half its size.

        These are A, what its rows are weighted to, the columns that are solved for, and five square matrices:
        K_uu, its factor, AAᵀ, P and its factor.
        """
        size, rows = float(num_inducing), self.num_rows / self.num_processes
        if self.streams:
            rows = min(rows, ROWS_AT_ONCE)
        copies = 2 if self.is_weighted else 1
        columns = size * (copies * rows + 2 * min(rows, ROWS_AT_ONCE))
        return NUMBER * (columns + (2 + 3 * self.num_grams) * size**2)

    def operations(self, num_inducing: int) -> float:
        """Operations for kernel values, A, its square, and leaving rows out at some noise variances."""
        size, rows = float(num_inducing), float(self.num_rows)
        return 2 * size * rows * self.num_atoms * self.width + (12 + 2 * self.num_grams) * size**2 * rows


def ladder(most: int, learned_with: int) -> Iterator[int]:
    """The numbers above `learned_with` that are tried: 1,000, 2,000, 4,000, … and all there are."""
    size = FIRST
    while size < most:
        if size > learned_with:
            yield size
        size *= 2
    if most > learned_with:
        yield most


@final
@dataclass(frozen=True)
class Climbed:
    """How many inducing points were taken, what every rung gave, and why there were no more."""

    num_inducing: int
    stopped_by: str
    rungs: Sequence[Rung] = ()

    @property
    def is_cut_short(self) -> bool:
        """Whether time, memory or an error ended it before more inducing points were of no use."""
        return self.stopped_by in CUT_SHORT


@final
@dataclass(frozen=True)
class Limits:
    """The limits of a climb: the time that `reporter` leaves, and bytes of memory; None is what is free."""

    reporter: Reporter
    max_memory: float | None
    device: torch.device

    def has_memory(self, needed: float) -> bool:
        """Whether so many bytes may be taken now, by each of the processes that share the fit."""
        free, processes = free_memory(self.device), self.reporter.processes
        if self.max_memory is not None:
            may = needed <= self.max_memory
        else:
            may = free is None or needed <= SHARE_OF_MEMORY * free
        return all(processes.all_of(may))


class Half(NamedTuple):
    """The inducing points of the rung before the last, and the bound of its frozen rows."""

    inducing: Inducing
    bound: float

    @classmethod
    def of(cls, place: Place) -> Half:
        """What remains of a place once its rows are not held any more."""
        return cls(place.posterior.inducing, place.bound)


class Climb(NamedTuple):
    """The last rung, what remains of the one before it, and how it went."""

    found: Place
    before: Half
    climbed: Climbed


def climb(
    first: Place,
    num_inducing: int,
    rung_of: Callable[[int], Place],
    most: int,
    size: Size,
    limits: Limits,
    is_density: bool,
) -> Climb:
    """Climb from the rung on which hyperparameters were learned until more inducing points hardly gain.

    A rung for which memory or time does not suffice is not begun. After one that fails or predicts worse, the
    rung before it is kept.
    """
    rungs = [Rung(num_inducing, float(first.losses.mean()), math.nan, math.nan, math.nan)]
    before, found, taken, losses = Half.of(first), first, num_inducing, first.losses
    seconds, stopped_by = 0.0, COMPLETE
    for count in ladder(most, num_inducing):
        expected = seconds * size.operations(count) / size.operations(rungs[-1].num_inducing)
        if not limits.reporter.allows(expected):
            stopped_by = INTERRUPTED if limits.reporter.stopped == INTERRUPTED else OUT_OF_TIME
            break
        if not limits.has_memory(size.memory(count)):
            stopped_by = TOO_LARGE
            break
        limits.reporter.begin(Phase("more inducing points", num_inducing=count))
        begun = time.monotonic()
        try:
            higher = rung_of(count)
        except (KeyboardInterrupt, MemoryError, RuntimeError, *NOT_COMPUTABLE) as error:
            reason = why_cut_short(error)
            if not reason and not isinstance(error, NOT_COMPUTABLE):
                raise
            stopped_by = {INTERRUPTED: INTERRUPTED, OUT_OF_MEMORY: TOO_LARGE}.get(reason, FAILED)
            break
        seconds = time.monotonic() - begun
        rung = Rung(count, float(higher.losses.mean()), *paired_gain(losses, higher.losses), seconds)
        worth = LEAST_GAIN if is_density else RELATIVE_GAIN * rungs[-1].loss
        losses, is_first = higher.losses, len(rungs) == 1
        rungs.append(rung)
        gain, error = paired_gain(found.losses, losses)
        if gain >= -error:
            before, found, taken = Half.of(found), higher, count
        # the points with which hyperparameters were learned are chosen in another way, so 500 may beat 1,000
        if not is_first and rung.gain <= max(worth, rung.gain_error):
            stopped_by = ENOUGH if count < most else COMPLETE
            break
    return Climb(found, before, Climbed(taken, stopped_by, rungs))


def paired_gain(before: Float[Tensor, " n"], after: Float[Tensor, " n"]) -> tuple[float, float]:
    """The mean by which losses of the same rows fell, and its standard error."""
    gains = before - after
    return float(gains.mean()), float(gains.std() / math.sqrt(len(gains))) if len(gains) > 1 else 0.0
