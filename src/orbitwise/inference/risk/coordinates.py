"""Coordinate-wise and stochastic solvers: few representers, or random blocks of rows (RKHS section 5)."""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.risk.problem import RIDGE, DenseGram, Problem, Solution, search

Order = Literal["random", "steepest"]
JITTER = 1e-12
INNER_STEPS = 30
"""Newton steps in a span before it grows again."""
INNER_DECREASE = 1e-4
"""Of the tolerance: a small decrement can hide a large gap where losses weigh much."""


@torch.no_grad()
def coordinate_descent(
    problem: Problem,
    order: Order = "steepest",
    growth: float = 0.1,
    tolerance: float = 1e-8,
    max_coordinates: int | None = None,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk over a growing set of coordinates: one more, or `growth` of those there, each round."""
    if problem.batch_shape or problem.is_coupled:
        raise ValueError("Coordinate descent takes one problem at a time, with a loss of single entries.")
    if order not in ("random", "steepest"):
        raise ValueError(f"order must be 'random' or 'steepest', not {order!r}.")
    most = problem.gram.num_rows if max_coordinates is None else min(max_coordinates, problem.gram.num_rows)
    span = _Span(problem)
    history: list[float] = []
    shuffled = torch.randperm(problem.gram.num_rows, generator=generator).to(problem.weights.device)
    while True:
        risk = span.minimise(tolerance)
        history.append(risk)
        gradient = span.gradient()
        image = problem.gram.product(gradient)
        gap = 0.5 * float((gradient * image).sum())
        room = most - len(span.index)
        if gap <= tolerance * abs(risk) or room <= 0:
            break
        count = min(room, max(1, int(growth * len(span.index))))
        if order == "random":
            chosen = shuffled[len(span.index) : len(span.index) + count]
        else:
            # the descent of a unit step along z_j is |⟨r, z_j⟩|/|z_j|
            descent = image.abs() * problem.gram.diagonal().clamp_min(1e-300).rsqrt()
            descent[span.index] = -1.0
            chosen = descent.topk(count).indices
        span.add(chosen)
    return problem.certified(
        span.alpha(), span.image, span.beta, len(history), len(history), tolerance, history
    )


@final
class _Span:
    """Functions Σ_{i in index} α_i z_i, held with the columns of the Gram matrix of `index`."""

    def __init__(self, problem: Problem) -> None:
        zeros = problem.zeros()
        self.problem = problem
        self.index: Int[Tensor, " k"] = torch.zeros(0, dtype=torch.long, device=zeros.device)
        self.columns: Float[Tensor, "m k"] = zeros[:, None][:, :0]
        self.part: Float[Tensor, " k"] = zeros[:0]
        self.image = zeros
        self.beta = problem.best_beta(zeros, zeros.new_zeros(problem.basis.shape[-1]))

    def add(self, chosen: Int[Tensor, " c"]) -> None:
        """More coordinates, which start at 0."""
        self.index = torch.cat([self.index, chosen])
        self.columns = torch.cat([self.columns, self.problem.gram.columns(chosen)], -1)
        self.part = torch.cat([self.part, self.part.new_zeros(len(chosen))])

    def alpha(self) -> Float[Tensor, " m"]:
        """α over all rows."""
        return self.problem.zeros().index_add(0, self.index, self.part)

    def values(self) -> Float[Tensor, " m"]:
        """L f + Bβ of every row."""
        return self.image + self.problem.beta_rows(self.beta)

    def gradient(self) -> Float[Tensor, " m"]:
        """r of the risk over the whole space."""
        return self.alpha() + self.problem.slope(self.values())

    def minimise(self, tolerance: float) -> float:
        """Newton's method over the coordinates and β; the risk."""
        problem = self.problem
        for _ in range(INNER_STEPS if len(self.index) else 0):
            values = self.values()
            risk = 0.5 * (self.part * self.image[self.index]).sum() + problem.loss(values)
            slope, curvature = problem.slope(values), problem.curvature(values)
            # all coordinates: those of f and β, side by side
            rows = torch.cat([self.columns, problem.basis], -1)
            gram = self.columns[self.index]
            gradient = rows.mT @ slope
            gradient[: len(self.index)] += gram @ self.part
            hessian = rows.mT @ (curvature[:, None] * rows)
            hessian[: len(self.index), : len(self.index)] += gram
            diagonal = hessian.diagonal()
            diagonal += JITTER * diagonal.max().clamp_min(1e-300)
            diagonal[len(self.index) :] += RIDGE * problem.weights.sum()
            step = -solve_factored(cholesky(hessian).lower, gradient[:, None])[:, 0]
            if not bool(-(step @ gradient) > INNER_DECREASE * tolerance * risk.abs()):
                break
            moved, to_beta = step[: len(self.index)], step[len(self.index) :]
            image = self.columns @ moved
            linear, square = (moved * self.image[self.index]).sum(), (moved * image[self.index]).sum()
            size, _ = search(problem, values, image + problem.beta_rows(to_beta), linear, square)
            self.part = self.part + size * moved
            self.image = self.image + size * image
            self.beta = self.beta + size * to_beta
        values = self.values()
        return float(0.5 * (self.part * self.image[self.index]).sum() + problem.loss(values))


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
