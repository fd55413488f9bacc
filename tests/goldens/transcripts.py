"""Sessions of the `orbitwise` command on tiny data: exit codes, printed text, columns, files and headings.

Times, versions and paths are masked in the text, which is kept for readers. Tests compare what scripts rely
on: options, exit codes, files, columns and keys; and the headings of the table and of the report.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from orbitwise.cli import main
from tests.goldens.cases import DIGITS, IMAGES, X, Y

COMMANDS = ("demo", "learn", "predict", "report", "show", "export", "datasets")
QUICK = ("--max-iterations", "2", "--num-nodes", "4")
STEPS: dict[str, tuple[str, ...]] = {
    "help": ("--help",),
    **{f"help of {name}": (name, "--help") for name in COMMANDS},
    "datasets": ("datasets",),
    "learn from a table": (
        *("learn", "table.csv", "--target", "strength", "--out", "table"),
        *("--invariance", "none", "--invariance", "permutation", *QUICK),
    ),
    "predict rows": ("predict", "table", "table.csv", "-o", "rows.csv"),
    "show": ("show", "table"),
    "export as JSON": ("export", "table", "--to", "json", "-o", "moves.json"),
    "learn from images": (
        *("learn", "images.npz", "--target", "y", "--out", "images"),
        *("--invariance", "rotation", "--test", "images.npz", *QUICK),
    ),
    "predict images": ("predict", "images", "images.npz", "-o", "images.csv"),
    "report again": ("report", "images"),
    "export for torchvision": ("export", "images", "--to", "torchvision", "-o", "augmentation.py"),
    "a folder that is there": ("learn", "table.csv", "--target", "strength", "--out", "table"),
    "no such invariance": (
        *("learn", "table.csv", "--target", "strength", "--out", "other", "--invariance", "permutatoin"),
    ),
    "no such file": ("predict", "table", "absent.csv", "-o", "absent-rows.csv"),
    "no such option": ("learn", "table.csv", "--outt", "other"),
}


def write_data(folder: Path) -> None:
    """The table and the images that the steps read."""
    rows = [",".join(f"{value:.12g}" for value in row) for row in np.column_stack([X, Y])[:16]]
    (folder / "table.csv").write_text("a,b,c,strength\n" + "\n".join(rows) + "\n")
    np.savez(
        folder / "images.npz",
        x_train=IMAGES[:14],
        y_train=DIGITS[:14],
        x_test=IMAGES[14:],
        y_test=DIGITS[14:],
    )


def record(folder: Path) -> dict[str, dict[str, Any]]:
    """What every step returns, prints and writes, run one after the other in the folder."""
    write_data(folder)
    found: dict[str, dict[str, Any]] = {}
    with _inside(folder):
        for name, arguments in STEPS.items():
            before = _files(folder)
            out, error = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                status = main(list(arguments))
            text = out.getvalue()
            found[name] = {
                "command": " ".join(("orbitwise", *arguments)),
                "status": status,
                "options": sorted(set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)))
                if "help" in name
                else [],
                "columns": _columns(text),
                "written": sorted(_files(folder) - before),
                "error": error.getvalue().partition(":")[0].strip(),
                "text": masked(text, folder).splitlines(),
            }
    return found


def contents(folder: Path) -> dict[str, list[str]]:
    """Columns of the written tables, keys of the JSON files, and headings of the reports."""
    found: dict[str, list[str]] = {}
    for name in ("rows.csv", "images.csv"):
        with open(folder / name, newline="") as file:
            found[name] = next(csv.reader(file))
    for path in sorted(folder.rglob("*.json")):
        structure = json.loads(path.read_text())
        found[path.relative_to(folder).as_posix()] = sorted(structure)
    for path in sorted(folder.rglob("report.html")):
        headings = re.findall(r"<h[12][^>]*>(.*?)</h[12]>", path.read_text(), re.DOTALL)
        plain = [" ".join(unescape(re.sub(r"<[^>]+>", "", each)).split()) for each in headings]
        found[path.relative_to(folder).as_posix()] = plain
    return found


def masked(text: str, folder: Path) -> str:
    """The text without what differs between two runs: the folder, times, numbers, and spaces at line ends."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"\d[\d,]*(\.\d+)?(e[+-]\d+)?", "N", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _columns(text: str) -> list[str]:
    """The headings of the first table that was printed."""
    for line in text.splitlines():
        if line.startswith(("┃", "┡")) and "┃" in line[1:]:
            return [each.strip() for each in line.strip("┃").split("┃")]
    return []


def _files(folder: Path) -> set[str]:
    """All files below the folder, less those that a process leaves for itself."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)}


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """The folder as the current one, a terminal of fixed width, and no data sets but the built-in ones."""
    kept, names = Path.cwd(), ("COLUMNS", "TERMINAL_WIDTH", "NO_COLOR", "ORBITWISE_DATA")
    environment = {name: os.environ.get(name) for name in names}
    os.environ.update(COLUMNS="110", TERMINAL_WIDTH="110", NO_COLOR="1")
    os.environ.pop("ORBITWISE_DATA", None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(kept)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
