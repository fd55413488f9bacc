"""Where a stochastic run stands: all that its next steps depend on, as a state to be kept and restored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from orbitwise.inference.checkpoint import State
from orbitwise.inference.descent import Descent, Snapshot
from orbitwise.inference.schedule import BLOCKS
from orbitwise.inference.whitened import Whitened, WhitenedFactor

if TYPE_CHECKING:
    from orbitwise.inference.stochastic import StochasticTrainer

MEMORY = ("residual", "square", "seen", "typical_residual", "typical_square")


@final
@dataclass
class Standing:
    """The next step of a run, the factor of its rates, its failures, and the best state to go back to."""

    best: Snapshot
    best_q: Whitened | WhitenedFactor
    best_bound: float = -math.inf
    step: int = 0
    factor: float = 1.0
    failures: int = 0
    moved: bool = False
    settled_at: int = 0
    """The step after which the run was last seen to have settled, 0 where it has not."""

    def back_off(self) -> None:
        """A step failed: halve the rates."""
        self.factor, self.failures, self.moved = self.factor * 0.5, self.failures + 1, False
        self.settled_at = 0


def capture(trainer: StochasticTrainer, descent: Descent, standing: Standing, step: int) -> State:
    """The state of a trainer before this step."""
    history = trainer.history
    tensors = {
        "generator": trainer.generator.get_state(),
        "order": trainer.batches.order,
        "bound": torch.tensor(history.bound, dtype=torch.float64),
        "smoothed": torch.tensor(history.smoothed, dtype=torch.float64),
        "notes": torch.tensor(history.notes, dtype=torch.float64).reshape(-1, 1 + len(trainer.units)),
        **{f"memory.{name}": getattr(trainer.memory, name) for name in MEMORY},
        **_held("now", Snapshot(standing.best.modules, standing.best.tensors), trainer.q),
        **_held("best", standing.best, standing.best_q),
    }
    for place, parameter in enumerate(_moving(descent)):
        averages = {} if descent.optimizer is None else descent.optimizer.state.get(parameter, {})
        tensors |= {f"adam.{place}.{name}": value for name, value in averages.items()}
    numbers = {
        "best_bound": standing.best_bound,
        "step": step,
        "factor": standing.factor,
        "failures": standing.failures,
        "moved": standing.moved,
        "settled_at": standing.settled_at,
        "age": trainer.age,
        "first": history.first,
        "best": history.best,
        "back_offs": history.back_offs,
        "reasons": history.reasons,
    }
    return State(tensors, numbers)


def misfit(trainer: StochasticTrainer, descent: Descent, standing: Standing, state: State) -> str:
    """Why a state is none that this trainer could have been in; empty where it may be one."""
    own = capture(trainer, descent, standing, standing.step)
    tensors, numbers = state
    averages = {
        f"adam.{place}.{name}": parameter
        for place, parameter in enumerate(_moving(descent))
        for name in ("step", "exp_avg", "exp_avg_sq")
    }
    if not set(own.tensors) - set(averages) <= set(tensors) <= set(own.tensors) | set(averages):
        return "it has other tensors"
    for name, tensor in tensors.items():
        like = own.tensors.get(name, averages.get(name))
        if name in ("order", "bound", "smoothed"):
            like = tensor.new_zeros(tensor.numel(), dtype=own.tensors[name].dtype)
        elif name == "notes":
            like = own.tensors[name].new_zeros(min(len(tensor), BLOCKS), 1 + len(trainer.units))
        elif name.endswith(".step") and name in averages:
            like = tensor.new_zeros((), dtype=torch.float32)
        if like is None or tensor.shape != like.shape or tensor.dtype != like.dtype:
            return f"{name} has another shape or type"
        if not bool((tensor.isfinite() | ~like.detach().to(tensor.device).isfinite()).all()):
            return f"{name} is not finite"
    order, length = tensors["order"], len(tensors["bound"])
    if len(order) and not 0 <= int(order.min()) <= int(order.max()) < trainer.batches.count:
        return "it is of other rows"
    if len(tensors["smoothed"]) != length:
        return "its history is torn"
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
            return f"{name} is no count"
    for name in ("best_bound", "factor", "best"):
        if type(numbers.get(name)) is not float or math.isnan(numbers[name]):
            return f"{name} is no number"
    reasons = numbers.get("reasons")
    if not 0 < numbers["factor"] <= 1 or type(numbers.get("moved")) is not bool:
        return "its rates are wrong"
    if not isinstance(reasons, list) or not all(isinstance(each, str) for each in reasons):
        return "its reasons are no words"
    return "" if set(own) <= set(numbers) else "it has other numbers"


def restore(trainer: StochasticTrainer, descent: Descent, standing: Standing, state: State) -> None:
    """Bring a trainer, which was made as the one before, to a state."""
    tensors, numbers = state
    device, history = trainer.x.device, trainer.history
    best, best_q = standing.best, standing.best_q
    _release("now", Snapshot(best.modules, best.tensors), tensors).restore()
    trainer.q = _q("now", trainer.q, tensors, device)
    standing.best = _release("best", best, tensors)
    standing.best_q = _q("best", best_q, tensors, device)
    if isinstance(best_q, WhitenedFactor):
        standing.best_q = trainer.q
    trainer.generator.set_state(tensors["generator"])
    trainer.batches.order = tensors["order"].to(device)
    for name in MEMORY:
        setattr(trainer.memory, name, tensors[f"memory.{name}"].to(device))
    trainer.age = numbers["age"]
    history.bound, history.smoothed = tensors["bound"].tolist(), tensors["smoothed"].tolist()
    history.first, history.best = numbers["first"], numbers["best"]
    history.notes = tensors["notes"].tolist()
    history.back_offs, history.reasons = numbers["back_offs"], numbers["reasons"]
    for name in ("best_bound", "step", "factor", "failures", "moved", "settled_at"):
        setattr(standing, name, numbers[name])
    if descent.optimizer is not None:
        for place, parameter in enumerate(_moving(descent)):
            start = f"adam.{place}."
            averages = {n.removeprefix(start): each for n, each in tensors.items() if n.startswith(start)}
            if averages:
                # the count of steps stays where Adam keeps it
                descent.optimizer.state[parameter] = {
                    name: each if name == "step" else each.to(parameter) for name, each in averages.items()
                }


def _moving(descent: Descent) -> list[nn.Parameter]:
    return [parameter for group in descent.groups for parameter in group.parameters]


def _held(prefix: str, snapshot: Snapshot, q: Whitened | WhitenedFactor) -> dict[str, Tensor]:
    held = {
        f"{prefix}.module.{place}.{name}": tensor
        for place, state in enumerate(snapshot.states)
        for name, tensor in state.items()
    }
    held |= {f"{prefix}.tensor.{place}": value for place, value in enumerate(snapshot.values)}
    if isinstance(q, Whitened):
        held |= {f"{prefix}.precision": q.precision, f"{prefix}.shift": q.shift}
    return held


def _release(prefix: str, snapshot: Snapshot, tensors: dict[str, Tensor]) -> Snapshot:
    """The snapshot with what is held of it in place of what it was taken of."""
    for place, state in enumerate(snapshot.states):
        for name, tensor in state.items():
            state[name] = tensors[f"{prefix}.module.{place}.{name}"].to(tensor.device)
    snapshot.values = [
        tensors[f"{prefix}.tensor.{place}"].to(value) for place, value in enumerate(snapshot.values)
    ]
    return snapshot


def _q(
    prefix: str, q: Whitened | WhitenedFactor, tensors: dict[str, Tensor], device: torch.device
) -> Whitened | WhitenedFactor:
    if not isinstance(q, Whitened):
        return q  # a module, whose parameters are in the snapshot
    return Whitened(tensors[f"{prefix}.precision"].to(device), tensors[f"{prefix}.shift"].to(device))
