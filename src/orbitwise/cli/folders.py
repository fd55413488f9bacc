"""The folder that `orbitwise learn` writes: what is in it, and when it may be written to.

model.orbitwise    the model with the most evidence
report.html        pictures and numbers
picture.png        the comparison and the learned orbit of images, to show others
comparison.json    every candidate, best first
settings.json      what was asked for, so that a run that was cut short goes on as it began
examples.npz       some rows, for the report
candidates/        a model for every candidate, saved as soon as it is learned
progress/          what a fit that has not ended needs to go on
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from orbitwise.cli.errors import CommandError
from orbitwise.storage import write_atomically
from orbitwise.storage.atomic import REASONS

FILES = ("model.orbitwise", "report.html", "picture.png", "comparison.json", "examples.npz", "settings.json")
FOLDERS = ("candidates", "progress")
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
FREE = {"command", "versions"}
"""Settings that may differ when a run goes on."""


@final
class Folder:
    """The results of one `learn`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model, self.report = path / "model.orbitwise", path / "report.html"
        self.comparison, self.settings = path / "comparison.json", path / "settings.json"
        self.examples, self.picture = path / "examples.npz", path / "picture.png"

    def prepare(self, settings: Mapping[str, Any], resume: bool, force: bool) -> bool:
        """Make the folder ready; returns whether an earlier run goes on. Nothing is replaced unasked."""
        if self.path.exists() and not self.path.is_dir():
            raise CommandError(f"{self.path} is a file; give --out a folder")
        before = self.read(self.settings) if resume else None
        if before is not None:
            self._check_same(before, settings)
            self.sweep()
            return True
        held = [name for name in FILES if (self.path / name).exists()]
        held += [name for name in FOLDERS if any((self.path / name).glob("*"))]
        others = self.path.exists() and any(not TEMPORARY.fullmatch(e.name) for e in self.path.iterdir())
        if (held or (others and not resume)) and not force:
            hint = "go on with --resume, " if "settings.json" in held else ""
            raise CommandError(
                f"{self.path} exists and is not empty; {hint}replace its results with --force, or choose "
                "another --out"
            )
        self._clear()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = REASONS.get(error.errno or 0, error.strerror or str(error))
            raise CommandError(f"the folder {self.path} cannot be made: {reason}") from error
        self.write(self.settings, settings)
        self.sweep()
        return False

    def candidate(self, number: int, name: str) -> Path:
        """Where the model of a candidate is."""
        return self.path / "candidates" / f"{number}-{_slug(name)}.orbitwise"

    def progress(self, number: int, name: str) -> Path:
        """Where the fit of a candidate keeps its progress."""
        return self.path / "progress" / f"{number}-{_slug(name)}"

    def read(self, file: Path) -> dict[str, Any] | None:
        """A JSON file of this folder, None where it is not there."""
        if not file.is_file():
            return None
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CommandError(f"{file} is damaged ({error}); learn again with --force") from error
        return content if isinstance(content, dict) else None

    def write(self, file: Path, content: Mapping[str, Any]) -> None:
        """Write a JSON file of this folder."""
        write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def sweep(self) -> None:
        """Take away what a killed process was about to write."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                if TEMPORARY.fullmatch(file.name):
                    file.unlink(missing_ok=True)

    def _clear(self) -> None:
        for name in FOLDERS:
            if (self.path / name).is_dir():
                shutil.rmtree(self.path / name)
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)

    def _check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        plain = json.loads(json.dumps(now))
        for key in sorted({*before, *plain} - FREE):
            if before.get(key) != plain.get(key):
                raise CommandError(
                    f"--resume goes on with the settings of the run in {self.path}, but {key} was "
                    f"{before.get(key)!r} and is {plain.get(key)!r} now; learn anew with --force"
                )


def model_file(path: Path) -> Path:
    """The file of a model: the path itself, or the one in a folder of `learn`."""
    file = path / "model.orbitwise" if path.is_dir() else path
    if file.is_file():
        return file
    if path.is_dir() and (path / "settings.json").is_file():
        raise CommandError(f"{path} has no model yet; finish it with orbitwise learn … --resume")
    raise CommandError(
        f"there is no model at {path}; MODEL is a file that ends in .orbitwise, or a folder that "
        "orbitwise learn wrote"
    )


def check_new(file: Path, force: bool) -> None:
    """Raise a CommandError where a file is there already and may not be replaced."""
    if file.is_dir():
        raise CommandError(f"{file} is a folder; give a file name")
    if file.exists() and not force:
        raise CommandError(f"{file} exists; replace it with --force, or choose another name")
    if not file.parent.is_dir():
        raise CommandError(f"{file.parent} is no folder; make it first")


def _slug(name: str) -> str:
    return re.sub(r"[^\w+.-]", "_", name)[:60]
