"""Where large data come from: files, PyTorch datasets and loaders, Arrow tables; and how they are read once.

Learning reads rows many times, and at random places. So what can only be read from its beginning to its end
is copied to a temporary file, which nobody else sees and which disappears with the last reference to it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from orbitwise.estimators.validation import as_array
from orbitwise.inference.stored_rows import BLOCK_NUMBERS, is_large

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset as arrow


@runtime_checkable
class Batched(Protocol):
    """A table of Arrow, which gives its rows in batches."""

    def to_batches(self) -> Any: ...


Source = Dataset[Any] | DataLoader[Any] | Batched | os.PathLike[str]
"""Data that are not arrays: data sets and loaders of PyTorch, tables of Arrow, and paths of files."""
Targets = ArrayLike | os.PathLike[str]
"""Targets in memory, the path of their .npy file, or the name of their column."""
TABLES = {".parquet": "parquet", ".feather": "feather", ".arrow": "ipc"}
"""Files that pyarrow reads, by the ends of their names."""
ITEMS_AT_ONCE = 1024
NARROW = ("float", "halffloat", "uint8", "int8", "uint16", "int16", "bool")
"""Types of columns that fit into single precision."""


class Opened(NamedTuple):
    """Inputs and targets as arrays, or as whatever else was given; and the names of columns, if known."""

    x: object
    y: object
    names: list[str] | None = None


class Part(NamedTuple):
    """Some rows of a source, with their targets where it has them."""

    x: NDArray[Any]
    y: NDArray[Any] | None


def open_data(X: object, y: object = None) -> Opened:
    """Inputs and targets of a fit, as arrays whose numbers may be in files; arrays stay as they are.

    X may be the path of an .npy file, which is mapped, a `torch.utils.data.Dataset` or `DataLoader` of pairs
    (x, y), or a table of pyarrow, or its path, with y the name of a column, or the names of several.
    """
    if is_npy(y):
        y = np.load(cast(Path, y), mmap_mode="r")
    if is_npy(X):
        return Opened(np.load(cast(Path, X), mmap_mode="r"), y)
    if isinstance(X, TensorDataset) and len(X.tensors) == 2 and y is None:
        return Opened(*X.tensors)
    if (table := as_table(X)) is not None:
        return _copied_table(table, y)
    if isinstance(X, Dataset | DataLoader):
        return _copied(_parts(X), y)
    return Opened(X, y)


def is_npy(values: object) -> bool:
    """Whether this is the path of an .npy file."""
    return isinstance(values, str | os.PathLike) and str(values).endswith(".npy")


def as_table(X: object) -> arrow.Dataset | None:
    """A table, a data set, or a file or folder that pyarrow reads; None for anything else."""
    form = None
    if isinstance(X, str | os.PathLike):
        path = Path(X)
        form = TABLES.get(path.suffix) or ("parquet" if path.is_dir() else None)
        if form is None:
            return None
    elif not type(X).__module__.startswith("pyarrow"):
        return None
    arrow = _pyarrow()
    if form is not None:
        return arrow.dataset(cast(Path, X), format=form)
    pyarrow = sys.modules["pyarrow"]
    if isinstance(X, pyarrow.Table | pyarrow.RecordBatch):
        return cast("arrow.Dataset", arrow.InMemoryDataset(X))
    return X if isinstance(X, arrow.Dataset) else None


def parts_of(X: object, names: Sequence[str] | None = None) -> Iterator[Part] | None:
    """The rows of a source, some at a time, to predict; None for anything that is no stream of rows.

    `names` are the columns of a table that are inputs. Large arrays are streams as well.
    """
    is_mapped = is_npy(X)
    if is_mapped:
        X = np.load(cast(Path, X), mmap_mode="r")
    if isinstance(X, TensorDataset):
        X = X.tensors[0]
    if (table := as_table(X)) is not None:
        return (Part(x, None) for x in _columns(table, table.schema.names if names is None else names))
    if isinstance(X, Dataset | DataLoader):
        return _parts(X)
    array = as_array(X) if isinstance(X, torch.Tensor) else X
    if not is_large_array(array):
        return iter([Part(np.asarray(array), None)]) if is_mapped else None
    return (Part(array[part], None) for part in blocks_of(array))


def is_large_array(X: object) -> TypeGuard[NDArray[Any]]:
    """Whether this is an array of so many numbers that it stays where it is."""
    if not isinstance(X, np.ndarray) or not 2 <= X.ndim <= 4 or X.dtype.kind not in "biuf" or len(X) == 0:
        return False
    return not np.ma.isMaskedArray(X) and is_large(len(X), X[0].size)


def blocks_of(values: NDArray[Any]) -> Iterator[slice]:
    """Slices of an array, so many rows at a time that as numbers in double precision they take little."""
    step = max(1, BLOCK_NUMBERS // values[0].size // ITEMS_AT_ONCE) * ITEMS_AT_ONCE
    return (slice(start, start + step) for start in range(0, len(values), step))


def number_of_rows(X: object) -> int | None:
    """How many rows a source has, if it says so before it is read."""
    if is_npy(X):
        return len(np.load(cast(Path, X), mmap_mode="r"))
    if (table := as_table(X)) is not None:
        return table.count_rows()
    if isinstance(X, DataLoader | IterableDataset) or not hasattr(X, "__len__"):
        return None
    return len(cast(Sequence[object], X))


def _pyarrow() -> Any:
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(
            "Reading tables of Arrow and Parquet needs pip install 'orbitwise[tables]'."
        ) from error
    return pyarrow.dataset


def _columns(table: arrow.Dataset, names: Sequence[str]) -> Iterator[NDArray[Any]]:
    """The numbers of some columns, some rows at a time; gaps are NaN."""
    wrong = [name for name in names if name not in table.schema.names]
    if wrong:
        raise ValueError(f"The table has no column {wrong[0]!r}; its columns are {table.schema.names}.")
    kinds = {name: table.schema.field(name).type for name in names}
    for name, kind in kinds.items():
        if str(kind).startswith(("timestamp", "date", "time", "duration")):
            raise TypeError(
                f"X holds dates or durations ({kind} in column {name!r}), but numbers are required: turn "
                "them into numbers, say decimal years."
            )
        if not str(kind).startswith(("double", "decimal", "int", "uint", *NARROW)):
            raise TypeError(f"Column {name!r} holds values of type {kind}, but numbers are required.")
    is_narrow = all(str(kind) in NARROW for kind in kinds.values())
    for batch in table.to_batches(columns=list(names)):
        if batch.num_rows:
            columns = [_numbers(batch.column(name)) for name in names]
            yield np.stack(columns, axis=1).astype(np.float32 if is_narrow else np.float64, copy=False)


def _numbers(column: pyarrow.Array) -> NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _copied_table(table: arrow.Dataset, y: object) -> Opened:
    """The columns of a table: those named by y are targets, all others inputs."""
    names = table.schema.names
    is_named = isinstance(y, str) or (isinstance(y, list | tuple) and all(isinstance(n, str) for n in y))
    targets = [y] if isinstance(y, str) else list(cast(Sequence[str], y)) if is_named else []
    missing = [name for name in targets if name not in names]
    if missing:
        raise ValueError(f"y is to be the column {missing[0]!r}, but the columns are {names}.")
    inputs = [name for name in names if name not in targets]
    if not inputs:
        raise ValueError("Every column of the table is a target, so there are no inputs.")
    x, _ = _spooled(Part(each, None) for each in _columns(table, inputs))
    if not is_named:
        return Opened(x, y, inputs)
    columns = [np.asarray(table.to_table(columns=[name]).column(0).to_numpy()) for name in targets]
    return Opened(x, columns[0] if isinstance(y, str) else np.stack(columns, axis=1), inputs)


def _copied(parts: Iterator[Part], y: object) -> Opened:
    x, own = _spooled(parts)
    if own is not None and y is not None:
        raise ValueError("The items are (x, y), so that y is known: leave y out, or give items without it.")
    return Opened(x, y if own is None else own)


def _parts(source: Dataset[Any] | DataLoader[Any]) -> Iterator[Part]:
    """Rows of a data set or a loader, in the order in which it gives them."""
    if isinstance(source, DataLoader):
        for batch in source:
            yield Part(*map(_array, _pair(batch)))
        return
    if isinstance(source, IterableDataset):
        items: Iterator[object] = iter(source)
    else:
        items = (source[place] for place in range(len(cast(Sequence[object], source))))
    pairs: list[tuple[object, object]] = []
    for item in items:
        pairs.append(_pair(item))
        if len(pairs) == ITEMS_AT_ONCE:
            yield _stacked(pairs)
            pairs = []
    if pairs:
        yield _stacked(pairs)


def _pair(item: object) -> tuple[object, object]:
    """An item (x, y), or x alone."""
    if isinstance(item, tuple | list):
        if len(item) == 2:
            return item[0], item[1]
        if len(item) == 1:
            return item[0], None
    elif not isinstance(item, dict):
        return item, None
    raise TypeError(
        f"Items of a data set must be (x, y), or x alone to predict, but one is a {type(item).__name__}"
        f"{f' of {len(item)}' if isinstance(item, tuple | list) else ''}: give a collate_fn, or a data set, "
        "that makes pairs."
    )


def _array(values: object) -> Any:
    return None if values is None else np.asarray(as_array(values))


def _stacked(pairs: Sequence[tuple[object, object]]) -> Part:
    inputs, targets = ([_array(each) for each in side] for side in zip(*pairs, strict=True))
    _check_shapes({each.shape for each in inputs})
    return Part(np.stack(inputs), None if targets[0] is None else np.stack(targets))


def _check_shapes(shapes: set[tuple[int, ...]]) -> None:
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise ValueError(
            f"The inputs have several shapes, such as {first} and {second}: bring all to one shape."
        )


def _spooled(parts: Iterator[Part]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """All rows in a temporary file, mapped, and their targets in memory."""
    dtype, shape, count = np.dtype(np.float64), (), 0
    targets: list[NDArray[Any]] = []
    with tempfile.TemporaryFile() as file:
        for part in parts:
            if count == 0:
                dtype, shape = part.x.dtype, part.x.shape[1:]
            _check_shapes({shape, part.x.shape[1:]})
            if not np.can_cast(part.x.dtype, dtype):
                raise ValueError(
                    f"The first inputs are {dtype}, and later ones {part.x.dtype}: give all in one type."
                )
            file.write(np.ascontiguousarray(part.x, dtype=dtype).data)
            count += len(part.x)
            if part.y is not None:
                targets.append(part.y)
        if count == 0:
            raise ValueError("Found array with 0 sample(s), but at least 1 is required: the source is empty.")
        file.flush()
        values = np.memmap(file, dtype=dtype, mode="r", shape=(count, *shape))
    return values, np.concatenate(targets) if targets else None
