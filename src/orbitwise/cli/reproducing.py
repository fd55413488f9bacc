"""`orbitwise reproduce`: results are listed, computed, and told with what holds of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from orbitwise.cli.errors import CommandError, nearest, sentence
from orbitwise.inference.optimise.bar import in_words
from orbitwise.reproduce.result import SCALES, Result, Scale, all_results
from orbitwise.reproduce.runner import Run

ALL = "all"
TIMES = (
    "Times are rough: tiny and cpu on two cores, full on one H200 GPU. orbitwise reproduce NAME computes one."
)


def folder_of(out: Path | None, scale: Scale) -> Path:
    """The folder of the records, by default one for each scale."""
    return Path("orbitwise-reproduction") / scale if out is None else out


def result_of(name: str, known: Mapping[str, Result]) -> Result:
    """The result of a name; a CommandError hints at similar names."""
    if name not in known:
        raise CommandError(f"there is no result {name!r}; {nearest(name, [*known, ALL])} See --list")
    return known[name]


def listing(name: str | None, scale: Scale, seeds: int | None, out: Path | None) -> Table:
    """All results with their times, or the cells of one."""
    known = all_results()
    if name is None or name == ALL:
        table = Table(
            title="Figures and tables of the sources",
            title_justify="left",
            caption=TIMES,
            caption_justify="left",
        )
        for heading in ("name", "source", "what", *SCALES):
            table.add_column(heading, overflow="fold")
        for each in known.values():
            times = [in_words(each.seconds(scale)) for scale in SCALES]
            table.add_row(each.name, each.source, each.title, *times)
        return table
    result = result_of(name, known)
    run = Run(result, result.setting(scale, seeds), folder_of(out, scale))
    table = Table(title=f"{name}, scale {scale}: {run.file}", title_justify="left")
    for heading in ("cell", "takes about", "state"):
        table.add_column(heading, overflow="fold")
    for cell_name, cell in run.cells.items():
        state = "missing" if cell_name in run.missing else "computed"
        table.add_row(cell_name, in_words(cell.seconds), state)
    return table


def reproduce(
    name: str,
    scale: Scale,
    seeds: int | None,
    out: Path | None,
    device: str,
    command: str,
    console: Console,
    time_limit: float | None = None,
    force: bool = False,
) -> None:
    """Compute one result or all, and tell what holds; `command` has the place of the name as {}.

    Of all results, one that fails does not keep the others from being computed.
    """
    known, folder = all_results(), folder_of(out, scale)
    chosen = list(known.values()) if name == ALL else [result_of(name, known)]
    deadline = None if time_limit is None else time.monotonic() + time_limit
    failed = []
    for each in chosen:
        try:
            run = Run(each, each.setting(scale, seeds), folder, device)
            if force:
                run.forget()
            run.compute(command.format(each.name), console, deadline)
        except Exception as error:
            if name != ALL:
                raise
            console.print(f"{each.name}: {sentence(error)}", markup=False, soft_wrap=True)
            failed.append(each.name)
        else:
            tell(run, console)
    if failed:
        raise CommandError(f"{len(failed)} of {len(chosen)} results failed: {', '.join(failed)}")


def tell(run: Run, console: Console) -> None:
    """What became of each statement, and where the record is; or how much is missing."""
    if run.missing:
        console.print(
            f"{run.result.name}: {len(run.missing)} of {len(run.cells)} cells are missing; the same command "
            f"resumes with them: {run.file}",
            markup=False,
            soft_wrap=True,
        )
        return
    title = f"{run.result.name}: {run.result.source}, scale {run.setting.scale}"
    table = Table(title=title, title_justify="left", show_lines=True)
    for heading in ("statement", "printed", "measured", ""):
        table.add_column(heading, overflow="fold")
    for claim in run.claims:
        because = f": {claim.because}" if claim.because else ""
        table.add_row(claim.says, claim.printed, claim.measured, claim.verdict + because)
    console.print(table)
    console.print(f"record: {run.file}", markup=False, soft_wrap=True)
    console.print(f"figure: {run.figure}", markup=False, soft_wrap=True)
