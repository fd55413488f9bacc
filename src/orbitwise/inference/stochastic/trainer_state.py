"""Rates, batches, history and checkpoints of stochastic training.

Adam learns groups of parameters at different rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from orbitwise.inference.optimise.checkpoints import State
from orbitwise.inference.processes import ALONE, Processes


class Group(NamedTuple):
    """Parameters that share a rate; with `waits`, they are fixed during warm-up."""

    parameters: list[nn.Parameter]
    rate: float
    waits: bool = True


@final
class Descent:
    """Adam on groups of parameters; a parameter in several groups belongs to the first."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups: list[Group] = []
        seen: set[int] = set()
        for group in groups:
            free = [p for p in group.parameters if p.requires_grad and id(p) not in seen]
            seen.update(id(p) for p in free)
            if free and group.rate > 0:
                self.groups.append(group._replace(parameters=free))
        tables = [{"params": group.parameters} for group in self.groups]
        self.optimizer = torch.optim.Adam(tables) if tables else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that it learns, group by group."""
        return [parameter for group in self.groups for parameter in group.parameters]

    def moves(self, warming: bool) -> bool:
        """Whether anything is learned in this phase."""
        return any(not (warming and group.waits) for group in self.groups)

    def step(self, loss: Tensor, factor: float, warming: bool, processes: Processes = ALONE) -> None:
        """One step down `loss`, with rates times `factor`; a ValueError if a gradient is not finite.

        Of several processes, each has a part of the loss.
        """
        if self.optimizer is None:
            return
        active = [p for group in self.groups if not (warming and group.waits) for p in group.parameters]
        found = processes.together(lambda: torch.autograd.grad(loss, active, allow_unused=True))
        totals = iter(processes.sum(*(each for each in found if each is not None)))
        gradients = [None if each is None else next(totals) for each in found]
        if not all(bool(each.isfinite().all()) for each in gradients if each is not None):
            raise ValueError("a gradient is not finite")
        # Adam skips parameters without a gradient.
        self.optimizer.zero_grad(set_to_none=True)
        for parameter, gradient in zip(active, gradients, strict=True):
            parameter.grad = gradient
        for table, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            table["lr"] = group.rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def restart(self) -> None:
        """Reset the averages of gradients after a failed step."""
        if self.optimizer is not None:
            self.optimizer.state.clear()


SPAN = 50
"""Steps that the smoothed bound averages over."""
COLLAPSE = 10.0
"""A fall by more than this multiple of the usual change per step is not noise."""
BLOCK = 25
"""Steps per block; bound and learned values are recorded after each block, to see whether they settle."""
BLOCKS = 6
"""The number of blocks at full rates that are compared: the last half of them with the first half."""
SIGNIFICANT_GAIN, SIGNIFICANT_DRIFT = 2.0, 3.0
"""Standard errors above which a gain of the bound, and the drift of a value, are significant."""
MATERIAL_GAIN = 5e-4
"""The largest gain of a settled bound between the halves, in nats per target."""
MATERIAL_MOVE = 0.05
"""The largest change of a settled value between the halves, relative to its size."""
DECAY_STEPS = 100
"""Steps over which rates decay once a run without a given length has settled."""


@final
@dataclass(frozen=True)
class Rates:
    """Learning rates. With `natural` None, the rate is such that q averages over several rows per inducing
    point.

    `variational` is Adam's rate for a recognition network, and for q if it is learned by Adam.
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
        """The rate of natural-gradient steps after `age` steps, for batches of `rows` rows.

        `everything` means that a batch contains all data, exactly: then a single full step is optimal.
        """
        if self.natural is not None:
            return self.natural
        settled = 1.0 if everything else min(0.5, max(0.005, rows / (4 * inducing)))
        # the first steps average all batches seen so far
        return max(settled, 1 / (age + 1))


@final
class Batches:
    """Batches of row indices: all rows in random order, then in another random order, and so on."""

    def __init__(
        self, count: int, size: int, generator: torch.Generator, device: torch.device | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"A batch must have at least one row, not {size}.")
        self.count, self.size = count, min(size, count)
        self.generator, self.device = generator, device
        self.order = torch.empty(0, dtype=torch.long, device=device)

    def next(self) -> Int[Tensor, " n"]:
        """The next batch; a remainder that is too short for a batch is skipped."""
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
    """The bound after every successful step, and the `reasons` why others failed."""

    bound: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    back_offs: int = 0
    reasons: list[str] = field(default_factory=list)
    interrupted: bool = False
    first: int = 0
    """The first step of the present run: averages do not extend over several runs, which may differ in Z."""

    best: float = -math.inf
    """The highest smoothed bound of the present run."""

    notes: list[list[float]] = field(default_factory=list)
    """The bound and all learned values after each of the last blocks of steps at full rates."""

    def start(self) -> None:
        """Start a new run."""
        self.first, self.best, self.interrupted = len(self.bound), -math.inf, False
        self.notes = []

    def add(self, bound: float) -> None:
        """Record the bound of a step, and its average over the last steps of this run."""
        self.bound.append(bound)
        recent = self._recent()
        self.smoothed.append(sum(recent) / len(recent))
        self.best = max(self.best, self.smoothed[-1])

    def back_off(self, reason: str) -> None:
        """Record that a step failed."""
        self.back_offs += 1
        self.reasons.append(reason)
        self.notes = []

    def note(self, values: Sequence[float], bound: float | None = None) -> None:
        """Record the values after a block of steps at full rates, and a bound, by default the mean."""
        recent = self.bound[max(self.first, len(self.bound) - BLOCK) :]
        bound = sum(recent) / len(recent) if bound is None else bound
        self.notes = [*self.notes[1 - BLOCKS :], [bound, *values]]

    def has_settled(self, units: Sequence[float], num_targets: float) -> bool:
        """Whether, over the last blocks at full rates, the bound no longer rises and no learned value drifts.

        The bound rises when its mean over the last half of the blocks exceeds that over the first half by
        more than `MATERIAL_GAIN` nats for every target and by more than `SIGNIFICANT_GAIN` standard errors,
        by the scatter of the last half. A value drifts when it changed between the halves by more than
        `MATERIAL_MOVE` times its size, or its unit if that is larger, and the mean change from block to block
        exceeds `SIGNIFICANT_DRIFT` standard errors, so that it does not merely fluctuate. Blocks at decaying
        rates are not used, because everything stands still there.
        """
        if len(self.notes) < BLOCKS:
            return False
        notes = torch.tensor(self.notes, dtype=torch.float64)
        first, last = notes[: BLOCKS // 2], notes[BLOCKS // 2 :]
        moved = last.mean(0) - first.mean(0)
        # the first half may be steep, which is not noise
        error = float((2 * last[:, 0].var() / len(last)).sqrt())
        if bool(moved[0] > max(MATERIAL_GAIN * num_targets, SIGNIFICANT_GAIN * error)):
            return False
        steps, values, moves = notes.diff(dim=0), last.mean(0)[1:], moved[1:].abs()
        sizes = torch.maximum(values.abs(), torch.tensor(units, dtype=torch.float64))
        drifts = steps.mean(0).abs() > SIGNIFICANT_DRIFT * steps.std(0) / len(steps) ** 0.5
        return not bool((drifts[1:] & (moves > MATERIAL_MOVE * sizes)).any())

    def has_collapsed(self, bound: float, num_targets: int) -> bool:
        """Whether a bound is below the best by more than noise, its size, and one nat per target."""
        changes = [abs(after - before) for before, after in pairwise(self._recent())]
        if not changes:
            return False
        fall = max(COLLAPSE * median(changes), abs(self.best), num_targets)
        return bound < self.best - fall

    def _recent(self) -> list[float]:
        return self.bound[max(self.first, len(self.bound) - SPAN) :]


if TYPE_CHECKING:
    from orbitwise.inference.stochastic.trainer import StochasticTrainer

MEMORY = ("residual", "square", "seen", "typical_residual", "typical_square")
RUN = ("best_bound", "factor", "failures", "moved", "settled_at")
HISTORY = ("first", "best", "back_offs", "reasons")


@final
@dataclass
class RunState:
    """The next step of a run, the factor of its rates, its failures, and the best state to return to."""

    best: dict[str, Tensor]
    """A copy of everything that is learned, from `StochasticTrainer.snapshot`."""

    best_bound: float = -math.inf
    step: int = 0
    factor: float = 1.0
    failures: int = 0
    moved: bool = False
    settled_at: int = 0
    """The step after which the run was last found to have settled, 0 if it has not."""

    def back_off(self) -> None:
        """Halve the rates after a failed step."""
        self.factor, self.failures, self.moved = self.factor * 0.5, self.failures + 1, False
        self.settled_at = 0


def capture(trainer: StochasticTrainer, descent: Descent, run: RunState, step: int) -> State:
    """The state of a trainer before this step, to be written to disk."""
    history = trainer.history
    tensors = {
        "generator": trainer.generator.get_state(),
        "order": trainer.batches.order,
        "bound": torch.tensor(history.bound, dtype=torch.float64),
        "smoothed": torch.tensor(history.smoothed, dtype=torch.float64),
        "notes": torch.tensor(history.notes, dtype=torch.float64).reshape(-1, 1 + len(trainer.units)),
        **{f"memory.{name}": getattr(trainer.memory, name) for name in MEMORY},
        **{f"now.{name}": tensor for name, tensor in trainer.snapshot().items()},
        **{f"best.{name}": tensor for name, tensor in run.best.items()},
    }
    for place, parameter in enumerate(descent.parameters):
        averages = {} if descent.optimizer is None else descent.optimizer.state.get(parameter, {})
        tensors |= {f"adam.{place}.{name}": value for name, value in averages.items()}
    numbers = {name: getattr(run, name) for name in RUN} | {name: getattr(history, name) for name in HISTORY}
    return State(tensors, numbers | {"step": step, "age": trainer.age})


def misfit(trainer: StochasticTrainer, descent: Descent, run: RunState, state: State) -> str:
    """Why a state cannot be one of this trainer; empty if it can."""
    own = capture(trainer, descent, run, run.step)
    tensors, numbers = state
    averages = {
        f"adam.{place}.{name}": parameter.new_zeros((), dtype=torch.float32) if name == "step" else parameter
        for place, parameter in enumerate(descent.parameters)
        for name in ("step", "exp_avg", "exp_avg_sq")
    }
    if not set(own.tensors) - set(averages) <= set(tensors) <= set(own.tensors) | set(averages):
        return "it has other tensors"
    for name, tensor in tensors.items():
        like = averages.get(name, own.tensors.get(name, tensor))
        if name in ("order", "bound", "smoothed"):
            like = like.new_zeros(tensor.numel())
        elif name == "notes":
            like = like.new_zeros(min(len(tensor), BLOCKS), 1 + len(trainer.units))
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            return f"{name} has another shape or type"
        if not bool((tensor.isfinite() | ~like.detach().to(tensor.device).isfinite()).all()):
            return f"{name} is not finite"
    order, length = tensors["order"], len(tensors["bound"])
    if len(order) and not 0 <= int(order.min()) <= int(order.max()) < trainer.batches.count:
        return "it belongs to other rows"
    if len(tensors["smoothed"]) != length:
        return "its history is incomplete"
    try:
        torch.Generator(trainer.generator.device).set_state(tensors["generator"])
    except RuntimeError as error:
        return f"its random state is wrong: {error}"
    return _wrong_number(numbers, own.numbers, length)


def _wrong_number(numbers: dict[str, Any], own: dict[str, Any], length: int) -> str:
    counts = dict.fromkeys(("step", "failures", "age", "back_offs", "settled_at")) | {"first": length}
    for name, most in counts.items():
        value = numbers.get(name)
        if type(value) is not int or value < 0 or value > (2**53 if most is None else most):
            return f"{name} is not a count"
    for name in ("best_bound", "factor", "best"):
        if type(numbers.get(name)) is not float or math.isnan(numbers[name]):
            return f"{name} is not a number"
    reasons = numbers.get("reasons")
    if not 0 < numbers["factor"] <= 1 or type(numbers.get("moved")) is not bool:
        return "its rates are wrong"
    if not isinstance(reasons, list) or not all(isinstance(each, str) for each in reasons):
        return "its reasons are not text"
    return "" if set(own) <= set(numbers) else "it has other numbers"


def restore(trainer: StochasticTrainer, descent: Descent, run: RunState, state: State) -> None:
    """Set a trainer, constructed with the same arguments as the earlier one, to a state."""
    tensors, numbers = state
    device, history = trainer.observations.x.device, trainer.history

    def part(prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with the prefix, by the rest of their names."""
        return {n.removeprefix(prefix): each for n, each in tensors.items() if n.startswith(prefix)}

    trainer.return_to({name: each.to(device) for name, each in part("now.").items()})
    run.best = {name: each.to(device) for name, each in part("best.").items()}
    trainer.generator.set_state(tensors["generator"])
    trainer.batches.order = tensors["order"].to(device)
    for name in MEMORY:
        setattr(trainer.memory, name, tensors[f"memory.{name}"].to(device))
    history.bound, history.smoothed = tensors["bound"].tolist(), tensors["smoothed"].tolist()
    history.notes = tensors["notes"].tolist()
    for name in HISTORY:
        setattr(history, name, numbers[name])
    for name in RUN:
        setattr(run, name, numbers[name])
    run.step, trainer.age = numbers["step"], numbers["age"]
    for place, parameter in enumerate(descent.parameters):
        if descent.optimizer is not None and (averages := part(f"adam.{place}.")):
            # the count of steps stays where Adam keeps it
            descent.optimizer.state[parameter] = {
                name: each if name == "step" else each.to(parameter) for name, each in averages.items()
            }
