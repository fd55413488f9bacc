"""From learned hyperparameters to the inducing points that predictions need: the rungs of a climb.

Hyperparameters are learned with moderately many inducing points and then held. Projecting all rows on more of
them costs little, and the noise is chosen anew each time, because few inducing points count as noise.

Labels are not Gaussian, and the bound of few inducing points prefers long lengthscales. So labels are
predicted with the lengthscales, and with the noise, under which labels that are left out are most probable.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import scipy
import torch
from torch import Tensor

from orbitwise.functionals.averages import freeze_functional
from orbitwise.functionals.functional import Functional
from orbitwise.inference.calibration import (
    NoiseOfLabels,
    evenly_of_classes,
    label_losses,
    noise_of_labels,
)
from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.model import LatentModel, Observations
from orbitwise.inference.optimise.watching import Phase, Reporter
from orbitwise.inference.sparse.climb import Limits, Place, Size, paired_gain
from orbitwise.inference.sparse.held_rows import HeldRows, condition, expanded_rows, hold_rows
from orbitwise.inference.sparse.inducing import Inducing, project_rows, random_orbit_points
from orbitwise.inference.sparse.posterior import SparsePosterior, Whitened
from orbitwise.inference.stochastic import nonconjugate
from orbitwise.inference.stochastic.unbiased_bound import BoundEstimate, unbiased_bound
from orbitwise.inference.stored_rows import StoredRows
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.process.process import Process

LOWER = 1e-3
"""The noise of a rung is at least this share of the learned one, and at most the size of the targets."""
LIKE = 0.02
"""The tolerance of the search for the best noise, in its logarithm."""
OTHERS = 3
"""The number of other sets of nodes from which the error of a bound is estimated."""
COARSE_WIDTH, COARSE_ROWS = 32, 1500
"""Below this many columns kernels are so smooth that single precision would lose too much, and below this
many rows double precision costs little."""
ROWS_FOR_NOISE = 5000
"""About the most rows that are left out to choose a noise; each is predicted from all others."""
MOST_HELD = 2**29
"""Bytes of A that are held of rows that stay where they are."""
OCTAVE = 4
"""Steps between a lengthscale and twice of it."""
SHORTEST, LONGEST = -3 * OCTAVE, 2 * OCTAVE
"""Steps by which lengthscales that predict labels may differ from those of the evidence."""


@final
@dataclass(frozen=True)
class Rungs:
    """All rungs of one fit: the same number of inducing points always gives the same place.

    `seed` determines the points, and `tilt` is the start of tilts for likelihoods that need them. `steps` is
    the number of parts of an octave by which lengthscales differ from those of the model. Where A would take
    more than `max_memory` bytes, it is computed again whenever it is needed.
    """

    model: LatentModel
    observations: Observations
    frozen: Functional
    seed: int
    labels: Tensor | None = None
    noise_of_labels: NoiseOfLabels = "evidence"
    tilt: Tensor | None = None
    steps: int = 0
    max_memory: float | None = None

    @cached_property
    def process(self) -> Process:
        """The process that predicts."""
        process = (
            self.model.process.stretched(2 ** (self.steps / OCTAVE)) if self.steps else self.model.process
        )
        if process is None:
            raise ValueError("The kernel has no lengthscale that could be so long or short.")
        return process

    @property
    def latent(self) -> LatentModel:
        """The model that predicts, on frozen rows."""
        return LatentModel(self.process, self.frozen, self.model.likelihood)

    def of_evidence(self) -> Rungs:
        """The same rungs with the lengthscales of the model, where labels do not matter."""
        return replace(self, steps=0, labels=None)

    def at_best_lengthscales(self, inducing: Tensor, reporter: Reporter) -> Rungs:
        """With the lengthscales under which labels that are left out are predicted best.

        They are found with these inducing points, because the number of points hardly matters for them: with
        3,000 images of MNIST, 500 and 3,000 points found the same. Those of the model stay where others gain
        less than the standard error ("auto"), or where labels are predicted as the evidence says.
        """
        if self.labels is None or self.noise_of_labels == "evidence":
            return self
        reporter.begin(Phase("lengthscales for labels", num_inducing=len(inducing)))
        known: dict[int, Tensor | None] = {}

        def losses(steps: int) -> Tensor | None:
            if steps not in known:
                known[steps] = None
                if SHORTEST <= steps <= LONGEST and not reporter.is_over():
                    # a kernel that cannot be stretched so far, or computed, leaves the search where it is
                    with suppress(*NOT_COMPUTABLE):
                        known[steps] = replace(self, steps=steps).at_points(inducing).losses
            return known[steps]

        def is_better(there: int, here: int) -> bool:
            first, second = losses(there), losses(here)
            return first is not None and second is not None and bool(first.mean() < second.mean())

        best, stride = 0, OCTAVE // 2
        direction = -stride if is_better(-stride, 0) else stride
        while is_better(best + direction, best):
            best += direction
        best += next((each for each in (-1, 1) if is_better(best + each, best)), 0)
        before, after = losses(0), losses(best)
        if before is None or after is None or not best:
            return self
        gain, error = paired_gain(before, after)
        least = error if self.noise_of_labels == "auto" else 0.0
        return replace(self, steps=best) if gain > least else self

    @property
    def size(self) -> Size:
        """What time and memory of a rung depend on."""
        with torch.no_grad():
            atoms = self.frozen.atoms(self.observations.x[:1]).points.shape[-2]
        shares = self.model.likelihood.shares_curvature
        num_rows, outputs = self.observations.targets.shape
        is_weighted = self.observations.weight is not None or not isinstance(self.model.likelihood, Gaussian)
        num_grams, size = 1 if shares else outputs, self.observations.processes.size
        width, streams = self.observations.x.shape[1], isinstance(self.observations.x, StoredRows)
        return Size(num_rows, atoms, width, num_grams, is_weighted, size, streams)

    @property
    def is_density(self) -> bool:
        """Whether losses are minus logarithms of densities, and not of probabilities."""
        return self.labels is None

    @property
    def rows(self) -> Observations:
        """The observations, in single precision where that serves."""
        return in_single_precision(self.model, self.observations)

    def points(self, count: int) -> Tensor:
        """Random points of the orbits of all rows."""
        generator = torch.Generator(self.observations.x.device).manual_seed(self.seed)
        return random_orbit_points(self.frozen, self.observations.x, count, generator)

    def at(self, count: int) -> Place:
        """The place with `count` random inducing points."""
        return self.at_points(self.points(count))

    @torch.no_grad()
    def as_learned(self, inducing: Inducing) -> Place:
        """The place with these inducing points, at the noise that was learned."""
        if not self.has_one_noise:
            return self.at_points(inducing)
        return self.of_held(self._hold(inducing), inducing, self.model.noise.item())

    @property
    def has_one_noise(self) -> bool:
        """Whether the likelihood is Gaussian noise of one variance."""
        return isinstance(self.model.likelihood, Gaussian) and self.model.likelihood.shares_curvature

    def _hold(self, inducing: Inducing) -> HeldRows:
        rows, processes = self.rows, self.observations.processes
        known = (self.process, self.frozen, inducing, rows.x, rows.targets)
        streams = self._streams(inducing)
        return hold_rows(*known, weight=rows.weight, processes=processes, streams=streams)

    def _streams(self, inducing: Inducing) -> bool:
        """Whether A is computed again whenever it is needed, because it takes too much memory."""
        count = len(inducing) if isinstance(inducing, Tensor) else inducing.num_rows
        held = replace(self.size, streams=False).memory(count)
        if isinstance(self.observations.x, StoredRows) and self.max_memory is None:
            return held > MOST_HELD
        return not Limits(Reporter(), self.max_memory, self.observations.x.device).has_memory(held)

    @torch.no_grad()
    def at_points(self, inducing: Inducing) -> Place:
        """The place with these inducing points."""
        process, likelihood, rows = self.process, self.model.likelihood, self.observations
        if self.has_one_noise:
            held = self._hold(inducing)
            return self.of_held(held, inducing, self.best_noise(held))
        if likelihood.is_quadratic:
            streams = self._streams(inducing)
            found = condition(self.latent, self.rows, inducing, tilt=self.tilt, streams=streams)
            bound = float(found.bound())
            losses, rows_held = self._per_row(bound), found.rows
            return Place(found.posterior, bound, losses, found.tilt, rows_held.residual(), rows_held)
        best = nonconjugate.fit_q(self.latent, rows, inducing)
        projected = project_rows(process, self.frozen, inducing, rows.x)
        held = expanded_rows(projected, likelihood, rows.targets, best.q)
        posterior = SparsePosterior(process, inducing, best.q, projected.lower)
        return Place(posterior, best.bound, self._per_row(best.bound), held=held)

    def _per_row(self, bound: float) -> Tensor:
        return -torch.tensor([bound / len(self.observations)], dtype=torch.float64)

    def of_held(self, held: HeldRows, inducing: Inducing, noise: float) -> Place:
        """The place of rows that are already projected, at this noise variance."""
        process, observations = self.process, self.observations
        q = held.optimum(noise)
        posterior = SparsePosterior(process, inducing, q, held.projected.lower)
        bound = float(held.bound(noise) + observations.merged_term(held.targets.new_tensor(noise)))
        label_noise = None
        if self.labels is None:
            left_out = held.leave_one_out(noise)
            losses = -held.log_density(noise, left_out)
        else:
            some = evenly_of_classes(self.labels, ROWS_FOR_NOISE)
            means = held.held_out(some)
            label_noise = noise_of_labels(means, self.labels[some], noise, self.noise_of_labels)
            left_out = held.leave_one_out(label_noise)
            losses = label_losses(left_out.mean, self.labels)
        return Place(posterior, bound, losses, None, held.residual(), held, noise, label_noise, left_out)

    def best_noise(self, held: HeldRows) -> float:
        """The noise under which the bound of held rows is greatest, near the one that was learned."""
        assert isinstance(self.model.likelihood, Gaussian)
        learned, floor = self.model.noise.item(), self.model.likelihood.floor
        if not self.model.likelihood.raw_noise.requires_grad:
            return learned

        def loss(log_noise: float) -> float:
            noise = held.targets.new_tensor(math.exp(log_noise))
            return -float(held.bound(noise) + self.observations.merged_term(noise))

        least, most = max(LOWER * learned, 2 * floor), max(learned, self.observations.size)
        bounds = (math.log(min(least, learned)), math.log(most))
        found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": LIKE})
        return math.exp(float(found.x))  # pyright: ignore[reportAttributeAccessIssue]

    @torch.no_grad()
    def bound(self, place: Place, num_nodes: int, generator: torch.Generator) -> BoundEstimate:
        """The bound of the model's own functional at a place.

        For a likelihood that is not quadratic in f, drawn rows give no unbiased bound. The bound is then that
        of the frozen rows, and its error follows from bounds on other sets of nodes.
        """
        model, rows = self.model, self.observations
        if not model.is_drawn:
            return BoundEstimate(place.bound, 0.0)
        posterior = place.posterior
        if not model.likelihood.is_quadratic:
            assert isinstance(posterior.q, Whitened)
            best = nonconjugate.FittedQ(posterior.q, place.bound)
            return bound_by_nodes(model, rows, posterior.inducing, best, num_nodes, generator)
        if place.noise is not None:
            noise = Gaussian(place.noise, learnable=False).to(rows.x.device)
            model = LatentModel(model.process, model.functional, noise)
        assert place.residual is not None
        found = unbiased_bound(posterior, model, self.rows, place.residual, place.tilt, generator)
        if place.noise is None or rows.scatter is None:
            return found
        return found._replace(mean=found.mean + rows.scatter_term(place.noise))


def in_single_precision(model: LatentModel, observations: Observations) -> Observations:
    """The observations, with inputs in single precision where many of them are wide and their orbit is drawn.

    Kernel values are then computed in single precision, and all else in double.
    """
    x = observations.x
    is_coarse = model.is_drawn and x.shape[1] >= COARSE_WIDTH and len(x) > COARSE_ROWS
    return replace(observations, x=x.float()) if is_coarse else observations


def bound_by_nodes(
    model: LatentModel,
    observations: Observations,
    inducing: Inducing,
    best: nonconjugate.FittedQ,
    num_nodes: int,
    generator: torch.Generator,
) -> BoundEstimate:
    """The bound of frozen rows, with its error estimated from bounds on other sets of nodes."""
    others = [
        freeze_functional(model.functional, num_nodes, generator)
        for _ in range(OTHERS if model.is_drawn else 0)
    ]
    bounds = [nonconjugate.fit_q(model.at(each), observations, inducing, best.q).bound for each in others]
    error = math.sqrt(sum((each - best.bound) ** 2 for each in bounds) / max(1, len(bounds)))
    return BoundEstimate(best.bound, error)
