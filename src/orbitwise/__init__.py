"""Orbitwise learns what a function should not care about.

`transforms` move inputs, `orbits` say which moves and how far, `functionals` say what is observed of the
base process g, `process` gives the moments of any functional, `likelihoods` and `losses` meet the data,
`inference` turns it all into a posterior, `estimators` serve scikit-learn users, `selection` compares,
`export` hands learned orbits back, `storage` keeps models, `report` shows what was learned.

Every name is imported when it is first used, so that `import orbitwise` and the help of the command are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitwise import (
        datasets,
        estimators,
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
        DecimalYears,
        InvariantGPClassifier,
        InvariantGPRegressor,
        InvariantKernelRidge,
        InvariantSVC,
        LaplacianSVC,
        MoleculeGP,
        SparseGPRegressor,
        VirtualSVC,
    )
    from orbitwise.estimators.sharing import one_process
    from orbitwise.selection import AutoGPRegressor, compare
    from orbitwise.storage import load, save

__version__ = "0.1.0"

__all__ = [
    "AutoGPRegressor",
    "DecimalYears",
    "InvariantGPClassifier",
    "InvariantGPRegressor",
    "InvariantKernelRidge",
    "InvariantSVC",
    "LaplacianSVC",
    "MoleculeGP",
    "SparseGPRegressor",
    "VirtualSVC",
    "compare",
    "datasets",
    "estimators",
    "export",
    "functionals",
    "inference",
    "kernels",
    "likelihoods",
    "load",
    "losses",
    "one_process",
    "orbits",
    "process",
    "report",
    "save",
    "selection",
    "storage",
    "transforms",
]

_HOMES = {
    "AutoGPRegressor": "selection",
    "compare": "selection",
    "load": "storage",
    "one_process": "estimators.sharing",
    "save": "storage",
}
"""Where public functions and classes are, if not in `estimators`."""


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES or name[0].isupper():
        found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'estimators')}"), name)
    else:
        found = import_module(f"{__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
