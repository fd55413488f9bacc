"""Batch solvers of a regularised risk, and which one a problem gets.

Newton's method takes whole Gram matrices, for a batch of problems at once: folds, classes, a grid of λ and ν.
Newton-CG, and L-BFGS in function space, need products with the Gram matrix alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import final

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored
from orbitwise.inference.risk.coordinates import coordinate_descent, stochastic
from orbitwise.inference.risk.problem import RIDGE, DenseGram, Problem, Solution, Term, search

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


MEMORY = 20
FORCING = 0.1
"""Newton's equations are solved to this part of the gradient, and more exactly close to the optimum."""


@torch.no_grad()
def newton_cg(
    problem: Problem, start: Solution | None = None, tolerance: float = 1e-10, max_iterations: int = 500
) -> Solution:
    """Newton's method; each step by conjugate gradients. `max_iterations` counts products."""
    state = _State(problem, start)
    curvature = _Curvature(problem)
    while not state.is_done(tolerance) and state.products < max_iterations:
        curvature.at(state.values)
        # (I + HG)d = -r, self-adjoint in the inner product of the RKHS
        direction, image = torch.zeros_like(state.alpha), torch.zeros_like(state.alpha)
        residual, residual_image = -state.gradient, -state.gradient_image
        search_, search_image = residual.clone(), residual_image.clone()
        square = (residual * residual_image).sum()
        enough = square * min(FORCING, float(square.sqrt())) ** 2
        while square > enough and state.products < max_iterations:
            bent = search_ + curvature.product(search_image)
            step = square / (bent * search_image).sum()
            direction += step * search_
            image += step * search_image
            residual = residual - step * bent
            residual_image = state.multiply(residual)
            new = (residual * residual_image).sum().clamp_min(0)
            search_ = residual + new / square * search_
            search_image = residual_image + new / square * search_image
            square = new
        if not state.move(direction, image, curvature.follow(image)):
            break
    return state.solution(tolerance)


@torch.no_grad()
def lbfgs(
    problem: Problem, start: Solution | None = None, tolerance: float = 1e-10, max_iterations: int = 1000
) -> Solution:
    """L-BFGS with the inner products of the RKHS: one product an iteration."""
    state = _State(problem, start)
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
    for _ in range(max_iterations):
        if state.is_done(tolerance):
            break
        direction, image = state.gradient.clone(), state.gradient_image.clone()
        weights = []
        for _, step_image, change, change_image, inner in reversed(steps):
            weight = (direction * step_image).sum() / inner
            weights.append(weight)
            direction -= weight * change
            image -= weight * change_image
        if steps:
            step, step_image, change, change_image, inner = steps[-1]
            scale = inner / (change * change_image).sum()
            direction, image = scale * direction, scale * image
        for (step, step_image, change, _, inner), weight in zip(steps, reversed(weights), strict=True):
            more = weight - (change * image).sum() / inner
            direction += more * step
            image += more * step_image
        before = state.alpha, state.image, state.gradient, state.gradient_image
        if not state.move(-direction, -image):
            if not steps:
                break
            steps.clear()
            continue
        after = state.alpha, state.image, state.gradient, state.gradient_image
        step, step_image, change, change_image = (new - old for new, old in zip(after, before, strict=True))
        inner = (change * step_image).sum()
        if inner > 0:
            steps = [*steps[1 - MEMORY :], (step, step_image, change, change_image, inner)]
    return state.solution(tolerance)


@torch.no_grad()
def euclidean(
    problem: Problem,
    scaled: bool = True,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
) -> Solution:
    """scipy's L-BFGS on α itself, of rows scaled to norm 1 or as they are: two products an iteration."""
    scale = problem.gram.diagonal().clamp_min(1e-300).rsqrt() if scaled else torch.ones_like(problem.zeros())
    beta = problem.weights.new_zeros(problem.basis.shape[-1])
    count, history = 0, []

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal beta, count
        alpha = scale * torch.from_numpy(flat)
        image = problem.gram.product(alpha)
        beta = problem.best_beta(image, beta)
        values = image + problem.beta_rows(beta)
        gradient = problem.gram.product(alpha + problem.slope(values))
        count += 2
        value = 0.5 * float(alpha @ image) + float(problem.loss(values))
        history.append(value)
        return value, (scale * gradient).numpy()

    options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": MEMORY, "gtol": 0.0}
    result = minimize(
        objective,
        problem.zeros().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={**options, "ftol": 0.01 * tolerance},
    )
    alpha = scale * torch.from_numpy(result.x)
    return problem.certified(
        alpha, problem.gram.product(alpha), beta, result.nit, count + 1, tolerance, history
    )


@final
class _State:
    """f with its image Gα, β at its best, and the gradient with its image."""

    def __init__(self, problem: Problem, start: Solution | None) -> None:
        if problem.batch_shape:
            raise ValueError("Matrix-free solvers take one problem at a time, not a batch.")
        self.problem = problem
        self.products = 0
        self.iterations = 0
        self.history: list[float] = []
        zeros = problem.zeros()
        self.alpha = zeros if start is None else start.coefficients.clone()
        self.beta = zeros.new_zeros(problem.basis.shape[-1]) if start is None else start.beta
        self.image = zeros if start is None else self.multiply(self.alpha)
        self._refresh()

    def multiply(self, vector: Tensor) -> Tensor:
        """Gv, counted."""
        self.products += 1
        return self.problem.gram.product(vector)

    def is_done(self, tolerance: float) -> bool:
        """Whether the gap is small enough."""
        return bool(0.5 * (self.gradient * self.gradient_image).sum() <= tolerance * self.risk.abs())

    def move(self, direction: Tensor, image: Tensor, to_beta: Tensor | None = None) -> bool:
        """Go along a direction as far as pays; False where nothing is left to gain."""
        to_values = image if to_beta is None else image + self.problem.beta_rows(to_beta)
        linear, square = (direction * self.image).sum(), (direction * image).sum()
        size, first = search(self.problem, self.values, to_values, linear, square)
        if not bool(first < 0):
            return False
        old = self.alpha, self.image, self.beta, self.risk
        self.alpha = self.alpha + size * direction
        self.image = self.image + size * image
        self.beta = self.beta if to_beta is None else self.beta + size * to_beta
        self.iterations += 1
        self._refresh()
        if bool(self.risk < old[3]):
            return True
        self.alpha, self.image, self.beta, _ = old
        self._refresh()
        return False

    def solution(self, tolerance: float) -> Solution:
        """The state with its certificate, from a fresh image."""
        image = self.multiply(self.alpha)
        return self.problem.certified(
            self.alpha, image, self.beta, self.iterations, self.products, tolerance, self.history
        )

    def _refresh(self) -> None:
        problem = self.problem
        self.beta = problem.best_beta(self.image, self.beta)
        self.values = self.image + problem.beta_rows(self.beta)
        self.risk = 0.5 * (self.alpha * self.image).sum() + problem.loss(self.values)
        self.gradient = self.alpha + problem.slope(self.values)
        self.gradient_image = self.multiply(self.gradient)
        self.history.append(float(self.risk))


@final
class _Curvature:
    """H, the losses' second derivative, less what a β that follows takes away: H - HB(BᵀHB)⁻¹BᵀH."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def at(self, values: Tensor) -> None:
        """Remember where."""
        self.values, basis = values, self.problem.basis
        columns = [self.problem.curvature_product(values, basis[:, j]) for j in range(basis.shape[-1])]
        self.bent = torch.stack(columns, -1) if columns else basis
        ridge = RIDGE * self.problem.weights.sum()
        identity = torch.eye(basis.shape[-1], dtype=basis.dtype, device=basis.device)
        self.normal = basis.mT @ self.bent + ridge * identity

    def follow(self, image: Tensor) -> Tensor:
        """How β moves with f."""
        return -torch.linalg.solve(self.normal, self.bent.mT @ image)

    def product(self, image: Tensor) -> Tensor:
        """The second derivative times a direction with this image."""
        return self.problem.curvature_product(self.values, image) + self.bent @ self.follow(image)


SOLVERS = ("auto", "newton", "lbfgs", "newton_cg", "random", "steepest", "stochastic")


def solve(
    problem: Problem,
    solver: str = "auto",
    start: Solution | None = None,
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> Solution:
    """The least risk. "auto" is Newton's method where the Gram matrix is held whole, else L-BFGS.

    Newton's method is quickest by far on whole matrices; of those that take products alone, L-BFGS in
    function space needs the fewest. "random" and "steepest" grow a set of coordinates, "stochastic" is for
    more rows than products of all of them can be afforded. `start` warms the batch solvers.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
    if solver == "auto":
        whole = isinstance(problem.gram, DenseGram) and not problem.is_coupled
        solver = "newton" if whole else "lbfgs"
    if solver == "newton":
        return newton(problem, start, tolerance)
    if solver == "lbfgs":
        return lbfgs(problem, start, tolerance)
    if solver == "newton_cg":
        return newton_cg(problem, start, tolerance)
    if solver == "stochastic":
        return stochastic(problem, tolerance=tolerance, generator=generator)
    order = "steepest" if solver == "steepest" else "random"
    return coordinate_descent(problem, order, tolerance=tolerance, generator=generator)


def path(
    problem: Callable[[float], Problem],
    strengths: Iterable[float],
    solver: str = "auto",
    tolerance: float = 1e-8,
) -> Iterator[Solution]:
    """The solutions for one strength after the other, each from where the last one ended."""
    solution = None
    for strength in strengths:
        solution = solve(problem(strength), solver, solution, tolerance)
        yield solution
