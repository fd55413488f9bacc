"""Sums over all rows, streamed forward and backward: all that collapsed bounds need of the data (METHOD 3).

With a_n = L⁻¹k_u(x_n), weights w, and r_n = k_n - |a_n|², the totals are Σ w a aᵀ, Σ w a(y-m), Σ w|y-m|²,
Σ w r and Σ log(1 + w r/σ²). Memory is O(M² + block·M). The backward pass is written by hand: it meets every
block of K_uf once more, in one product for Titsias' bound and two for the tight one, where reverse mode on
the forward pass would need six.
"""

from __future__ import annotations


from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Block, Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference.linear_algebra import cholesky, solve_lower
from orbitwise.inference.projection import Inducing, inducing_rows
from orbitwise.process.covariance import PAIRS_AT_ONCE
from orbitwise.process.process import Process

JITTER = 1e-10
"""Added to K_uu relative to its mean diagonal: u is g(Z) with a little noise, so bounds stay bounds."""
LEAST_ROWS = 128


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
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Rows:
    """Observations L_n g + noise of variance σ²/w_n: a functional, its inputs, targets [n, c] and weights."""

    functional: Functional
    x: Float[Tensor, "n d"]
    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | None = None

    def weights(self) -> Float[Tensor, " n"]:
        """w, ones where left out."""
        return torch.ones_like(self.targets[:, 0]) if self.weight is None else self.weight

    def take(self, index: slice | Tensor) -> Rows:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[index]
        return Rows(self.functional, self.x[index], self.targets[index], weight)

    def atoms(self) -> Block:
        """The rows lowered; rows drawn at random are refused, for no bound holds with them."""
        atoms = self.functional.atoms(self.x)
        if not isinstance(atoms, Atoms | Gradients) or atoms.is_drawn:
            raise ValueError(
                "Collapsed bounds take exact rows: freeze a drawn orbit, orbit.freeze(num_nodes), or use the "
                "stochastic engine."
            )
        return atoms


def stable_factor(process: Process, inducing: Inducing) -> Float[Tensor, "u u"]:
    """The Cholesky factor of K_uu with the least jitter that keeps its inverse tame."""
    covariance = process.covariance(inducing_rows(inducing)).double()
    jitter = JITTER * covariance.diagonal().mean()
    return cholesky(covariance + jitter * torch.eye(len(covariance)).to(covariance)).lower


def gather_totals(
    process: Process,
    rows: Rows,
    inducing: Inducing,
    lower: Float[Tensor, "u u"],
    noise: Float[Tensor, ""],
    tight: bool = True,
) -> Totals:
    """One pass over the rows. Without `tight` the slack, which costs a product in training, is left at 0."""
    leaves = [*process.parameters(), *rows.functional.parameters()]
    leaves += [each for each in _tensors(inducing) if each.requires_grad]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    plan = _Plan(process, rows, inducing, tight)
    gram, product, square, trace, slack = _Sums.apply(plan, lower, noise, *leaves)  # pyright: ignore
    weights = rows.weights()
    return Totals(gram, product, square, trace, slack, len(rows.x), weights.log().sum())


def _tensors(inducing: Inducing) -> list[Tensor]:
    return [inducing] if isinstance(inducing, Tensor) else [inducing.points, inducing.weights]


class _Block(NamedTuple):
    """What the kernel says of a block of rows: K_uf, variances and means."""

    cross: Float[Tensor, "u n"]
    variance: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]


@dataclass(frozen=True)
class _Plan:
    process: Process
    rows: Rows
    inducing: Inducing
    tight: bool

    def blocks(self) -> Iterator[Rows]:
        """Rows in blocks whose kernel values are held at once."""
        if len(self.rows.x) == 0:
            return
        with torch.no_grad():
            first = self.rows.take(slice(0, 1)).atoms()
        size = len(self.inducing) if isinstance(self.inducing, Tensor) else self.inducing.num_rows
        pairs = PAIRS_AT_ONCE["cpu" if self.rows.x.device.type == "cpu" else "cuda"]
        step = max(LEAST_ROWS, pairs // (size * first.points.shape[-2]))
        for start in range(0, len(self.rows.x), step):
            yield self.rows.take(slice(start, start + step))

    def moments(self, rows: Rows) -> _Block:
        """Prior moments of a block; the kernel keeps the precision of the inputs."""
        atoms = rows.atoms()
        points = inducing_rows(self.inducing, atoms.points.dtype)
        cross = self.process.covariance(points, atoms).double()
        return _Block(cross, self.process.variance(atoms).double(), self.process.mean(atoms).double())


class _Sums(torch.autograd.Function):
    """(L, σ², parameters) → totals, with the gradient in one more pass over the blocks."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, lower: Tensor, noise: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        size, outputs = len(lower), plan.rows.targets.shape[1]
        gram, weighted = lower.new_zeros(size, size), lower.new_zeros(size, size)
        product = lower.new_zeros(size, outputs)
        square, trace, slack, pull = lower.new_zeros(4).unbind()
        learns = any(ctx.needs_input_grad)
        for rows in plan.blocks():
            block, weight = plan.moments(rows), rows.weights()
            columns = solve_lower(lower, block.cross)
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
        ctx.plan, ctx.leaves = plan, leaves
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
        if not ctx.leaves:
            return None, to_lower, to_noise
        inverse = torch.cholesky_inverse(lower)
        # dK_uf = [L⁻ᵀ(Ḡ + Ḡᵀ)L⁻¹] K W + L⁻ᵀc̄ (W y)ᵀ - 2 K_uu⁻¹K diag(u)
        half = torch.linalg.solve_triangular(lower.mT, both, upper=True)
        spread = torch.linalg.solve_triangular(lower, half, upper=False, left=False)
        slope = torch.linalg.solve_triangular(lower.mT, to_product, upper=True)
        constant = plan.rows.weight is None and not plan.tight
        if constant:
            spread = spread - 2 * to_trace * inverse
        total: list[Tensor | None] = [None] * len(ctx.leaves)
        for rows in plan.blocks():
            weight = rows.weights()
            with torch.enable_grad():
                block = plan.moments(rows)
            cross = block.cross.detach()
            target = rows.targets - block.mean.detach()[:, None]
            to_cross = torch.addmm(spread @ cross, slope, (weight[:, None] * target).mT)
            to_variance = to_trace * weight
            if not constant:
                solved = inverse @ cross
                residual = (block.variance.detach() - (cross * solved).sum(0)).clamp_min(0)
                to_variance = to_variance + to_slack * weight / (noise + weight * residual)
                if rows.weight is not None:
                    # the first term of dK_uf carries the weights as well
                    to_cross = torch.addmm((spread @ cross) * weight, slope, (weight[:, None] * target).mT)
                to_cross = to_cross.addcmul_(solved, -2 * to_variance)
            to_mean = -weight * (cross.mT @ slope).sum(1) - 2 * to_square * weight * target.sum(1)
            pairs = zip(block, (to_cross, to_variance, to_mean), strict=True)
            values, slopes = zip(*((value, to) for value, to in pairs if value.requires_grad), strict=True)
            parts = torch.autograd.grad(values, ctx.leaves, slopes, allow_unused=True)
            total = [_sum(mine, part) for mine, part in zip(total, parts, strict=True)]
        return None, to_lower, to_noise, *total


def _sum(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
