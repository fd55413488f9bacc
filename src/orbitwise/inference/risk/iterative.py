"""Batch solvers that need products with the Gram matrix alone: Newton-CG, and L-BFGS in function space.

Inner products are those of the RKHS, ⟨Σα_i z_i, Σγ_i z_i⟩ = αᵀGγ, in which the gradient of the risk is
r = α + wℓ′ whatever the scaling of the rows. Every iteration costs one product, Gr: images of directions are
combined from images that are known. β is always at its best, so that |r|²/2 bounds what is left to gain.
`euclidean` is the plain L-BFGS of the paper, in the coordinates α, for comparison.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from orbitwise.inference.risk.line_search import search
from orbitwise.inference.risk.problem import RIDGE, Problem, Solution

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
