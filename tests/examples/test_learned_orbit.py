"""The learned-orbit example: the evidence finds an invariance, and picture and numbers are written."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "learned_orbit.py"
SMALL = ["--num-train", "80", "--num-test", "300", "--num-nodes", "4", "--max-iterations", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("learned_orbit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), *SMALL])
        settings = plt.rcParams.copy()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
    return json.loads((out / "learned_orbit.json").read_text(encoding="utf-8")), out


def test_the_evidence_prefers_an_invariance_and_so_do_test_digits(run):
    rows = {row["invariance"]: row for row in run[0]["candidates"]}
    plain, turned = rows["none"], rows["rotation"]
    assert run[0]["candidates"][-1]["invariance"] == "none"
    assert turned["log_evidence"] > plain["log_evidence"] + 10
    assert turned["test_error"] < plain["test_error"] < 0.2


def test_the_rotation_is_neither_nothing_nor_everything_and_has_an_error_bar(run):
    (angle,) = run[0]["learned"]["rotation"]
    assert angle["unit"] == "°"
    assert 5 < angle["end"] < 60
    assert angle["error"] > 0


def test_every_range_of_the_large_orbit_is_reported(run):
    names = {row["name"] for row in run[0]["learned"]["affine+deformation"]}
    shifts_and_scales = {"log_scale_x", "log_scale_y", "shift_x", "shift_y"}
    assert names == {"angle", "shear", "amplitude", "smoothness"} | shifts_and_scales


def test_a_picture_is_written(run):
    picture = plt.imread(run[1] / "learned_orbit.png")
    assert picture.shape[0] > 800
    assert picture.shape[1] > 1200
    assert len({tuple(pixel) for pixel in picture[::20, ::20].reshape(-1, picture.shape[2])}) > 50
