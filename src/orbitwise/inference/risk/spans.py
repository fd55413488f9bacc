"""Functions Σ_j α_j k(p_j, ·) of given points P, and quadratic penalties folded into the kernel among them.

A penalty ν αᵀMα gives k̃(X, X′) = k(X, P)(K + 2νM)⁻¹k(P, X′). That is exact for penalties of values at P, such
as smoothness over a graph of these points, where M = KLK. For slopes and other functionals it is the best
approximation among fewer functions (Galerkin's method): t³ operations for t points, however many rows there
are. In an orthonormal basis φ of the functions, with values V at P, it is V(I + 2νQ)⁻¹Vᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise.inference.linear_algebra import cholesky, solve_factored, solve_lower

LEAST_VARIANCE = 1e-8
"""Functions with less variance than this, relative to the largest, are left out if slopes are penalised."""


@final
class Span:
    """The values V of an orthonormal basis at the points P, its coefficients, and the penalty Q of the basis.

    `coefficients_of` turns coefficients of the basis into the α of k(p_j, ·).
    """

    def __init__(
        self,
        values: Float[Tensor, "t r"],
        coefficients_of: Callable[[Tensor], Tensor],
        penalty: Float[Tensor, "r r"],
    ) -> None:
        self.values, self.coefficients_of, self.penalty = values, coefficients_of, penalty

    @classmethod
    @torch.no_grad()
    def of_values(cls, gram: Float[Tensor, "t t"], laplacian: Tensor) -> Span:
        """The penalty fᵀLf of values at P, for a dense or sparse L: K = GGᵀ, V = G, Q = GᵀLG."""
        lower = cholesky(gram).lower
        penalty = lower.mT @ (laplacian @ lower)
        return cls(
            lower,
            lambda c: torch.linalg.solve_triangular(lower.mT, c, upper=True),
            (penalty + penalty.mT) / 2,
        )

    @classmethod
    @torch.no_grad()
    def of_rows(cls, gram: Float[Tensor, "t t"], rows: Tensor | Iterable[Float[Tensor, "_ t"]]) -> Span:
        """The penalty |k_L(P)ᵀα|² of functionals, from M or from parts of the rows of k_L(P).

        With K = UΛUᵀ, V = UΛ^½ and Q = Λ^-½UᵀMUΛ^-½. Functions of hardly any variance are left out, because
        their penalty would be rounding.
        """
        variances, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
        kept = variances > LEAST_VARIANCE * variances[-1]
        roots, vectors = variances[kept].sqrt(), vectors[:, kept]
        inverse = vectors / roots
        if isinstance(rows, Tensor):
            penalty = inverse.mT @ rows @ inverse
        else:
            penalty = torch.zeros(len(roots), len(roots)).to(gram)
            for part in rows:
                seen = part @ inverse
                penalty.addmm_(seen.mT, seen)
        return cls(vectors * roots, lambda c: inverse @ c, (penalty + penalty.mT) / 2)

    @torch.no_grad()
    def fold(
        self, strength: float, places: Int[Tensor, " n"], everywhere: bool = True
    ) -> Float[Tensor, "t n"]:
        """k̃ of all points, or of the labelled ones only, with the labelled points, given by their places."""
        lower = self._factor(strength)
        # V(I + 2νQ)⁻¹Vᵀ = (H⁻¹Vᵀ)ᵀ(H⁻¹Vᵀ), HHᵀ = I + 2νQ
        right = solve_lower(lower, self.values[places].mT)
        if not everywhere:
            return right.mT @ right
        return self.values @ torch.linalg.solve_triangular(lower.mT, right, upper=True)

    @torch.no_grad()
    def coefficients(
        self, strength: float, places: Int[Tensor, " n"], labels: Float[Tensor, "n c"]
    ) -> Float[Tensor, "t c"]:
        """The α of all points with which Σ_j α_j k(p_j, ·) = Σ_i a_i k̃(x_i, ·)."""
        return self.coefficients_of(solve_factored(self._factor(strength), self.values[places].mT @ labels))

    def _factor(self, strength: float) -> Tensor:
        system = 2 * strength * self.penalty
        system.diagonal().add_(1)
        return cholesky(system).lower
