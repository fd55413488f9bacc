"""Files that are written row by row, and are there in full or not at all."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orbitwise.cli.cells import escaped
from orbitwise.cli.errors import CommandError
from orbitwise.storage.atomic import REASONS, replacing

Batch = Mapping[str, Sequence[Any]]
Write = Callable[[Batch], None]


@contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """A function that takes batches of columns; CSV or parquet, by the ending of the path."""
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise CommandError(f"{path} must end in .csv or .parquet")
    table = _csv if ending == ".csv" else _parquet
    with _replacing(path) as temporary, table(temporary) as write:
        yield write


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder, which takes the place of `path` when all went well."""
    try:
        with replacing(path.resolve()) as (temporary, _):
            yield temporary
    except OSError as error:
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise OSError(error.errno, f"Cannot write {path}: {reason}") from error


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        started = False

        def write(batch: Batch) -> None:
            nonlocal started
            if not started:
                writer.writerow([escaped(name) for name in batch])
                started = True
            columns = [[escaped(cell) for cell in column] for column in batch.values()]
            writer.writerows(zip(*columns, strict=True))

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CommandError(
            'writing parquet needs pyarrow: pip install "orbitwise[tables]", or name a file that ends in .csv'
        ) from error
    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(batch: Batch) -> None:
            nonlocal writer
            table = pyarrow.table({name: list(values) for name, values in batch.items()})
            if writer is None:
                writer = stack.enter_context(parquet.ParquetWriter(path, table.schema))
            writer.write_table(table)

        yield write
