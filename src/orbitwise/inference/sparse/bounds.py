"""Lower and upper bounds on the log evidence from M inducing variables, and the best q(u) (METHOD 3).

They depend on the data only through sums over rows. With a_n = L⁻¹k_u(x_n), weights w, and r_n = k_n -
|a_n|², the totals are Σ w a aᵀ, Σ w a(y-m), Σ w|y-m|², Σ w r and Σ log(1 + w r/σ²). Quadratic terms of other
likelihoods are treated as rows with weights λ and targets η/λ. Memory is O(M² + block·M). The backward pass
is hand-written and computes every block of K_uf a second time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import COUNT, Stored
from orbitwise.functionals.functional import Atoms, Functional
from orbitwise.inference.linear_algebra import (
    cholesky,
    handwritten_gradient,
    log_determinant,
    plus_diagonal,
    solve_factored,
    solve_lower,
)
from orbitwise.inference.model import Observations
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.inducing import (
    Inducing,
    PriorMoments,
    inducing_factor,
    inducing_rows,
    prior_moments,
)
from orbitwise.inference.sparse.posterior import Whitened
from orbitwise.inference.stored_rows import Inputs
from orbitwise.likelihoods.likelihood import Quadratic
from orbitwise.process.process import Process, pairs_at_once

LEAST_ROWS = 128
KEPT_NUMBERS = 2**26
"""Up to this many numbers of A (half a GiB) are kept for the backward pass, not computed again."""
BoundName = Literal["tight", "titsias", "cg"]
STEPS = 4
"""Roundings of a number on its way into a term: by a product, a sum, a factorisation and a solve."""


@final
class Totals(NamedTuple):
    """The sums over rows. Those of two sets of rows, at the same hyperparameters, may be added.

    With weights [n, c] there is a `gram` [u, u] per output, and `trace`, `slack` and `log_weight` are sums
    over outputs. With weights [n] all of these are shared by the outputs and included once.
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
        """The number of outputs."""
        return self.product.shape[1]

    @property
    def is_shared(self) -> bool:
        """Whether outputs share their weights."""
        return self.gram.dim() == 2

    @property
    def num_copies(self) -> int:
        """How often the sums enter a bound: once per output if outputs share them, else once."""
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
    """The totals, in one pass over the rows. Without `tight`, the slack stays 0."""
    moving, variables = learned(process, rows), inducing_rows(inducing)
    fields = {name: getattr(variables, name) for name in ("points", "weights", "tangents")}
    parts = {name: part for name, part in fields.items() if part is not None and part.requires_grad}
    # Detached copies, because autograd itself continues from the gradient of the inducing variables.
    stand_ins = {name: part.detach().requires_grad_() for name, part in parts.items()}
    weight = rows.weights()
    columns = weight[:, None] if weight.dim() == 1 else weight
    inputs = (lower, noise, rows.targets, columns, *moving, *parts.values())
    is_recorded = torch.is_grad_enabled() and any(each.requires_grad for each in inputs)
    keeps_columns = is_recorded and len(lower) * len(rows.x) <= KEPT_NUMBERS * rows.processes.size
    leaves = [*moving, *stand_ins.values()]
    sums = _StreamedSums(process, rows, replace(variables, **stand_ins), tight, leaves, keeps_columns)
    gram, product, square, trace, slack = handwritten_gradient(sums.forward, sums.backward, *inputs)
    gram = gram[0] if weight.dim() == 1 else gram
    return Totals(gram, product, square, trace, slack, len(rows.x), weight.log().sum())


class PseudoRows(NamedTuple):
    """Targets and weights of rows with Gaussian noise σ² = 1, and the replacement of Σ log w."""

    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"]
    log_weight: Float[Tensor, ""]


def pseudo_rows(quadratic: Quadratic, shared: bool) -> PseudoRows:
    """Quadratic terms of any likelihood as targets η/λ with noise variance 1/λ; `shared` if outputs share λ.

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
    x: Inputs,
    quadratic: Quadratic,
    shared: bool,
    lower: Float[Tensor, "u u"] | None = None,
    tight: bool = True,
    processes: Processes = ALONE,
) -> Totals:
    """The totals of quadratic likelihood terms, for σ² = 1, with λ as weights.

    `shared` means that λ is the same for all outputs; `lower` is the factor of K_uu, if it is known.
    """
    targets, weight, log_weight = pseudo_rows(quadratic, shared)
    rows = Observations(functional, x, targets, weight, processes=processes)
    lower = inducing_factor(process, inducing) if lower is None else lower
    totals = gather_totals(process, rows, inducing, lower, lower.new_ones(()), tight)
    return totals._replace(log_weight=log_weight)


@final
@dataclass
class _StreamedSums:
    """(L, σ², y, w [n, 1 or c], parameters) → totals, with the gradient in one more pass over the blocks.

    Each of several processes passes over its own rows, and sums and gradients are added up.
    """

    process: Process
    rows: Observations
    inducing: Atoms
    tight: bool
    leaves: list[Tensor]
    keeps_columns: bool
    columns: list[Tensor] = field(default_factory=list)

    def blocks(self) -> list[slice]:
        """Slices of the rows of this process whose kernel values are held in memory at once."""
        mine = self.rows.processes.share(len(self.rows.x))
        if mine.start == mine.stop:
            return []
        pairs = self.inducing.num_rows * self.rows.num_atoms
        step = max(LEAST_ROWS, pairs_at_once(self.rows.x.device) // pairs)
        return [slice(start, min(start + step, mine.stop)) for start in range(mine.start, mine.stop, step)]

    def moments(self, part: slice) -> PriorMoments:
        """Prior moments of a block."""
        return prior_moments(self.process, self.inducing, self.rows.take(part).atoms())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        processes = self.rows.processes
        return processes.sum(*processes.together(lambda: self._forward(*inputs)))

    def _forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
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
        processes = self.rows.processes
        found = processes.together(lambda: self._backward(inputs, slopes))
        return added_up(processes, [*inputs[:4], *self.leaves], found)

    def _backward(self, inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> list[Tensor | None]:
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
        return [to_lower, to_noise, to_targets, to_weights, *total]


def added_up(
    processes: Processes, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients with respect to inputs, each the sum of those by the rows of every process.

    A process without rows has none. Those of inputs that are not learned are not wanted.
    """
    if processes.is_alone:
        return list(gradients)
    wanted = [each for each, like in enumerate(inputs) if like.requires_grad]
    parts = [gradients[each] for each in wanted]
    dense = [torch.zeros_like(inputs[n]) if p is None else p for n, p in zip(wanted, parts, strict=True)]
    found: list[Tensor | None] = [None] * len(inputs)
    for place, total in zip(wanted, processes.sum(*(each.double() for each in dense)), strict=True):
        found[place] = total.to(inputs[place])
    return found


def learned(process: Process, rows: Observations) -> list[Tensor]:
    """The parameters of kernel, mean and orbit that are learned."""
    return [p for p in (*process.parameters(), *rows.functional.parameters()) if p.requires_grad]


def summed(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The sum of two lists of gradients, entry by entry; None is zero."""
    pairs = zip(left, right, strict=True)
    return [b if a is None else a if b is None else a + b for a, b in pairs]


class Bracket(NamedTuple):
    """lower ≤ log p(y) ≤ upper."""

    lower: float
    upper: float


class QuadraticEnds(NamedTuple):
    """Better bounds lower ≤ (y-m)ᵀK̂⁻¹(y-m) ≤ upper, and their possible rounding error."""

    lower: Float[Tensor, ""]
    upper: Float[Tensor, ""]
    rounding: Float[Tensor, ""]


class Terms(NamedTuple):
    """yᵀ(Q+σ²I)⁻¹y and log|Q+σ²I|, summed over outputs."""

    quadratic: Float[Tensor, ""]
    determinant: Float[Tensor, ""]


def collapsed_bound(
    totals: Totals,
    noise: Float[Tensor, ""],
    tight: bool = True,
    quadratic: Float[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """The collapsed lower bound of all sparse engines, summed over outputs.

    `quadratic` replaces yᵀ(Q+σ²I)⁻¹y by a better upper bound. Without `tight` it is Titsias' bound.
    """
    terms = low_rank_terms(totals, noise)
    slack = totals.slack if tight else totals.trace.clamp_min(0) / noise
    fit = terms.quadratic if quadratic is None else quadratic
    return -0.5 * (fit + terms.determinant + totals.num_copies * slack + _constant(totals))


def upper_bound(
    totals: Totals, noise: Float[Tensor, ""], quadratic: Float[Tensor, ""] | None = None
) -> Float[Tensor, ""]:
    """An upper bound on the evidence; `quadratic` is a better lower bound on the quadratic form, if known."""
    terms = low_rank_terms(totals, noise)
    if quadratic is None:
        quadratic = low_rank_terms(totals, noise + totals.trace.clamp_min(0)).quadratic
    return -0.5 * (quadratic + terms.determinant + _constant(totals))


def _constant(totals: Totals) -> float:
    """log 2π per row and output."""
    return totals.num_outputs * totals.num_rows * math.log(2 * math.pi)


def low_rank_terms(totals: Totals, noise: Float[Tensor, ""]) -> Terms:
    """Quadratic form and log determinant of Q+σ²W⁻¹, in terms of rows scaled by √w."""
    lower = cholesky(precision(totals, noise)).lower
    white = solve_lower(lower, totals.product if totals.is_shared else totals.product.T[..., None])
    # yᵀ(Q+σ²I)⁻¹y = (|y|² - |R⁻¹Ay|²/σ²)/σ²,  log|Q+σ²I| = N log σ² + log|P|
    quadratic = (totals.square - white.square().sum() / noise) / noise
    each = log_determinant(lower).sum() - totals.log_weight
    scale = totals.num_outputs * totals.num_rows * noise.log()
    return Terms(quadratic, totals.num_copies * each + scale)


def precision(totals: Totals, noise: Float[Tensor, ""]) -> Float[Tensor, "*c u u"]:
    """P = I + AWAᵀ/σ², the precision of the best q(v)."""
    return plus_diagonal(totals.gram / noise, 1.0)


def best_q(totals: Totals, noise: Float[Tensor, ""]) -> Whitened:
    """The optimal q(v) of the collapsed bounds."""
    return Whitened(precision(totals, noise), totals.product / noise)


@torch.no_grad()
def safe_bracket(totals: Totals, noise: Float[Tensor, ""], quadratic: QuadraticEnds | None = None) -> Bracket:
    """The tight lower bound and the upper bound, each widened by the possible rounding error."""
    errors = rounding(totals, noise)
    doubt = growth(totals) * signal(totals)
    slack = totals._replace(slack=totals.slack + doubt / noise, trace=totals.trace.clamp_min(0) + doubt)
    if quadratic is None:
        below, above, moved = collapsed_bound(slack, noise), upper_bound(slack, noise), errors.quadratic
    else:
        below = collapsed_bound(slack, noise, quadratic=quadratic.upper)
        above, moved = upper_bound(slack, noise, quadratic.lower), quadratic.rounding
    constants = _constant(totals) + totals.num_outputs * totals.slack
    allowance = 0.5 * (moved + errors.determinant + growth(totals) * constants)
    return Bracket(float(below - allowance), float(above + allowance))


def common_bracket(brackets: Iterable[Bracket], constant: float = 0.0, count: int = 1) -> Bracket:
    """The intersection of several brackets of the same number, with a constant (a sum of `count` terms)
    added.

    If the bounds contradict each other by more than rounding explains, an interval that covers all of them is
    returned, with a warning. So lower ≤ upper always.
    """
    brackets = list(brackets)
    lower = max(each.lower for each in brackets)
    upper = min(each.upper for each in brackets)
    if lower > upper:
        warnings.warn(
            f"Bounds of the log evidence contradict each other by {lower - upper:.2g} nats, more than "
            "rounding "
            "explains: the kernel may not be positive definite. The certificate is widened to cover all of "
            "them.",
            RuntimeWarning,
            stacklevel=2,
        )
        ends = [end for each in brackets for end in each]
        lower, upper = min(ends), max(ends)
    moved = STEPS * (1 + count) * torch.finfo(torch.float64).eps * abs(constant)
    return Bracket(lower + constant - moved, upper + constant + moved)


def rounding(totals: Totals, noise: Float[Tensor, ""]) -> Terms:
    """The possible rounding errors of the two terms, if outputs share their weights."""
    matrix = precision(totals, noise)
    lower = cholesky(matrix).lower
    deviations = matrix.diagonal().sqrt()
    spread = (deviations * torch.cholesky_inverse(lower).diagonal().clamp_min(0).sqrt()).sum()
    means = solve_factored(lower, totals.product) / noise
    reach = (totals.square / noise).sqrt() + (deviations[:, None] * means.abs()).sum(0).norm()
    logarithms = 2 * lower.diagonal().log().abs().sum() + totals.num_rows * noise.log().abs()
    determinant = totals.num_outputs * (spread.square() + logarithms + totals.log_weight.abs())
    return Terms(growth(totals) * reach.square(), growth(totals) * determinant)


def growth(totals: Totals) -> float:
    """γ, the largest relative rounding error of a sum over rows or inducing variables."""
    return STEPS * (totals.num_rows + len(totals.product)) * torch.finfo(totals.gram.dtype).eps


def signal(totals: Totals) -> Float[Tensor, ""]:
    """Σ w k, the prior variances of all rows."""
    return totals.trace.clamp_min(0) + totals.gram.diagonal().sum()
