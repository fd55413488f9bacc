"""Selection: compare invariances by evidence."""

from orbitwise.selection.compare import Candidate, Comparison, compare

__all__ = ["Candidate", "Comparison", "compare"]
