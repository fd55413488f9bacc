"""The regularised risk ½|f|² + Σ_i w_i ℓ_i(L_i f + b_iᵀβ, y_i) over an RKHS (METHOD 8, RKHS eq. 2).

Labels and functionals are rows alike. By the representer theorem f = Σ_i α_i z_i with the representers z_i
of the rows, whose Gram matrix is G: then |f|² = αᵀGα and L f = Gα. β are coefficients of an unpenalised
finite basis, b_i its functional of row i. Vectors [*batch, m] have the rows last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.inference.risk.grams import Gram
from orbitwise.losses import Loss, Multinomial

Vector = Float[Tensor, "*batch m"]
RIDGE = 1e-6
"""How flat, of the weights' sum, the risk may be along β before β stops moving that way."""
BETA_STEPS = 50


@dataclass(frozen=True)
class Term:
    """Some rows with one loss: their targets, and how often each row counts (λ or ν times its weight)."""

    loss: Loss
    targets: Float[Tensor, "*#batch r"]
    weights: Float[Tensor, "*#batch r"]

    @property
    def num_rows(self) -> int:
        """r."""
        return self.targets.shape[-1]


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: α, β, the values Gα + Bβ, and how far from the optimum it can be.

    With β at its best the risk is strongly convex in f, so `gap` = ½|gradient|² in the norm of the RKHS
    bounds its distance from the least risk. `history` has the risk after every iteration.
    """

    coefficients: Vector
    beta: Float[Tensor, "*batch b"]
    values: Vector
    objective: Float[Tensor, "*batch"]
    gap: Float[Tensor, "*batch"]
    iterations: int
    products: int
    converged: bool
    history: list[float]


@final
class Problem:
    """A Gram matrix (or its products), the terms in the order of its rows, and the basis at the rows."""

    def __init__(self, gram: Gram, terms: Sequence[Term], basis: Float[Tensor, "m b"] | None = None) -> None:
        self.gram = gram
        self.terms = list(terms)
        count = sum(term.num_rows for term in terms)
        if count != gram.num_rows:
            raise ValueError(f"The terms have {count} rows together, but the Gram matrix {gram.num_rows}.")
        example = self.terms[0].targets
        self.basis = example.new_zeros(count, 0) if basis is None else basis
        shapes = [term.targets.shape[:-1] for term in self.terms]
        shapes += [term.weights.shape[:-1] for term in self.terms]
        self.batch_shape = torch.broadcast_shapes(gram.batch_shape, *shapes)
        self.weights = torch.cat(
            [term.weights.expand(*self.batch_shape, term.num_rows) for term in self.terms], -1
        )
        if not bool((self.weights >= 0).all()) or not bool(self.weights.isfinite().all()):
            raise ValueError("Weights of losses must be finite and at least 0.")

    def take(self, index: Int[Tensor, " k"], gram: Gram) -> Problem:
        """The losses of some rows, by sorted numbers, with another Gram matrix and without a basis."""
        terms, first = [], 0
        for term in self.terms:
            last = first + term.num_rows
            place = index[(index >= first) & (index < last)] - first
            weights = term.weights.expand(*term.weights.shape[:-1], term.num_rows)
            terms.append(Term(term.loss, term.targets[..., place], weights[..., place]))
            first = last
        return Problem(gram, terms)

    def lightened(self, most: float) -> Problem:
        """Every problem with weights that are, times the norms of the rows, at most `most`."""
        heaviest = (self.weights * self.gram.diagonal()).amax(-1, keepdim=True)
        factor = (most / heaviest.clamp_min(1e-300)).clamp_max(1)
        terms = [Term(term.loss, term.targets, factor * term.weights) for term in self.terms]
        return Problem(self.gram, terms, self.basis)

    @property
    def is_coupled(self) -> bool:
        """Whether a loss has a second derivative that is not diagonal."""
        return any(isinstance(term.loss, Multinomial) for term in self.terms)

    @property
    def curvature_bounds(self) -> Vector:
        """The largest second derivative of every row's loss."""
        bounds = [term.weights * term.loss.curvature_bound for term in self.terms]
        return torch.cat([part.expand(*self.batch_shape, part.shape[-1]) for part in bounds], -1)

    def zeros(self) -> Vector:
        """f = 0."""
        return self.weights.new_zeros(*self.batch_shape, self.gram.num_rows)

    def loss(self, values: Vector) -> Float[Tensor, "*batch"]:
        """Σ_i w_i ℓ_i."""
        parts = self._parts(values)
        return sum((t.weights * t.loss.value(f, t.targets)).sum(-1) for t, f in parts)  # pyright: ignore

    def slope(self, values: Vector) -> Vector:
        """w_i ℓ_i′."""
        return torch.cat([t.weights * t.loss.slope(f, t.targets) for t, f in self._parts(values)], -1)

    def curvature(self, values: Vector) -> Vector:
        """w_i ℓ_i″."""
        return torch.cat([t.weights * t.loss.curvature(f, t.targets) for t, f in self._parts(values)], -1)

    def curvature_product(self, values: Vector, direction: Float[Tensor, "*#batch m"]) -> Vector:
        """The second derivative of the losses, by the values, times a direction."""
        parts = zip(self._parts(values), self._split(direction), strict=True)
        return torch.cat(
            [t.weights * t.loss.curvature_product(f, t.targets, move) for (t, f), move in parts], -1
        )

    def beta_rows(self, beta: Float[Tensor, "*batch b"]) -> Vector:
        """Bβ."""
        return beta @ self.basis.mT

    def best_beta(self, images: Vector, beta: Float[Tensor, "*batch b"]) -> Float[Tensor, "*batch b"]:
        """β of the least risk for an f with these values Gα, by Newton's method with halved steps."""
        if self.basis.shape[-1] == 0:
            return beta
        ridge = RIDGE * self.weights.sum(-1)[..., None, None]
        identity = torch.eye(self.basis.shape[-1], dtype=beta.dtype, device=beta.device)
        loss = self.loss(images + self.beta_rows(beta))
        for _ in range(BETA_STEPS):
            values = images + self.beta_rows(beta)
            slope = self.slope(values) @ self.basis
            columns = [self.curvature_product(values, self.basis[:, j]) for j in range(len(identity))]
            hessian = torch.stack([column @ self.basis for column in columns], -1)
            step = -torch.linalg.solve(hessian + ridge * identity, slope)
            if bool(((slope * step).sum(-1).abs() <= 1e-14 * loss.abs()).all()):
                break
            size = torch.ones_like(loss)
            for _ in range(30):
                tried = self.loss(images + self.beta_rows(beta + size[..., None] * step))
                worse = tried > loss
                if not bool(worse.any()):
                    break
                size = torch.where(worse, size / 2, size)
            better = tried < loss  # pyright: ignore
            if not bool(better.any()):
                break
            beta = torch.where(better[..., None], beta + size[..., None] * step, beta)
            loss = torch.where(better, tried, loss)  # pyright: ignore
        return beta

    def certified(
        self,
        coefficients: Vector,
        images: Vector,
        beta: Float[Tensor, "*batch b"],
        iterations: int,
        products: int,
        tolerance: float,
        history: list[float],
    ) -> Solution:
        """The solution at α with its images Gα, β at its best, and its distance from the least risk."""
        beta = self.best_beta(images, beta)
        values = images + self.beta_rows(beta)
        objective = 0.5 * (coefficients * images).sum(-1) + self.loss(values)
        gradient = coefficients + self.slope(values)
        gap = 0.5 * (gradient * self.gram.product(gradient)).sum(-1).clamp_min(0)
        converged = bool((gap <= tolerance * objective.abs().clamp_min(1e-300)).all())
        return Solution(
            coefficients, beta, values, objective, gap, iterations, products + 1, converged, history
        )

    def _split(self, vector: Vector) -> tuple[Tensor, ...]:
        return torch.split(vector, [term.num_rows for term in self.terms], -1)

    def _parts(self, values: Vector) -> list[tuple[Term, Tensor]]:
        return list(zip(self.terms, self._split(values), strict=True))
