"""Computing a result: cells that are missing, one record that is written after each, and one figure.

A run that was stopped resumes with the cells that are missing. The record is `NAME.json`, and the figure,
which is drawn once all cells are there, is `NAME.png`.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from orbitwise import datasets
from orbitwise.experiments.records import Record, versions_and_machine
from orbitwise.inference.disk import Lock, write_atomically
from orbitwise.inference.optimise.bar import can_draw, in_words
from orbitwise.reproduce.result import Cell, Claim, Result, Setting

FORMAT = 1
DOTS_PER_INCH = 160


@final
class Run:
    """One result at one setting, with its record in the folder `out`.

    Attributes
    ----------
    cells : dict of str to Cell
        All cells that were asked for.
    record : Record
        What is known so far.
    """

    def __init__(self, result: Result, setting: Setting, out: Path, device: str = "auto") -> None:
        self.result, self.setting, self.device = result, setting, device
        self.cells = dict(result.cells(setting))
        self.file, self.figure = out / f"{result.name}.json", out / f"{result.name}.png"
        about = {"name": result.name, "title": result.title, "source": result.source}
        printed = {"printed": result.printed, "scale": setting.scale, "seeds": setting.num_seeds}
        empty = {"format": FORMAT, **about, **printed, "data": {}, "runs": [], "cells": {}}
        try:
            self.record = Record(self.file, empty)
        except ValueError as error:
            raise ValueError(
                f"{self.file} is not a record: {error}; remove it, or choose another --out"
            ) from error
        scale = self.record.values["scale"]
        if self.record.values["name"] != result.name or scale != setting.scale:
            raise ValueError(
                f"{self.file} holds {self.record.values['name']} at scale {scale}, "
                f"not {result.name} at scale {setting.scale}; choose another --out"
            )

    @property
    def missing(self) -> dict[str, Cell]:
        """The cells that the record lacks, or has with other options."""
        known = self.record.values["cells"]
        return {
            name: cell
            for name, cell in self.cells.items()
            if name not in known or known[name]["options"] != json.loads(json.dumps(dict(cell.options)))
        }

    @property
    def claims(self) -> list[Claim]:
        """What became of the source's statements; empty while cells are missing."""
        return [] if self.missing else [Claim(**each) for each in self.record.values["claims"]]

    def compute(
        self,
        command: str,
        console: Console,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compute the missing cells until the deadline, then judge and draw if all are there."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.file.with_name(f".{self.result.name}.lock"))
        if lock.acquire() is False:
            raise ValueError(f"{lock.holder or 'another process'} is writing {self.file}; wait until it ends")
        try:
            self._compute(command, console, deadline, clock)
        finally:
            lock.release()

    def forget(self) -> None:
        """Compute all cells again."""
        for name in self.cells:
            self.record.values["cells"].pop(name, None)

    def _compute(
        self, command: str, console: Console, deadline: float | None, clock: Callable[[], float]
    ) -> None:
        missing, values = self.missing, self.record.values
        run = {"command": command, **versions_and_machine()}
        with _progress(console, self.result.name, len(self.cells), missing) as begin:
            for name, cell in missing.items():
                if deadline is not None and clock() >= deadline:
                    return
                begin(name)
                made = self._twin(cell) or self._run(cell)
                if run not in values["runs"]:
                    values["runs"].append(run)
                    values["data"] |= checksums(self.cells.values())
                values["cells"][name] = {**made, "run": values["runs"].index(run)}
                self.record.write(seconds=sum(each["seconds"] for each in values["cells"].values()))
        numbers = {name: values["cells"][name]["numbers"] for name in self.cells}
        claims = [asdict(claim) for claim in self.result.claims(numbers)]
        self.record.write(
            title=self.result.title,
            source=self.result.source,
            printed=self.result.printed,
            seeds=self.setting.num_seeds,
            command=command,
            claims=claims,
        )
        figure = Figure(layout="constrained")
        self.result.draw(numbers, figure)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
        write_atomically(self.figure, content.getvalue())

    def _twin(self, cell: Cell) -> dict[str, Any] | None:
        """What the record has of another cell that is the same computation."""
        missing, known = self.missing, self.record.values["cells"]
        same = (
            known[name]
            for name, other in self.cells.items()
            if name not in missing and (other.run, other.options) == (cell.run, cell.options)
        )
        return next(same, None)

    def _run(self, cell: Cell) -> dict[str, Any]:
        start, worked = time.perf_counter(), time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            numbers = cell.run(**cell.options, device=self.device)
        on_gpu = self.device != "cpu" and torch.cuda.is_available()
        return {
            "options": json.loads(json.dumps(dict(cell.options))),
            "numbers": numbers,
            "seconds": round(time.perf_counter() - start, 3),
            "processor_seconds": round(time.process_time() - worked, 3),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "warnings": sorted({str(each.message) for each in caught}),
        }


@contextmanager
def _progress(
    console: Console, title: str, count: int, missing: Mapping[str, Cell]
) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, and nothing elsewhere; what is yielded is called as each cell begins."""
    if not missing or not can_draw(console):
        yield lambda name: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        done = count - len(missing)
        task = progress.add_task(title, total=count, completed=done, left="")
        names = list(missing)

        def begin(name: str) -> None:
            at = names.index(name)
            left = sum(missing[each].seconds for each in names[at:])
            words = f"about {in_words(left)} left"
            progress.update(task, completed=done + at, description=f"{title}  {name}", left=words)

        yield begin


def checksums(cells: Iterable[Cell]) -> dict[str, dict[str, str]]:
    """SHA-256 of the arrays of every set that the cells load, and where it was read."""
    found = {}
    for name in sorted({name for cell in cells for name in cell.data}):
        data, digest = datasets.load(name), hashlib.sha256()
        for key in sorted(data.arrays):
            array = np.ascontiguousarray(data.arrays[key])
            digest.update(f"{key} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        found[name] = {"sha256": digest.hexdigest(), "source": data.source}
    return found
