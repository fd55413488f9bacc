"""Files that earlier versions of Orbitwise wrote still load, and predict what they predicted then.

`earlier_files` holds the models of `tests.hostile.model_zoo` as version 1 of the format wrote them, and in
`expected.json` their predictions for three rows drawn by `numpy.random.default_rng(1)`. `factor` is the model
"variational digits" with mean and Cholesky factor of q(v) in place of its natural parameters.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orbitwise.storage import StorageError, describe, load, save
from orbitwise.storage.container import pack, unpack, upgraded
from tests.storage.round_trip import edit

FOLDER = Path(__file__).parent / "earlier_files"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
FILES = sorted(FOLDER.glob("*.orbitwise"))


def test_all_files_have_expected_predictions():
    assert len(FILES) > 20
    assert {file.name for file in FILES} == set(EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_earlier_files_predict_the_same(file: Path, tmp_path: Path):
    model = load(file)
    x = np.random.default_rng(1).normal(size=(3, model.n_features_in_))
    save(model, tmp_path / "again.orbitwise")
    for each in (model, load(tmp_path / "again.orbitwise")):
        expected = EXPECTED[file.name]
        if hasattr(each, "classes_"):
            assert each.predict(x).tolist() == expected["predict"]
        else:
            np.testing.assert_allclose(each.predict(x), expected["predict"], rtol=1e-8, atol=1e-12)
        if hasattr(each, "predict_proba"):
            np.testing.assert_allclose(each.predict_proba(x), expected["values"], rtol=1e-8, atol=1e-12)
        elif hasattr(each, "decision_function"):
            np.testing.assert_allclose(each.decision_function(x), expected["values"], rtol=1e-8, atol=1e-12)
        elif "values" in expected:
            deviation = each.predict(x, return_std=True)[1]
            np.testing.assert_allclose(deviation, expected["values"], rtol=1e-8, atol=1e-12)
    assert describe(file)["estimator"] == type(model).__name__


def test_a_file_of_today_stays_as_it_is(tmp_path: Path):
    save(load(FOLDER / "digits.orbitwise"), tmp_path / "now.orbitwise")
    structure, _ = unpack((tmp_path / "now.orbitwise").read_bytes())
    assert upgraded(structure) == structure


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("digits", "_scale", -1.0),
        ("digits", "_scale", "large"),
        ("digits", "_background", "dark"),
        ("digits", "_image_shape", {"tuple": [4, -4]}),
        ("exact", "_is_vector", 1),
        ("exact", "_scale", 0.0),
        ("exact", "_shift", None),
        ("exact", "_functional", {"object": 0}),
        ("exact", "_model", 3),
    ],
)
def test_renamed_attributes_are_checked_like_those_of_today(
    tmp_path: Path, name: str, attribute: str, value: object
):
    def change(structure: dict[str, Any]) -> None:
        assert attribute in structure["fitted"]
        structure["fitted"][attribute] = value

    with pytest.raises(StorageError, match="damaged or hostile"):
        load(edit(FOLDER / f"{name}.orbitwise", tmp_path / "edited", change))


def test_the_scale_of_targets_is_positive(tmp_path: Path):
    structure, arrays = unpack((FOLDER / "exact.orbitwise").read_bytes())
    fitted: Any = structure["fitted"]
    scale = fitted["_scale"]["tensor"]["name"]
    (tmp_path / "zero").write_bytes(pack(structure, {**arrays, scale: 0 * arrays[scale]}))
    with pytest.raises(StorageError, match=r"scale of .* out of range"):
        load(tmp_path / "zero")
