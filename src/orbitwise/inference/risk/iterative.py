"""Solvers that need only products with the Gram matrix, or a few of its columns (RKHS section 5).

These are Newton-CG and L-BFGS in function space; coordinate descent, which selects few representers; and
random blocks of rows, when there are too many rows for products with the whole matrix.
"""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.risk.problem import RIDGE, CurvedRows, DenseGram, Iterate, Problem, Solution

MEMORY = 20
FORCING = 0.1
"""Newton's equations are solved up to this fraction of the gradient, and more exactly near the optimum."""


@torch.no_grad()
def newton_cg(problem: Problem, tolerance: float = 1e-10, max_iterations: int = 500) -> Solution:
    """Newton's method with conjugate gradients for each step; `max_iterations` limits the products."""
    state = _Descent(problem)
    while not state.is_done(tolerance) and state.products < max_iterations:
        # H after eliminating β: H - HB(BᵀHB)⁻¹BᵀH
        values = problem.values(state.f)
        bent, normal = problem.basis_curvature(values)
        # (I + HG)d = -r, self-adjoint in the inner product of the RKHS
        direction, residual = torch.zeros_like(state.gradient), -state.gradient
        search, square = residual.clone(), _square(residual)
        enough = square * min(FORCING, float(square.sqrt())) ** 2
        while square > enough and state.products < max_iterations:
            followed = bent @ torch.linalg.solve(normal, bent.mT @ search[1])
            curved = search[0] + problem.curvature_product(values, search[1]) - followed
            size = square / (curved * search[1]).sum()
            direction += size * search
            residual = state.with_image(residual[0] - size * curved)
            before, square = square, _square(residual).clamp_min(0)
            search = residual + square / before * search
        to_beta = -torch.linalg.solve(normal, bent.mT @ direction[1])
        if not state.move(Iterate(direction[0], direction[1], to_beta)):
            break
    return state.solution(tolerance)


@torch.no_grad()
def lbfgs(problem: Problem, tolerance: float = 1e-10, max_iterations: int = 1000) -> Solution:
    """L-BFGS with the inner products of the RKHS: one product per iteration."""
    state = _Descent(problem)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(max_iterations):
        if state.is_done(tolerance):
            break
        direction, weights = state.gradient.clone(), []
        for step, change, inner in reversed(steps):
            weights.append((direction[0] * step[1]).sum() / inner)
            direction -= weights[-1] * change
        if steps:
            _, change, inner = steps[-1]
            direction *= inner / _square(change)
        for (step, change, inner), weight in zip(steps, reversed(weights), strict=True):
            direction += (weight - (change[0] * direction[1]).sum() / inner) * step
        before, gradient = state.f, state.gradient
        if not state.move(Iterate(-direction[0], -direction[1], torch.zeros_like(before.beta))):
            if not steps:
                break
            steps.clear()
            continue
        change = state.gradient - gradient
        step = torch.stack([state.f.coefficients - before.coefficients, state.f.images - before.images])
        inner = (change[0] * step[1]).sum()
        if inner > 0:
            steps = [*steps[1 - MEMORY :], (step, change, inner)]
    return state.solution(tolerance)


@final
class _Descent:
    """f with optimal β, and the gradient together with its image, [2, m]; products are counted."""

    def __init__(self, problem: Problem) -> None:
        if problem.batch_shape:
            raise ValueError("Matrix-free solvers take a single problem, not a batch.")
        self.problem = problem
        self.products = self.iterations = 0
        self.history: list[float] = []
        self._settle(problem.iterate())

    def with_image(self, vector: Float[Tensor, " m"]) -> Float[Tensor, "2 m"]:
        """v and Gv; the product is counted."""
        self.products += 1
        return torch.stack([vector, self.problem.gram.product(vector)])

    def is_done(self, tolerance: float) -> bool:
        """Whether the gap is small enough."""
        return bool(0.5 * _square(self.gradient) <= tolerance * self.risk.abs())

    def move(self, step: Iterate) -> bool:
        """Move along a step as far as the risk falls; False if it does not fall."""
        size, slope = self.problem.line_search(self.f, step)
        if not bool(slope < 0):
            return False
        before, risk = self.f, self.risk
        self.iterations += 1
        self._settle(before.moved(step, size))
        if bool(self.risk < risk):
            return True
        self._settle(before)
        return False

    def solution(self, tolerance: float) -> Solution:
        """The state with its certificate, computed from a new image of f."""
        f = self.f._replace(images=self.with_image(self.f.coefficients)[1])
        return self.problem.certified(f, self.iterations, self.products, tolerance, self.history)

    def _settle(self, f: Iterate) -> None:
        self.f = self.problem.with_best_beta(f)
        self.risk = self.problem.risk(self.f)
        self.gradient = self.with_image(self.f.coefficients + self.problem.slope(self.problem.values(self.f)))
        self.history.append(float(self.risk))


def _square(pair: Float[Tensor, "2 m"]) -> Float[Tensor, ""]:
    """The squared norm of a function in the RKHS, from its coefficients and their image."""
    return (pair[0] * pair[1]).sum()


Order = Literal["random", "steepest"]
JITTER = 1e-12
INNER_STEPS = 30
"""The most Newton steps in a span before it grows."""
INNER_DECREASE = 1e-4
"""The decrement, relative to the tolerance, at which Newton steps end; the gap may be much larger."""


@torch.no_grad()
def coordinate_descent(
    problem: Problem,
    order: Order = "steepest",
    growth: float = 0.1,
    tolerance: float = 1e-8,
    max_coordinates: int | None = None,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk over a growing set of coordinates; each round adds one, or `growth` times the set."""
    if problem.batch_shape or problem.is_coupled:
        raise ValueError(
            "Coordinate descent takes a single problem, not a batch, with losses of single entries."
        )
    if order not in ("random", "steepest"):
        raise ValueError(f"order must be 'random' or 'steepest', not {order!r}.")
    most = problem.gram.num_rows if max_coordinates is None else min(max_coordinates, problem.gram.num_rows)
    span = _Span(problem)
    history: list[float] = []
    shuffled = torch.randperm(problem.gram.num_rows, generator=generator).to(problem.weights.device)
    while True:
        risk = span.minimise(tolerance)
        history.append(risk)
        gradient = span.f.coefficients + problem.slope(problem.values(span.f))
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
    return problem.certified(span.f, len(history), len(history), tolerance, history)


@final
class _Span:
    """Functions Σ_{i in index} α_i z_i, with the columns `index` of the Gram matrix."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.f = problem.with_best_beta(problem.iterate())
        zeros = self.f.coefficients
        self.index: Int[Tensor, " k"] = torch.zeros(0, dtype=torch.long, device=zeros.device)
        self.columns: Float[Tensor, "m k"] = zeros[:, None][:, :0]

    def add(self, chosen: Int[Tensor, " c"]) -> None:
        """Add coordinates, which start at 0."""
        self.index = torch.cat([self.index, chosen])
        self.columns = torch.cat([self.columns, self.problem.gram.columns(chosen)], -1)

    def minimise(self, tolerance: float) -> float:
        """Minimise the risk over the coordinates and β by Newton's method; returns the risk."""
        problem, count = self.problem, len(self.index)
        for _ in range(INNER_STEPS if count else 0):
            values, risk = problem.values(self.f), problem.risk(self.f)
            # all coordinates: those of f and β, side by side
            rows = torch.cat([self.columns, problem.basis], -1)
            gradient = rows.mT @ problem.slope(values)
            gradient[:count] += self.f.images[self.index]
            hessian = rows.mT @ (problem.curvature(values)[:, None] * rows)
            hessian[:count, :count] += self.columns[self.index]
            diagonal = hessian.diagonal()
            diagonal += JITTER * diagonal.max().clamp_min(1e-300)
            diagonal[count:] += RIDGE * problem.weights.sum()
            moved = -solve_factored(cholesky(hessian).lower, gradient[:, None])[:, 0]
            if not bool(-(moved @ gradient) > INNER_DECREASE * tolerance * risk.abs()):
                break
            to_alpha = torch.zeros_like(values).index_add(0, self.index, moved[:count])
            step = Iterate(to_alpha, self.columns @ moved[:count], moved[count:])
            self.f = self.f.moved(step, problem.line_search(self.f, step)[0])
        return float(problem.risk(self.f))


BLOCK_STEPS = 20
LOOSENESS = 10.0
"""The prior variance of β relative to that of f."""


@torch.no_grad()
def stochastic(
    problem: Problem,
    batch_size: int = 64,
    tolerance: float = 1e-8,
    max_epochs: int = 1000,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk by random blocks of rows; the gap is computed every other epoch."""
    if problem.batch_shape or problem.is_coupled:
        raise ValueError(
            "The stochastic solver takes a single problem, not a batch, with losses of single entries."
        )
    if batch_size < 1 or max_epochs < 1:
        raise ValueError(f"batch_size={batch_size} and max_epochs={max_epochs} must be at least 1.")
    f, basis = problem.with_best_beta(problem.iterate()), problem.basis
    alpha, beta = f.coefficients, f.beta
    size = basis.square().mean(0)
    loose = LOOSENESS * problem.gram.diagonal().mean() / torch.where(size > 0, size, 1)
    moment = alpha @ basis
    history: list[float] = []
    epoch = 0
    while True:
        epoch += 1
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
            f = Iterate(alpha, problem.gram.product(alpha), beta)
            solution = problem.certified(f, epoch, epoch, tolerance, history)
            history.append(float(solution.objective))
            if solution.converged or epoch == max_epochs:
                return solution


def _block(problem: Problem, chosen: Tensor, gram: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """The optimal α of a block of rows for fixed other rows; `values` are the present values of the block."""
    image = gram @ alpha
    # the contribution of the other rows is a basis function with coefficient 1
    local = problem.take(chosen, DenseGram(gram), (values - image)[:, None])
    f = Iterate(alpha, image, alpha.new_ones(1))
    for _ in range(BLOCK_STEPS):
        values = local.values(f)
        gradient = f.coefficients + local.slope(values)
        image = gram @ gradient
        if bool((gradient * image).sum() <= 1e-20 * (1 + local.loss(values))):
            break
        # (I + WG)⁻¹ = I - √W (I + √W G √W)⁻¹ √W G
        to_alpha = CurvedRows(gram, local.curvature(values)).inner(image[:, None])[:, 0] - gradient
        step = Iterate(to_alpha, gram @ to_alpha, alpha.new_zeros(1))
        f = f.moved(step, local.line_search(f, step)[0])
    return f.coefficients
