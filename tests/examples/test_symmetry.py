"""The symmetry example: the evidence prefers the right invariance, and picture and numbers are written."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "symmetry.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("symmetry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out)])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    return json.loads((out / "symmetry.json").read_text(encoding="utf-8")), out


@pytest.fixture
def scores(run) -> dict[str, dict]:
    return {row["model"]: row for row in run[0]["models"]}


def test_the_evidence_prefers_the_right_invariance_and_so_do_test_data(scores):
    plain, invariant, wrong = (scores[name] for name in ("plain", "invariant", "anti-symmetric"))
    assert invariant["log_evidence"] > plain["log_evidence"] + 3
    assert invariant["test_rmse"] < 0.9 * plain["test_rmse"]
    assert invariant["test_log_density"] > plain["test_log_density"]
    assert wrong["log_evidence"] < min(plain["log_evidence"], invariant["log_evidence"]) - 10
    assert wrong["test_rmse"] > max(plain["test_rmse"], invariant["test_rmse"])


def test_the_training_error_does_not_know(scores):
    assert scores["plain"]["training_rmse"] < scores["invariant"]["training_rmse"]


def test_only_the_invariant_models_predict_one_half_from_the_other(scores):
    for name in ("invariant", "canonical"):
        assert scores[name]["below_given_above"] > scores["plain"]["below_given_above"] + 5
    assert scores["anti-symmetric"]["below_given_above"] < scores["plain"]["below_given_above"] - 5


def test_the_evidence_is_the_sum_of_its_parts(scores):
    for name, row in scores.items():
        if name == "augmented":
            assert "log_evidence" not in row, "not comparable"
            continue
        assert row["above"] + row["below_given_above"] == pytest.approx(row["log_evidence"], rel=1e-6)
        assert row["fit"] + row["complexity"] + row["constant"] == pytest.approx(
            row["log_evidence"], rel=1e-6
        )


def test_the_alternatives_are_about_as_good(scores):
    for name in ("canonical", "augmented"):
        assert scores[name]["test_rmse"] == pytest.approx(scores["invariant"]["test_rmse"], rel=0.3)


def test_other_data_sets_agree(run):
    repeats = run[0]["repeats"]
    assert (
        min(repeats["evidence"], repeats["test_rmse"], repeats["anti_symmetric_last"]) >= 0.9 * repeats["num"]
    )


def test_a_picture_is_written(run):
    picture = plt.imread(run[1] / "symmetry.png")
    assert picture.shape[0] > 800
    assert picture.shape[1] > 1200
    assert len({tuple(pixel) for pixel in picture[::20, ::20].reshape(-1, picture.shape[2])}) > 50
