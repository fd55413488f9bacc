"""Which files of the package execute a line during a call: a measure of how far one has to read.

`scenarios` are the calls that are watched, and `BEFORE` how many files they visited before the upper floors
were rebuilt.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import orbitwise
from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantSVC,
    SparseGPRegressor,
    estimators,
    save,
)
from tests.goldens.cases import DIGITS, IMAGES, LINE, NEW_IMAGES, TWO_CLASSES, WAVE, X, Y

for _each in estimators.__all__:
    getattr(estimators, _each)  # imported when first used, and decorated then
PACKAGE = Path(orbitwise.__file__).resolve().parent
BEFORE = {
    "classifier fit": 49,
    "classifier predict": 24,
    "svc fit": 38,
    "sparse fit": 41,
    "automatic search": 57,
    "save": 39,
}


def files_visited(call: Callable[[], object]) -> list[str]:
    """The files under src/orbitwise, relative to it, in which `call` runs a function.

    Lines that run while a module is imported do not count, so the order of calls does not matter.
    """
    names: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        # bodies of modules and classes are not optimised, and `__getattr__` of a package imports its parts
        is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
        if event == "call" and is_function and not frame.f_code.co_filename.endswith("__init__.py"):
            names.add(frame.f_code.co_filename)

    before = sys.gettrace()
    threading.settrace(watch)
    sys.settrace(watch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    finally:
        sys.settrace(before)
        threading.settrace(before)  # pyright: ignore[reportArgumentType]
    inside = (Path(name) for name in names if name.startswith(str(PACKAGE)))
    return sorted(path.relative_to(PACKAGE).as_posix() for path in inside)


def scenarios(folder: Path) -> dict[str, Callable[[], object]]:
    """The calls that are watched, by name; `save` writes into the folder, and needs the fit before it."""
    settings: dict[str, Any] = {"max_iterations": 2, "num_nodes": 4, "random_state": 0}
    classifier = InvariantGPClassifier(invariance="rotation", **settings)
    search = AutoGPRegressor(
        max_depth=1, base_kernels=["rbf"], invariances=["mirror[0]"], num_restarts=0, verbose=False
    )
    return {
        "classifier fit": lambda: classifier.fit(IMAGES, DIGITS),
        "classifier predict": lambda: classifier.predict(NEW_IMAGES),
        "svc fit": lambda: InvariantSVC().fit(X, TWO_CLASSES),
        "sparse fit": lambda: SparseGPRegressor(max_iterations=2).fit(X, Y),
        "automatic search": lambda: search.fit(LINE, WAVE),
        "save": lambda: save(classifier, folder / "model.orbitwise"),
    }
