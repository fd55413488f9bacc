"""Selection: compare invariances by evidence, and search for kernels."""

from orbitwise.selection.compare import Candidate, Comparison, compare
from orbitwise.selection.search import AutoGPRegressor

__all__ = ["AutoGPRegressor", "Candidate", "Comparison", "compare"]
