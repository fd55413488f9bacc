"""The evidence of labels given the invariances, for choosing λ, ν and the kernel without cross-validation.

Squared losses are Gaussian observations, including those of L_i f = 0, so the machine is a GP. Invariances
are folded into the kernel K̃ first, which makes the evidence the conditional log p(y | Lf = 0) = log p(y, 0)
- log p(0); the joint one grows without bound with ν (METHOD 8). The unpenalised basis is integrated out under
a flat prior, which gives the restricted likelihood: the density of contrasts of the targets that do not
depend on the basis.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.inference.linear_algebra import log_determinant
from orbitwise.inference.risk.problem import CurvedRows, DenseGram, Problem, Term, newton
from orbitwise.losses import Logistic


@final
class SquaredEvidence:
    """log p(contrasts of y | λ) for y = f + Bβ + noise, f ~ N(0, s²K̃), noise variance s²/(2λw).

    One eigendecomposition of K̃ for the contrasts serves every λ. Unless it is given, the scale s² is optimal
    for each λ; it changes neither predictions nor the meaning of λ and ν. Several outputs share everything
    but s².
    """

    def __init__(
        self,
        gram: Float[Tensor, "n n"],
        targets: Float[Tensor, "n c"],
        basis: Float[Tensor, "n b"],
        weights: Float[Tensor, " n"],
    ) -> None:
        count, width = basis.shape
        if count <= width:
            raise ValueError(
                f"{count} targets are too few for {width} unpenalised basis functions: there must be more "
                "targets."
            )
        root = weights.sqrt()
        full = (
            torch.linalg.qr(root[:, None] * basis, mode="complete").Q if width else torch.eye(count).to(gram)
        )
        self.contrasts = full[:, width:]
        matrix = self.contrasts.mT @ (root[:, None] * gram * root) @ self.contrasts
        spread, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.mT))
        self.spread = spread.clamp_min(0)
        self.squares = (vectors.mT @ (self.contrasts.mT @ (root[:, None] * targets))).square()
        self.jacobian = float(weights.log().sum()) / 2

    def best_scale(self, rates: Float[Tensor, " r"]) -> Float[Tensor, "r c"]:
        """The s² with the greatest evidence, for every λ and output."""
        variances = self.spread + 0.5 / rates[:, None]
        least = torch.finfo(variances.dtype).tiny
        return ((1 / variances) @ self.squares / len(self.spread)).clamp_min(least)

    def __call__(self, rates: Float[Tensor, " r"], scale: float | None = None) -> Float[Tensor, " r"]:
        """The log evidence for every λ, summed over outputs."""
        variances = self.spread + 0.5 / rates[:, None]
        scales = self.best_scale(rates) if scale is None else torch.full_like(self.best_scale(rates), scale)
        fit = (1 / variances) @ self.squares / scales
        count = len(self.spread)
        spread = variances.log().sum(-1)[:, None] + count * (2 * math.pi * scales).log()
        return (-0.5 * (fit + spread) + self.jacobian).sum(-1)


def laplace_evidence(
    gram: Float[Tensor, "*#batch n n"],
    labels: Float[Tensor, "*#batch n"],
    basis: Float[Tensor, "n b"],
    rates: Float[Tensor, "*#batch n"],
) -> Float[Tensor, "*batch"]:
    """Laplace's approximation of log p(y | λ) for logistic labels, for a batch of kernels and λ at once.

    The machine with λ times the logistic loss is the mode of a GP with the kernel λK̃ and the likelihood
    σ(yf), whose invariances are observed with noise λ/(2ν). `rates` are λ times the weights of rows; their
    mean is taken as λ. Here the basis has the prior variance of f, because under a flat prior the evidence of
    separable classes would grow with λ without limit.
    """
    spread = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * (basis @ basis.mT)
    gram = gram + spread / basis.square().mean().clamp_min(1e-300) if basis.shape[-1] else gram
    problem = Problem(DenseGram(gram), [Term(Logistic(), labels, rates)])
    solution = newton(problem)
    # in units of the GP: values as they are, |f|² over λ, losses once; λ cancels in √W λK̃ √W
    system = CurvedRows(gram, problem.curvature(solution.values))
    return -solution.objective / rates.mean(-1) - 0.5 * log_determinant(system.lower)
