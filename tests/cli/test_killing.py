"""A fit that is killed at any moment, and again, goes on with --resume, and ends with the same bits."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import bars

# Importing takes longer than the fits, so one process imports, and each command is a process forked from it.
NURSERY = """
import json, os, sys
import torch._dynamo  # Adam imports it
from orbitwise.cli import main
from orbitwise.report import write_report

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os._exit(main(json.loads(line)))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Nursery:
    def __init__(self, folder: Path) -> None:
        setting = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=setting,
            cwd=folder,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def run(self, arguments: list[str], kill_after: float | None = None) -> int:
        """The status of the command, which is killed after some seconds if it still runs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(arguments), file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    folder = tmp_path_factory.mktemp("killing")
    x, y = bars(20)
    np.savez(folder / "bars.npz", x=x, y=y)
    started = Nursery(folder)
    started.folder = folder  # pyright: ignore
    yield started
    started.close()


BOTH = ["--invariance", "none", "--invariance", "rotation", "--num-nodes", "4"]
ENGINES = {
    "exact": ([*BOTH, "--max-iterations", "12"], 4),
    "collapsed": ([*BOTH, "--max-iterations", "8", "--num-inducing", "12", "--no-report"], 3),
    "variational": (
        ["--invariance", "rotation", "--num-steps", "80", "--num-inducing", "9", "--no-report"],
        3,
    ),
}


def result(folder: Path) -> tuple[bytes, list[float]]:
    about = json.loads((folder / "comparison.json").read_text())
    assert about["finished"]
    return (folder / "model.orbitwise").read_bytes(), [each["log_evidence"] for each in about["candidates"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_fit_ends_with_the_same_bits(nursery: Nursery, engine: str):
    folder: Path = nursery.folder  # pyright: ignore
    settings, times = ENGINES[engine]
    learn = ["learn", "bars.npz", "--inference", engine, *settings]
    whole = folder / f"{engine}-whole"
    start = time.monotonic()
    assert nursery.run([*learn, "--out", whole.name]) == 0
    seconds = time.monotonic() - start
    rng = np.random.default_rng(len(engine))
    window, killed = 0.9 * seconds, 0
    for trial in range(10 * times):
        cut = folder / f"{engine}-{trial}"
        died = nursery.run([*learn, "--out", cut.name], float(rng.uniform(0.02, window))) == signal.SIGKILL
        nursery.run([*learn, "--out", cut.name, "--resume"], float(rng.uniform(0.02, 0.5 * seconds)))
        assert nursery.run([*learn, "--out", cut.name, "--resume"]) == 0
        assert result(cut) == result(whole)
        assert {each.name for each in cut.iterdir()} == {each.name for each in whole.iterdir()}
        assert not list(cut.rglob("*.tmp"))
        killed += died
        if killed == times:
            return
        if not died:  # the machine is less busy than it was during the whole fit
            window *= 0.7
    pytest.fail(f"only {killed} of {10 * times} fits were still running when they should have been killed")
