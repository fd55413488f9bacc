"""Lower and upper bounds on the log evidence from M inducing variables, for Gaussian noise (METHOD 3).

With Q = AᵀA ≼ K and r = diag(K - Q), for each output:
Titsias   log N(y | 0, Q+σ²I) - ½ Σ r/σ²
tight     log N(y | 0, Q+σ²I) - ½ Σ log(1 + r/σ²)
upper     -½ log|Q+σ²I| - (N/2) log 2π - ½ yᵀ(Q + (t+σ²)I)⁻¹y,  t = Σ r ≥ the largest eigenvalue of K - Q.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, log_determinant, solve_lower
from orbitwise.inference.totals import Totals
from orbitwise.inference.whitened import Whitened

BoundName = Literal["tight", "titsias", "cg"]


class Terms(NamedTuple):
    """yᵀ(Q+σ²I)⁻¹y summed over outputs, and log|Q+σ²I|."""

    quadratic: Float[Tensor, ""]
    determinant: Float[Tensor, ""]


def lower_bound(
    totals: Totals,
    noise: Float[Tensor, ""],
    tight: bool = True,
    quadratic: Float[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """The collapsed bound, summed over outputs; `quadratic` replaces yᵀ(Q+σ²I)⁻¹y by a better upper bound."""
    terms = low_rank_terms(totals, noise)
    slack = totals.slack if tight else totals.trace.clamp_min(0) / noise
    fit = terms.quadratic if quadratic is None else quadratic
    each = terms.determinant + slack + totals.count * math.log(2 * math.pi)
    return -0.5 * (fit + totals.num_outputs * each)


def upper_bound(
    totals: Totals, noise: Float[Tensor, ""], quadratic: Float[Tensor, ""] | None = None
) -> Float[Tensor, ""]:
    """An upper bound on the evidence; `quadratic` replaces the last term by a better lower bound of it."""
    terms = low_rank_terms(totals, noise)
    if quadratic is None:
        quadratic = low_rank_terms(totals, noise + totals.trace.clamp_min(0)).quadratic
    each = terms.determinant + totals.count * math.log(2 * math.pi)
    return -0.5 * (quadratic + totals.num_outputs * each)


def low_rank_terms(totals: Totals, noise: Float[Tensor, ""]) -> Terms:
    """Quadratic form and determinant of Q+σ²I with rows scaled by √w, for which the noise is W⁻¹σ²."""
    lower = cholesky(precision(totals, noise)).lower
    white = solve_lower(lower, totals.product)
    # yᵀ(Q+σ²I)⁻¹y = (|y|² - |R⁻¹Ay|²/σ²)/σ²,  log|Q+σ²I| = N log σ² + log|P|
    quadratic = (totals.square - white.square().sum() / noise) / noise
    determinant = totals.count * noise.log() + log_determinant(lower) - totals.log_weight
    return Terms(quadratic, determinant)


def precision(totals: Totals, noise: Float[Tensor, ""]) -> Float[Tensor, "u u"]:
    """P = I + AWAᵀ/σ², the precision of the best q(v)."""
    return totals.gram / noise + torch.eye(len(totals.gram)).to(totals.gram)


def best_q(totals: Totals, noise: Float[Tensor, ""]) -> Whitened:
    """The q(v) that the collapsed bounds have integrated out."""
    return Whitened(precision(totals, noise), totals.product / noise)
