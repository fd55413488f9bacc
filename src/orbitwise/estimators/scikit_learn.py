"""Importing scikit-learn's base class without scipy.stats and pandas, which take longer than all the rest.

`sklearn.base` imports both for functions that are rarely called. While it is imported, stand-ins take their
places. They import what they stand for when one of its attributes is first asked for, and so lose nothing.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import final

POSTPONED = ("scipy.stats", "pandas")


@final
class Postponed(ModuleType):
    """A module that is imported when one of its attributes is first asked for."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_base() -> None:
    """Import `sklearn.base`; what it postpones is imported in full by the next `import` that names it."""
    stand_ins = {
        name: Postponed(name)
        for name in POSTPONED
        if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None
    }
    sys.modules.update(stand_ins)
    try:
        importlib.import_module("sklearn.base")
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
