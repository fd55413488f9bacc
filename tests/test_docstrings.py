"""Examples in docstrings run, public names are described, and docstrings list the parameters there are."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import orbitwise
from orbitwise import estimators

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(orbitwise.__path__, "orbitwise.")
    if ".cli" not in each.name and ".experiments" not in each.name
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OURS = [getattr(estimators, name) for name in estimators.__all__ if name != "DecimalYears"]
OURS += [orbitwise.AutoGPRegressor]
CLASSES = [each for each in OURS if inspect.isclass(each)]


def examples(name: str) -> list[doctest.DocTest]:
    """The examples in one module's docstrings."""
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return [each for each in found if each.examples]


@pytest.mark.parametrize("name", [name for name in MODULES if examples(name)])
def test_examples_run(name):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    said: list[str] = []
    for each in examples(name):
        runner.run(each, out=said.append)
    assert not runner.failures, "".join(said)


def listed(documented: object, section: str) -> list[str]:
    """The names that a section of a numpydoc docstring describes."""
    text = inspect.getdoc(documented) or ""
    found = re.search(rf"^{section}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, flags=re.M | re.S)
    return [] if found is None else re.findall(r"^\*{0,2}(\w+)(?: :|$)", found[1], flags=re.M)


@pytest.mark.parametrize("estimator", OURS, ids=lambda each: each.__name__)
def test_estimators_describe_each_parameter_in_order(estimator):
    assert listed(estimator, "Parameters") == list(inspect.signature(estimator).parameters)


@pytest.mark.parametrize("estimator", CLASSES, ids=lambda each: each.__name__)
def test_estimators_describe_attributes_one_by_one_and_show_an_example(estimator):
    attributes = listed(estimator, "Attributes")
    assert len(attributes) == len(set(attributes)) > 3
    assert all(name.endswith("_") for name in attributes)
    assert ">>> " in (inspect.getdoc(estimator) or "")
