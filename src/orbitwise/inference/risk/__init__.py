"""Regularised risk over an RKHS with rows of labels and of functionals: problems, solvers, certificates."""

from orbitwise.inference.risk.coordinates import coordinate_descent, stochastic
from orbitwise.inference.risk.problem import CopiedGram, DenseGram, Gram, Problem, ProductGram, Solution, Term
from orbitwise.inference.risk.solvers import euclidean, lbfgs, newton, newton_cg, path, solve

__all__ = [
    "CopiedGram",
    "DenseGram",
    "Gram",
    "Problem",
    "ProductGram",
    "Solution",
    "Term",
    "coordinate_descent",
    "euclidean",
    "lbfgs",
    "newton",
    "newton_cg",
    "path",
    "solve",
    "stochastic",
]
