"""Sums over all rows, streamed forward and backward: all that collapsed bounds need of the data (METHOD 3).

With a_n = L⁻¹k_u(x_n), weights w, and r_n = k_n - |a_n|², the totals are Σ w a aᵀ, Σ w a(y-m), Σ w|y-m|²,
Σ w r and Σ log(1 + w r/σ²). Memory is O(M² + block·M). The backward pass is written by hand: it meets every
block of K_uf once more, and takes the gradient of L from the totals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference.linear_algebra import solve_lower
from orbitwise.inference.projection import Inducing, inducing_rows
from orbitwise.process.covariance import pairs_at_once
from orbitwise.process.process import Process

LEAST_ROWS = 128
KEPT_NUMBERS = 2**26
"""Up to this many numbers of A, half a GiB, are kept for the backward pass instead of computed again."""


class Totals(NamedTuple):
    """The sums over rows. Those of two sets of rows, at the same hyperparameters, may be added."""

    gram: Float[Tensor, "u u"]
    product: Float[Tensor, "u c"]
    square: Float[Tensor, ""]
    trace: Float[Tensor, ""]
    slack: Float[Tensor, ""]
    count: int
    log_weight: Float[Tensor, ""]

    @property
    def num_outputs(self) -> int:
        """How many columns the targets have."""
        return self.product.shape[1]

    def merge(self, other: Totals) -> Totals:
        """The totals of both sets of rows."""
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))  # pyright: ignore


@dataclass(frozen=True)
class Observations:
    """Observations L_n g + noise of variance σ²/w_n: a functional, its inputs, targets [n, c] and weights."""

    functional: Functional
    x: Float[Tensor, "n d"]
    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | None = None

    def weights(self) -> Float[Tensor, " n"]:
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
        """The rows lowered; rows drawn at random are refused, for no bound holds with them."""
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
    """One pass over the rows. Without `tight` the slack, which costs a product in training, is left at 0."""
    moving = learned(process, rows)
    parts = [part for part in _tensors(inducing) if part.requires_grad]
    # Stand-ins cut the inducing variables off from what they were made of, whose share autograd adds itself.
    stand_ins = [part.detach().requires_grad_() for part in parts]
    plan = _Plan(process, rows, _with(inducing, stand_ins), tight, [*moving, *stand_ins])
    sums = _Sums.apply(plan, lower, noise, rows.targets, *moving, *parts)
    return Totals(*sums, len(rows.x), rows.weights().log().sum())  # pyright: ignore


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


class _Block(NamedTuple):
    """What the kernel says of a block of rows: K_uf, variances and means."""

    cross: Float[Tensor, "u n"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]


@dataclass(frozen=True)
class _Plan:
    process: Process
    rows: Observations
    inducing: Inducing
    tight: bool
    leaves: list[Tensor]

    def blocks(self) -> Iterator[Observations]:
        """Observations in blocks whose kernel values are held at once."""
        if len(self.rows.x) == 0:
            return
        size = len(self.inducing) if isinstance(self.inducing, Tensor) else self.inducing.num_rows
        step = max(LEAST_ROWS, pairs_at_once(self.rows.x.device) // (size * self.rows.num_atoms))
        for start in range(0, len(self.rows.x), step):
            yield self.rows.take(slice(start, start + step))

    def moments(self, rows: Observations) -> _Block:
        """Prior moments of a block; the kernel keeps the precision of the inputs."""
        atoms = rows.atoms()
        points = inducing_rows(self.inducing, atoms.points.dtype)
        cross = self.process.covariance(points, atoms).double()
        return _Block(cross, self.process.variance(atoms).double(), self.process.mean(atoms).double())


class _Sums(torch.autograd.Function):
    """(L, σ², y, parameters) → totals, with the gradient in one more pass over the blocks."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, plan: _Plan, lower: Tensor, noise: Tensor, targets: Tensor, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        size, outputs = len(lower), targets.shape[1]
        gram, weighted = lower.new_zeros(size, size), lower.new_zeros(size, size)
        product = lower.new_zeros(size, outputs)
        square, trace, slack, pull = lower.new_zeros(4).unbind()
        learns = any(ctx.needs_input_grad)
        keeps = learns and size * len(targets) <= KEPT_NUMBERS
        kept: list[Tensor] = []
        for rows in plan.blocks():
            block, weight = plan.moments(rows), rows.weights()
            columns = solve_lower(lower, block.cross)
            if keeps:
                kept.append(columns)
            residual = block.variance - columns.square().sum(0)
            target = rows.targets - block.mean[:, None]
            gram.addmm_(columns if rows.weight is None else columns * weight, columns.mT)
            product.addmm_(columns, weight[:, None] * target)
            square = square + (weight[:, None] * target.square()).sum()
            trace = trace + (weight * residual).sum()
            if plan.tight:
                ratio = weight * residual.clamp_min(0) / noise
                slack = slack + torch.log1p(ratio).sum()
                if learns:
                    # ∂ slack: Σ w/(σ² + w r) a aᵀ for L, -Σ (w r/σ²)/(σ² + w r) for σ²
                    weighted.addmm_(columns * (weight / (noise * (1 + ratio))), columns.mT)
                    pull = pull - (ratio / (noise * (1 + ratio))).sum()
        ctx.plan, ctx.columns = plan, kept
        ctx.save_for_backward(lower, noise, gram, product, weighted, pull)
        return gram, product, square, trace, slack

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        plan: _Plan = ctx.plan
        lower, noise, gram, product, weighted, pull = ctx.saved_tensors
        to_gram, to_product, to_square, to_trace, to_slack = grads
        both = to_gram + to_gram.mT
        # dL = -tril(L⁻ᵀ Σ dA Aᵀ),  Σ dA Aᵀ = (Ḡ + Ḡᵀ)G + c̄cᵀ - 2 Σ u a aᵀ
        outer = both @ gram + to_product @ product.mT - 2 * (to_trace * gram + to_slack * weighted)
        to_lower = -torch.linalg.solve_triangular(lower.mT, outer, upper=True).tril()
        to_noise = to_slack * pull
        if not plan.leaves and not ctx.needs_input_grad[3]:
            return None, to_lower, to_noise, None
        total: list[Tensor | None] = [None] * len(plan.leaves)
        to_targets: list[Tensor] = []
        for place, rows in enumerate(plan.blocks()):
            weight = rows.weights()
            with torch.enable_grad():
                block = plan.moments(rows)
            kept = ctx.columns[place] if ctx.columns else None
            columns = solve_lower(lower, block.cross.detach()) if kept is None else kept
            target = rows.targets - block.mean.detach()[:, None]
            residual = (block.variance.detach() - columns.square().sum(0)).clamp_min(0)
            to_variance = to_trace * weight + to_slack * weight / (noise + weight * residual)
            # dA = (Ḡ + Ḡᵀ)AW + c̄(Wy)ᵀ - 2A diag(u),  dK_uf = L⁻ᵀdA: K_uu⁻¹ itself would lose half the digits
            to_columns = (both @ columns) * weight if rows.weight is not None else both @ columns
            to_columns.addmm_(to_product, (weight[:, None] * target).mT)
            to_columns.addcmul_(columns, -2 * to_variance)
            to_cross = torch.linalg.solve_triangular(lower.mT, to_columns, upper=True)
            to_targets.append(weight[:, None] * (columns.mT @ to_product + 2 * to_square * target))
            if not plan.leaves:
                continue
            pairs = zip(block, (to_cross, to_variance, -to_targets[-1].sum(1)), strict=True)
            values, slopes = zip(*((value, to) for value, to in pairs if value.requires_grad), strict=True)
            parts = torch.autograd.grad(values, plan.leaves, slopes, allow_unused=True)
            total = summed(total, parts)
        return None, to_lower, to_noise, torch.cat(to_targets), *total


def learned(process: Process, rows: Observations) -> list[Tensor]:
    """The parameters of kernel, mean and orbit that are learned."""
    return [p for p in (*process.parameters(), *rows.functional.parameters()) if p.requires_grad]


def summed(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of two parts, entry by entry; None is zero."""
    pairs = zip(left, right, strict=True)
    return [b if a is None else a if b is None else a + b for a, b in pairs]
