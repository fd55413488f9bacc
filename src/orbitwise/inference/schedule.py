"""How fast stochastic training moves, in which order it visits the data, and what it leaves behind."""

from __future__ import annotations

import math
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

    def start(self) -> None:
        """A new run."""
        self.first, self.best, self.interrupted = len(self.bound), -math.inf, False

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

    def has_settled(self, window: int, tolerance: float) -> bool:
        """Whether the smoothed bound gained less than `tolerance` over the last window of this run."""
        if len(self.smoothed) - self.first <= 2 * window:
            return False
        return self.smoothed[-1] - self.smoothed[-1 - window] < tolerance

    def has_collapsed(self, bound: float, num_targets: int) -> bool:
        """Whether a bound is below the best of this run by more than noise, its size and a nat a target."""
        changes = [abs(after - before) for before, after in pairwise(self._recent())]
        if not changes:
            return False
        fall = max(COLLAPSE * median(changes), abs(self.best), num_targets)
        return bound < self.best - fall

    def _recent(self) -> list[float]:
        return self.bound[max(self.first, len(self.bound) - SPAN) :]
