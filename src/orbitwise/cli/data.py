"""Data from a path: inputs, targets, and what they are called in messages.

A path names an .npz file, a table, a folder of images, a table of image files, or a data set.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from orbitwise import datasets
from orbitwise.cli.errors import CommandError, nearest
from orbitwise.cli.files import (
    Rows,
    class_folders,
    images_in,
    inputs_and_targets,
    inputs_member,
    is_image,
    is_missing,
    is_text,
    load_images,
    npz_arrays,
    numbers,
    table_batches,
    target_column,
)
from orbitwise.estimators.forms import Layout, Order

Part = Literal["train", "test"]
ROWS_AT_ONCE = 1024
ACCEPTED = "a .npz, .csv or .parquet file, a folder of images in class sub-folders, or a name of a data set"


@final
@dataclass(frozen=True)
class Source:
    """Where data are, which column is the target, and what is done about rows that cannot be used."""

    path: str
    target: str | None = None
    ignore: tuple[str, ...] = ()
    skips: bool = False
    resize: tuple[int, int] | None = None
    part: Part = "train"


@final
@dataclass(frozen=True)
class Data:
    """Inputs [n, d], targets or None, what rows and columns are called, and what there is to say.

    `shape` is that of one input where it has dimensions, as it was given; `channels` says where images have
    theirs, and `kinds` labels points, say atomic numbers.
    """

    X: NDArray[np.float64]
    y: NDArray[Any] | None
    labels: list[str]
    columns: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None
    is_image: bool = False
    target: str = "y"
    kinds: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    channels: Order | None = None

    def __len__(self) -> int:
        return len(self.X)

    @property
    def layout(self) -> Layout:
        """How images lie in the rows."""
        if self.shape is None or self.channels != "last":
            return Layout(self.shape, self.channels)
        return Layout((self.shape[-1], *self.shape[:-1]), "last")

    @property
    def targets(self) -> NDArray[Any]:
        """The targets, which `read` always gives."""
        if self.y is None:
            raise CommandError("these data have no targets")
        return self.y

    def take(self, count: int | None, seed: int = 0) -> Data:
        """`count` rows chosen at random, in the order they are in; all of them where there are no more."""
        if count is None or count >= len(self):
            return self
        chosen = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        y = None if self.y is None else self.y[chosen]
        return replace(self, X=self.X[chosen], y=y, labels=[self.labels[i] for i in chosen])


def read(source: Source, like: Data | None = None) -> Data:
    """All of the data, with targets; with the columns, or the shape of images, of data `like` these."""
    kind = _kind(source.path)
    path = Path(source.path)
    layout = Layout() if like is None or not like.is_image else like.layout
    if kind in ("npz", "set"):
        data = _of_arrays(source, _arrays(source, kind), with_target=True)
    elif kind == "folder":
        files, labels = class_folders(path)
        data = _of_files(source, files, labels, "class", layout)
    else:
        columns = None if like is None else like.columns
        data = _of_table(source, list(table_batches(path, ROWS_AT_ONCE)), columns, layout)
    data = _without_bad(data, source)
    if len(data) == 0:
        raise CommandError(f"{source.path} has no rows that can be used")
    if like is not None and kind in ("npz", "set") and data.shape is not None:
        _check_shape(source, data.shape, like.layout)
        data = replace(data, channels=like.channels)
    if like is not None and data.X.shape[1] != like.X.shape[1]:
        raise CommandError(
            f"{source.path} has inputs of {data.X.shape[1]} numbers, but the model takes {like.X.shape[1]}"
        )
    return data


def batches(source: Source, columns: Sequence[str] | None, layout: Layout, size: int) -> Iterator[Data]:
    """Inputs without targets, `size` rows at a time, for a model of these columns or images so laid out."""
    kind = _kind(source.path)
    path = Path(source.path)
    if kind in ("npz", "set"):
        start = 0
        for rows in _array_batches(source, kind, size):
            _check_shape(source, rows.shape[1:], layout)
            labels = [f"row {start + i + 1}" for i in range(len(rows))]
            yield _without_bad(Data(_flat(rows), None, labels, None), source)
            start += len(rows)
    elif kind == "folder":
        files = images_in(path)
        if not files:
            raise CommandError(f"{path} has no images; give a folder with some")
        for start in range(0, len(files), size):
            part = _of_files(source, files[start : start + size], None, "class", layout)
            names = [str(Path(name).relative_to(path)) for name in part.labels]
            yield _without_bad(replace(part, labels=names), source)
    else:
        for rows in table_batches(path, size):
            image_column = _image_column(rows, source.target)
            if image_column is not None and layout.shape is not None:
                files = _files(rows, image_column, path)
                yield _without_bad(_of_files(source, files, None, "class", layout), source)
                continue
            names = _columns_of(rows, source) if columns is None else _matched(columns, rows, path)
            X = np.stack([numbers(rows, name) for name in names], axis=1)
            yield _without_bad(Data(X, None, rows.labels, tuple(names)), source)


def _kind(path: str) -> str:
    place = Path(path)
    if place.is_dir():
        return "folder"
    ending = place.suffix.lower().removeprefix(".")
    if place.exists():
        if ending in ("npz", "csv", "parquet"):
            return ending
        raise CommandError(f"{path} cannot be read: DATA is {ACCEPTED}")
    known = [each.name for each in datasets.available()]
    if path in known:
        return "set"
    beside = [each.name for each in place.parent.iterdir()] if place.parent.is_dir() else []
    hint = nearest(place.name, [*beside, *known])
    raise CommandError(f"{path} does not exist; {hint if 'mean' in hint else f'DATA is {ACCEPTED}'}")


def _arrays(source: Source, kind: str) -> Mapping[str, NDArray[Any]]:
    if kind == "npz":
        return npz_arrays(Path(source.path))
    with warnings.catch_warnings():
        # without a network each attempt warns, and the error says it once more
        warnings.filterwarnings("ignore", message="A network error occurred")
        return datasets.load(source.path).arrays


def _of_arrays(source: Source, arrays: Mapping[str, NDArray[Any]], with_target: bool) -> Data:
    x, y, name = inputs_and_targets(arrays, source.target, source.part, source.path, with_target)
    shape = x.shape[1:] if x.ndim > 2 else None
    kinds = arrays.get("z")
    if kinds is not None and (shape is None or kinds.shape != shape[:1]):
        kinds = None
    return Data(_flat(x), y, [f"row {i + 1}" for i in range(len(x))], None, shape, False, name, kinds)


def _array_batches(source: Source, kind: str, size: int) -> Iterator[NDArray[Any]]:
    if kind == "npz":
        return inputs_member(Path(source.path), source.part).batches(size)
    x, _, _ = inputs_and_targets(_arrays(source, kind), None, source.part, source.path, with_target=False)
    return (x[start : start + size] for start in range(0, len(x), size))


def _check_shape(source: Source, shape: tuple[int, ...], layout: Layout) -> None:
    """Raise a CommandError where arrays have other dimensions than the images of a model."""
    if len(shape) > 1 and layout.given is not None and shape != tuple(layout.given):
        order = "" if layout.channels is None else f", channels {layout.channels}"
        raise CommandError(
            f"{source.path} has inputs of shape {shape}, but the model takes images of shape "
            f"{tuple(layout.given)}{order}; bring the arrays into that shape"
        )


def _flat(x: NDArray[Any]) -> NDArray[np.float64]:
    return x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)


def _of_files(
    source: Source,
    files: Sequence[Path],
    y: Sequence[Any] | None,
    target: str,
    layout: Layout,
) -> Data:
    resize, shape = source.resize, layout.shape
    if shape is not None and resize is not None:
        resize = (shape[-2], shape[-1])
    images = load_images(files, shape, resize)
    notes: tuple[str, ...] = ()
    if images.failures:
        first, why = next(iter(images.failures.items()))
        if not source.skips:
            raise CommandError(
                f"{first} cannot be read as an image ({why}); mend it, or leave such images out with "
                "--bad-rows skip"
            )
        named = ", ".join(str(file) for file in list(images.failures)[:5])
        notes = (f"left out {len(images.failures)} images that cannot be read: {named}",)
    pixels = images.pixels
    if not len(pixels):
        raise CommandError(f"none of the {len(files)} images of {source.path} can be read")
    labels = [str(files[place]) for place in images.kept]
    targets = None if y is None else np.array([y[place] for place in images.kept])
    order: Order | None = "first" if pixels.ndim == 4 else None
    if layout.channels == "last":
        pixels, order = np.moveaxis(pixels, 1, -1), "last"
    flat = pixels.reshape(len(pixels), -1)
    return Data(flat, targets, labels, None, pixels.shape[1:], True, target, notes=notes, channels=order)


def _of_table(source: Source, parts: list[Rows], columns: Sequence[str] | None, layout: Layout) -> Data:
    path = Path(source.path)
    if not parts:
        raise CommandError(f"{path} has no rows below its header")
    names = list(parts[0].columns)
    target = target_column(source.target, names, path)
    y = np.array([cell for rows in parts for cell in rows.columns[target]], dtype=object)
    image_column = _image_column(parts[0], target)
    if image_column is not None:
        files = [file for rows in parts for file in _files(rows, image_column, path)]
        return _of_files(source, files, list(y), target, layout)
    if columns is not None:
        wanted = _matched(columns, parts[0], path)
    else:
        wanted = [name for name in _columns_of(parts[0], source) if name != target]
    if not wanted:
        raise CommandError(f"{path} has no columns beside {target!r} to learn from")
    X = np.concatenate([np.stack([numbers(rows, name) for name in wanted], axis=1) for rows in parts])
    return Data(X, y, [label for rows in parts for label in rows.labels], tuple(wanted), target=target)


def _columns_of(rows: Rows, source: Source) -> list[str]:
    for name in source.ignore:
        if name not in rows.columns:
            raise CommandError(f"--ignore {name}: there is no such column; {nearest(name, rows.columns)}")
    return [name for name in rows.columns if name not in source.ignore and name != source.target]


def _matched(columns: Sequence[str], rows: Rows, path: Path) -> list[str]:
    if missing := [name for name in columns if name not in rows.columns]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CommandError(
            f"{path} has no column {missing[0]!r}{more}, which the model was learned from; "
            f"{nearest(missing[0], rows.columns)}"
        )
    return list(columns)


def _image_column(rows: Rows, target: str | None) -> str | None:
    """The column that names image files, where there is one."""
    for name, values in rows.columns.items():
        first = next((each for each in values if not is_missing(each)), None)
        if name != target and isinstance(first, str) and is_text(values[:1]) and is_image(first):
            return name
    return None


def _files(rows: Rows, column: str, path: Path) -> list[Path]:
    return [path.parent / str(cell) for cell in rows.columns[column]]


def _without_bad(data: Data, source: Source) -> Data:
    """The rows whose cells are all there, or an error that names the first that is not."""
    holes = ~np.isfinite(data.X)
    bad = np.asarray(holes.any(axis=1))
    unknown = np.zeros(len(data), dtype=bool)
    if data.y is not None:
        y = data.y.reshape(len(data), -1)
        unknown = np.array([any(is_missing(cell) for cell in row) for row in y], dtype=bool).reshape(
            len(data)
        )
    if not (bad | unknown).any():
        return data
    count = int((bad | unknown).sum())
    first = int(np.flatnonzero(bad | unknown)[0])
    column = data.target
    if bad[first]:
        place = int(np.flatnonzero(holes[first])[0])
        column = str(place) if data.columns is None else data.columns[place]
    cell = f"column {column!r} of {data.labels[first]}"
    rows = "row has" if count == 1 else "rows have"
    if not source.skips:
        raise CommandError(
            f"{count} {rows} cells of {source.path} that are empty or not finite, the first in {cell}; fill "
            "them, or leave such rows out with --bad-rows skip"
        )
    kept = np.flatnonzero(~(bad | unknown))
    note = f"left out {count} {'row' if count == 1 else 'rows'} with empty cells, the first in {cell}"
    return replace(
        data,
        X=data.X[kept],
        y=None if data.y is None else data.y[kept],
        labels=[data.labels[i] for i in kept],
        notes=(*data.notes, note),
    )


Task = Literal["classification", "regression"]
MOST_CLASSES = 50


def infer_task(y: NDArray[Any]) -> Task:
    """Words are classes, fractions are numbers; whole numbers are classes where few of them repeat often."""
    values = _as_numbers(y)
    if values is None:
        return "classification"
    if y.ndim == 2 or not bool((values == np.rint(values)).all()):
        return "regression"
    count = len(np.unique(values))
    return (
        "classification"
        if count <= 2 or (count <= MOST_CLASSES and len(values) >= 3 * count)
        else "regression"
    )


def checked_targets(y: NDArray[Any], task: Task, name: str) -> NDArray[Any]:
    """Targets as an estimator takes them, or an error that says why they do not serve."""
    values = _as_numbers(y)
    if task == "regression":
        if values is None:
            word = next(cell for cell in y.ravel() if not _is_numeric(cell))
            raise CommandError(
                f"target {name!r} holds {str(word)!r}, which is no number; use --task classification, or "
                "another --target"
            )
        if len(np.unique(values)) < 2:
            raise CommandError(
                f"target {name!r} is {values.flat[0]:g} in every row: there is nothing to learn"
            )
        return values
    if y.ndim == 2:
        raise CommandError(f"target {name!r} has {y.shape[1]} columns; classes are one column")
    if values is not None and bool((values == np.rint(values)).all()):
        labels = values.astype(np.int64)
    else:
        labels = np.array([str(each) for each in y])
    classes = np.unique(labels)
    if len(classes) < 2:
        raise CommandError(
            f"target {name!r} is of one class only, {str(classes[0])!r}, in all {len(y)} rows; "
            "classification needs two classes or more"
        )
    return labels


def _as_numbers(y: NDArray[Any]) -> NDArray[np.float64] | None:
    if y.dtype.kind == "b":
        return None
    try:
        return y.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _is_numeric(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
