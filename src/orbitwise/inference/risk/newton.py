"""Newton's method on whole Gram matrices, for a batch of problems at once: folds, classes, a grid of λ and ν.

A step solves (I + WG)δα + WBδβ = -(α + wℓ′), Bᵀ(α + δα) = 0, W = diag(wℓ″), through the well-conditioned
I + √W G √W. Rows of weight 0 drop out, so that all folds of a cross-validation share their shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.risk.grams import DenseGram
from orbitwise.inference.risk.line_search import search
from orbitwise.inference.risk.problem import RIDGE, Problem, Solution, Term

LOOSE, LOOSE_ITERATIONS = 1e-2, 20
"""Of problems on the way."""
STILL = 4
"""Iterations without progress, of rounding's size, that end the search."""


@torch.no_grad()
def newton(
    problem: Problem,
    start: Solution | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
) -> Solution:
    """The least risk of every problem of a batch, to a relative gap of `tolerance`.

    Where losses count so much that a first step from f = 0 would go far astray, the way leads through lighter
    losses, each ten times the last.
    """
    if not isinstance(problem.gram, DenseGram) or problem.is_coupled:
        raise ValueError("Newton's method needs a dense Gram matrix and a loss of single entries.")
    count = 0
    if start is None:
        heaviest = float((problem.weights * problem.gram.diagonal()).amax())
        for step in range(1, 1 + max(0, math.ceil(math.log10(max(heaviest, 1.0))))):
            start = _solve(problem.lightened(10.0**step), start, LOOSE, LOOSE_ITERATIONS)
            count += start.iterations
    found = _solve(problem, start, tolerance, max_iterations)
    return replace(found, iterations=found.iterations + count, products=found.products + count)


def _solve(problem: Problem, start: Solution | None, tolerance: float, max_iterations: int) -> Solution:
    alpha = problem.zeros() if start is None else start.coefficients.expand_as(problem.zeros()).clone()
    shape = (*problem.batch_shape, problem.basis.shape[-1])
    beta = alpha.new_zeros(shape) if start is None else start.beta.expand(shape).clone()
    images = problem.gram.product(alpha)
    risk = 0.5 * (alpha * images).sum(-1) + problem.loss(images + problem.beta_rows(beta))
    gain = torch.full_like(risk, torch.inf)
    history = [float(risk.sum())]
    still = torch.zeros_like(risk, dtype=torch.long)
    for _ in range(max_iterations):
        active = (gain > 0.1 * tolerance * risk.abs()) & (still < STILL)
        if not bool(active.any()):
            break
        part = _Part(problem, active)
        moved = part.step(alpha[active], images[active], beta[active])
        size, tried, gain[active] = part.line_search(
            alpha[active], images[active], beta[active], moved, risk[active]
        )
        still[active] = torch.where(tried < risk[active], 0, still[active] + 1)
        alpha[active] += size[..., None] * moved[0]
        images[active] += size[..., None] * moved[1]
        beta[active] += size[..., None] * moved[2]
        risk[active] = tried
        history.append(float(risk.sum()))
    images = problem.gram.product(alpha)
    return problem.certified(alpha, images, beta, len(history) - 1, len(history) - 1, tolerance, history)


class _Curved:
    """The rows whose loss is curved, for each problem: flat ones drop out of Newton's system."""

    def __init__(self, matrix: Tensor, curvature: Tensor) -> None:
        self.shape = curvature.shape
        most = int((curvature > 0).sum(-1).amax())
        kept, self.index = curvature.topk(max(1, most), dim=-1, sorted=False)
        self.root = kept.sqrt()
        if matrix.dim() == 2:
            own = matrix[self.index[..., :, None], self.index[..., None, :]]
        else:
            own = matrix.gather(-2, self.index[..., None].expand(*self.index.shape, matrix.shape[-1]))
            own = own.gather(-1, self.index[..., None, :].expand(*self.index.shape, self.index.shape[-1]))
        system = own.mul_(self.root[..., :, None]).mul_(self.root[..., None, :])
        system.diagonal(dim1=-2, dim2=-1).add_(1)
        self.lower = cholesky(system).lower

    def inner(self, vectors: Tensor) -> Tensor:
        """√W (I + √W G √W)⁻¹ √W v."""
        index = self.index[..., None].expand(*self.index.shape, vectors.shape[-1])
        root = self.root[..., None]
        solved = root * solve_factored(self.lower, root * vectors.gather(-2, index))
        return torch.zeros_like(vectors).scatter(-2, index, solved)


class _Part:
    """The problems of a batch that still move, in one batch dimension."""

    def __init__(self, problem: Problem, active: Tensor) -> None:
        matrix = problem.gram.matrix  # pyright: ignore
        rows = (*problem.batch_shape, matrix.shape[-1])
        self.matrix = matrix if matrix.dim() == 2 else matrix.expand(*rows, rows[-1])[active]
        terms, first = [], 0
        for term in problem.terms:
            last = first + term.num_rows
            targets = term.targets.expand(*problem.batch_shape, -1)[active]
            terms.append(Term(term.loss, targets, problem.weights[..., first:last][active]))
            first = last
        self.problem = Problem(DenseGram(self.matrix), terms, problem.basis)

    def step(self, alpha: Tensor, images: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Newton's direction of α, Gα and β."""
        problem, basis = self.problem, self.problem.basis
        values = images + problem.beta_rows(beta)
        curvature, slope = problem.curvature(values), problem.slope(values)
        inner = _Curved(self.matrix, curvature).inner

        # (I + WG)δα + WBδβ = -(α + wℓ′) and Bᵀ(α + δα) = 0, in steps, which stay exact for heavy losses
        gradient = alpha + slope
        free = inner(problem.gram.product(gradient)[..., None])[..., 0] - gradient
        coupling = inner(basis.expand(*values.shape, -1))
        normal = basis.mT @ coupling
        # where no row says anything of β, a ridge keeps it from running away
        diagonal = normal.diagonal(dim1=-2, dim2=-1).sum(-1) / max(1, basis.shape[-1])
        total = problem.weights.sum(-1)
        ridge = torch.where(diagonal > 1e-12 * total, 1e-10 * diagonal, RIDGE * total)[..., None, None]
        identity = torch.eye(basis.shape[-1], dtype=basis.dtype, device=basis.device)
        to_beta = torch.linalg.solve(normal + ridge * identity, (alpha + free) @ basis)
        to_alpha = free - (coupling @ to_beta[..., None])[..., 0]
        return to_alpha, problem.gram.product(to_alpha), to_beta

    def line_search(
        self,
        alpha: Tensor,
        images: Tensor,
        beta: Tensor,
        moved: tuple[Tensor, Tensor, Tensor],
        risk: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The step along a direction, the risk there, and what a full step promised to gain."""
        problem = self.problem
        values = images + problem.beta_rows(beta)
        to_values = moved[1] + problem.beta_rows(moved[2])
        linear, square = (moved[0] * images).sum(-1), (moved[0] * moved[1]).sum(-1)
        size, first = search(problem, values, to_values, linear, square)
        new = alpha + size[..., None] * moved[0], images + size[..., None] * moved[1]
        tried = 0.5 * (new[0] * new[1]).sum(-1) + problem.loss(values + size[..., None] * to_values)
        kept = tried <= risk
        return torch.where(kept, size, 0), torch.where(kept, tried, risk), -0.5 * first
