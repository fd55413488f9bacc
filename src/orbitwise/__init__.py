"""Orbitwise learns what a function should not care about.

`transforms` move inputs, `orbits` say which moves and how far, `functionals` say what is observed of the
base process g, `process` gives the moments of any functional, `likelihoods` and `losses` meet the data,
`inference` turns it all into a posterior, `estimators` serve scikit-learn users, `selection` compares,
`export` hands learned orbits back, `storage` keeps models, `report` shows what was learned.
"""

from orbitwise import (
    datasets,
    export,
    functionals,
    inference,
    kernels,
    likelihoods,
    losses,
    orbits,
    process,
    report,
    selection,
    storage,
    transforms,
)
from orbitwise.estimators import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
)
from orbitwise.selection import AutoGPRegressor, compare
from orbitwise.storage import load, save

__version__ = "0.1.0"

__all__ = [
    "AutoGPRegressor",
    "InvariantGPClassifier",
    "InvariantGPRegressor",
    "InvariantKernelRidge",
    "InvariantSVC",
    "LaplacianSVC",
    "SparseGPRegressor",
    "VirtualSVC",
    "compare",
    "datasets",
    "export",
    "functionals",
    "inference",
    "kernels",
    "likelihoods",
    "load",
    "losses",
    "orbits",
    "process",
    "report",
    "save",
    "selection",
    "storage",
    "transforms",
]
