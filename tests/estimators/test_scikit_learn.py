"""Importing an estimator must not bring along what fits may never need."""

import importlib
import subprocess
import sys

import pytest

from orbitwise.estimators.scikit_learn import Postponed, import_base

LOADED = """
import sys
from orbitwise import InvariantGPClassifier, InvariantGPRegressor, InvariantSVC

heavy = {
    *("scipy.stats", "scipy.optimize", "pandas", "matplotlib", "rich"),
    *("sklearn.metrics", "sklearn.model_selection", "sklearn.svm"),
}
print(sorted(heavy & set(sys.modules)))
"""

USED = """
import sys
import orbitwise.estimators
import pandas
import scipy
from sklearn.base import BaseEstimator
from sklearn.utils import fixes

print(fixes._mode([1, 2, 2]).mode.item(), fixes.pd.DataFrame is pandas.DataFrame)
print(scipy.stats is sys.modules["scipy.stats"], type(scipy.stats).__name__)
"""


def printed(program: str) -> list[str]:
    """The lines that a new process prints."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_importing_estimators_postpones_what_takes_long():
    assert printed(LOADED) == ["[]"]


def test_scikit_learn_gets_what_was_postponed_when_it_asks():
    pytest.importorskip("pandas")
    assert printed(USED) == ["2 True", "True module"]


def test_a_stand_in_imports_what_it_stands_for(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    stand_in = Postponed("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", stand_in)
    assert stand_in.rgb_to_hsv(1.0, 0.0, 0.0) == (0.0, 1.0, 1.0)
    assert sys.modules["colorsys"] is not stand_in
    with pytest.raises(AttributeError, match="nothing"):
        stand_in.nothing  # noqa: B018


def test_no_stand_in_stays_behind_if_scikit_learn_cannot_be_imported(monkeypatch):
    real = importlib.import_module

    def broken(name: str):
        if name == "sklearn.base":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("orbitwise.estimators.scikit_learn.importlib.import_module", broken)
    monkeypatch.setattr("orbitwise.estimators.scikit_learn.POSTPONED", ("colorsys",))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ImportError, match=r"sklearn\.base"):
        import_base()
    assert "colorsys" not in sys.modules
