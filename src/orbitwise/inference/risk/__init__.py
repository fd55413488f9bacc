"""Regularised risk over an RKHS with rows of labels and of functionals: problems, solvers, certificates."""

from orbitwise.inference.risk.iterative import coordinate_descent, lbfgs, newton_cg, stochastic
from orbitwise.inference.risk.machines import solve
from orbitwise.inference.risk.problem import (
    CopiedGram,
    DenseGram,
    Gram,
    Problem,
    ProductGram,
    Solution,
    Term,
    newton,
)

__all__ = [
    "CopiedGram",
    "DenseGram",
    "Gram",
    "Problem",
    "ProductGram",
    "Solution",
    "Term",
    "coordinate_descent",
    "lbfgs",
    "newton",
    "newton_cg",
    "solve",
    "stochastic",
]
