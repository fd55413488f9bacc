"""Estimators that follow scikit-learn to the letter."""

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.sparse_regressor import SparseGPRegressor

__all__ = ["InvariantGPClassifier", "InvariantGPRegressor", "SparseGPRegressor"]
