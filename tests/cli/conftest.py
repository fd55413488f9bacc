"""Small data in every form that the command reads, and a way to call it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from orbitwise.cli import main


class Ran(NamedTuple):
    status: int
    out: str
    error: str


@pytest.fixture
def orbitwise(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command in this process; its error is one line."""

    def call(*arguments: object) -> Ran:
        status = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)
    return tmp_path


def symmetric(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three numbers, and a function that does not care about their order."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    return x, np.sin(x.sum(1)) + 0.05 * rng.normal(size=count)


def write_csv(path: Path, header: str, rows: Any) -> Path:
    path.write_text(header + "\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


@pytest.fixture
def table(folder: Path) -> Path:
    """A table with the columns a, b, c and strength."""
    x, y = symmetric(24)
    return write_csv(folder / "table.csv", "a,b,c,strength", np.column_stack([x, y]))


def bars(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images 6 x 6 of an upright or a lying bar."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = 0.1 * rng.random((count, 6, 6))
    for image, label in zip(x, y, strict=True):
        image[(slice(None), slice(2, 4)) if label else (slice(2, 4), slice(None))] += 0.8
    return x, y


def write_images(folder: Path, count: int = 12) -> Path:
    """The bars as PNG files in the sub-folders lying and upright."""
    from PIL import Image

    x, y = bars(count)
    for place, (image, label) in enumerate(zip(x, y, strict=True)):
        part = folder / ("upright" if label else "lying")
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * image).astype(np.uint8)).save(part / f"{place:03}.png")
    return folder


@pytest.fixture
def pictures(folder: Path) -> Path:
    return write_images(folder / "pictures")


QUICK = ("--max-iterations", 3, "--num-nodes", 4)
