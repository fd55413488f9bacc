"""The folder that `orbitwise learn` writes: what is in it, and when it may be written to.

model.orbitwise    the model with the most evidence
report.html        pictures and numbers
picture.png        the comparison and the learned orbit of images, to show others
comparison.json    every candidate, best first
settings.json      what was asked for, so that an interrupted run can be resumed with the same settings
examples.npz       some rows, for the report
candidates/        one model per candidate, saved as soon as it is learned
progress/          what is needed to resume a fit that has not ended
.orbitwise.lock    only while a process writes

One process writes at a time. Digests tie what it writes together: each candidate to the data and settings it
was learned from, and the comparison to all of them, so that files of two runs are never taken for one run.
The folder itself may be a symbolic link. Links inside it are never written through, because they may lead to
files of other people: a link in place of a file is replaced, and one in place of a folder is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, final

from orbitwise.cli.errors import CommandError
from orbitwise.inference.disk import REASONS, TEMPORARY, Lock, sweep
from orbitwise.storage import StorageError, write_atomically
from orbitwise.storage.container import brief

FILES = ("model.orbitwise", "report.html", "picture.png", "comparison.json", "examples.npz", "settings.json")
FOLDERS = ("candidates", "progress")
LOCK = ".orbitwise.lock"
FORMAT = 2
"""Version of the folder. The first version has no such number, and nothing that ties its files together."""
EARLIER = (
    "{folder} was written by an earlier version of Orbitwise, which did not record whether its files belong "
    "to the same run"
)
FREE = {"command", "data", "versions"}
"""Settings that may differ when a run is resumed."""
MOST_BYTES = 2**26
"""The command writes no larger JSON file."""
ATTEMPTS = 20
PAUSE = 0.05
Found = TypeVar("Found")


@contextmanager
def _explained(what: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError into one sentence: `what` went wrong, why, and a hint."""
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise CommandError(f"{what}: {reason}{hint}") from error


@final
class Folder:
    """The results of one `learn`, at a `path`.

    A process writes only inside of `with folder.writing()`, which keeps others from writing at the same time.
    Readers need no lock: each file is replaced as a whole, and `steadily` reads again where files changed
    between the first and the last one that it read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, self.report = path / "model.orbitwise", path / "report.html"
        self.comparison, self.settings = path / "comparison.json", path / "settings.json"
        self.examples, self.picture = path / "examples.npz", path / "picture.png"
        self._lock: Lock | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing to the folder; a CommandError if one is writing already."""
        if self.path.exists() and not self.path.is_dir():
            raise CommandError(f"{self.path} is a file; give --out a folder")
        with _explained(f"the folder {self.path} cannot be made"):
            self.path.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.path / LOCK)
        with _explained(f"the folder {self.path} cannot be written to"):
            held = lock.acquire()
        if held is False:
            raise CommandError(
                f"{lock.holder or 'another process'} is writing to {self.path}; wait until it ends, stop it, "
                "or choose another --out"
            )
        if held is None:
            warnings.warn(
                f"The file system of {self.path} has no locks: make sure that no other process writes there.",
                UserWarning,
                stacklevel=3,
            )
        self._lock = lock
        try:
            yield
        finally:
            self._lock = None
            lock.release()

    def check_ours(self, file: Path) -> None:
        """Raise a CommandError if a file would not go to the folder that this process has locked."""
        if self._lock is not None and not self._lock.is_ours():
            raise CommandError(
                f"{self.path} was deleted or replaced during this run, so the run stopped; learn again, with "
                "another --out"
            )
        for folder in file.parents:
            if folder == self.path:
                break
            self._check_no_link(folder)

    def prepare(self, settings: Mapping[str, Any], resume: bool, force: bool) -> bool:
        """Make the folder ready, and return whether an earlier run is resumed.

        Raises a CommandError where the folder has results or other files and neither `resume` nor `force`
        says what to do with them, or where the run to be resumed had other data or settings.
        """
        before = self.read(self.settings) if resume else None
        if before is not None:
            self._check_same(before, settings)
            self.sweep()
            return True
        held = [name for name in FILES if os.path.lexists(self.path / name)]
        held += [name for name in FOLDERS if any((self.path / name).glob("*"))]
        others = self.path.exists() and any(not _is_passing(each.name) for each in self.path.iterdir())
        if (held or (others and not resume)) and not force:
            hint = "resume the run with --resume, " if "settings.json" in held else ""
            raise CommandError(
                f"{self.path} exists and is not empty; {hint}replace its results with --force, or choose "
                "another --out"
            )
        with _explained(f"the folder {self.path} cannot be made ready", "; choose another --out"):
            self._clear()
            self.path.mkdir(parents=True, exist_ok=True)
        self.write(self.settings, {"format": FORMAT, **settings})
        self.sweep()
        return False

    def candidate(self, number: int, name: str) -> Path:
        """Where the model of a candidate is."""
        return self.path / "candidates" / f"{number}-{_slug(name)}.orbitwise"

    def progress(self, number: int, name: str) -> Path:
        """Where the fit of a candidate keeps its progress."""
        place = self.path / "progress" / f"{number}-{_slug(name)}"
        self._check_no_link(place.parent)
        self._check_no_link(place)
        with _explained(f"the folder {place} cannot be made"):
            place.mkdir(parents=True, exist_ok=True)
        return place

    def read(self, file: Path) -> dict[str, Any] | None:
        """A JSON file of this folder, None if there is no such file."""
        try:
            with _explained(f"{file} cannot be read"):
                if not file.is_file():
                    return None
                if file.stat().st_size > MOST_BYTES:
                    raise ValueError("it is too large")
                content = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{file} is damaged ({brief(error)}); learn again with --force") from error
        return content

    def write(self, file: Path, content: Mapping[str, Any]) -> None:
        """Write a JSON file of this folder."""
        self.write_bytes(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    def write_bytes(self, file: Path, content: bytes) -> None:
        """Write a file of this folder; a link in its place is replaced."""
        self.check_ours(file)
        write_atomically(file, content)

    def sweep(self) -> None:
        """Remove the temporary files of killed processes."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            if folder != self.path:
                self._check_no_link(folder)
            with _explained(f"the folder {folder} cannot be used"):
                folder.mkdir(parents=True, exist_ok=True)
                sweep(folder)

    def one_run(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings and comparison of the model's run; a CommandError if files of several runs are mixed.

        In a folder of an earlier version this cannot be checked: see `is_earlier`.
        """
        settings, comparison = self.read(self.settings), self.read(self.comparison)
        if settings is None or comparison is None:
            missing = self.settings.name if settings is None else self.comparison.name
            raise CommandError(
                f"{self.path} has no {missing}; finish the run with `orbitwise learn … --resume`"
            )
        if is_earlier(settings, comparison):
            return settings, comparison
        if comparison.get("digest") != digest_of(settings):
            raise self._mixed(self.settings)
        for file, kept in ((self.model, "model"), (self.examples, "examples")):
            if file.is_file() and comparison.get(kept) != file_digest(file):
                raise self._mixed(file)
        return settings, comparison

    def steadily(self, reading: Callable[[], Found]) -> Found:
        """What a function reads from this folder; it reads again if the folder changed meanwhile."""
        for _ in range(ATTEMPTS):
            before = self._stamp()
            try:
                found = reading()
            except (CommandError, StorageError, OSError):
                if self._stamp() == before:
                    raise
            else:
                if self._stamp() == before:
                    return found
            time.sleep(PAUSE)
        raise CommandError(f"another process keeps writing to {self.path}; try again when it has ended")

    def _stamp(self) -> list[tuple[str, int, int, int]]:
        """Which files are there: each is replaced as a whole, and never changed."""
        files = [self.path / name for name in FILES if name not in ("report.html", "picture.png")]
        try:
            files += sorted((self.path / "candidates").glob("*"))
            stats = [(file.name, file.stat()) for file in files if file.exists()]
        except OSError:
            return []
        return [(name, each.st_ino, each.st_mtime_ns, each.st_size) for name, each in stats]

    def _mixed(self, file: Path) -> CommandError:
        return CommandError(
            f"{file} and {self.comparison} were written by different runs; finish the run with `orbitwise "
            "learn … --resume`, or learn again with --force"
        )

    def _check_no_link(self, folder: Path) -> None:
        if folder.is_symlink():
            raise CommandError(
                f"{folder} is a symbolic link, and results are not written through links; remove it, or "
                "choose another --out"
            )

    def _clear(self) -> None:
        """Remove the model first and the settings last: no model is found with settings of another run."""
        for name in (*FILES[:-1], *FOLDERS, FILES[-1]):
            place = self.path / name
            if place.is_dir() and not place.is_symlink() and name in FOLDERS:
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    def _check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if is_earlier(before):
            raise CommandError(
                f"{self.path} was written by an earlier version of Orbitwise, and this version cannot resume "
                "it; learn again with --force, or choose another --out"
            )
        plain = json.loads(json.dumps({"format": FORMAT, **now}))
        if before.get("digest") != plain.get("digest"):
            raise CommandError(
                f"--resume needs the data of the run in {self.path}, but these are different data; learn "
                "again with --force, or choose another --out"
            )
        for key in sorted({*before, *plain} - FREE):
            if before.get(key) != plain.get(key):
                raise CommandError(
                    f"--resume needs the settings of the run in {self.path}, but {key} was "
                    f"{brief(repr(before.get(key)))} and is {brief(repr(plain.get(key)))} now; learn again "
                    "with --force"
                )


def is_earlier(*contents: Mapping[str, Any]) -> bool:
    """Whether these JSON files are all of an earlier version, which did not tie a run's files together."""
    return all("format" not in each for each in contents)


def digest_of(settings: Mapping[str, Any]) -> str:
    """What ties files to a run: a digest of all settings on which the result depends."""
    held = {key: value for key, value in settings.items() if key not in FREE | {"format"}}
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def model_file(path: Path) -> Path:
    """The file of a model: the path itself, or the one in a folder of `learn`."""
    file = path / "model.orbitwise" if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir() and (path / "settings.json").is_file():
        raise CommandError(f"{path} has no model yet; finish the run with `orbitwise learn … --resume`")
    raise CommandError(
        f"there is no model at {path}; MODEL is a file that ends in .orbitwise, or a folder that "
        "`orbitwise learn` wrote"
    )


def check_new(file: Path, force: bool) -> None:
    """Raise a CommandError if a file exists already and may not be replaced."""
    if file.is_dir():
        raise CommandError(f"{file} is a folder; give a file name")
    if os.path.lexists(file) and not force:
        raise CommandError(f"{file} exists; replace it with --force, or choose another name")
    if not file.parent.is_dir():
        raise CommandError(f"{file.parent} is not a folder; make it first")


def _is_passing(name: str) -> bool:
    """Whether a file exists only while a process writes."""
    return name == LOCK or TEMPORARY.fullmatch(name) is not None


def _slug(name: str) -> str:
    return re.sub(r"[^\w+.-]", "_", name)[:60]
