"""Means over seeds of the numbers of cells that are named "model, …, seed k"."""

from __future__ import annotations

import math

import numpy as np

from orbitwise.reproduce.result import Cells, Numbers


def over_seeds(cells: Cells, group: str) -> list[Numbers]:
    """The cells "group, seed k", in the order of their seeds."""
    return [numbers for name, numbers in cells.items() if name.rpartition(", seed ")[0] == group]


def values_of(cells: Cells, group: str, key: str) -> list[float]:
    """One number of the cells "group, seed k"."""
    found = [float(each[key]) for each in over_seeds(cells, group)]
    if not found:
        raise KeyError(f"there is no cell {group!r} with a seed")
    return found


def mean_of(cells: Cells, group: str, key: str) -> float:
    """The mean over seeds."""
    return float(np.mean(values_of(cells, group, key)))


def error_of(cells: Cells, group: str, key: str) -> float:
    """The standard error of the mean over seeds; infinite for one seed."""
    values = values_of(cells, group, key)
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
