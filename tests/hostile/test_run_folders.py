"""Damaged run folders and checkpoints: a clear error or the right model; `damage.py` tries any number."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, SparseGPRegressor
from tests.hostile import damage
from tests.hostile.damage import Folders

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="this system has no pipes to put in the way"
)
NUM_CASES = 100


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """Nothing here is about what reaches the disk, and waiting for it would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, quick_disk: None) -> Folders:
    return Folders(tmp_path_factory.mktemp("folders"))


@pytest.mark.parametrize("part", range(2))
def test_a_damaged_folder_gives_a_clear_error_or_the_right_model(folders: Folders, part: int):
    seen = set()
    for number in range(part, NUM_CASES, 2):
        case = folders.case(np.random.default_rng([0, number]))
        assert case.wrong == "", case.about
        seen.add(case.status)
    assert seen == {0, 1}


RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = np.sin(X.sum(1)) + 0.1 * RNG.normal(size=20)


def fitted(kind: str, folder: Path, stop: bool) -> list[float]:
    """Predictions of a fit with checkpoints, which is killed on its way where it is to stop."""

    def callback(step: int, bound: float) -> None:
        if stop and step == 27:
            raise RuntimeError("killed")

    common = {"num_inducing": 5, "random_state": 0, "checkpoint": str(folder), "callback": callback}
    if kind == "states":
        model = InvariantGPClassifier(inference="variational", num_steps=42, **common)
        return model.fit(X, Y > 0).predict_proba(X)[:, 0].tolist()
    return SparseGPRegressor(max_iterations=12, **common).fit(X, Y).predict(X).tolist()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings(
    "ignore:.*(is ignored, and the fit starts from the beginning|continues without checkpoints):UserWarning"
)
@pytest.mark.parametrize("kind", ["states", "journal"])
def test_a_damaged_checkpoint_costs_only_time(tmp_path: Path, kind: str):
    first = tmp_path / "first"
    if kind == "states":
        with pytest.raises(RuntimeError):
            fitted(kind, first, stop=True)
    else:
        fitted(kind, first, stop=False)
    expected = fitted(kind, tmp_path / "whole", stop=False)
    files = sorted(first.iterdir())
    assert files
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_bytes(b"of something else")
    kinds = [each for each in dict.fromkeys(damage.ANY) if each is not damage.file_instead_of_folder]
    chosen = kinds if kind == "journal" else kinds[::6]
    for number, harm in enumerate(chosen):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in files:
            (folder / file.name).write_bytes(file.read_bytes())
            harm(folder / file.name, np.random.default_rng(number), other)
        assert fitted(kind, folder, stop=False) == expected, harm.__name__
        assert (other / "file").read_bytes() == b"of something else", harm.__name__
