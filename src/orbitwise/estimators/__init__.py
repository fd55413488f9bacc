"""Estimators that follow scikit-learn to the letter."""

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.regressor import InvariantGPRegressor

__all__ = ["InvariantGPClassifier", "InvariantGPRegressor"]
