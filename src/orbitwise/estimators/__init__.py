"""Estimators that follow scikit-learn to the letter."""

from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.kernel_ridge import InvariantKernelRidge
from orbitwise.estimators.laplacian import LaplacianSVC
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.estimators.virtual import VirtualSVC

__all__ = [
    "InvariantGPClassifier",
    "InvariantGPRegressor",
    "InvariantKernelRidge",
    "InvariantSVC",
    "LaplacianSVC",
    "SparseGPRegressor",
    "VirtualSVC",
]
