"""What a reproduced figure or table consists of: cells that are computed, claims to check, and a drawing."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

from matplotlib.figure import Figure

from orbitwise import datasets
from orbitwise.reproduce import results

Scale = Literal["tiny", "cpu", "full"]
Verdict = Literal["holds", "does not hold", "differs", "undecided"]
Numbers = dict[str, Any]
"""What a cell returns; it must be possible to write it as JSON."""
Value = TypeVar("Value")

SCALES: tuple[Scale, ...] = ("tiny", "cpu", "full")
SOURCES = ("lim", "subsets", "talk", "lecture", "rkhs")
"""With what the names of results begin, in the order in which they are listed."""


@final
@dataclass(frozen=True)
class Setting:
    """At which scale, and with how many seeds, a result is computed.

    "tiny" takes seconds, for tests; "cpu" shows the same effect on smaller data within five minutes of two
    cores; "full" is what the source did.
    """

    scale: Scale
    num_seeds: int

    @property
    def seeds(self) -> range:
        """The seeds, from 0."""
        return range(self.num_seeds)

    def pick(self, tiny: Value, cpu: Value, full: Value) -> Value:
        """The value for this scale."""
        return {"tiny": tiny, "cpu": cpu, "full": full}[self.scale]

    def available(self, name: str, otherwise: str) -> str:
        """A set of data by name, or another where that is not in the folder ORBITWISE_DATA.

        At full scale it is always the first, which may be fetched; at tiny scale always the second.
        """
        found = {each.name: each.where for each in datasets.available()}
        return self.pick(otherwise, name if found[name] == "ORBITWISE_DATA" else otherwise, name)


@final
@dataclass(frozen=True)
class Cell:
    """One independent piece of a result, such as one model on one set with one seed.

    Attributes
    ----------
    run : callable
        Called with the options and `device`; returns numbers.
    options : dict
        Arguments, as JSON holds them. A cell is computed again if they are not those of the record.
    seconds : float
        How long it takes, roughly: at full scale on an H200 GPU, at other scales on two cores.
    data : sequence of str
        Names of the sets that it loads, whose checksums the record has.
    """

    run: Callable[..., Numbers]
    options: Mapping[str, Any]
    seconds: float
    data: Sequence[str] = ()


@final
@dataclass(frozen=True)
class Claim:
    """One statement of the source, what was printed there, what was measured, and whether it holds."""

    says: str
    printed: str
    measured: str
    verdict: Verdict
    because: str = ""

    @classmethod
    def of(cls, says: str, printed: str, measured: str, holds: bool, because: str = "") -> Claim:
        """A claim that holds or does not; `because` is kept where it does not."""
        return cls(says, printed, measured, "holds" if holds else "does not hold", "" if holds else because)


Cells = Mapping[str, Numbers]
"""The numbers of all cells of a result, by the name of the cell."""


@final
@dataclass(frozen=True)
class Result:
    """A figure or table of a source.

    Attributes
    ----------
    name : str
        As on the command line, such as "lim-fig2"; its file is `results/lim_fig2.py`.
    title : str
        One sentence.
    source : str
        The document, and the figure or section.
    printed : str
        What is printed there.
    cells : callable
        The cells of a setting, by name.
    claims : callable
        What becomes of the source's statements, from the numbers of all cells.
    draw : callable
        Draws the figure in the layout of the printed one.
    seeds : tuple of int
        The usual number of seeds at the scales tiny, cpu and full.
    """

    name: str
    title: str
    source: str
    printed: str
    cells: Callable[[Setting], Mapping[str, Cell]]
    claims: Callable[[Cells], Sequence[Claim]]
    draw: Callable[[Cells, Figure], None]
    seeds: tuple[int, int, int] = (1, 1, 3)

    def setting(self, scale: Scale, num_seeds: int | None = None) -> Setting:
        """A scale with the usual number of seeds, unless another is given."""
        return Setting(scale, self.seeds[SCALES.index(scale)] if num_seeds is None else num_seeds)

    def seconds(self, scale: Scale) -> float:
        """How long it takes at a scale with the usual seeds, roughly."""
        return sum(cell.seconds for cell in self.cells(self.setting(scale)).values())


def all_results() -> dict[str, Result]:
    """Every result by its name: LIM, the talk, the lecture, RKHS."""
    files = [each.name for each in pkgutil.iter_modules(results.__path__)]
    found = [importlib.import_module(f"{results.__name__}.{file}").RESULT for file in files]
    found.sort(key=lambda result: (SOURCES.index(result.name.partition("-")[0]), result.name))
    return {result.name: result for result in found}
