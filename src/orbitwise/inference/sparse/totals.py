"""Sums over all rows, streamed forward and backward: all that collapsed bounds need of the data (METHOD 3).

With a_n = L⁻¹k_u(x_n), weights w, and r_n = k_n - |a_n|², the totals are Σ w a aᵀ, Σ w a(y-m), Σ w|y-m|²,
Σ w r and Σ log(1 + w r/σ²). Quadratic terms of other likelihoods are rows with weights λ and targets η/λ.
Memory is O(M² + block·M). The backward pass is written by hand: it computes every block of K_uf once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import COUNT, Stored
from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.functionals.points import Evaluation
from orbitwise.inference.sparse.projection import (
    Inducing,
    PriorMoments,
    ProjectedRows,
    inducing_factor,
    prior_moments,
    whiten,
)
from orbitwise.likelihoods.likelihood import Quadratic
from orbitwise.process.covariance import pairs_at_once
from orbitwise.process.process import Process

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
    count: int
    log_weight: Float[Tensor, ""]

    stored = Stored({"count": COUNT})

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
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))  # pyright: ignore


@final
@dataclass(frozen=True)
class Observations:
    """Observations L_n g + noise of variance σ²/w: a functional, its inputs, targets [n, c] and weights.

    Weights are [n], the same for all outputs, or [n, c].
    """

    functional: Functional
    x: Float[Tensor, "n columns"]
    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None = None

    stored = Stored()

    def weights(self) -> Float[Tensor, " n"] | Float[Tensor, "n c"]:
        """w, ones where left out."""
        return torch.ones_like(self.targets[:, 0]) if self.weight is None else self.weight

    def take(self, index: slice | Tensor) -> Observations:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[index]
        return Observations(self.functional, self.x[index], self.targets[index], weight)

    @property
    def num_atoms(self) -> int:
        """Atoms of a row."""
        with torch.no_grad():
            return self.take(slice(0, 1)).atoms().points.shape[-2]

    def atoms(self) -> Block:
        """The rows lowered; rows drawn at random are refused because no bound holds with them."""
        atoms = self.functional.atoms(self.x)
        if not isinstance(atoms, Atoms | Gradients) or atoms.is_drawn:
            raise ValueError(
                "Collapsed bounds take exact rows: freeze a drawn orbit, orbit.freeze(num_nodes), or use the "
                "stochastic engine."
            )
        return atoms


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
    plan = _Plan(process, rows, _with(inducing, stand_ins), tight, [*moving, *stand_ins])
    weight = rows.weights()
    columns = weight[:, None] if weight.dim() == 1 else weight
    sums: tuple[Tensor, ...] = _Sums.apply(plan, lower, noise, rows.targets, columns, *moving, *parts)  # pyright: ignore[reportAssignmentType]
    gram, product, square, trace, slack = sums
    gram = gram[0] if weight.dim() == 1 else gram
    return Totals(gram, product, square, trace, slack, len(rows.x), weight.log().sum())


def pseudo_observations(
    functional: Functional, x: Float[Tensor, "n columns"], quadratic: Quadratic, shared: bool
) -> tuple[Observations, Float[Tensor, ""]]:
    """Quadratic terms of any likelihood as targets η/λ with noise of variance 1/λ, and their constant.

    -½λf² + ηf + constant = -½λ(η/λ - f)² + constant + ½η²/λ. The second result takes the place of Σ log w.
    """
    curvature = quadratic.curvature
    counts = curvature > 0  # a term without curvature has no slope either
    targets = torch.where(counts, quadratic.slope / torch.where(counts, curvature, 1.0), 0.0)
    constant = (quadratic.constant + 0.5 * quadratic.slope * targets).sum()
    copies = targets.shape[1] if shared else 1
    log_weight = (2 * constant + targets.numel() * math.log(2 * math.pi)) / copies
    return Observations(functional, x, targets, curvature[:, 0] if shared else curvature), log_weight


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
    rows, log_weight = pseudo_observations(functional, x, quadratic, shared)
    lower = inducing_factor(process, inducing) if lower is None else lower
    totals = gather_totals(process, rows, inducing, lower, lower.new_ones(()), tight)
    return totals._replace(log_weight=log_weight)


def held_totals(projected: ProjectedRows, quadratic: Quadratic, shared: bool) -> Totals:
    """`quadratic_totals` of rows that were projected already."""
    rows, log_weight = pseudo_observations(Evaluation(), projected.columns.mT, quadratic, shared)
    columns, residual = projected.columns, projected.residual
    weight = rows.weights()
    targets = rows.targets - projected.mean[:, None]
    each = weight[:, None] if shared else weight
    if shared:
        gram = (columns * weight) @ columns.mT
    else:
        # One output at a time: λ a for all of them would hold n·u·c numbers.
        gram = torch.stack([(columns * one) @ columns.mT for one in weight.T])
    ratio = each * residual[:, None]
    square = (each * targets.square()).sum()
    parts = (columns @ (each * targets), square, ratio.sum(), torch.log1p(ratio).sum())
    return Totals(gram, *parts, len(targets), log_weight)


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


@dataclass(frozen=True)
class _Plan:
    process: Process
    rows: Observations
    inducing: Inducing
    tight: bool
    leaves: list[Tensor]

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


class _Sums(torch.autograd.Function):
    """(L, σ², y, w [n, 1 or c], parameters) → totals, with the gradient in one more pass over the blocks."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, plan: _Plan, lower: Tensor, noise: Tensor, targets: Tensor, weights: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        size, outputs = len(lower), targets.shape[1]
        gram = lower.new_zeros(weights.shape[1], size, size)
        product = lower.new_zeros(size, outputs)
        square, trace, slack = lower.new_zeros(3).unbind()
        keeps = any(ctx.needs_input_grad) and size * len(targets) <= KEPT_NUMBERS
        kept: list[Tensor] = []
        for part in plan.blocks():
            prior, weight = plan.moments(part), weights[part]
            columns = whiten(lower, prior.cross)
            if keeps:
                kept.append(columns)
            residual = (prior.variance - columns.square().sum(0))[:, None]
            target = targets[part] - prior.mean[:, None]
            for place, each in enumerate(weight.T):
                gram[place].addmm_(columns if plan.rows.weight is None else columns * each, columns.mT)
            product.addmm_(columns, weight * target)
            square = square + (weight * target.square()).sum()
            trace = trace + (weight * residual).sum()
            if plan.tight:
                slack = slack + torch.log1p(weight * residual.clamp_min(0) / noise).sum()
        ctx.plan, ctx.columns = plan, kept
        ctx.save_for_backward(lower, noise, targets, weights)
        return gram, product, square, trace, slack

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        plan: _Plan = ctx.plan
        lower, noise, targets, weights = ctx.saved_tensors
        to_gram, to_product, to_square, to_trace, to_slack = grads
        both = to_gram + to_gram.mT
        outer, to_noise = torch.zeros_like(lower), torch.zeros_like(noise)
        total: list[Tensor | None] = [None] * len(plan.leaves)
        to_targets, to_weights = torch.zeros_like(targets), torch.zeros_like(weights)
        for place, part in enumerate(plan.blocks()):
            weight = weights[part]
            with torch.enable_grad():
                prior = plan.moments(part)
            columns = ctx.columns[place] if ctx.columns else whiten(lower, prior.cross.detach())
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
            if not plan.leaves:
                continue
            # dK_uf = L⁻ᵀdA: K_uu⁻¹ itself would lose half the digits
            to_cross = torch.linalg.solve_triangular(lower.mT, to_columns, upper=True)
            pairs = zip(prior, (to_cross, to_variance, -to_targets[part].sum(1)), strict=True)
            values, slopes = zip(*((value, to) for value, to in pairs if value.requires_grad), strict=True)
            total = summed(total, torch.autograd.grad(values, plan.leaves, slopes, allow_unused=True))
        to_lower = -torch.linalg.solve_triangular(lower.mT, outer, upper=True).tril()
        return None, to_lower, to_noise, to_targets, to_weights, *total


def learned(process: Process, rows: Observations) -> list[Tensor]:
    """The parameters of kernel, mean and orbit that are learned."""
    return [p for p in (*process.parameters(), *rows.functional.parameters()) if p.requires_grad]


def summed(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of two parts, entry by entry; None is zero."""
    pairs = zip(left, right, strict=True)
    return [b if a is None else a if b is None else a + b for a, b in pairs]
