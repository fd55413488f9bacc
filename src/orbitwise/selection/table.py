"""Tables of results that can be printed as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from rich.console import Console
from rich.table import Table

WIDTH = 120


@final
class ResultTable(Table):
    """A rich table that also prints as plain text, by `print(model.table())` or `model.table()` in a shell.

    Parameters
    ----------
    title : str
        The text above the table.
    headings : sequence of str
        Names of the columns.
    words : collection of str, default=()
        Columns of words, in addition to the first. All others hold numbers and are aligned to the right.
    caption : str, default=None
        The text below the table.
    """

    def __init__(
        self, title: str, headings: Sequence[str], words: Collection[str] = (), caption: str | None = None
    ) -> None:
        super().__init__(title=title, caption=caption)
        for heading in headings:
            is_text = heading == headings[0] or heading in words
            self.add_column(heading, justify="left" if is_text else "right")

    def __str__(self) -> str:
        console = Console(width=WIDTH, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __repr__(self) -> str:
        """The same text, so that a Python shell shows the table."""
        return str(self).rstrip("\n")
