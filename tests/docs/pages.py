"""Runs the Python blocks of the pages in docs/, and compares what they print with what the pages show.

`python -m tests.docs.pages PAGE…` writes what they print into the pages.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```output\n(?P<output>.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
NEARLY = 0.05
"""Printed numbers may differ by this share, or by so much, because they depend on rounding."""


def run(page: Path) -> list[str]:
    """What each block of a page prints; all of them share their names, in an empty folder."""
    matplotlib.use("Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        text = page.read_text(encoding="utf-8")
        os.chdir(folder)
        try:
            for block in BLOCK.finditer(text):
                with contextlib.redirect_stdout(io.StringIO()) as stream:
                    exec(compile(block["code"], f"<{page.name}>", "exec"), names)
                printed.append("\n".join(line.rstrip() for line in stream.getvalue().splitlines()))
        finally:
            os.chdir(here)
    return printed


def shown(page: Path) -> list[str]:
    """What a page says that each of its blocks prints."""
    return [(block["output"] or "").rstrip() for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def agree(first: str, second: str) -> bool:
    """Whether two texts have the same words and nearly the same numbers; spaces do not count."""
    if NUMBER.sub("#", first).split() != NUMBER.sub("#", second).split():
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    values = [[float(each.replace(",", "").replace("−", "-")) for each in pair] for pair in pairs]
    return all(abs(one - two) <= NEARLY * max(1.0, abs(one)) for one, two in values)


def write(page: Path) -> None:
    """Put what the blocks print into a page, where it has a place for output."""
    printed = iter(run(page))

    def filled(block: re.Match[str]) -> str:
        text = next(printed)
        if block["output"] is None:
            if text:
                raise ValueError(f"{page.name}: a block prints {text!r} and has no output")
            return block[0]
        return f"```python\n{block['code']}```\n\n```output\n{text}\n```\n"

    page.write_text(BLOCK.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name).resolve())
