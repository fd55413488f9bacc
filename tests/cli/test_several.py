"""`torchrun -m orbitwise learn`: the first process runs the command, the others share its fits."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from orbitwise.cli import main
from orbitwise.cli.several import are_several, was_restarted
from tests.inference.several import launch


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, size=(400, 2))
    np.savez(tmp_path / "data.npz", x=x, y=np.sin(2 * x[:, 0]) + 0.1 * random.normal(size=400))
    return tmp_path / "data.npz"


def learn(data, out, *more):
    options = [
        "--estimator",
        "sparse",
        "--invariance",
        "none",
        "--num-inducing",
        "20",
        "--max-iterations",
        "8",
    ]
    return ["learn", str(data), "--target", "y", *options, "--no-report", "--out", str(out), *more]


def evidence(folder):
    return json.loads((folder / "comparison.json").read_text())["candidates"][0]["log_evidence"]


@pytest.mark.slow
def test_the_command_is_shared(data, tmp_path, capfd):
    def work(rank):
        assert main(learn(data, tmp_path / "two")) == 0

    assert launch(2, work) == [0, 0]
    told = capfd.readouterr().out
    assert told.count("model:") == 1
    assert main(learn(data, tmp_path / "one")) == 0
    assert evidence(tmp_path / "two") == pytest.approx(evidence(tmp_path / "one"), rel=1e-6)


@pytest.mark.slow
def test_a_wrong_command_ends_all_processes(tmp_path):
    def work(rank):
        status = main(["learn", str(tmp_path / "absent.npz"), "--out", str(tmp_path / "out")])
        assert status == (1 if rank == 0 else 0)

    assert launch(2, work) == [0, 0]


def test_what_torchrun_says(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert not are_several()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not was_restarted()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert are_several()
    assert was_restarted()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="workers are found by the file system of Linux")
def test_torchrun_restarts_a_killed_worker(data, tmp_path):
    def run(out, kills):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*torchrun, "--max-restarts", "2", "-m", "orbitwise", *learn(data, out)]
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        progress = out / "progress"
        while kills and process.poll() is None:
            written = list(progress.glob("*/*.journal")) if progress.is_dir() else []
            if written and written[0].stat().st_size > 2000:
                os.kill(worker(process.pid, rank=1), signal.SIGKILL)
                break
            time.sleep(0.01)
        assert process.wait(300) == 0
        return evidence(out)

    assert run(tmp_path / "killed", kills=True) == run(tmp_path / "whole", kills=False)


def worker(parent, rank):
    """The process of this rank that torchrun started."""
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            try:
                with open(f"/proc/{folder}/stat") as file:
                    is_child = int(file.read().rpartition(")")[2].split()[1]) == parent
                with open(f"/proc/{folder}/environ", "rb") as file:
                    is_rank = f"\0RANK={rank}\0".encode() in b"\0" + file.read() + b"\0"
            except OSError:
                continue
            if is_child and is_rank:
                return int(folder)
    raise AssertionError("torchrun has no such worker")
