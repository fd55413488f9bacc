"""Training with the stochastic bound: natural-gradient steps for q, Adam for everything else.

During warm-up only q is learned. After a step that fails (a matrix cannot be factorised, or the bound is not
finite or collapses), training returns to the best state so far with halved rates. `History.has_settled`
decides convergence. Ctrl-C keeps what was learned. `q_update="adam"` with `method="all_pairs"` is the
procedure of the paper (LIM 4.4), for comparison.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitwise.functionals.averages import freeze_functional, learnable_orbits
from orbitwise.functionals.functional import Atoms, Block, Evaluation, Functional
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.checkpoints import Slots, State
from orbitwise.inference.optimise.training import TimeIsOverError, log_prior
from orbitwise.inference.processes import Processes
from orbitwise.inference.sparse.held_rows import condition
from orbitwise.inference.sparse.inducing import (
    EstimatedProcess,
    Estimates,
    Inducing,
    RowsNotFiniteError,
    check_finite,
    inducing_factor,
    lower_part,
    lower_rows,
)
from orbitwise.inference.sparse.posterior import Whitened, WhitenedFactor
from orbitwise.inference.stochastic.trainer_state import (
    BLOCK,
    DECAY_STEPS,
    Batches,
    Descent,
    Group,
    History,
    Rates,
    RunState,
    capture,
    misfit,
    restore,
)
from orbitwise.inference.stochastic.unbiased_bound import BoundEstimate, average_passes
from orbitwise.inference.stochastic.variational import (
    BoundTerms,
    Memory,
    bound_terms,
    check_drawn,
    natural_step,
)
from orbitwise.inference.stored_rows import typical_rows
from orbitwise.likelihoods.recognition import Recognition
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.nodes import Part
from orbitwise.process.process import Process
from orbitwise.process.unbiased import Method, pair_factors

__all__ = ["BoundEstimate", "History", "Rates", "StochasticTrainer"]

MAX_BACK_OFFS = 12
SNAPSHOT_EVERY = 25
SETTLING_NODES, MOST_SETTLING_ROWS = 8, 8192
"""Numbers of nodes and rows for the bound that shows whether a run has settled."""
MOST_NOTED = 100
"""Tensors with more entries than this are taken for network weights, which need not settle."""


@final
class StochasticTrainer:
    """Everything that is learned by stochastic steps; `run` takes steps, and may be called again.

    `tilt` is the source of the Pólya-Gamma tilts: remembered per datum, or from a recognition network.
    `q_update` is how q is learned: along its natural gradient, or by Adam on its mean and Cholesky factor.
    With an `inducing_functional`, u = L_z g (for example f(z), for a finite orbit) instead of g(z).
    `num_rows` is the number of all rows if the given ones are only a part of them. The weight of a row is the
    number of its repetitions. The processes that share the observations share every batch.
    """

    def __init__(
        self,
        model: LatentModel,
        observations: Observations,
        inducing: Float[Tensor, "u e"],
        generator: torch.Generator,
        batch_size: int = 256,
        rates: Rates | None = None,
        method: Method = "halves",
        tight: bool = True,
        tilt: Literal["remembered", "recognition"] = "remembered",
        q_update: Literal["natural", "adam"] = "natural",
        inducing_functional: Functional | None = None,
        num_rows: float | None = None,
    ) -> None:
        x, targets = observations.x, observations.targets.double()
        # observations of g itself are those of f for another functional
        self.model = model.at(observations.through(model.functional).functional)
        self.observations = replace(observations, functional=Evaluation(), targets=targets)
        self.generator = generator
        self.num_rows = len(x) if num_rows is None else max(num_rows, len(x))
        self.batches = Batches(len(x), batch_size, generator, x.device)
        self.batch_size, self.next_batch = self.batches.size, self.batches.next
        self.rates = Rates() if rates is None else rates
        self.method: Method = method
        self.tight, self.q_update = tight, q_update
        if isinstance(model.prior, EstimatedProcess) and inducing_functional is not None:
            raise ValueError("An estimated process has no functionals of g: leave inducing_functional out.")
        self.inducing_functional = Evaluation() if inducing_functional is None else inducing_functional
        self.recognition = None
        if tilt not in ("remembered", "recognition"):
            raise ValueError(f"tilt must be 'remembered' or 'recognition', not {tilt!r}.")
        if q_update not in ("natural", "adam"):
            raise ValueError(f"q_update must be 'natural' or 'adam', not {q_update!r}.")
        if tilt == "recognition":
            if not model.likelihood.needs_tilt:
                raise ValueError(
                    f"{type(model.likelihood).__name__} has no tilts, so it takes no recognition network: "
                    "leave tilt out."
                )
            self.recognition = Recognition(typical_rows(x), targets.shape[1], generator)
        self.history = History()
        self.memory = Memory(len(x), targets.shape[1], x.device)
        self.replace_inducing(inducing)
        self._check_data()
        self._fixed = None
        functional = self.model.functional
        drawn_finite = any(isinstance(each, FiniteOrbit) and each.is_drawn for each in functional.modules())
        if isinstance(model.prior, Process) and model.likelihood.is_quadratic and not drawn_finite:
            fixed = torch.Generator(x.device).manual_seed(0)
            self._fixed = freeze_functional(functional, SETTLING_NODES, fixed)
        self._ranges = [(orbit, name) for orbit in learnable_orbits(functional) for name in orbit.learned()]
        parameters, ends = self._learned_values()
        self.units = [1.0] * len(parameters) + [abs(end) for end in ends]

    def replace_inducing(self, inducing: Float[Tensor, "u e"]) -> None:
        """Use other inducing points: q starts again from the prior and is warmed up by `run`."""
        self.inducing = nn.Parameter(inducing.detach().clone(), requires_grad=self.rates.inducing > 0)
        with torch.no_grad():
            rows = self.inducing_rows()
        size = rows.num_rows if isinstance(rows, Atoms) else len(rows)
        start, targets = (
            Whitened.prior if self.q_update == "natural" else WhitenedFactor,
            self.observations.targets,
        )
        self.q = start(size, targets.shape[1], self.model.likelihood.shares_curvature, targets.device)
        self.age = 0

    def inducing_rows(self) -> Inducing:
        """What u observes: the present atoms of the inducing functional at the points.

        An estimated process has no functionals; its inducing variables are given by the points.
        """
        if isinstance(self.model.prior, EstimatedProcess):
            return self.inducing
        return self.inducing_functional.atoms(self.inducing).expand()

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of everything that is learned, by name: parameters, buffers, inducing points and q."""
        found = dict(self._moving.state_dict())
        found["inducing"] = self.inducing.detach()
        if isinstance(self.q, Whitened):
            found |= {"precision": self.q.precision, "shift": self.q.shift}
        return {name: tensor.clone() for name, tensor in found.items()}

    def return_to(self, snapshot: dict[str, Tensor]) -> None:
        """Restore everything from a snapshot."""
        moving = self._moving
        moving.load_state_dict({name: snapshot[name] for name in moving.state_dict()})
        with torch.no_grad():
            self.inducing.copy_(snapshot["inducing"])
        if isinstance(self.q, Whitened):
            self.q = Whitened(snapshot["precision"], snapshot["shift"])

    @property
    def _moving(self) -> nn.ModuleDict:
        """The modules whose parameters may be learned, including q if it is learned by Adam."""
        modules: dict[str, nn.Module] = {
            "process": self.model.prior,
            "functional": self.model.functional,
            "likelihood": self.model.likelihood,
            "inducing_functional": self.inducing_functional,
        }
        others = {"recognition": self.recognition, "q": self.q}
        return nn.ModuleDict(modules | {n: each for n, each in others.items() if isinstance(each, nn.Module)})

    def run(
        self,
        num_steps: int,
        warm_up: int = 0,
        callback: Callable[[int, float], None] | None = None,
        until_settled: bool = False,
        slots: Slots | None = None,
    ) -> bool:
        """Take steps, during `warm_up` of q alone; returns whether bound and learned values have settled.

        Whether they have settled is decided by `History.has_settled` for the last steps at full rates. With
        `until_settled`, rates decay as soon as they have, and `num_steps` is the largest number of steps.
        States are written to `slots` regularly; a run that was killed resumes from the last one.
        """
        processes = self.processes
        if processes.from_first(slots is not None and slots.begin()):
            return False
        self.history.start()
        try:
            return self._run(num_steps, warm_up, callback, until_settled, slots)
        except (KeyboardInterrupt, TimeIsOverError):
            self.history.interrupted = True
            return False

    def _run(
        self,
        num_steps: int,
        warm_up: int,
        callback: Callable[[int, float], None] | None,
        until_settled: bool,
        slots: Slots | None,
    ) -> bool:
        descent, run = self._descent(), RunState(self.snapshot())
        recalled = self.processes.together(lambda: self._recalled(slots, descent, run))
        if (state := self.processes.from_first(recalled)) is not None:
            restore(self, descent, run, state)
        for step in range(run.step, num_steps):
            warming, evaluated = step < warm_up, False
            progress = self._progress(step, num_steps, run.settled_at if until_settled else 0)
            if progress >= 1:
                break
            try:
                index = self.next_batch()
                terms, bound = self._evaluate(index, descent.moves(warming))
                if run.moved and self.history.has_collapsed(bound, self.observations.targets.numel()):
                    raise ValueError(f"the bound fell to {bound:.6g}")
                evaluated = True
                if descent.moves(warming):
                    rate = run.factor * self.rates.at(progress)
                    descent.step(self._loss(index, terms), rate, warming, self.processes)
                self._learn(index, terms, run.factor)
            except NOT_COMPUTABLE as error:
                self.return_to(run.best)
                if isinstance(error, RowsNotFiniteError) or not (run.moved or evaluated):
                    raise  # it was not caused by a step, so smaller steps do not help
                run.back_off()
                self.history.back_off(str(error))
                descent.restart()
                if run.failures > MAX_BACK_OFFS:
                    message = f"Steps kept failing; training stopped at the best state so far. Last: {error}"
                    warnings.warn(message, RuntimeWarning, stacklevel=3)
                    return False
                continue
            run.moved = True
            self.history.add(bound)
            if callback is not None:
                callback(step, bound)
            if (step + 1 - warm_up) % BLOCK == 0 and step >= warm_up and progress <= self.rates.decay_from:
                run.settled_at = step + 1 if self._settles() else 0
            if step % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
                if self.history.smoothed[-1] > run.best_bound:
                    run.best, run.best_bound = self.snapshot(), self.history.smoothed[-1]
                if slots is not None:
                    slots.write(capture(self, descent, run, step + 1))
        return run.settled_at > 0

    def _recalled(self, slots: Slots | None, descent: Descent, run: RunState) -> State | None:
        """The state from which this run resumes, if there is one and it fits; the first process has it."""
        state = None if slots is None else slots.recall()
        if slots is None or state is None:
            return None
        why = misfit(self, descent, run, state)
        if why:
            slots.refuse(why)
        return None if why else state

    def _progress(self, step: int, num_steps: int, settled_at: int) -> float:
        """The progress of a run from 0 to 1, on which its rates depend."""
        start = self.rates.decay_from
        if settled_at and settled_at < start * num_steps:
            return start + (1 - start) * (step - settled_at + 1) / (DECAY_STEPS + 1)
        return step / num_steps

    def _settles(self) -> bool:
        """Record bound and learned values after a block of steps at full rates; True if they have settled."""
        values = [each for part in self._learned_values() for each in part]
        try:
            self.history.note(values, self._collapsed_bound())
        except NOT_COMPUTABLE:
            self.history.notes = []  # the next step will fail as well, and be undone
        return self.history.has_settled(self.units, self.num_rows * self.observations.targets.shape[1])

    def _collapsed_bound(self) -> float | None:
        """The bound at the best q for the present parameters, on some rows at a few fixed nodes, scaled to
        all rows.

        It does not depend on batches, draws and fluctuations of q, so small gains are visible. None if the
        best q has no closed form.
        """
        if self._fixed is None:
            return None
        count = len(self.observations)
        index = torch.arange(0, count, -(-count // MOST_SETTLING_ROWS), device=self.observations.x.device)
        model = self.model.at(self._fixed)
        rows = replace(self.observations.take(index), processes=self.processes)
        found = condition(model, rows, self.inducing_rows(), tilt=self.memory.recall(index)[1])
        return self.num_rows / len(index) * float(found.bound(self.tight))

    def _learned_values(self) -> tuple[list[float], list[float]]:
        """Raw parameters of kernel and likelihood, and both ends of all learned ranges."""
        parameters = _parameters([self.model.prior, self.model.likelihood])
        raw = [p.detach().flatten().tolist() for p in parameters if p.numel() <= MOST_NOTED]
        # orbits do not list ranges of width zero
        ends = [orbit.learned().get(name, (0.0, 0.0)) for orbit, name in self._ranges]
        return [each for values in raw for each in values], [end for pair in ends for end in pair]

    def bound_on(self, index: Int[Tensor, " n"]) -> BoundTerms:
        """The bound's terms on a batch of rows, drawn afresh; of several processes, those of its share alone.

        The data term is that of the whole batch.
        """
        terms = self.processes.together(lambda: self._terms(index, self._rows(index)))
        return terms._replace(data=self.processes.sum(terms.data)[0])

    def estimate(self, num_passes: int | None = None) -> BoundEstimate:
        """An unbiased estimate of the bound on all data at the present q, with remembered slack and tilts."""
        everything = torch.arange(len(self.observations), device=self.observations.x.device)
        with torch.no_grad():
            return average_passes(
                self.bound_on,
                everything.split(self.batch_size),
                float(self.q.divergence()),
                num_passes,
            )

    @property
    def processes(self) -> Processes:
        """The processes that share every batch."""
        return self.observations.processes

    def _mine(self, index: Tensor) -> Observations:
        """Those rows of a batch that are the share of this process."""
        return self.observations.take(index[self.processes.share(len(index))])

    def _rows(self, index: Tensor) -> Block | Estimates:
        """This process' share of a batch, drawn as in the whole batch."""
        model, x = self.model, self.observations.x
        part = Part.of(self.processes.share(len(index)), len(index))
        drawn = (lambda rows: x[index[rows]], part, self.generator)
        return lower_part(model.prior, model.functional, self.inducing, *drawn)

    def _terms(self, index: Tensor, rows: Block | Estimates) -> BoundTerms:
        model, inducing, some = self.model, self.inducing_rows(), self._mine(index)
        targets = some.targets
        # exact rows use their own best slack and tilt
        share = index[self.processes.share(len(index))]
        residual, tilt = self.memory.recall(share) if rows.is_drawn else (None, None)
        if not self.tight:
            residual = targets.new_zeros(len(share))
        if self.recognition is not None:
            tilt = self.recognition(some.x, targets)
        lower = inducing_factor(model.prior, inducing)
        known = (rows, targets, residual, tilt, self.method, some.weight)
        return bound_terms(model.prior, model.likelihood, self.q, inducing, lower, *known)

    def _evaluate(self, index: Tensor, with_gradients: bool) -> tuple[BoundTerms, float]:
        def computed() -> tuple[Block | Estimates, BoundTerms]:
            rows = self._rows(index)
            return rows, self._terms(index, rows)

        processes = self.processes
        with torch.set_grad_enabled(with_gradients):
            rows, terms = processes.together(computed)
        with torch.no_grad():
            (data,) = processes.sum(terms.data)
            bound = float(self.num_rows / len(index) * data - self.q.divergence())
        if not math.isfinite(bound):
            processes.together(lambda: check_finite(rows))
            raise ValueError("the bound is not finite")
        return terms, bound

    def _loss(self, index: Tensor, terms: BoundTerms) -> Tensor:
        """The part of this process of minus the bound per row and the hyperpriors."""
        # KL[q(v) ‖ N(0, I)] does not depend on kernel and orbit, because v is whitened
        divergence = self.q.divergence() if isinstance(self.q, WhitenedFactor) else 0.0
        prior, size = log_prior(self.model.prior), self.processes.size
        bound = self.num_rows / len(index) * terms.data - divergence / size + prior / size
        return -bound / self.num_rows

    def _learn(self, index: Tensor, terms: BoundTerms, factor: float) -> None:
        """Step q along its natural gradient, unless it is learned by Adam, and update the memory."""
        if isinstance(self.q, Whitened):
            scale, some = self.num_rows / len(index), self._mine(index)
            _, groups, size = terms.projection.columns.shape
            rate = factor * self.rates.natural_at(self.age, len(index), size, scale == 1 and groups == 1)
            step = (terms, some.targets, scale, rate, some.weight, self.processes)
            self.q = natural_step(self.model.likelihood, self.q, *step)
        self.memory.learn(index, terms, self.processes)
        self.age += 1

    def _descent(self) -> Descent:
        rates, others = self.rates, (self.recognition, self.q)
        network = [each for each in others if isinstance(each, nn.Module)]
        return Descent(
            [
                Group(_parameters([self.model.prior, self.model.likelihood]), rates.kernel),
                Group(_parameters([self.model.functional, self.inducing_functional]), rates.orbit),
                Group([self.inducing], rates.inducing),
                Group(_parameters(network), rates.variational, waits=False),
            ]
        )

    def _check_data(self) -> None:
        model, given, count = self.model, self.observations, len(self.observations)
        if len(given.targets) != count or not bool(given.targets.isfinite().all()):
            raise ValueError(f"{count} inputs need {count} rows of finite targets, one column per output.")
        if given.weight is not None and given.weight.shape != (count,):
            raise ValueError("Stochastic steps take one weight per row, the same for all outputs.")
        if given.scatter is not None and bool(given.scatter.any()):
            raise ValueError(
                "Stochastic steps take every row by itself: do not merge rows with equal inputs."
            )
        probe = torch.Generator(self.generator.device).manual_seed(0)
        with torch.no_grad():
            some = given.x[: self.batch_size]
            rows = lower_rows(model.prior, model.functional, self.inducing, some, probe)
        check_finite(rows)
        if isinstance(rows, Atoms) and rows.is_drawn:
            pair_factors(rows, self.method)  # refuses a single draw
        if rows.is_drawn:
            check_drawn(model.likelihood)
        height = len(rows.variance) if isinstance(rows, Estimates) else rows.num_rows
        if height != len(some):
            raise ValueError(
                f"The functional makes {height} rows of {len(some)} inputs; it must make one row per input."
            )


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]
