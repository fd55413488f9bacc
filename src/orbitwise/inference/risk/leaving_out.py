"""Each label predicted by the machine of all others, to first order, for every strength, λ and class at once.

With f the minimiser, ℓ′ and W its weighted slopes and curvatures, and Σ = (K̃⁻¹ + W)⁻¹ after the basis is
eliminated, one Newton step without label i gives f_i + Σ_ii ℓ′_i/(1 - W_i Σ_ii). That is exact for squared
losses, and depends on no folds.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.risk.machines import CHOICE_TOLERANCE, problems_at_once
from orbitwise.inference.risk.problem import CurvedRows, DenseGram, Problem, Solution, Term, newton
from orbitwise.losses import Loss

LEAST = 1e-9
"""The least share of its own weight that a label leaves to others."""


@torch.no_grad()
def left_out_scores(
    grams: Float[Tensor, "q n n"],
    basis: Float[Tensor, "n b"],
    loss: Loss,
    targets: Float[Tensor, "c n"],
    weights: Float[Tensor, " n"],
    rates: Float[Tensor, "q r"],
) -> Float[Tensor, "q r c n"]:
    """The value at each label of the machine that all other labels give."""
    found = torch.empty(*rates.shape, *targets.shape, dtype=weights.dtype, device=weights.device)
    step = problems_at_once(grams[0], len(targets))
    for part in (slice(first, first + step) for first in range(0, len(grams), step)):
        solution = None
        # from light losses to heavy ones, each starting from the solution before
        for j in rates.mean(0).argsort().tolist():
            weighed = (rates[part, j, None, None] * weights).expand(-1, len(targets), -1)
            problem = Problem(DenseGram(grams[part, None]), [Term(loss, targets, weighed)], basis)
            solution = newton(problem, solution, CHOICE_TOLERANCE)
            found[part, j] = _without_own(problem, solution)
    return found


def _without_own(problem: Problem, solution: Solution) -> Float[Tensor, "*batch n"]:
    """f_i + Σ_ii ℓ′_i/(1 - W_i Σ_ii)."""
    gram, basis = problem.gram.columns(torch.arange(problem.gram.num_rows)), problem.basis
    slope, curvature = problem.slope(solution.values), problem.curvature(solution.values)
    inner = CurvedRows(gram, curvature).inner
    gram = gram.expand(*curvature.shape, -1)
    # Σ = K̃ - K̃SK̃ + U(BᵀSB)⁻¹Uᵀ with S = √W(I + √W K̃ √W)⁻¹√W and U = B - K̃SB
    variance = (gram - gram @ inner(gram)).diagonal(dim1=-2, dim2=-1)
    if basis.shape[-1]:
        bent = inner(basis.expand(*curvature.shape, -1))
        free, normal = basis - gram @ bent, basis.mT @ bent
        ridge = 1e-10 * normal.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-10)[..., None, None]
        solved = torch.linalg.solve(normal + ridge * torch.eye(basis.shape[-1]).to(basis), free.mT)
        variance = variance + (free * solved.mT).sum(-1)
    left = (1 - curvature * variance).clamp_min(LEAST)
    return solution.values + variance * slope / left
