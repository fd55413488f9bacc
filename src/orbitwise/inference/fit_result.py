"""What every engine returns: the posterior, the evidence with its kind and error, and the history."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import final

import torch
from gpytorch.kernels import Kernel
from torch import Tensor, nn

from orbitwise.declarations import FLAG, REPORTED, TEXT, Field
from orbitwise.functionals.functional import Functional
from orbitwise.inference.exact import ExactPosterior, HeldCovariance
from orbitwise.inference.model import Posterior
from orbitwise.inference.optimise.orbit_search import Coordinates, SearchResult
from orbitwise.inference.sparse.certificate import Certificate
from orbitwise.inference.sparse.climb import Climbed
from orbitwise.inference.sparse.held_rows import HeldRows
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.orbits.orbit import Orbit
from orbitwise.process.process import Moments

EVIDENCE = {
    "converged_": FLAG,
    "evidence_kind_": TEXT,
    "functional_": Field((Functional,)),
    "kernel_": Field((Kernel,)),
    "log_evidence_": REPORTED,
    "log_evidence_error_": REPORTED,
    "posterior_": Field((Posterior,)),
}
"""What model files contain about each fit of a Gaussian process."""
LEARNED = {
    "history_": Field((list,), Field((int, float)), is_record=True),
    "orbit_": Field((Orbit, NoneType)),
}
"""What they contain in addition if ranges of an orbit may have been learned."""
SEARCHED = {
    "_num_nodes": Field((int,), least=1),
    "_orbit_errors": Field((dict,), Field((int, float)), is_record=True),
    "_orbit_intervals": Field((dict,), Field((tuple, list)), is_record=True),
    "search_": Field((list,), Field((dict,)), is_record=True),
    "stopped_by_": TEXT,
}
"""What they may contain about how these ranges were found."""
CLIMBED = {
    "climb_": Field((list,), Field((dict,)), is_record=True),
    "inducing_stopped_by_": TEXT,
    "num_inducing_": Field((int,), least=1),
}
"""What they may contain about how many inducing points were taken, and why."""


@final
@dataclass(frozen=True)
class LearnedRanges:
    """The result of a search for ranges, the functional on its nodes, and the coordinates that were searched.

    Error bars of the ranges follow from `found.curvature` and `found.shifts`.
    """

    found: SearchResult
    functional: Functional
    coordinates: Coordinates


@final
@dataclass(frozen=True)
class FitResult:
    """What an engine found.

    `functional` is the functional to predict with; its rows are frozen. `log_evidence` is log p(y) or a lower
    bound on it, depending on `kind`, and `standard_error` its error due to the choice of nodes or draws.
    `objective` was maximised over the `parameters`. `search` describes how ranges of a drawn orbit were
    found. `certificate` brackets the evidence if rows are exact and noise is Gaussian. `half_bound` is the
    bound with half as many inducing points. `noise` is the variance of Gaussian noise of the posterior.
    `held_rows` are needed to compute a sparse posterior for another noise variance, and to leave rows out;
    where there are too many of them to be kept, `left_out` has the moments of each row given all others.
    `stopped` is what ended learning early, an interruption or time, and is empty if nothing did. `climbed`
    describes how many inducing points were taken, and `label_noise` is the noise to predict labels with, if
    it was chosen already. `evidence_noise` is that of the evidence, where the lengthscales of the posterior
    are others.
    """

    posterior: Posterior
    functional: Functional
    log_evidence: float
    kind: str
    standard_error: float
    converged: bool
    objective: Callable[[], Tensor]
    parameters: Sequence[nn.Parameter] = ()
    history: Sequence[float] = field(default_factory=list)
    search: LearnedRanges | None = None
    certificate: Certificate | None = None
    half_bound: float | None = None
    noise: float | None = None
    held_rows: HeldRows | None = None
    left_out: Moments | None = None
    stopped: str = ""
    climbed: Climbed | None = None
    label_noise: float | None = None
    evidence_noise: float | None = None

    @torch.no_grad()
    def held(self) -> HeldRows | HeldCovariance:
        """What conditions on Gaussian noise of any size, and leaves out each target in turn."""
        if isinstance(self.posterior, ExactPosterior):
            return HeldCovariance(self.posterior)
        if self.held_rows is None or self.noise is None:
            raise ValueError(
                "Only posteriors under Gaussian noise can be computed for another noise variance."
            )
        return self.held_rows

    @torch.no_grad()
    def at_noise(self, noise: float, held: HeldRows | HeldCovariance | None = None) -> FitResult:
        """The same fit with the posterior at another variance of Gaussian noise; `held` is what it holds."""
        posterior = self.posterior
        if noise == self.noise:
            return self
        held = self.held() if held is None else held
        if isinstance(held, HeldCovariance):
            other = held.at_noise(noise)
        else:
            assert isinstance(posterior, SparsePosterior)
            q = held.optimum(noise)
            other = SparsePosterior(posterior.process, posterior.inducing, q, posterior.lower)
        return replace(self, posterior=other, noise=noise)

    @torch.no_grad()
    def held_out(self) -> Moments:
        """Moments of f at every row given the targets of all others; see `HeldRows.leave_one_out`."""
        if self.left_out is not None:
            return self.left_out
        if isinstance(self.posterior, ExactPosterior):
            found = self.posterior.leave_one_out()
            variance = (found.variance - (self.noise or 0.0)).clamp_min(0)[:, None].expand_as(found.mean)
            return Moments(found.mean, variance, found.mean.square() + variance)
        if self.held_rows is None:
            raise ValueError("Leave-one-out predictions need the training rows, which this fit did not keep.")
        return self.held_rows.leave_one_out(1.0 if self.noise is None else self.noise)

    def without_rows(self) -> FitResult:
        """The fit without held rows, of which several processes have a part each, but with what they say."""
        if self.held_rows is None:
            return self
        return replace(self, left_out=self.held_out(), held_rows=None)

    def in_units(self, nats: float) -> FitResult:
        """The fit with the evidence of targets in other units, which differs by the constant `nats`."""
        value, certificate = self.log_evidence + nats, None
        if self.certificate is not None:
            certificate = self.certificate.shifted(nats)
            # an infinitely wide bracket does not replace an estimate of the evidence
            value = certificate.lower if math.isfinite(certificate.gap) else value
        return replace(
            self,
            log_evidence=value,
            half_bound=None if self.half_bound is None else self.half_bound + nats,
            certificate=certificate,
        )
