"""Regularised risk over an RKHS with rows of labels and of functionals: problems, solvers, certificates."""

from orbitwise.inference.risk.coordinates import coordinate_descent
from orbitwise.inference.risk.grams import CopiedGram, DenseGram, Gram, ProductGram
from orbitwise.inference.risk.iterative import euclidean, lbfgs, newton_cg
from orbitwise.inference.risk.newton import newton
from orbitwise.inference.risk.problem import Problem, Solution, Term
from orbitwise.inference.risk.solving import path, solve
from orbitwise.inference.risk.stochastic import stochastic

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
