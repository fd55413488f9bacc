"""A stochastic solver for many rows: dual ascent on random blocks of rows, with no step size to choose.

At the optimum α_i = -w_i ℓ_i′. For a block S of rows and the rest held fixed, the α_S that satisfy this are
those of the small risk ½aᵀG_SS a + Σ_S w ℓ(c + G_SS a), solved by Newton's method; each block so raises the
dual (Shalev-Shwartz and Zhang, 2013). A step needs the columns of its rows only, b·m kernel values. β is kept
near its last value by a prior of its own, which moves along every epoch: the proximal point method.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.risk.grams import DenseGram
from orbitwise.inference.risk.line_search import search
from orbitwise.inference.risk.problem import Problem, Solution

BLOCK_STEPS = 20
LOOSENESS = 10.0
"""The prior variance of β against that of f."""


@torch.no_grad()
def stochastic(
    problem: Problem,
    batch_size: int = 64,
    tolerance: float = 1e-8,
    max_epochs: int = 1000,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk by random blocks of rows; the gap is looked at every other epoch."""
    if problem.batch_shape or problem.is_coupled:
        raise ValueError("The stochastic solver takes one problem at a time, with a loss of single entries.")
    if batch_size < 1 or max_epochs < 1:
        raise ValueError(f"batch_size={batch_size} and max_epochs={max_epochs} must be at least 1.")
    alpha, basis = problem.zeros(), problem.basis
    size = basis.square().mean(0)
    loose = LOOSENESS * problem.gram.diagonal().mean() / torch.where(size > 0, size, 1)
    beta = problem.best_beta(alpha, alpha.new_zeros(basis.shape[-1]))
    moment = alpha @ basis
    history: list[float] = []
    for epoch in range(1, max_epochs + 1):
        order = torch.randperm(problem.gram.num_rows, generator=generator).to(alpha.device)
        for drawn in order.split(batch_size):
            chosen = drawn.sort().values
            columns = problem.gram.columns(chosen)
            rows = basis[chosen]
            gram = columns[chosen] + (rows * loose) @ rows.mT
            values = alpha @ columns + rows @ (beta + loose * moment)
            new = _block(problem, chosen, gram, values, alpha[chosen])
            moment = moment + (new - alpha[chosen]) @ rows
            alpha[chosen] = new
        beta = beta + loose * moment
        if epoch == 1 or epoch % 2 == 0 or epoch == max_epochs:
            image = problem.gram.product(alpha)
            solution = problem.certified(alpha, image, beta, epoch, epoch, tolerance, history)
            history.append(float(solution.objective))
            if solution.converged:
                break
    return solution  # pyright: ignore


def _block(problem: Problem, chosen: Tensor, gram: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """α of a block of rows at its best, the other rows held fixed; `values` are those of the block now."""
    local = problem.take(chosen, DenseGram(gram))
    image = gram @ alpha
    offset = values - image
    for _ in range(BLOCK_STEPS):
        values = offset + image
        gradient = alpha + local.slope(values)
        if bool((gradient * (gram @ gradient)).sum() <= 1e-20 * (1 + local.loss(values))):
            break
        root = local.curvature(values).sqrt()
        system = root[:, None] * gram * root
        system.diagonal().add_(1)
        # (I + WG)⁻¹ = I - √W (I + √W G √W)⁻¹ √W G
        inner = solve_factored(cholesky(system).lower, (root * (gram @ gradient))[:, None])[:, 0]
        step = root * inner - gradient
        to_image = gram @ step
        length, _ = search(local, values, to_image, (step * image).sum(), (step * to_image).sum())
        alpha, image = alpha + length * step, image + length * to_image
    return alpha
