"""Two processes that write to one run folder at about the same time: no mixture, and no wrong model.

By hand, with any number of pairs: `python -m tests.hostile.writers --count 50 --seed 0`.
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.cli.conftest import bars
from tests.hostile.nursery import Nursery

NAMES = ("one", "two")
LEARN = ["--invariance", "none", "--invariance", "rotation", "--num-nodes", "4", "--max-iterations", "8"]


class Pair(NamedTuple):
    """How a pair of processes ended, and what is wrong with the result; empty if nothing is."""

    statuses: tuple[int, int]
    last: str
    wrong: str


class Race:
    """Pairs of `orbitwise learn --force` on one folder, with the same settings and other data."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.seconds = 0.0
        self.models: dict[str, bytes] = {}
        for seed, name in enumerate(NAMES):
            x, y = bars(16, seed)
            np.savez(nursery.folder / f"{name}.npz", x=x, y=y)
            alone = f"alone-{name}"
            start = time.monotonic()
            assert nursery.run("learn", self._arguments(name, alone), alone) == 0, nursery.said(alone)
            self.seconds = max(self.seconds, time.monotonic() - start)
            self.models[name] = (nursery.folder / alone / "model.orbitwise").read_bytes()
        assert len(set(self.models.values())) == 2

    def run(self, number: int, delay: float) -> Pair:
        """One pair: the second process starts `delay` times the length of a run after the first."""
        folder, mark = self.nursery.folder, f"race-{number}"
        (folder / mark).mkdir()
        # each has a name of its own for the folder, so that what they print tells them apart
        for name in NAMES:
            (folder / f"{name}-{mark}").symlink_to(mark)
        children = []
        for place, name in enumerate(NAMES):
            if place:
                time.sleep(delay * self.seconds)
            children.append(self.nursery.start("learn", self._arguments(name, f"{name}-{mark}"), mark))
        first, second = (self.nursery.wait(child) for child in children)
        said = self.nursery.said(mark)
        ended = [name for line in said.splitlines() for name in NAMES if line.startswith(f"model: {name}-")]
        last = ended[-1] if ended else "nobody"
        return Pair((first, second), last, self._wrong((first, second), ended, folder / mark, said))

    def _wrong(self, statuses: tuple[int, int], ended: list[str], folder: Path, said: str) -> str:
        finished = [name for name, status in zip(NAMES, statuses, strict=True) if status == 0]
        if sorted(finished) != sorted(ended) or not finished:
            return f"{finished} ended with status 0, and {ended} wrote a model: {said}"
        refused = [status for status in statuses if status != 0]
        if any(status != 1 for status in refused) or said.count("is writing to") != len(refused):
            return f"statuses {statuses}: {said}"
        last = ended[-1]
        if (folder / "model.orbitwise").read_bytes() != self.models[last]:
            return f"{last} ended last, and the model is of {self._owner(folder)}"
        alone = self.nursery.folder / f"alone-{last}"
        for file in sorted((alone / "candidates").glob("*.orbitwise")):
            if (folder / "candidates" / file.name).read_bytes() != file.read_bytes():
                return f"{last} ended last, and candidate {file.name} is not its own"
        for name in ("settings.json", "comparison.json"):
            one, other = (self._plain(where / name) for where in (folder, alone))
            if one != other:
                return f"{last} ended last, and {name} is not its own"
        others = {each.name for each in folder.rglob("*")} ^ {each.name for each in alone.rglob("*")}
        return f"other files: {sorted(others)}" if others else ""

    def _owner(self, folder: Path) -> str:
        found = (folder / "model.orbitwise").read_bytes()
        return next((name for name, model in self.models.items() if model == found), "nobody")

    def _plain(self, file: Path) -> str:
        """A JSON file without what differs between two runs that are the same."""
        content = json.loads(file.read_text())
        content.pop("command", None)
        for each in content.get("candidates", []):
            each.pop("seconds")
        return json.dumps(content, sort_keys=True)

    def _arguments(self, name: str, out: str) -> list[str]:
        return ["learn", f"{name}.npz", "--out", out, "--force", "--no-report", *LEARN]


def main() -> None:
    """Run pairs, and say how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        nursery = Nursery(Path(folder))
        race = Race(nursery)
        for number in range(asked.count):
            pair = race.run(number, float(rng.uniform(0, 1.3)))
            ends[f"statuses {pair.statuses}" + (", WRONG" if pair.wrong else "")] += 1
            if pair.wrong:
                print(f"pair {number}: {pair.wrong}")
        nursery.close()
    for end, count in sorted(ends.items()):
        print(f"{count:5d} pairs with {end}")


if __name__ == "__main__":
    main()
