"""Processes to kill, and to race with one another.

Importing takes longer than a small fit, so one process imports, and each call is a process forked from it. A
child counts what it does to the files of its run, so that it can be killed between any two of these steps,
whatever the speed of the machine.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"}
"""Audit events of what changes files; calls of `os.fsync` are counted too."""


class Nursery:
    """Starts processes that are forked from one that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        setting = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=setting,
            cwd=ROOT,
        )
        assert self._line() == "ready"

    def start(self, call: str, arguments: list[str], mark: str, kill_at: int | None = None) -> int:
        """The number of a new process, which kills itself before its step `kill_at` on paths with `mark`."""
        return int(self._ask([call, arguments, str(self.folder), mark, kill_at]))

    def wait(self, child: int) -> int:
        """The exit status of a process: minus the number of the signal that ended it, if one did."""
        return os.waitstatus_to_exitcode(int(self._ask(child)))

    def run(self, call: str, arguments: list[str], mark: str, kill_at: int | None = None) -> int:
        """Start a process and wait for it."""
        return self.wait(self.start(call, arguments, mark, kill_at))

    def num_steps(self, mark: str) -> int:
        """How many steps the last process with this mark took that ended by itself."""
        return int((self.folder / f"{mark}.steps").read_text())

    def said(self, mark: str) -> str:
        """All that processes with this mark have printed, in the order in which they did."""
        return (self.folder / f"{mark}.log").read_text()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=600)
        self.process.stdout.close()

    def _ask(self, content: Any) -> str:
        assert self.process.stdin is not None
        print(json.dumps(content), file=self.process.stdin, flush=True)
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def nurse() -> None:
    """Fork a process for every line that asks for one."""
    # what fits import when they need it
    import torch._dynamo  # noqa: F401

    import orbitwise.cli
    import orbitwise.report  # noqa: F401
    from orbitwise.inference.optimise import checkpoints as journal

    # a kill loses nothing that the disk does not have yet, and the number of steps does not depend on speed
    journal.SYNCED_EVERY = math.inf
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            print(os.waitpid(asked, 0)[1], flush=True)
            continue
        child = os.fork()
        if child == 0:
            _child(*asked)
        print(child, flush=True)


def _child(call: str, arguments: list[str], folder: str, mark: str, kill_at: int | None) -> None:
    status = 3
    try:
        os.chdir(folder)
        log = os.open(f"{mark}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        steps = _count_steps(mark, kill_at)
        status = CALLS[call](arguments)
        Path(f"{mark}.steps").write_text(str(steps[0]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _count_steps(mark: str, kill_at: int | None) -> list[int]:
    steps, sync = [0], os.fsync

    def step() -> None:
        steps[0] += 1
        if steps[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        paths = [str(each) for each in given[:2]]
        # how often seconds are written down depends on the speed of the machine
        if event in STEPS and any(mark in path and "seconds.txt" not in path for path in paths):
            step()

    def counted(handle: int) -> None:
        step()
        sync(handle)

    os.fsync = counted
    sys.addaudithook(hook)
    return steps


def _learn(arguments: list[str]) -> int:
    from orbitwise.cli import main

    return main(arguments)


def _fit(arguments: list[str]) -> int:
    """Fit an estimator with a folder of checkpoints, and save it."""
    from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, save

    kind, folder, file = arguments
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30, 3))
    y = np.sin(X.sum(1)) + 0.05 * rng.normal(size=30)
    few: dict[str, Any] = {"num_inducing": 9, "random_state": 0, "checkpoint": folder}
    kinds: dict[str, Any] = {
        "exact": lambda: InvariantGPRegressor(max_iterations=15, random_state=0, checkpoint=folder),
        "collapsed": lambda: InvariantGPRegressor(inference="collapsed", max_iterations=8, **few),
        "variational": lambda: InvariantGPClassifier(inference="variational", num_steps=90, **few),
        "sparse": lambda: SparseGPRegressor(max_iterations=12, **few),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kinds[kind]().fit(X, y > 0 if kind == "variational" else y)
        if kind == "sparse":
            stages = [stage._replace(seconds=0.0) for stage in model.certificate_.history]
            model.certificate_ = replace(model.certificate_, history=stages)
        save(model, file)
    return 0


CALLS = {"learn": _learn, "fit": _fit}

if __name__ == "__main__":
    nurse()
