"""A fuzzer of run folders and checkpoints: something in one is damaged, and a command is run on it.

By hand, with any number of cases: `python -m tests.hostile.damage --count 2000 --seed 0`. A command may
refuse, in one clear sentence; it may go on; it may not fail in any other way, and not end with another model.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.cli.conftest import bars

Damage = Callable[[Path, np.random.Generator, Path], None]
OPTIONS = ["--invariance", "none", "--invariance", "rotation", "--num-nodes", "4", "--max-iterations", "3"]
STRANGE: list[Any] = [
    None, True, "", "x", "\u0000", "../../elsewhere", -1, 0, 2**70, -1e308, 1e308, float("nan"), float("inf"),
    [], [[]], [None], {}, {"": {}}, "é" * 300,
]  # fmt: skip


def truncated(file: Path, rng: np.random.Generator, other: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(rng.integers(0, len(content) + 1))])


def garbage(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.write_bytes(rng.bytes(int(rng.integers(0, 400))))


def flipped(file: Path, rng: np.random.Generator, other: Path) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(int(rng.integers(1, 5)) if content else 0):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(content))


def longer(file: Path, rng: np.random.Generator, other: Path) -> None:
    with file.open("ab") as end:
        end.write(rng.bytes(30))


def zeros(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def no_text(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.write_bytes(b"\xff\xfe" + file.read_bytes())


def deep(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.write_bytes(b"[" * 200_000)


def gone(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.unlink()


def folder_instead(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.unlink()
    file.mkdir()


def loop_instead(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def link_instead(file: Path, rng: np.random.Generator, other: Path) -> None:
    """A link to a file elsewhere, which nobody may write to."""
    elsewhere = sorted(each for each in other.rglob("*") if each.is_file())
    file.unlink()
    file.symlink_to(elsewhere[int(rng.integers(len(elsewhere)))])


def pipe_instead(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def closed(file: Path, rng: np.random.Generator, other: Path) -> None:
    file.chmod(0)


def sparse(file: Path, rng: np.random.Generator, other: Path) -> None:
    os.truncate(file, 2**27)


def file_instead_of_folder(file: Path, rng: np.random.Generator, other: Path) -> None:
    folder = file.parent
    shutil.rmtree(folder)
    folder.write_bytes(b"")


def foreign(file: Path, rng: np.random.Generator, other: Path) -> None:
    """The file of the same name in another run, or any other where it has none."""
    same = [each for each in other.rglob("*") if each.is_file()]
    chosen = [each for each in same if each.name == file.name] or [same[int(rng.integers(len(same)))]]
    file.write_bytes(chosen[0].read_bytes())


def other_value(file: Path, rng: np.random.Generator, other: Path) -> None:
    """Another value, or none, somewhere in JSON."""
    content = json.loads(file.read_text())
    place, parent = content, None
    while isinstance(place, dict | list) and place and (parent is None or rng.random() < 0.7):
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = keys[int(rng.integers(len(keys)))]
        parent, place = place, place[key]
    if parent is not None and rng.random() < 0.3:
        del parent[key]
    elif parent is not None:
        parent[key] = STRANGE[int(rng.integers(len(STRANGE)))]
    file.write_text(json.dumps(content))


ANY: list[Damage] = [
    truncated, garbage, flipped, longer, zeros, no_text, deep, gone, folder_instead, loop_instead,
    link_instead, pipe_instead, closed, sparse, file_instead_of_folder, foreign, foreign,
]  # fmt: skip


class Case(NamedTuple):
    """What was damaged and how, what was run on it, how it ended, and what is wrong with that."""

    about: str
    status: int
    wrong: str


class Folders:
    """Runs to damage: one that is finished, some that were cut short, and one from other data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, seed in (("own", 0), ("other", 1)):
            x, y = bars(12, seed)
            np.savez(folder / f"{name}.npz", x=x, y=y)
        runs = {"finished": "own", "cut": "own", "foreign": "other"}
        for out, data in runs.items():
            limit = ["--time-limit", "0"] if out == "cut" else []
            assert self._run([*self._learn(data, folder / out), *limit])[0] == 0
        self.model = (folder / "finished" / "model.orbitwise").read_bytes()
        # killed before its end: what is learned is in the candidates alone
        shutil.copytree(folder / "finished", folder / "half")
        for name in ("model.orbitwise", "comparison.json"):
            (folder / "half" / name).unlink()
        # so that progress is there to be damaged, beside all that a finished run leaves
        shutil.copytree(folder / "cut" / "progress", folder / "finished" / "progress")
        self.elsewhere = self._contents()

    def case(self, rng: np.random.Generator) -> Case:
        """Damage a copy of a run in one to three places, and run a command on it."""
        start = ("finished", "cut", "half", "half")[int(rng.integers(4))]
        run = self.folder / "run"
        shutil.copytree(self.folder / start, run)
        done = [start]
        for _ in range(int(rng.integers(1, 4))):
            files = [each for each in sorted(run.rglob("*")) if each.is_file() and not each.is_symlink()]
            if not files:
                break
            file = files[int(rng.integers(len(files)))]
            kinds = [*ANY, *(5 * [other_value] if file.suffix == ".json" else [])]
            damage = kinds[int(rng.integers(len(kinds)))]
            if damage is file_instead_of_folder and file.parent == run:
                damage = gone
            with contextlib.suppress(ValueError):  # it was JSON before an earlier damage
                damage(file, rng, self.folder / "foreign")
            done.append(f"{damage.__name__} {file.relative_to(run)}")
        name, arguments = self._command(rng, run)
        try:
            status, said, raised = self._run(arguments)
            wrong = self._wrong(name, status, said, raised, run)
        finally:
            shutil.rmtree(run)
            for file in self.folder.glob("out.*"):
                file.unlink()
        return Case(f"{', '.join(done)}: {name}", status, wrong)

    def _wrong(self, name: str, status: int, said: str, raised: str, run: Path) -> str:
        if self._contents() != self.elsewhere:
            return "it wrote to another folder"
        if raised or "--debug" in said or status not in (0, 1):
            return raised or f"status {status}: {said}"
        if status == 1 and said.count("error: ") != 1:
            return f"no clear error: {said}"
        if name in ("resume", "force") and status == 0:
            if (run / "model.orbitwise").read_bytes() != self.model:
                return "it ended with another model"
            about = json.loads((run / "comparison.json").read_text())
            return "" if about["finished"] else "it ended too soon"
        return ""

    def _contents(self) -> dict[Path, bytes]:
        """What damaged runs may have links to."""
        return {each: each.read_bytes() for each in (self.folder / "foreign").rglob("*") if each.is_file()}

    def _command(self, rng: np.random.Generator, run: Path) -> tuple[str, list[str]]:
        learn = self._learn("own", run)
        commands = {
            "resume": [*learn, "--resume"],
            "show": ["show", str(run)],
            "force": [*learn, "--force"],
            "export": ["export", str(run), "--to", "json", "-o", str(self.folder / "out.json")],
            "predict": [
                "predict",
                str(run),
                str(self.folder / "own.npz"),
                "-o",
                str(self.folder / "out.csv"),
            ],
            "report": ["report", str(run), "-o", str(self.folder / "out.html")],
        }
        chances = [0.5, 0.26, 0.1, 0.06, 0.06, 0.02]
        name = list(commands)[int(rng.choice(len(commands), p=chances))]
        return name, commands[name]

    def _learn(self, data: str, out: Path) -> list[str]:
        return ["learn", str(self.folder / f"{data}.npz"), "--out", str(out), "--no-report", *OPTIONS]

    def _run(self, arguments: list[str]) -> tuple[int, str, str]:
        """Status, what was said, and what was raised, which nothing may be."""
        from orbitwise.cli import main

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return main(arguments), said.getvalue(), ""
            except BaseException:
                return -1, said.getvalue(), traceback.format_exc()


def main() -> None:
    """Damage any number of folders, and say how the commands ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        folders = Folders(Path(folder))
        for number in range(asked.count):
            case = folders.case(np.random.default_rng([asked.seed, number]))
            ends["wrong" if case.wrong else f"status {case.status}"] += 1
            if case.wrong:
                print(f"case {number}: {case.about}: {case.wrong}")
    for end, count in sorted(ends.items()):
        print(f"{count:5d} {end}")


if __name__ == "__main__":
    main()
