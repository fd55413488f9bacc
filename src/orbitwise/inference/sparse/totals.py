"""Sums over all rows, streamed forward and backward: all that collapsed bounds need of the data (METHOD 3).

With a_n = L⁻¹k_u(x_n), weights w, and r_n = k_n - |a_n|², the totals are Σ w a aᵀ, Σ w a(y-m), Σ w|y-m|²,
Σ w r and Σ log(1 + w r/σ²). Quadratic terms of other likelihoods are rows with weights λ and targets η/λ.
Memory is O(M² + block·M). The backward pass is written by hand: it computes every block of K_uf once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import COUNT, Stored
from orbitwise.functionals.functional import Functional
from orbitwise.inference.linear_algebra import handwritten_gradient, solve_lower
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse.projection import (
    Inducing,
    PriorMoments,
    inducing_factor,
    prior_moments,
)
from orbitwise.likelihoods.likelihood import Quadratic
from orbitwise.process.process import Process, pairs_at_once

LEAST_ROWS = 128
KEPT_NUMBERS = 2**26
"""Up to this many numbers of A, half a GiB, are kept for the backward pass instead of computed again."""


@final
class Totals(NamedTuple):
    """The sums over rows. Those of two sets of rows, at the same hyperparameters, may be added.

    With weights [n, c] there is a gram [u, u] for each output, and `trace`, `slack` and `log_weight` are sums
    over outputs; with weights [n] all of these are shared by the outputs and counted once.
    """

    gram: Float[Tensor, "*c u u"]
    product: Float[Tensor, "u c"]
    square: Float[Tensor, ""]
    trace: Float[Tensor, ""]
    slack: Float[Tensor, ""]
    num_rows: int
    log_weight: Float[Tensor, ""]

    stored = Stored({"num_rows": COUNT})

    @property
    def num_outputs(self) -> int:
        """How many columns the targets have."""
        return self.product.shape[1]

    @property
    def is_shared(self) -> bool:
        """Whether outputs share their weights."""
        return self.gram.dim() == 2

    @property
    def num_copies(self) -> int:
        """How often the shared sums count: once for each output, or once where outputs have their own."""
        return self.num_outputs if self.is_shared else 1

    def merge(self, other: Totals) -> Totals:
        """The totals of both sets of rows."""
        return Totals._make(mine + theirs for mine, theirs in zip(self, other, strict=True))


def gather_totals(
    process: Process,
    rows: Observations,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    noise: Float[Tensor, ""],
    tight: bool = True,
) -> Totals:
    """One pass over the rows. Without `tight` the slack is left at 0."""
    moving = learned(process, rows)
    parts = [part for part in _tensors(inducing) if part.requires_grad]
    # Stand-ins cut the inducing variables off from what they were made of, whose share autograd adds itself.
    stand_ins = [part.detach().requires_grad_() for part in parts]
    weight = rows.weights()
    columns = weight[:, None] if weight.dim() == 1 else weight
    inputs = (lower, noise, rows.targets, columns, *moving, *parts)
    is_recorded = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    keeps_columns = is_recorded and len(lower) * len(rows.x) <= KEPT_NUMBERS
    leaves = [*moving, *stand_ins]
    sums = _StreamedSums(process, rows, _with(inducing, stand_ins), tight, leaves, keeps_columns)
    gram, product, square, trace, slack = handwritten_gradient(sums.forward, sums.backward, *inputs)
    gram = gram[0] if weight.dim() == 1 else gram
    return Totals(gram, product, square, trace, slack, len(rows.x), weight.log().sum())


class PseudoRows(NamedTuple):
    """Targets and weights of rows with Gaussian noise σ² = 1, and what takes the place of Σ log w."""

    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"]
    log_weight: Float[Tensor, ""]


def pseudo_rows(quadratic: Quadratic, shared: bool) -> PseudoRows:
    """Quadratic terms of any likelihood as targets η/λ with noise of variance 1/λ; `shared` says equal λ.

    -½λf² + ηf + constant = -½λ(η/λ - f)² + constant + ½η²/λ.
    """
    curvature = quadratic.curvature
    counts = curvature > 0  # a term without curvature has no slope either
    targets = torch.where(counts, quadratic.slope / torch.where(counts, curvature, 1.0), 0.0)
    constant = (quadratic.constant + 0.5 * quadratic.slope * targets).sum()
    copies = targets.shape[1] if shared else 1
    log_weight = (2 * constant + targets.numel() * math.log(2 * math.pi)) / copies
    return PseudoRows(targets, curvature[:, 0] if shared else curvature, log_weight)


def quadratic_totals(
    process: Process,
    functional: Functional,
    inducing: Inducing,
    x: Float[Tensor, "n columns"],
    quadratic: Quadratic,
    shared: bool,
    lower: Float[Tensor, "u u"] | None = None,
    tight: bool = True,
) -> Totals:
    """The totals of quadratic likelihood terms, for σ² = 1: λ takes the place of the weights.

    `shared` says that λ is the same for all outputs; `lower` is the factor of K_uu, where it is known.
    """
    targets, weight, log_weight = pseudo_rows(quadratic, shared)
    rows = Observations(functional, x, targets, weight)
    lower = inducing_factor(process, inducing) if lower is None else lower
    totals = gather_totals(process, rows, inducing, lower, lower.new_ones(()), tight)
    return totals._replace(log_weight=log_weight)


def _tensors(inducing: Inducing) -> list[Tensor]:
    if isinstance(inducing, Tensor):
        return [inducing]
    tensors = (inducing.points, inducing.weights, inducing.tangents)
    return [tensor for tensor in tensors if tensor is not None]


def _with(inducing: Inducing, stand_ins: list[Tensor]) -> Inducing:
    """The inducing variables with the tensors that are learned replaced, in their order."""
    left = iter(stand_ins)
    if isinstance(inducing, Tensor):
        return next(left, inducing)
    names = ("points", "weights", "tangents")
    given = {name: getattr(inducing, name) for name in names}
    new = {name: next(left) for name, part in given.items() if part is not None and part.requires_grad}
    return replace(inducing, **new)


@final
@dataclass
class _StreamedSums:
    """(L, σ², y, w [n, 1 or c], parameters) → totals, with the gradient in one more pass over the blocks."""

    process: Process
    rows: Observations
    inducing: Inducing
    tight: bool
    leaves: list[Tensor]
    keeps_columns: bool
    columns: list[Tensor] = field(default_factory=list)

    def blocks(self) -> list[slice]:
        """Blocks of rows whose kernel values are held at once."""
        if len(self.rows.x) == 0:
            return []
        size = len(self.inducing) if isinstance(self.inducing, Tensor) else self.inducing.num_rows
        step = max(LEAST_ROWS, pairs_at_once(self.rows.x.device) // (size * self.rows.num_atoms))
        return [slice(start, start + step) for start in range(0, len(self.rows.x), step)]

    def moments(self, part: slice) -> PriorMoments:
        """Prior moments of a block."""
        return prior_moments(self.process, self.inducing, self.rows.take(part).atoms())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        lower, noise, targets, weights = inputs[:4]
        size, outputs = len(lower), targets.shape[1]
        gram = lower.new_zeros(weights.shape[1], size, size)
        product = lower.new_zeros(size, outputs)
        square, trace, slack = lower.new_zeros(3).unbind()
        for part in self.blocks():
            prior, weight = self.moments(part), weights[part]
            columns = solve_lower(lower, prior.cross)
            if self.keeps_columns:
                self.columns.append(columns)
            residual = (prior.variance - columns.square().sum(0))[:, None]
            target = targets[part] - prior.mean[:, None]
            for output, each in enumerate(weight.T):
                gram[output].addmm_(columns if self.rows.weight is None else columns * each, columns.mT)
            product.addmm_(columns, weight * target)
            square = square + (weight * target.square()).sum()
            trace = trace + (weight * residual).sum()
            if self.tight:
                slack = slack + torch.log1p(weight * residual.clamp_min(0) / noise).sum()
        return gram, product, square, trace, slack

    def backward(self, inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> Sequence[Tensor | None]:
        lower, noise, targets, weights = inputs[:4]
        to_gram, to_product, to_square, to_trace, to_slack = slopes
        both = to_gram + to_gram.mT
        outer, to_noise = torch.zeros_like(lower), torch.zeros_like(noise)
        total: list[Tensor | None] = [None] * len(self.leaves)
        to_targets, to_weights = torch.zeros_like(targets), torch.zeros_like(weights)
        for number, part in enumerate(self.blocks()):
            weight = weights[part]
            with torch.enable_grad():
                prior = self.moments(part)
            columns = self.columns[number] if self.columns else solve_lower(lower, prior.cross.detach())
            residual = (prior.variance.detach() - columns.square().sum(0))[:, None]
            target = targets[part] - prior.mean.detach()[:, None]
            # slack = Σ log(1 + w r/σ²)
            noisy = noise + weight * residual.clamp_min(0)
            to_noise = to_noise - to_slack * (weight * residual.clamp_min(0) / (noise * noisy)).sum()
            to_variance = (to_trace * weight + to_slack * weight / noisy).sum(1)
            # dA = Σ_c (Ḡ + Ḡᵀ)AW + c̄(Wy)ᵀ - 2A diag(to_variance)
            to_columns = to_product @ (weight * target).mT
            to_columns.addcmul_(columns, -2 * to_variance)
            fits = columns.mT @ to_product
            to_weight = fits * target + to_square * target.square()
            to_weight = to_weight.sum(1, keepdim=True) if weight.shape[1] == 1 else to_weight
            to_weight = to_weight + to_trace * residual + to_slack * residual.clamp_min(0) / noisy
            for output, each in enumerate(weight.T):
                image = both[output] @ columns
                to_weight[:, output] += 0.5 * (image * columns).sum(0)
                to_columns.addcmul_(image, each)
            to_weights[part] = to_weight
            to_targets[part] = weight * (fits + 2 * to_square * target)
            # dL = -tril(L⁻ᵀ Σ dA Aᵀ)
            outer.addmm_(to_columns, columns.mT)
            if not self.leaves:
                continue
            # dK_uf = L⁻ᵀdA: K_uu⁻¹ itself would lose half the digits
            to_cross = torch.linalg.solve_triangular(lower.mT, to_columns, upper=True)
            wanted = (to_cross, to_variance, -to_targets[part].sum(1))
            pairs = [(value, to) for value, to in zip(prior, wanted, strict=True) if value.requires_grad]
            values, slopes = zip(*pairs, strict=True)
            total = summed(total, torch.autograd.grad(values, self.leaves, slopes, allow_unused=True))
        to_lower = -torch.linalg.solve_triangular(lower.mT, outer, upper=True).tril()
        return to_lower, to_noise, to_targets, to_weights, *total


def learned(process: Process, rows: Observations) -> list[Tensor]:
    """The parameters of kernel, mean and orbit that are learned."""
    return [p for p in (*process.parameters(), *rows.functional.parameters()) if p.requires_grad]


def summed(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of two parts, entry by entry; None is zero."""
    pairs = zip(left, right, strict=True)
    return [b if a is None else a if b is None else a + b for a, b in pairs]
