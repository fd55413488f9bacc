"""What a file tells of its model: written with its types, and read only with them."""

from typing import Any

import numpy as np
import pytest

from orbitwise import InvariantGPRegressor, InvariantSVC, VirtualSVC
from orbitwise.storage import StorageError
from orbitwise.storage.models import SUMMARY, summary_in, summary_of, take_apart

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(10, 2))
TWO = (X[:, 0] > 0).astype(int)
MODELS: list[Any] = [
    InvariantGPRegressor(max_iterations=0, random_state=0).fit(X, X[:, 0]),
    InvariantSVC(C=1.0).fit(X, TWO),
    VirtualSVC().fit(X, TWO),
]


def structure_of(model: Any) -> dict[str, Any]:
    return {**take_apart(model)[0], "versions": {"orbitwise": "1"}}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_summary_comes_back(model: Any):
    about = summary_in(structure_of(model))
    np.testing.assert_equal({key: about[key] for key in summary_of(model)}, summary_of(model))
    assert set(SUMMARY) <= set(about)
    assert about["estimator"] == type(model).__name__
    assert about["versions"] == {"orbitwise": "1"}


@pytest.mark.parametrize("key", [*SUMMARY, "versions", "notes", "estimator", "summary"])
def test_nothing_may_be_missing_or_of_another_type(key: str):
    for wrong in (None, {"tuple": [{}]}, [[1]]):
        structure = structure_of(MODELS[0])
        place = structure["summary"]["mapping"] if key in SUMMARY else structure
        place[key] = wrong
        if wrong is None:
            del place[key]
        with pytest.raises(StorageError):
            summary_in(structure)


def test_a_summary_says_nothing_else():
    structure = structure_of(MODELS[0])
    structure["summary"]["mapping"]["more"] = 1
    with pytest.raises(StorageError, match="its summary needs"):
        summary_in(structure)
