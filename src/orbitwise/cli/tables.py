"""Tables from files, a batch of rows at a time: CSV with the standard library, parquet with pyarrow."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.cells import unescaped
from orbitwise.cli.errors import CommandError, nearest

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
TARGETS = ("target", "label", "class", "y")


@final
@dataclass(frozen=True)
class Rows:
    """Some rows of a table, column by column, and what each row is called in messages."""

    columns: dict[str, Sequence[Any] | NDArray[Any]]
    labels: list[str]


def table_batches(path: Path, size: int) -> Iterator[Rows]:
    """The rows of a CSV or parquet file, `size` at a time."""
    return _parquet(path, size) if path.suffix.lower() == ".parquet" else _csv(path, size)


def numbers(rows: Rows, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where a cell is empty; text is an error that names the cell."""
    values = rows.columns[name]
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([_number(each, name, label) for each, label in zip(values, rows.labels, strict=True)])


def is_text(values: Sequence[Any] | NDArray[Any]) -> bool:
    """Whether a column holds words rather than numbers."""
    return any(isinstance(each, str) and not _is_number(each) and not is_missing(each) for each in values)


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, by any of the usual signs."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def target_column(wanted: str | None, names: Sequence[str], path: Path) -> str:
    """The column to learn: the one asked for, or the only one with a usual name."""
    if wanted is not None:
        if wanted not in names:
            raise CommandError(f"{path} has no column {wanted!r}; {nearest(wanted, names)}")
        return wanted
    usual = [name for name in names if name.lower() in TARGETS]
    if len(usual) != 1:
        found = nearest("", names)
        raise CommandError(f"say which column of {path} is to be predicted, with --target NAME; {found}")
    return usual[0]


def _csv(path: Path, size: int) -> Iterator[Rows]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [unescaped(name.strip()) for name in next(reader, [])]
            _check_header(header, path)
            rows: list[list[str]] = []
            labels: list[str] = []
            count = 0
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise CommandError(
                        f"line {reader.line_num} of {path} has {len(row)} cells, but its header names "
                        f"{len(header)} columns; mend that line"
                    )
                rows.append([unescaped(cell) for cell in row])
                count += 1
                labels.append(f"row {count}")
                if len(rows) == size:
                    yield _transposed(header, rows, labels)
                    rows, labels = [], []
            if rows:
                yield _transposed(header, rows, labels)
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no CSV file in UTF-8 ({error.reason}); save it as one") from error
    except csv.Error as error:
        raise CommandError(f"{path} is no CSV file: {error}") from error


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise CommandError(f"{path} is empty; it needs a line with the names of its columns, and rows")
    if all(_is_number(name) for name in header):
        raise CommandError(f"the first line of {path} holds numbers; put a line with names of columns first")
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise CommandError(f"{path} has several columns called {repeated!r}; rename them")


def _transposed(header: list[str], rows: list[list[str]], labels: list[str]) -> Rows:
    return Rows(dict(zip(header, zip(*rows, strict=True), strict=True)), labels)


def _parquet(path: Path, size: int) -> Iterator[Rows]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise CommandError(
            f'reading {path} needs pyarrow: pip install "orbitwise[tables]", or give a CSV file'
        ) from error
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise CommandError(f"{path} is no parquet file: {error}") from error
    start = 0
    for batch in file.iter_batches(batch_size=size):
        columns = {name: values.to_pylist() for name, values in zip(batch.schema.names, batch, strict=True)}
        yield Rows(columns, [f"row {start + i + 1}" for i in range(batch.num_rows)])
        start += batch.num_rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: Any, name: str, label: str) -> float:
    if is_missing(cell):
        return np.nan
    try:
        return float(cell)
    except (TypeError, ValueError) as error:
        raise CommandError(
            f"column {name!r} holds {str(cell)!r} in {label}; columns must be numbers: write it as one, or "
            f"leave the column out with --ignore {name}"
        ) from error
