"""Files that earlier versions of Orbitwise wrote still load, and predict what they predicted then.

`earlier_files` holds the models of `tests.hostile.model_zoo` as version 1 of the format wrote them, and in
`expected.json` their predictions for three rows drawn by `numpy.random.default_rng(1)`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from orbitwise.storage import describe, load, save

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
