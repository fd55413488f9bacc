"""Evidence and predictions of every estimator, engine and invariance are those of the golden file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.goldens.cases import CASES, observed

GOLDEN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "numbers.json").read_text())


def assert_close(name: str, found: Any, expected: Any, tolerance: float) -> None:
    """Numbers agree relative to the largest of their array; anything else is equal."""
    array = np.asarray(expected)
    if array.dtype.kind not in "fi":
        assert found == expected, name
        return
    scale = float(np.abs(array).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(found, array, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_a_fit_gives_the_golden_numbers(name: str):
    case, expected = CASES[name], GOLDEN[name]
    found = observed(case.fitted(), case.new)
    assert set(found) >= set(expected)
    for each, value in expected.items():
        assert_close(each, found[each], value, case.tolerance_of(each))


def test_every_golden_number_has_a_case():
    assert set(GOLDEN) == set(CASES)
