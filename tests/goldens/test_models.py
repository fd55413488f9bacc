"""Model files that an earlier version stored still load, and predict what they predicted."""

import json
from pathlib import Path
from typing import Any

import pytest

import orbitwise
from tests.goldens.cases import FIXED, MODEL_FILES, observed, stored_case
from tests.goldens.test_numbers import assert_close

HERE = Path(__file__).parent
GOLDEN: dict[str, dict[str, Any]] = json.loads((HERE / "models.json").read_text())


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_stored_model_predicts_the_same(name: str):
    found = observed(orbitwise.load(HERE / "models" / f"{name}.orbitwise"), stored_case(name).new)
    assert set(found) >= set(GOLDEN[name])
    for each, value in GOLDEN[name].items():
        assert_close(each, found[each], value, FIXED)


def test_every_model_file_is_tested():
    assert {path.stem for path in (HERE / "models").iterdir()} == set(MODEL_FILES) == set(GOLDEN)
    assert sum(path.stat().st_size for path in (HERE / "models").iterdir()) < 200_000
