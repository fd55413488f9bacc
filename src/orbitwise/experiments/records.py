"""Command lines and records of experiments and benchmarks.

A record is one JSON file, which is written in full or not at all after every result. So a run that was
stopped resumes with the missing results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import torch

from orbitwise import __version__
from orbitwise.inference.disk import write_atomically


def command_line(
    doc: str | None, out: str | Path | None = None, is_required: bool = True
) -> argparse.ArgumentParser:
    """A parser whose description is a module's docstring, with the option --out for the record.

    The option is required if it has no default, unless the record is optional.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = None if out is None else Path(out)
    parser.add_argument(
        "--out", type=Path, default=default, required=is_required and out is None, help="the record, as JSON"
    )
    return parser


def write_record(record: object, out: Path) -> None:
    """Write a record as JSON in full or not at all; its folder is made if it is missing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(record, indent=1) + "\n")


def versions_and_machine(*packages: str) -> dict[str, dict[str, Any]]:
    """What the figures of a benchmark depend on: the versions of packages, and the machine."""
    always = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn")
    versions = {name: version(name) for name in (*always, *packages)}
    threads = torch.get_num_threads()
    machine: dict[str, Any] = {"processor": platform.machine(), "cores": os.cpu_count(), "threads": threads}
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return {
        "versions": {"python": platform.python_version(), "orbitwise": __version__, **versions},
        "machine": machine,
    }


@final
class Record:
    """The results of a run so far, in `values` and, if given, in the file `out`.

    An existing file is read first, so that a run that was stopped resumes with the missing results; `empty`
    has the entries of a new record.
    """

    def __init__(self, out: Path | None, empty: dict[str, Any]) -> None:
        self.out = out
        is_there = out is not None and out.is_file()
        self.values = empty | (json.loads(out.read_text(encoding="utf-8")) if out and is_there else {})

    def write(self, **more: object) -> None:
        """Add entries, and write the file."""
        self.values |= more
        if self.out is not None:
            write_record(self.values, self.out)

    def fill(self, part: dict[str, Any], name: str, run: Callable[[], dict[str, Any]]) -> bool:
        """Run an entry that a part of `values` lacks, and write it at once; return whether it was missing."""
        if name in part:
            return False
        part[name] = run()
        self.write()
        return True
