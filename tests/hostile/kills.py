"""Fits and runs that are killed at random moments, go on, and end with the bits of one that was left alone.

By hand, with any number of kills: `python -m tests.hostile.kills --count 100 --seed 0`. Every other round
kills by the clock; the rest kill before a step on the files that is drawn at random, which hits the moments
between two writes on any machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.cli.conftest import bars
from tests.hostile.nursery import Nursery

BOTH = ["--invariance", "none", "--invariance", "rotation", "--num-nodes", "4", "--max-iterations", "10"]
COMMANDS = {
    "learn exact": [*BOTH, "--inference", "exact"],
    "learn collapsed": [*BOTH, "--inference", "collapsed", "--num-inducing", "12"],
    "learn variational": [
        *("--invariance", "rotation", "--inference", "variational"),
        *("--num-steps", "90", "--num-inducing", "9"),
    ],
}
SUBJECTS = [*COMMANDS, "fit exact", "fit collapsed", "fit variational", "fit sparse"]
MOST_KILLS = 3
"""Of one run, before it is left alone."""


class Whole(NamedTuple):
    """A run that was left alone."""

    steps: int
    seconds: float
    result: dict[str, object]


class Trial(NamedTuple):
    """How often a run was killed, and what is wrong with its result; empty if nothing is."""

    kills: int
    wrong: str


class Killing:
    """Runs to kill, and what each should end with."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        x, y = bars(20)
        np.savez(nursery.folder / "bars.npz", x=x, y=y)
        self.wholes: dict[str, Whole] = {}

    def whole(self, subject: str) -> Whole:
        """The subject left alone, once."""
        if subject not in self.wholes:
            mark, start = f"whole-{subject.replace(' ', '-')}", time.monotonic()
            status = self.nursery.run(*self._call(subject, mark), mark)
            assert status == 0, self.nursery.said(mark)
            seconds = time.monotonic() - start
            self.wholes[subject] = Whole(self.nursery.num_steps(mark), seconds, self._result(mark))
        return self.wholes[subject]

    def trial(self, subject: str, number: int, rng: np.random.Generator, by_clock: bool = False) -> Trial:
        """Kill a run some times, let it go on to its end, and compare."""
        whole, mark, kills = self.whole(subject), f"killed-{number}", 0
        for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
            status = self._killed(subject, mark, whole, rng, by_clock)
            kills += status == -signal.SIGKILL
            if status not in (0, -signal.SIGKILL):
                return Trial(kills, f"status {status}: {self.nursery.said(mark)}")
        status = self.nursery.run(*self._call(subject, mark), mark)
        if status != 0:
            return Trial(kills, f"status {status} in the end: {self.nursery.said(mark)}")
        found = self._result(mark)
        differing = [name for name in {*found, *whole.result} if found.get(name) != whole.result.get(name)]
        return Trial(kills, f"{subject}: other {sorted(differing)}" if differing else "")

    def _killed(self, subject: str, mark: str, whole: Whole, rng: np.random.Generator, by_clock: bool) -> int:
        call = self._call(subject, mark)
        if not by_clock:
            return self.nursery.run(*call, mark, int(rng.integers(1, whole.steps + 1)))
        child = self.nursery.start(*call, mark)
        time.sleep(float(rng.uniform(0, whole.seconds)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return self.nursery.wait(child)

    def _call(self, subject: str, out: str) -> tuple[str, list[str]]:
        kind, engine = subject.split()
        if kind == "fit":
            return kind, [engine, out, f"{out}.orbitwise"]
        return kind, ["learn", "bars.npz", "--out", out, "--resume", "--no-report", *COMMANDS[subject]]

    def _result(self, mark: str) -> dict[str, object]:
        """All files of a run, but for seconds in them."""
        folder = self.nursery.folder / mark
        files = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()}
        result: dict[str, object] = {}
        for name, file in files.items():
            if file.suffix == ".json":
                content = json.loads(file.read_text())
                content.pop("command", None)
                for each in (content, *content.get("candidates", [])):
                    each.pop("seconds", None)
                result[name] = content
            elif file.suffix not in (".0", ".1", ".txt"):  # which of two slots is written last may differ
                result[name] = file.read_bytes()
        model = self.nursery.folder / f"{mark}.orbitwise"
        return result | ({"model": model.read_bytes()} if model.is_file() else {})


def main() -> None:
    """Kill until there are enough kills, and say how the runs ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="kills in all, at least")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    kills: collections.Counter[str] = collections.Counter()
    runs = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        nursery = Nursery(Path(folder))
        killing = Killing(nursery)
        while kills.total() < asked.count:
            subject = SUBJECTS[runs % len(SUBJECTS)]
            trial = killing.trial(subject, runs, rng, by_clock=bool(runs // len(SUBJECTS) % 2))
            runs += 1
            kills[subject] += trial.kills
            if trial.wrong:
                wrong += 1
                print(f"run {runs}: {trial.wrong}")
        nursery.close()
    for subject, count in sorted(kills.items()):
        print(f"{count:5d} kills of {subject}")
    print(f"{kills.total()} kills of {runs} runs, {wrong} of which ended wrong")


if __name__ == "__main__":
    main()
