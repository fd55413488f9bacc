"""Kernel search: sums and products of kernels, and what f does not care about, chosen by evidence."""

from orbitwise.selection.search.auto import AutoGPRegressor, Component

__all__ = ["AutoGPRegressor", "Component"]
