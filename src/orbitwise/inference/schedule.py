"""How fast stochastic training moves, in which order it visits the data, and what it leaves behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

SPAN = 50
"""Steps that the smoothed bound averages over."""
COLLAPSE = 10.0
"""A fall of this many times the usual change from step to step is no noise."""
BLOCK = 25
"""Steps after which bound and learned values are noted, to see whether they settle."""
BLOCKS = 6
"""Blocks at full rates that are looked at: the last half of them against the first half."""
SIGNIFICANT_GAIN, SIGNIFICANT_DRIFT = 2.0, 3.0
"""Standard errors beyond which a higher bound, and the changes of a value, are no noise."""
MATERIAL_GAIN = 5e-4
"""Nats for every target that the bound may gain between the halves and stand still nevertheless."""
MATERIAL_MOVE = 0.05
"""What a value may move between the halves, relative to its size, and stand still nevertheless."""
DECAY_STEPS = 100
"""Steps over which rates fall once a run that goes on until it settles has settled."""


@final
@dataclass(frozen=True)
class Rates:
    """How fast things move. `natural` None takes a rate that remembers several rows an inducing point.

    `variational` is Adam's rate for a recognition network, and for q where Adam moves it.
    """

    kernel: float = 0.03
    orbit: float = 0.05
    inducing: float = 0.0
    natural: float | None = None
    decay_from: float = 0.6
    variational: float = 0.02

    def at(self, progress: float) -> float:
        """The factor of all Adam rates: 1, then a half cosine to nearly 0."""
        if progress <= self.decay_from:
            return 1.0
        left = min(1.0, (progress - self.decay_from) / (1 - self.decay_from))
        return 0.5 * (1 + math.cos(math.pi * left)) + 1e-3

    def natural_at(self, age: int, rows: int, inducing: int, everything: bool) -> float:
        """The rate of natural-gradient steps after `age` of them, for batches of so many rows.

        `everything` says that a batch is all data, and exact: then one step is the best, given the rest.
        """
        if self.natural is not None:
            return self.natural
        settled = 1.0 if everything else min(0.5, max(0.005, rows / (4 * inducing)))
        # the first steps average all batches seen so far
        return max(settled, 1 / (age + 1))


@final
class Batches:
    """Numbers of rows, a batch at a time: all rows in random order, then in another one."""

    def __init__(
        self, count: int, size: int, generator: torch.Generator, device: torch.device | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"A batch must have at least one row, not {size}.")
        self.count, self.size = count, min(size, count)
        self.generator, self.device = generator, device
        self.order = torch.empty(0, dtype=torch.long, device=device)

    def next(self) -> Int[Tensor, " n"]:
        """The next batch; what is left of an order when it is too short is passed over."""
        if self.size == self.count:
            return torch.arange(self.count, device=self.device)
        if len(self.order) < self.size:
            order = torch.randperm(self.count, generator=self.generator, device=self.generator.device)
            self.order = order.to(self.device)
        index, self.order = self.order[: self.size], self.order[self.size :]
        return index


@final
@dataclass
class History:
    """One entry for every step that was kept; `reasons` says why others were taken back."""

    bound: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    back_offs: int = 0
    reasons: list[str] = field(default_factory=list)
    interrupted: bool = False
    first: int = 0
    """The first step of the present run: nothing is averaged across runs, which may differ in Z."""

    best: float = -math.inf
    """The highest smoothed bound of the present run."""

    notes: list[list[float]] = field(default_factory=list)
    """The bound and all learned values after each of the last blocks at full rates."""

    def start(self) -> None:
        """A new run."""
        self.first, self.best, self.interrupted = len(self.bound), -math.inf, False
        self.notes = []

    def add(self, bound: float) -> None:
        """The bound of a step, and its average over the last steps of this run."""
        self.bound.append(bound)
        recent = self._recent()
        self.smoothed.append(sum(recent) / len(recent))
        self.best = max(self.best, self.smoothed[-1])

    def back_off(self, reason: str) -> None:
        """A step was taken back."""
        self.back_offs += 1
        self.reasons.append(reason)
        self.notes = []

    def note(self, values: Sequence[float], bound: float | None = None) -> None:
        """Learned values after a block of steps at full rates, and a bound, else the mean of the block's."""
        recent = self.bound[max(self.first, len(self.bound) - BLOCK) :]
        bound = sum(recent) / len(recent) if bound is None else bound
        self.notes = [*self.notes[1 - BLOCKS :], [bound, *values]]

    def has_settled(self, units: Sequence[float], num_targets: int) -> bool:
        """Whether the last blocks at full rates show neither a rising bound nor learned values on their way.

        The bound rises when its mean over the last half of the blocks exceeds that over the first half by
        more than `MATERIAL_GAIN` nats for every target and by more than `SIGNIFICANT_GAIN` standard errors,
        by the scatter of the last half. A value is on its way when it moved between the halves by more than
        `MATERIAL_MOVE` of its size, or of its unit where that is larger, and its changes from block to block
        have a mean of more than `SIGNIFICANT_DRIFT` standard errors, so that it does not merely wander. At
        falling rates everything stands still, which would show nothing.
        """
        if len(self.notes) < BLOCKS:
            return False
        notes = torch.tensor(self.notes, dtype=torch.float64)
        first, last = notes[: BLOCKS // 2], notes[BLOCKS // 2 :]
        moved = last.mean(0) - first.mean(0)
        # the first half may be steep, which is no noise
        error = float((2 * last[:, 0].var() / len(last)).sqrt())
        if bool(moved[0] > max(MATERIAL_GAIN * num_targets, SIGNIFICANT_GAIN * error)):
            return False
        steps, values, moves = notes.diff(dim=0), last.mean(0)[1:], moved[1:].abs()
        sizes = torch.maximum(values.abs(), torch.tensor(units, dtype=torch.float64))
        drifts = steps.mean(0).abs() > SIGNIFICANT_DRIFT * steps.std(0) / len(steps) ** 0.5
        return not bool((drifts[1:] & (moves > MATERIAL_MOVE * sizes)).any())

    def has_collapsed(self, bound: float, num_targets: int) -> bool:
        """Whether a bound is below the best of this run by more than noise, its size and a nat a target."""
        changes = [abs(after - before) for before, after in pairwise(self._recent())]
        if not changes:
            return False
        fall = max(COLLAPSE * median(changes), abs(self.best), num_targets)
        return bound < self.best - fall

    def _recent(self) -> list[float]:
        return self.bound[max(self.first, len(self.bound) - SPAN) :]
