"""Estimators that follow scikit-learn to the letter; each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

from orbitwise.estimators.scikit_learn import import_base

if TYPE_CHECKING:
    from orbitwise.estimators.classifier import InvariantGPClassifier
    from orbitwise.estimators.dates import DecimalYears
    from orbitwise.estimators.kernel_ridge import InvariantKernelRidge
    from orbitwise.estimators.laplacian import LaplacianSVC
    from orbitwise.estimators.molecules import MoleculeGP
    from orbitwise.estimators.predicting import predict_in_blocks
    from orbitwise.estimators.regressor import InvariantGPRegressor
    from orbitwise.estimators.sparse_regressor import SparseGPRegressor
    from orbitwise.estimators.svc import InvariantSVC
    from orbitwise.estimators.virtual import VirtualSVC

__all__ = [
    "DecimalYears",
    "InvariantGPClassifier",
    "InvariantGPRegressor",
    "InvariantKernelRidge",
    "InvariantSVC",
    "LaplacianSVC",
    "MoleculeGP",
    "SparseGPRegressor",
    "VirtualSVC",
    "predict_in_blocks",
]

_MODULES = {
    "DecimalYears": "dates",
    "InvariantGPClassifier": "classifier",
    "InvariantGPRegressor": "regressor",
    "InvariantKernelRidge": "kernel_ridge",
    "InvariantSVC": "svc",
    "LaplacianSVC": "laplacian",
    "MoleculeGP": "molecules",
    "SparseGPRegressor": "sparse_regressor",
    "VirtualSVC": "virtual",
    "predict_in_blocks": "predicting",
}


import_base()


def __getattr__(name: str) -> object:
    """Import an estimator on its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
