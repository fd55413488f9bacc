"""The example of certified sparse inference: bounds meet, and a power of log N is enough."""

import json
import math
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "certified_sparse.py"


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("certified_sparse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), "--doublings", "3"])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    assert (out / "certified_sparse.png").stat().st_size > 10_000
    return json.loads((out / "certified_sparse.json").read_text(encoding="utf-8"))


def test_bounds_bracket_the_evidence_and_meet(record):
    truth = record["log_evidence"]
    for row in record["bounds"]:
        # the bounds come without an allowance for rounding, which is far below a millionth of a nat here
        assert row["titsias"] <= row["tight"] + 1e-6
        assert row["tight"] <= row["cg"] + 1e-6
        assert row["cg"] <= truth + 1e-3
        assert truth - 1e-3 <= row["upper_cg"] <= row["upper"] + 1e-3
    assert record["bounds"][-1]["upper"] - record["bounds"][-1]["titsias"] < 0.1


def test_the_number_needed_grows_slowly(record):
    for width in (1, 2):
        rows = [row for row in record["costs"] if row["columns"] == width]
        first, last = rows[0], rows[-1]
        assert last["rows"] == 8 * first["rows"]
        assert last["num_inducing"] < 3 * first["num_inducing"]
        power = math.log(last["num_inducing"] / first["num_inducing"])
        assert power / math.log(last["log_rows"] / first["log_rows"]) < 2 * width + 0.5


def test_the_certificate_is_a_bracket(record):
    assert record["certificate"]["lower"] <= record["certificate"]["upper"]
