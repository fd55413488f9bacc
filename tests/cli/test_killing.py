"""A fit that is killed at any moment, and again, goes on with --resume, and ends with the same bits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import bars

# Importing takes longer than the fits, so one process imports, and each command is a process forked from it.
# A child counts its changes of files in the output folder, and kills itself before the one it was told: on a
# busy machine seconds say nothing. How often seconds are noted depends on the time, so that is not counted.
NURSERY = """
import json, os, signal, sys
import torch._dynamo  # Adam imports it
from orbitwise.cli import main
from orbitwise.report import write_report

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")

def count_changes(folder, last):
    changes = 0
    def hook(event, arguments):
        nonlocal changes
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes and event not in CHANGES:
            return
        path = os.path.abspath(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else ""
        if path.startswith(folder) and not path.endswith("seconds.txt"):
            changes += 1
            if changes == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    return lambda: changes

print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        report = os.dup(1)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            changes = count_changes(os.path.abspath(order["folder"]), order["last"])
            status = main(order["arguments"])
            os.write(report, f"{changes()}\\n".encode())
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        print("killed", flush=True)
    print(status, flush=True)
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

    def run(self, arguments: list[str], folder: str, last: int | None = None) -> tuple[int, int | None]:
        """The status of the command, and its changes of files in the folder, None where it was killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"arguments": arguments, "folder": folder, "last": last}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        changes, status = (self.process.stdout.readline().strip() for _ in range(2))
        return int(status), None if changes == "killed" else int(changes)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
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
    status, total = nursery.run([*learn, "--out", whole.name], whole.name)
    assert status == 0
    assert total is not None
    assert total > 20
    rng = np.random.default_rng(len(engine))
    for trial in range(times):
        cut = folder / f"{engine}-{trial}"
        first, second = rng.integers(1, total + 1), rng.integers(1, total // 2)
        again = [*learn, "--out", cut.name, "--resume"]
        assert nursery.run([*learn, "--out", cut.name], cut.name, int(first)) == (signal.SIGKILL, None)
        nursery.run(again, cut.name, int(second))
        assert nursery.run(again, cut.name)[0] == 0
        assert result(cut) == result(whole)
        assert {each.name for each in cut.iterdir()} == {each.name for each in whole.iterdir()}
        assert not list(cut.rglob("*.tmp"))
