"""Training of the stochastic bound: natural-gradient steps for q, Adam for kernel, orbit, likelihood and inducing points.

q is warmed up before the orbit moves; a step that fails (no factorisation, a bound that is not finite) is taken back to the
last good state with halved rates; the smoothed bound decides convergence; Ctrl-C keeps what was learned.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.functionals.functional import Functional
from orbitwise.inference.projection import inducing_factor
from orbitwise.inference.training import log_prior
from orbitwise.inference.variational import BoundTerms, Memory, bound_terms
from orbitwise.inference.whitened import Whitened
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process
from orbitwise.process.unbiased import Method

MAX_BACK_OFFS = 12
SNAPSHOT_EVERY = 25


@dataclass(frozen=True)
class Rates:
    """How fast things move. `natural` None takes a rate whose memory spans a few times as many rows as inducing points."""

    kernel: float = 0.03
    orbit: float = 0.05
    inducing: float = 0.0
    natural: float | None = None
    decay_from: float = 0.6

    def at(self, progress: float) -> float:
        """The factor of all Adam rates: 1, then a half cosine to nearly 0."""
        if progress <= self.decay_from:
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - self.decay_from) / (1 - self.decay_from)))) + 1e-3


@dataclass
class History:
    """One entry for every step."""

    bound: list[float] = field(default_factory=list)
    smoothed: list[float] = field(default_factory=list)
    back_offs: int = 0

    def add(self, bound: float, keep: float = 0.97) -> None:
        last = self.smoothed[-1] if self.smoothed else bound
        self.bound.append(bound)
        self.smoothed.append(keep * last + (1 - keep) * bound)

    def has_settled(self, window: int, tolerance: float) -> bool:
        """Whether the smoothed bound gained less than `tolerance` over the last window."""
        return len(self.smoothed) > 2 * window and self.smoothed[-1] - self.smoothed[-1 - window] < tolerance


@final
class StochasticTrainer:
    """Everything that moves during training; `run` takes steps, and may be called again."""

    def __init__(
        self,
        process: Process,
        functional: Functional,
        likelihood: Likelihood,
        x: Float[Tensor, "N d"],
        targets: Float[Tensor, "N c"],
        inducing: Float[Tensor, "u d"],
        generator: torch.Generator,
        batch_size: int = 256,
        rates: Rates | None = None,
        method: Method = "halves",
        tight: bool = True,
    ) -> None:
        self.process, self.functional, self.likelihood = process, functional, likelihood
        self.x, self.targets = x, targets.double()
        self.generator = generator
        self.batch_size = min(batch_size, len(x))
        self.rates = Rates() if rates is None else rates
        self.method: Method = method
        self.tight = tight
        self.history = History()
        self.memory = Memory(len(x), targets.shape[1], x.device)
        self.replace_inducing(inducing)

    def replace_inducing(self, inducing: Float[Tensor, "u d"]) -> None:
        """Other inducing points, say more of them: q starts again from the prior and is warmed up by `run`."""
        self.inducing = nn.Parameter(inducing.detach().clone(), requires_grad=self.rates.inducing > 0)
        outputs = self.targets.shape[1]
        self.q = Whitened.prior(len(inducing), outputs, self.likelihood.shares_curvature, self.x.device)
        self.order = torch.empty(0, dtype=torch.long, device=self.x.device)

    def run(
        self,
        num_steps: int,
        warm_up: int = 0,
        callback: Callable[[int, float], None] | None = None,
        tolerance: float | None = None,
    ) -> bool:
        """Take steps; q alone moves during `warm_up`. Returns whether the smoothed bound settled (or all steps ran)."""
        groups = [
            {"params": _learnable([self.process, self.likelihood]), "rate": self.rates.kernel},
            {"params": _learnable([self.functional]), "rate": self.rates.orbit},
            {"params": [self.inducing] if self.inducing.requires_grad else [], "rate": self.rates.inducing},
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.Adam([{**group, "lr": group["rate"]} for group in groups]) if groups else None
        factor = 1.0
        saved = self._snapshot()
        for step in range(num_steps):
            try:
                for group in optimizer.param_groups if optimizer is not None else ():
                    group["lr"] = group["rate"] * factor * self.rates.at(step / num_steps)
                bound = self._step(optimizer if step >= warm_up else None, factor, step)
            except KeyboardInterrupt:
                return False
            except (ValueError, torch.linalg.LinAlgError) as error:
                self.history.back_offs += 1
                factor *= 0.5
                self._restore(saved)
                if self.history.back_offs > MAX_BACK_OFFS:
                    raise ValueError(f"The bound kept exploding after {MAX_BACK_OFFS} back-offs: {error}") from error
                continue
            self.history.add(bound)
            if callback is not None:
                callback(step, bound)
            if step % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
                saved = self._snapshot()
                if tolerance is not None and self.history.has_settled(100, tolerance):
                    return True
        return tolerance is None

    def bound_on(self, index: Tensor) -> BoundTerms:
        """The bound's terms on a batch of rows, drawn afresh."""
        residual, tilt = self.memory.recall(index)
        lower = inducing_factor(self.process, self.inducing)
        atoms = self.functional.atoms(self.x[index], self.generator)
        return bound_terms(
            self.process,
            self.likelihood,
            self.q,
            self.inducing,
            lower,
            atoms,
            self.targets[index],
            residual if self.tight else torch.zeros_like(residual),
            tilt,
            self.method,
        )

    def _step(self, optimizer: torch.optim.Optimizer | None, factor: float, step: int) -> float:
        index = self._next_batch()
        scale = len(self.x) / len(index)
        with torch.set_grad_enabled(optimizer is not None):
            terms = self.bound_on(index)
            loss = -(scale * terms.data + log_prior(self.process)) / len(self.x)
            bound = float(scale * terms.data.detach() - self.q.divergence())
        if not math.isfinite(bound):
            raise ValueError("the bound is not finite")
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            _check_gradients(optimizer)
            optimizer.step()
        with torch.no_grad():
            rate = self._natural_rate(step) * factor
            quadratic = terms.quadratic
            columns = terms.projection.total.detach()
            curvature, slope = scale * quadratic.curvature.detach(), scale * quadratic.slope.detach()
            self.q = self.q.step(columns, curvature, slope, rate)
            self.memory.learn(index, terms.moments)
        return bound

    def _natural_rate(self, step: int) -> float:
        if self.rates.natural is not None:
            return self.rates.natural
        span = 4 * len(self.inducing)
        settled = 1.0 if self.batch_size == len(self.x) else min(0.5, max(0.005, self.batch_size / span))
        # the first steps average all batches seen so far
        return max(settled, 1 / (step + 1))

    def _next_batch(self) -> Tensor:
        if self.batch_size == len(self.x):
            return torch.arange(len(self.x), device=self.x.device)
        if len(self.order) < self.batch_size:
            place = self.generator.device
            self.order = torch.randperm(len(self.x), generator=self.generator, device=place).to(self.x.device)
        index, self.order = self.order[: self.batch_size], self.order[self.batch_size :]
        return index

    def _snapshot(self) -> tuple[list[dict[str, Any]], Tensor, Whitened]:
        modules = (self.process, self.functional, self.likelihood)
        states = [copy.deepcopy(module.state_dict()) for module in modules]
        return states, self.inducing.detach().clone(), self.q

    def _restore(self, saved: tuple[list[dict[str, Any]], Tensor, Whitened]) -> None:
        states, inducing, self.q = saved
        for module, state in zip((self.process, self.functional, self.likelihood), states, strict=True):
            module.load_state_dict(state)
        with torch.no_grad():
            self.inducing.copy_(inducing)


def _learnable(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]


def _check_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                raise ValueError("a gradient is not finite")
