"""Lower and upper bounds on the log evidence from M inducing variables, and the best q(u) (METHOD 3)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_factored, solve_lower
from orbitwise.inference.sparse.totals import Totals
from orbitwise.inference.sparse.whitened import Whitened

BoundName = Literal["tight", "titsias", "cg"]
STEPS = 4
"""Roundings that a number goes through on its way into a term: its product, its sum, a factor, a solution."""


class Bracket(NamedTuple):
    """lower ≤ log p(y) ≤ upper."""

    lower: float
    upper: float


class QuadraticEnds(NamedTuple):
    """lower ≤ (y-m)ᵀK̂⁻¹(y-m) ≤ upper from elsewhere, and how far rounding may have moved either."""

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
    """The collapsed lower bound, summed over outputs: the one of all sparse engines.

    `quadratic` replaces yᵀ(Q+σ²I)⁻¹y by a better upper bound. Without `tight` it is Titsias' bound.
    """
    terms = low_rank_terms(totals, noise)
    slack = totals.slack if tight else totals.trace.clamp_min(0) / noise
    fit = terms.quadratic if quadratic is None else quadratic
    return -0.5 * (fit + terms.determinant + totals.num_copies * slack + _constant(totals))


def upper_bound(
    totals: Totals, noise: Float[Tensor, ""], quadratic: Float[Tensor, ""] | None = None
) -> Float[Tensor, ""]:
    """An upper bound on the evidence; `quadratic` replaces the last term by a better lower bound of it."""
    terms = low_rank_terms(totals, noise)
    if quadratic is None:
        quadratic = low_rank_terms(totals, noise + totals.trace.clamp_min(0)).quadratic
    return -0.5 * (quadratic + terms.determinant + _constant(totals))


def _constant(totals: Totals) -> float:
    """log 2π for every row and output."""
    return totals.num_outputs * totals.num_rows * math.log(2 * math.pi)


def low_rank_terms(totals: Totals, noise: Float[Tensor, ""]) -> Terms:
    """Quadratic form and determinant of Q+σ²I with rows scaled by √w, for which the noise is W⁻¹σ²."""
    lower = cholesky(precision(totals, noise)).lower
    white = solve_lower(lower, totals.product if totals.is_shared else totals.product.T[..., None])
    # yᵀ(Q+σ²I)⁻¹y = (|y|² - |R⁻¹Ay|²/σ²)/σ²,  log|Q+σ²I| = N log σ² + log|P|
    quadratic = (totals.square - white.square().sum() / noise) / noise
    each = log_determinant(lower).sum() - totals.log_weight
    scale = totals.num_outputs * totals.num_rows * noise.log()
    return Terms(quadratic, totals.num_copies * each + scale)


def precision(totals: Totals, noise: Float[Tensor, ""]) -> Float[Tensor, "*c u u"]:
    """P = I + AWAᵀ/σ², the precision of the best q(v)."""
    return totals.gram / noise + torch.eye(len(totals.product)).to(totals.gram)


def best_q(totals: Totals, noise: Float[Tensor, ""]) -> Whitened:
    """The q(v) that the collapsed bounds have integrated out."""
    return Whitened(precision(totals, noise), totals.product / noise)


@torch.no_grad()
def safe_bracket(totals: Totals, noise: Float[Tensor, ""], quadratic: QuadraticEnds | None = None) -> Bracket:
    """The tight lower bound and the upper bound, each moved outwards by what rounding may have done to it."""
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
    """What several brackets of the same number have in common, with a constant of `count` terms added.

    Ends that cross cannot all be right, and rounding does not explain it: then what covers them all is taken,
    and a warning says so. So lower ≤ upper always.
    """
    brackets = list(brackets)
    lower = max(each.lower for each in brackets)
    upper = min(each.upper for each in brackets)
    if lower > upper:
        warnings.warn(
            f"Bounds of the log evidence cross by {lower - upper:.2g} nats, more than rounding explains: the "
            "kernel may not be positive definite. The certificate covers all of them, and is wider for it.",
            RuntimeWarning,
            stacklevel=2,
        )
        ends = [end for each in brackets for end in each]
        lower, upper = min(ends), max(ends)
    moved = STEPS * (1 + count) * torch.finfo(torch.float64).eps * abs(constant)
    return Bracket(lower + constant - moved, upper + constant + moved)


def rounding(totals: Totals, noise: Float[Tensor, ""]) -> Terms:
    """How far rounding may have moved the two terms, where outputs share their weights."""
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
    """γ, the most by which a sum over rows or inducing variables is off, relative to its terms."""
    return STEPS * (totals.num_rows + len(totals.product)) * torch.finfo(totals.gram.dtype).eps


def signal(totals: Totals) -> Float[Tensor, ""]:
    """Σ w k, the prior variances of all rows."""
    return totals.trace.clamp_min(0) + totals.gram.diagonal().sum()
