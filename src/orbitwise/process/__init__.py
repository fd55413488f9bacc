"""The base process g, one covariance for all its functionals, and unbiased reductions of drawn ones."""

from orbitwise.process.functional_kernel import FunctionalKernel
from orbitwise.process.process import Process, Rows
from orbitwise.process.unbiased import group_sums, pair_factors, reduce_quadratic, unbiased_variance

__all__ = [
    "FunctionalKernel",
    "Process",
    "Rows",
    "group_sums",
    "pair_factors",
    "reduce_quadratic",
    "unbiased_variance",
]
