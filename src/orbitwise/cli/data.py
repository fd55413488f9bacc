"""Data from a path: inputs, targets, and what rows and columns are called in messages.

A path names an .npz file, a table, a folder of images, a table of image files, or a data set.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from orbitwise import datasets
from orbitwise.cli.columns import (
    Cells,
    Encoder,
    cells_of,
    columns_of,
    encoded,
    encoder_for,
    fills_gaps,
    kinds_of,
    names_out,
    texts_of,
)
from orbitwise.cli.errors import CommandError, nearest
from orbitwise.cli.files import (
    Rows,
    check_inputs,
    class_folders,
    has_test_part,
    images_in,
    inputs_and_targets,
    inputs_member,
    inputs_name,
    is_missing,
    load_images,
    npz_arrays,
    number_in,
    table_batches,
    target_column,
)
from orbitwise.estimators.cells import MOST_NAMED
from orbitwise.estimators.validation import InputForm, Order, image_layout

Task = Literal["classification", "regression"]
Part = Literal["train", "test"]
ACCEPTED = "a .npz, .csv or .parquet file, a folder of images in class sub-folders, or the name of a data set"
ASK = "say which with --channels first or --channels last"
MOST_CLASSES = 50
"""Whole numbers with more different values than this are numbers, not classes."""
NUM_DEMO = 300
"""Training images of the demonstration."""


@final
@dataclass(frozen=True)
class Source:
    """Where data are, which column is the target, and what is done about rows that cannot be used.

    Attributes
    ----------
    path : str
        A file, a folder, or the name of a data set: see `ACCEPTED`.
    target : str or None
        The column or array to predict; None takes the one with a usual name.
    ignore : tuple of str
        Columns of a table that are left out.
    skips : bool
        Whether rows that cannot be used are left out, with a note. Otherwise they are an error.
    fills : bool
        Whether empty cells of a table are filled, by medians and by a word of their own.
    resize : tuple of int or None
        Height and width that image files are brought to.
    part : {"train", "test"}
        Which arrays are read where a file has both, such as x_train and x_test.
    """

    path: str
    target: str | None = None
    ignore: tuple[str, ...] = ()
    skips: bool = False
    fills: bool = False
    resize: tuple[int, int] | None = None
    part: Part = "train"


@final
class Expected(NamedTuple):
    """What inputs must look like to fit a model, or the training data.

    `width` numbers in each row; in a table the columns of these names, in any order; where inputs have
    dimensions of their own, the `form` of images, signals or points; and the `encoder` that makes numbers of
    the columns first, if there is one.
    """

    width: int
    columns: tuple[str, ...] | None = None
    form: InputForm = InputForm()
    encoder: Encoder | None = None


@final
@dataclass(frozen=True)
class Data:
    """Inputs and targets, with what rows and columns are called in messages.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        One row per input.
    y : ndarray or None
        Targets, as they were read; None where only inputs are needed.
    labels : list of str
        What each row is called: "row 3", or the path of an image.
    columns : tuple of str or None
        The names of the columns of a table.
    shape : tuple of int or None
        The shape of one input, as it was given, where inputs have dimensions of their own.
    is_image : bool
        Whether inputs are known to be images.
    target : str
        The name of the target.
    kinds : ndarray or None
        Labels of the points of a cloud, for example atomic numbers: like points may change places.
    notes : tuple of str
        What the user should know, for example which rows were left out.
    channels : {"first", "last"} or None
        Where images have their channels.
    encoder : transformer or None
        What made numbers of the columns of a table, where they were not all numbers.
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
    encoder: Encoder | None = None

    def __len__(self) -> int:
        return len(self.X)

    @property
    def form(self) -> InputForm:
        """How images, or other inputs with dimensions, lie in the rows."""
        if self.shape is None or self.channels != "last":
            return InputForm(self.shape, self.channels)
        return InputForm((self.shape[-1], *self.shape[:-1]), "last")

    @property
    def expected(self) -> Expected:
        """What other data must look like to be predicted by a model of these."""
        columns = self.columns if self.encoder is None else columns_of(self.encoder)
        return Expected(self.X.shape[1], columns, self.form, self.encoder)

    def piped(self, model: object) -> object:
        """The model as it takes the columns of these data: behind their encoder, if there is one."""
        if self.encoder is None:
            return model
        # what comes from the encoder has no names; `estimator_of` puts them back
        nameless = copy.copy(model)
        vars(nameless).pop("feature_names_in_", None)
        return Pipeline([("columns", self.encoder), ("model", nameless)])

    @property
    def targets(self) -> NDArray[Any]:
        """The targets, which `read` always gives."""
        if self.y is None:
            raise CommandError("these data have no targets")
        return self.y

    def chosen(self, rows: NDArray[np.int64]) -> Data:
        """Some of the rows."""
        y = None if self.y is None else self.y[rows]
        return replace(self, X=self.X[rows], y=y, labels=[self.labels[i] for i in rows])

    def take(self, count: int | None, seed: int = 0) -> Data:
        """`count` rows chosen at random, in their order; all rows if there are no more."""
        if count is None or count >= len(self):
            return self
        return self.chosen(np.sort(np.random.default_rng(seed).permutation(len(self))[:count]))

    def without_bad_rows(self, source: Source) -> Data:
        """The rows whose cells are all there, or an error that names the columns with others."""
        holes = ~np.isfinite(self.X)
        bad, missing = np.asarray(holes.any(axis=1)), 0
        if self.y is not None:
            cells = self.y.reshape(len(self), -1)
            empty = np.array([any(map(is_missing, row)) for row in cells], dtype=bool)
            bad, missing = bad | empty, int(empty.sum())
        if not bad.any():
            return self
        count, first = int(bad.sum()), int(np.flatnonzero(bad)[0])
        names = list(map(str, range(holes.shape[1]))) if self.columns is None else list(self.columns)
        counts = {names[i]: int(each) for i, each in enumerate(holes.sum(axis=0)) if each}
        if missing:
            counts[self.target] = missing
        column = next((names[i] for i in np.flatnonzero(holes[first])), self.target)
        cell = f"column {column!r} of {self.labels[first]}"
        if not (source.skips or source.fills):
            where = ", ".join(f"{each} in {name!r}" for name, each in list(counts.items())[:MOST_NAMED])
            where += (
                f" and others in {len(counts) - MOST_NAMED} more columns" if len(counts) > MOST_NAMED else ""
            )
            fill = "" if self.columns is None else "fill them with --bad-rows fill, or "
            if fill and self.y is None:
                fill = "learn the model with --bad-rows fill, or "
            raise CommandError(
                f"{count} {'row has' if count == 1 else 'rows have'} cells of {source.path} that are empty "
                f"or not finite ({where}), the first in {cell}; {fill}leave such rows out with --bad-rows "
                "skip"
            )
        note = f"left out {count} {'row' if count == 1 else 'rows'} with empty cells, the first in {cell}"
        return replace(self.chosen(np.flatnonzero(~bad)), notes=(*self.notes, note))

    def as_images(self, size: tuple[int, int] | None, channels: str = "auto") -> Data:
        """These data as images of the height and width `size`, if that is given, with their channels.

        The channels of rows of numbers follow each other as whole pictures, unless `channels` is "last".
        """
        shape = self.shape
        if self.is_image:
            if channels != "auto":
                raise CommandError(f"--channels {channels} is for arrays: image files know their channels")
            image_layout(shape, size, self.channels or "auto", ASK)
            return self
        if shape is not None and len(shape) == 3:
            found = image_layout(shape, size, channels, ASK)
            return replace(self, channels=found.channels, is_image=True)
        found = self
        if size is not None:
            if shape is not None and shape != size and min(shape) > 1:
                raise CommandError(
                    f"--image-shape {size[0]}x{size[1]}: the inputs have shape {'x'.join(map(str, shape))}; "
                    "give that shape, or reshape the inputs"
                )
            found = self._rows_as_images(size, channels)
        if channels != "auto" and found.channels is None:
            raise CommandError(f"--channels {channels}: the inputs have no channels; leave it out")
        return found

    def _rows_as_images(self, size: tuple[int, int], channels: str) -> Data:
        width = self.X.shape[1]
        count, rest = divmod(width, math.prod(size))
        if rest or count < 1:
            raise CommandError(
                f"--image-shape {size[0]}x{size[1]} has {math.prod(size)} pixels, but inputs have {width} "
                "numbers; give the shape of the images"
            )
        if count == 1:
            return replace(self, shape=size, is_image=True)
        if channels == "last":
            return replace(self, shape=(*size, count), is_image=True, channels="last")
        return replace(self, shape=(count, *size), is_image=True, channels="first")

    @property
    def channels_text(self) -> str:
        """The size of images with channels, and where their channels were taken to be; else empty."""
        if self.channels is None or self.form.image_shape is None:
            return ""
        count, height, width = self.form.image_shape
        other = "last" if self.channels == "first" else "first"
        return (
            f"images of {height}x{width} pixels, {count} channel{'s' if count > 1 else ''} {self.channels} "
            f"(use --channels {other} if that is wrong)"
        )


def read(source: Source, expected: Expected | None = None) -> Data:
    """Read all of the data, with targets.

    Raises a CommandError where nothing can be used, or inputs are not as `expected`; it says which file, row
    and column, and what to do.
    """
    data = next(_parts(source, expected, None), None)
    if data is None:
        raise CommandError(f"{source.path} has no rows below its header")
    data = _usable(data, source, expected)
    if len(data) == 0:
        raise CommandError(f"{source.path} has no rows that can be used")
    return data


def held_out_source(source: Source, path: str | None) -> Source | None:
    """Where test data are: in a file of their own, or in the arrays of the .npz file of the training data."""
    if path is not None:
        return replace(source, path=path, part="test")
    is_npz = _kind(source.path) == "npz"
    return (
        replace(source, part="test") if is_npz and has_test_part(Path(source.path), source.target) else None
    )


def batches(source: Source, expected: Expected, size: int) -> Iterator[Data]:
    """Read inputs without targets, `size` rows at a time, so that a file may be larger than the memory."""
    for part in _parts(source, expected, size):
        yield _usable(part, source, expected)


def _parts(source: Source, expected: Expected | None, size: int | None) -> Iterator[Data]:
    """All data with targets, as one part; with a size the inputs alone, so many rows at a time."""
    kind, path = _kind(source.path), Path(source.path)
    form = InputForm() if expected is None else expected.form
    if kind in ("npz", "set"):
        yield from [_with_targets(source, kind)] if size is None else _inputs(source, kind, size)
    elif kind == "folder" and size is None:
        files, labels = class_folders(path)
        yield _of_files(source, files, labels, "class", form)
    elif kind == "folder":
        files = images_in(path)
        if not files:
            raise CommandError(f"{path} has no images; give a folder with some")
        for start in range(0, len(files), size or 1):
            part = _of_files(source, files[start : start + (size or 1)], None, "class", form)
            yield replace(part, labels=[str(Path(name).relative_to(path)) for name in part.labels])
    else:
        for rows in table_batches(path, size):
            yield _of_table(source, rows, expected, with_target=size is None)


def _usable(data: Data, source: Source, expected: Expected | None) -> Data:
    """The rows without those that cannot be used; a CommandError where they are not as expected."""
    data = data.without_bad_rows(source)
    if expected is None:
        return data
    if expected.encoder is not None and data.columns is None:
        takes = int(getattr(expected.encoder, "n_features_in_", data.X.shape[1]))
        if data.X.shape[1] != takes:
            raise CommandError(
                f"{source.path} has inputs of {data.X.shape[1]} numbers, but the model takes {takes}"
            )
        data = replace(data, X=encoded(expected.encoder, data.X.astype(object)))
    form, width = expected.form, data.X.shape[1]
    given = form.given or form.input_shape
    if not data.is_image and data.shape is not None and given is not None:
        if data.shape != tuple(given):
            order = f", channels {form.channels}" if form.channels else ""
            raise CommandError(
                f"{source.path} has inputs of shape {data.shape}, but the model takes inputs of shape "
                f"{tuple(given)}{order}; bring the arrays into that form (numpy.moveaxis moves channels)"
            )
        data = replace(data, channels=form.channels)
    if width != expected.width:
        hint = "; leave out columns that are not inputs with --target or --ignore" if data.columns else ""
        raise CommandError(
            f"{source.path} has inputs of {width} numbers, but the model takes {expected.width}{hint}"
        )
    return data


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
    neighbours = [each.name for each in place.parent.iterdir()] if place.parent.is_dir() else []
    hint = nearest(place.name, [*neighbours, *known])
    raise CommandError(f"{path} does not exist; {hint if 'mean' in hint else f'DATA is {ACCEPTED}'}")


def _arrays(source: Source, kind: str) -> Mapping[str, NDArray[Any]]:
    if kind == "npz":
        return npz_arrays(Path(source.path))
    with warnings.catch_warnings():
        # without a network each attempt warns, and the error says it once more
        warnings.filterwarnings("ignore", message="A network error occurred")
        return datasets.load(source.path).arrays


def _with_targets(source: Source, kind: str) -> Data:
    arrays = _arrays(source, kind)
    x, y, name = inputs_and_targets(arrays, source.target, source.part, source.path)
    data = replace(_of_array(x, 0), y=y, target=name)
    kinds = arrays.get("z")
    if kinds is not None and data.shape is not None and kinds.shape == data.shape[:1]:
        return replace(data, kinds=kinds)
    return data


def _inputs(source: Source, kind: str, size: int) -> Iterator[Data]:
    if kind == "npz":
        parts = inputs_member(Path(source.path), source.part).batches(size)
    else:
        arrays = _arrays(source, kind)
        name = inputs_name(arrays, source.part, source.path)
        x = arrays[name]
        check_inputs(name, x.shape, x.dtype, source.path)
        parts = (x[start : start + size] for start in range(0, len(x), size))
    start = 0
    for rows in parts:
        yield _of_array(rows, start)
        start += len(rows)


def _of_array(x: NDArray[Any], start: int) -> Data:
    flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)
    labels = [f"row {start + i + 1}" for i in range(len(x))]
    return Data(flat, None, labels, shape=x.shape[1:] if x.ndim > 2 else None)


def _of_files(
    source: Source, files: Sequence[Path], y: Sequence[Any] | None, target: str, form: InputForm
) -> Data:
    resize, shape = source.resize, form.image_shape
    if shape is not None and resize is not None:
        resize = (shape[-2], shape[-1])
    images = load_images(files, shape, resize)
    notes: tuple[str, ...] = ()
    if images.failures:
        first, why = next(iter(images.failures.items()))
        if not source.skips:
            raise CommandError(
                f"{first} cannot be read as an image ({why}); repair it, or leave such images out with "
                "--bad-rows skip"
            )
        named, count = ", ".join(str(file) for file in list(images.failures)[:5]), len(images.failures)
        notes = (f"left out {count} {'image' if count == 1 else 'images'} that cannot be read: {named}",)
    pixels = images.pixels
    if not len(pixels):
        raise CommandError(f"none of the {len(files)} images of {source.path} can be read")
    labels = [str(files[place]) for place in images.kept]
    targets = None if y is None else np.array([y[place] for place in images.kept])
    order: Order | None = "first" if pixels.ndim == 4 else None
    if form.channels == "last":
        pixels, order = np.moveaxis(pixels, 1, -1), "last"
    flat = pixels.reshape(len(pixels), -1)
    return Data(flat, targets, labels, None, pixels.shape[1:], True, target, notes=notes, channels=order)


def _of_table(source: Source, rows: Rows, expected: Expected | None, with_target: bool) -> Data:
    path = Path(source.path)
    target, y = source.target, None
    if with_target:
        target = target_column(source.target, list(rows.columns), path)
        y = np.array(rows.columns[target], dtype=object)
    if expected is None or expected.form.image_shape is not None:
        image_column = rows.image_column(target)
        if image_column is not None:
            files = [path.parent / str(cell) for cell in rows.columns[image_column]]
            form = InputForm() if expected is None else expected.form
            return _of_files(source, files, None if y is None else list(y), target or "class", form)
    if expected is None or expected.columns is None:
        names = _columns_of(rows, source, target)
    else:
        names = _matched(expected.columns, rows, path)
    if not names:
        raise CommandError(f"{path} has no columns of inputs, only {target!r}")
    if expected is None:
        kinds = kinds_of(rows, names, path)
        cells = cells_of(rows, names, [name for name, kind in kinds.items() if kind != "numbers"])
        used, kept = _whole_rows(source, rows, names, cells, y, source.fills, target)
        encoder = encoder_for(kinds, kept, source.fills) if len(used) else None
    elif expected.encoder is None:
        X = np.stack([rows.numbers(name) for name in names], axis=1)
        return Data(X, y, rows.labels, tuple(names), target=target or "y")
    else:
        encoder = expected.encoder
        cells = cells_of(rows, names, texts_of(encoder))
        used, kept = _whole_rows(source, rows, names, cells, y, fills_gaps(encoder), target)
    if encoder is None:
        return replace(used, X=kept.astype(np.float64))
    return replace(used, X=encoded(encoder, kept), columns=names_out(encoder), encoder=encoder)


def _whole_rows(
    source: Source,
    rows: Rows,
    names: Sequence[str],
    cells: Cells,
    y: NDArray[Any] | None,
    fills: bool,
    target: str | None,
) -> tuple[Data, NDArray[np.object_]]:
    """The rows that can be used, without their inputs, and their cells; gaps stay where they are filled."""
    holes = cells.infinite if fills else cells.infinite | cells.gaps
    marked = np.where(holes, np.nan, 0.0)
    places = {label: place for place, label in enumerate(rows.labels)}
    whole = Data(marked, y, rows.labels, tuple(names), target=target or "y").without_bad_rows(source)
    return whole, cells.values[[places[label] for label in whole.labels]]


def _columns_of(rows: Rows, source: Source, target: str | None) -> list[str]:
    for name in source.ignore:
        if name not in rows.columns:
            raise CommandError(f"--ignore {name}: there is no such column; {nearest(name, rows.columns)}")
    return [name for name in rows.columns if name not in source.ignore and name != target]


def _matched(columns: Sequence[str], rows: Rows, path: Path) -> list[str]:
    if missing := [name for name in columns if name not in rows.columns]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CommandError(
            f"{path} has no column {missing[0]!r}{more}, which the model was learned from; "
            f"{nearest(missing[0], rows.columns)}"
        )
    return list(columns)


def infer_task(y: NDArray[Any]) -> Task:
    """Words are classes, fractions are numbers; whole numbers are classes if few of them repeat often."""
    values = _as_numbers(y)
    if values is None:
        return "classification"
    count = len(np.unique(values))
    is_count = y.ndim == 1 and _are_whole(values)
    is_few = count <= 2 or (count <= MOST_CLASSES and len(values) >= 3 * count)
    return "classification" if is_count and is_few else "regression"


def checked_targets(y: NDArray[Any], task: Task, name: str) -> NDArray[Any]:
    """Targets as an estimator takes them, or an error that says why they cannot be used."""
    values = _as_numbers(y)
    if task == "regression":
        if values is None:
            word = next((cell for cell in y.ravel() if number_in(cell) is None), y.flat[0])
            raise CommandError(
                f"target {name!r} holds {str(word)!r}, which is not a number; use --task classification, or "
                "another --target"
            )
        if len(np.unique(values)) < 2:
            raise CommandError(
                f"target {name!r} is {values.flat[0]:g} in every row: there is nothing to learn"
            )
        return values
    if y.ndim == 2:
        raise CommandError(f"target {name!r} has {y.shape[1]} columns, but classes need exactly one")
    if values is not None and _are_whole(values):
        labels = values.astype(np.int64)
    else:
        labels = np.array([str(each) for each in y])
    classes = np.unique(labels)
    if len(classes) < 2:
        raise CommandError(
            f"target {name!r} has one class only, {str(classes[0])!r}, in all {len(y)} rows; classification "
            "needs at least two classes"
        )
    return labels


def checked_test_targets(test: Data, like: NDArray[Any], task: Task) -> NDArray[Any]:
    """Test targets of the kind of the training targets: numbers, whole numbers or words, of known classes."""
    if like.dtype.kind == "U":
        y = np.array([str(each) for each in test.targets])
    else:
        try:
            y = test.targets.astype(np.float64).astype(like.dtype)
        except ValueError as error:
            raise CommandError(
                f"target {test.target!r} of the test data is not all numbers ({error}), but that of the "
                "training data is"
            ) from error
    if task == "classification" and (new := sorted(map(str, set(y.tolist()) - set(like.tolist())))):
        raise CommandError(
            f"the test data have the class {new[0]!r}, which is not among those of the training data"
        )
    return y


def _as_numbers(y: NDArray[Any]) -> NDArray[np.float64] | None:
    if y.dtype.kind == "b":
        return None
    try:
        return y.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _are_whole(values: NDArray[np.float64]) -> bool:
    return bool((values == np.rint(values)).all())


def demo_data(seed: int = 0) -> tuple[Data, Data]:
    """Training and test images of handwritten digits, 8 x 8 pixels between 0 and 1, chosen at random."""
    digits = datasets.load("digits")
    x = digits.x.reshape(len(digits.x), -1).astype(np.float64) / 16
    labels = [f"row {row + 1}" for row in range(len(x))]
    data = Data(x, digits.y, labels, None, (8, 8), True, "digit")
    order = np.random.default_rng(seed).permutation(len(data))
    return data.chosen(order[:NUM_DEMO]), data.chosen(order[NUM_DEMO:])
