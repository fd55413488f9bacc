"""The export example: an orbit is learned and written, a network trained with it, a picture made."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from orbitwise.export import from_json

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "exported_augmentation.py"
SMALL = ["--num-train", "60", "--num-test", "300", "--num-repeats", "2", "--num-nodes", "4"]
SHORT = ["--max-iterations", "4", "--num-steps", "120"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("exported_augmentation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out), *SMALL, *SHORT])
        settings, state = plt.rcParams.copy(), torch.get_rng_state()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        plt.rcParams.update(settings)
        assert torch.equal(torch.get_rng_state(), state)
    return json.loads((out / "exported_augmentation.json").read_text(encoding="utf-8")), out


def test_every_model_learns_and_every_repeat_is_counted(run):
    """Of ten digits a guess is wrong in 90 % of all cases."""
    assert len(run[0]["errors"]) == 3
    for name, errors in run[0]["errors"].items():
        assert len(errors) == 2
        assert max(errors) < 0.4, name


def test_the_gain_is_the_mean_difference(run):
    plain, moved, _ = run[0]["errors"].values()
    differences = [first - second for first, second in zip(plain, moved, strict=True)]
    assert run[0]["gain"][0] == pytest.approx(sum(differences) / 2)
    assert run[0]["gain"][1] == pytest.approx(abs(differences[0] - differences[1]) / 2)


def test_the_orbit_is_written_as_it_was_learned(run):
    learned = from_json((run[1] / "orbit.json").read_text(encoding="utf-8")).learned()
    assert learned.keys() >= {"angle", "shear", "amplitude", "smoothness"}
    assert 0 < learned["angle"][1] < 1.5


def test_a_picture_is_written(run):
    picture = plt.imread(run[1] / "exported_augmentation.png")
    assert picture.shape[0] > 800
    assert picture.shape[1] > 1200
    assert len({tuple(pixel) for pixel in picture[::20, ::20].reshape(-1, picture.shape[2])}) > 50
