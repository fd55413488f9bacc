"""Text in CSV files that spreadsheets open: what would be run as a formula there is marked as text.

A quote in front is what a spreadsheet itself takes for "this is text"; our reader takes it away again. Quotes
that text had before are kept apart by one more.
"""

from __future__ import annotations

import re
from typing import Any

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def escaped(cell: Any) -> Any:
    """A cell or heading to write: numbers stay, text that begins like a formula gets a quote before it."""
    if not isinstance(cell, str) or NUMBER.fullmatch(cell) or not FORMULA.match(cell):
        return cell
    return "'" + cell


def unescaped(cell: str) -> str:
    """The cell that `escaped` wrote."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
