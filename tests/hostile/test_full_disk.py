"""A disk that is full, at any moment: a fit goes on without checkpoints, and a model that was there stays."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel

from orbitwise import InvariantGPRegressor, save
from orbitwise.cli import main
from tests.cli.conftest import bars

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 100))
Y = np.sin(X.sum(1)) + 0.1 * RNG.normal(size=20)
OPTIONS = ["--invariance", "none", "--max-iterations", "4", "--no-report"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


def fill(disk: Path) -> Path:
    """A file that leaves no room for another byte."""
    file = disk / "full"
    with file.open("wb", buffering=0) as full:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while full.write(bytes(size)):
                    pass
    return file


def fitted(checkpoint: Path | None, callback=None) -> InvariantGPRegressor:
    kept = None if checkpoint is None else str(checkpoint)
    # many lengthscales, so that the journal soon needs another block of the disk
    kernel = ScaleKernel(RBFKernel(ard_num_dims=100))
    settings = {"kernel": kernel, "max_iterations": 40, "random_state": 0}
    return InvariantGPRegressor(**settings, checkpoint=kept, callback=callback).fit(X, Y)


@pytest.mark.parametrize("when", [0, 2])
def test_a_disk_that_fills_up_ends_checkpoints_and_not_the_fit(small_disk: Path, when: int):
    expected = fitted(None).predict(X).tolist()

    def callback(step: int, bound: float) -> None:
        if step == when:
            fill(small_disk)

    if when == 0:
        fill(small_disk)

    with pytest.warns(UserWarning, match="No space left on device.*continues without checkpoints"):
        found = fitted(small_disk / "progress", callback)
    assert found.predict(X).tolist() == expected
    (small_disk / "full").unlink()
    assert fitted(small_disk / "progress").predict(X).tolist() == expected


def test_a_model_on_a_full_disk_stays_as_it_was(small_disk: Path):
    model = fitted(None)
    save(model, small_disk / "model.orbitwise")
    before = (small_disk / "model.orbitwise").read_bytes()
    fill(small_disk)
    with pytest.raises(OSError, match="the disk is full; free some space"):
        save(model.set_params(max_iterations=41), small_disk / "model.orbitwise")
    assert (small_disk / "model.orbitwise").read_bytes() == before
    assert sorted(each.name for each in small_disk.iterdir()) == ["full", "model.orbitwise"]


def test_a_run_on_a_full_disk_ends_with_a_clear_error_and_goes_on_later(small_disk, tmp_path, capsys):
    x, y = bars(12)
    np.savez(tmp_path / "bars.npz", x=x, y=y)
    learn = ["learn", str(tmp_path / "bars.npz"), *OPTIONS, "--out"]
    assert main([*learn, str(tmp_path / "whole")]) == 0
    full = fill(small_disk)
    assert main([*learn, str(small_disk / "run"), "--resume"]) == 1
    assert "the disk is full" in capsys.readouterr().err
    full.unlink()
    assert main([*learn, str(small_disk / "run"), "--resume"]) == 0
    whole = (tmp_path / "whole" / "model.orbitwise").read_bytes()
    assert (small_disk / "run" / "model.orbitwise").read_bytes() == whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.filterwarnings("ignore:.*continues without checkpoints:UserWarning")
def test_wherever_the_disk_fails_a_run_goes_on_later(tmp_path, monkeypatch, capsys, number):
    x, y = bars(12)
    np.savez(tmp_path / "bars.npz", x=x, y=y)
    learn = ["learn", str(tmp_path / "bars.npz"), *OPTIONS, "--out"]
    calls, sync = [], os.fsync

    def failing(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= failing_from:
            raise OSError(number, os.strerror(number))
        sync(handle)

    failing_from = 10**9
    monkeypatch.setattr(os, "fsync", failing)
    assert main([*learn, str(tmp_path / "whole")]) == 0
    whole, most = (tmp_path / "whole" / "model.orbitwise").read_bytes(), len(calls)
    assert most > 6
    for failing_from in range(1, most, 5):
        out = tmp_path / f"run-{failing_from}"
        calls.clear()
        assert main([*learn, str(out)]) in (0, 1)
        error = capsys.readouterr().err
        assert "--debug" not in error
        failing_from = 10**9
        assert main([*learn, str(out), "--resume"]) == 0
        assert (out / "model.orbitwise").read_bytes() == whole
