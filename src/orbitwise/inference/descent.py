"""What Adam moves in stochastic training: groups of parameters with their own rates; states to return to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn


class Group(NamedTuple):
    """Parameters that share a rate; those that `wait` stay where they are during warm-up."""

    parameters: list[nn.Parameter]
    rate: float
    waits: bool = True


@final
class Descent:
    """Adam on groups of parameters; one that several groups name belongs to the first."""

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

    def moves(self, warming: bool) -> bool:
        """Whether anything moves in this phase."""
        return any(not (warming and group.waits) for group in self.groups)

    def step(self, loss: Tensor, factor: float, warming: bool) -> None:
        """One step down `loss`, rates times `factor`; a gradient that is not finite raises a ValueError."""
        if self.optimizer is None:
            return
        active = [p for group in self.groups if not (warming and group.waits) for p in group.parameters]
        gradients = torch.autograd.grad(loss, active, allow_unused=True)
        if not all(bool(each.isfinite().all()) for each in gradients if each is not None):
            raise ValueError("a gradient is not finite")
        # Adam passes over a parameter without a gradient.
        self.optimizer.zero_grad(set_to_none=True)
        for parameter, gradient in zip(active, gradients, strict=True):
            parameter.grad = gradient
        for table, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            table["lr"] = group.rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def restart(self) -> None:
        """Forget the averages of gradients, which led astray."""
        if self.optimizer is not None:
            self.optimizer.state.clear()


@final
class Snapshot:
    """The parameters and buffers of modules, and further tensors, to return to."""

    def __init__(self, modules: Sequence[nn.Module], tensors: Sequence[Tensor] = ()) -> None:
        self.modules, self.tensors = modules, tensors
        self.states = [copy.deepcopy(module.state_dict()) for module in modules]
        self.values = [tensor.detach().clone() for tensor in tensors]

    def restore(self) -> None:
        """Put everything back."""
        for module, state in zip(self.modules, self.states, strict=True):
            module.load_state_dict(state)
        with torch.no_grad():
            for tensor, value in zip(self.tensors, self.values, strict=True):
                tensor.copy_(value)
