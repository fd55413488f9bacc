"""The files that the command reads and writes: arrays, tables and images, in batches where they may be large.

CSV is read and written by the standard library, parquet by pyarrow, images by Pillow. Nothing in a file is
executed, neither here nor by a spreadsheet: text that begins like a formula is marked as text.
"""

from __future__ import annotations

import contextlib
import csv
import math
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError, nearest
from orbitwise.storage.atomic import REASONS, replacing

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
CELL_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def escaped(cell: Any) -> Any:
    """A cell or heading to write: numbers stay, text that begins like a formula gets a quote before it."""
    if not isinstance(cell, str) or CELL_NUMBER.fullmatch(cell) or not FORMULA.match(cell):
        return cell
    return "'" + cell


def unescaped(cell: str) -> str:
    """The cell that `escaped` wrote."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


INPUTS = ("x", "X", "images", "inputs", "data")
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    NotImplementedError,
)
"""What reading a file raises that is damaged, or of another kind."""
TARGET_ARRAYS = ("y", "target", "targets", "label", "labels")


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file; nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except DAMAGE as error:
        raise not_plain(path, error) from error


def inputs_and_targets(
    arrays: Mapping[str, NDArray[Any]], target: str | None, part: str, path: str, with_target: bool
) -> tuple[NDArray[Any], NDArray[Any] | None, str]:
    """The inputs, the targets and their name: `x` and `y`, or `x_train` and `y_train`, or as asked for."""
    x_name = inputs_name(arrays, part, path)
    x = arrays[x_name]
    suffix = next(each for each in ("_test", "_train", "") if x_name.endswith(each))
    check_inputs(x_name, x.shape, x.dtype, path)
    if not with_target:
        return x, None, ""
    base = TARGET_ARRAYS if target is None else (target.removesuffix("_train").removesuffix("_test"),)
    y_name = _first_name(arrays, base, (suffix,)) if target is None or target not in arrays else target
    if target is not None and target in arrays and suffix == "_test":
        y_name = _first_name(arrays, base, ("_test", "")) or target
    if y_name is None:
        asked = "--target NAME" if target is None else repr(target)
        raise CommandError(f"{path} has no array {asked} of targets; {nearest(target or '', arrays)}")
    y = arrays[y_name]
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise CommandError(
            f"{y_name} of {path} must have a target for each of the {len(x)} rows of {x_name}, not shape "
            f"{y.shape}"
        )
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return x, y, y_name.removesuffix("_train").removesuffix("_test")


def inputs_name(names: Collection[str], part: str, path: str) -> str:
    """Which of the arrays holds the inputs."""
    found = _first_name(names, INPUTS, ("_test", "", "_train") if part == "test" else ("", "_train"))
    if found is None:
        raise CommandError(f"{path} has no array of inputs called x, X or x_train; {nearest('x_', names)}")
    return found


def check_inputs(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> None:
    """Raise a CommandError where an array cannot be inputs."""
    if len(shape) < 2 or dtype.kind not in "buif":
        raise CommandError(
            f"{name} of {path} must be numbers with a row for every input, not {dtype} of shape {shape}"
        )


def not_plain(path: Path, error: Exception) -> CommandError:
    """What is said of a file that is none of plain arrays."""
    return CommandError(
        f"{path} is no .npz file of plain arrays ({' '.join(str(error).split())}); write one with "
        "numpy.savez(path, x=…, y=…)"
    )


def _first_name(arrays: Collection[str], names: tuple[str, ...], suffixes: tuple[str, ...]) -> str | None:
    known = (name + suffix for suffix in suffixes for name in names)
    return next((name for name in known if name in arrays), None)


NPY = ".npy"


@final
@dataclass(frozen=True)
class Member:
    """What the header of an array says; `is_transposed` where columns follow each other in the file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_transposed: bool

    def batches(self, size: int) -> Iterator[NDArray[Any]]:
        """All rows, `size` at a time; of a file that was not cut short, or it is an error."""
        if self.is_transposed:
            # its rows are spread over the whole of it
            whole = npz_arrays(self.path)[self.name]
            yield from (whole[start : start + size] for start in range(0, len(whole), size))
            return
        try:
            yield from self._streamed(size)
        except DAMAGE as error:
            raise not_plain(self.path, error) from error

    def _streamed(self, size: int) -> Iterator[NDArray[Any]]:
        width = self.dtype.itemsize * math.prod(self.shape[1:])
        with zipfile.ZipFile(self.path) as file, file.open(self.name + NPY) as stream:
            _header(stream)
            for start in range(0, self.shape[0], size):
                count = min(size, self.shape[0] - start)
                content = stream.read(count * width)
                if len(content) < count * width:
                    raise EOFError(f"{self.name} ends in row {start + len(content) // max(width, 1) + 1}")
                yield np.frombuffer(content, dtype=self.dtype).reshape(count, *self.shape[1:])


def inputs_member(path: Path, part: str) -> Member:
    """The inputs in a file, found by their name; only the header is read."""
    try:
        with zipfile.ZipFile(path) as file:
            names = [name.removesuffix(NPY) for name in file.namelist() if name.endswith(NPY)]
            name = inputs_name(names, part, str(path))
            with file.open(name + NPY) as stream:
                shape, is_transposed, dtype = _header(stream)
    except DAMAGE as error:
        raise not_plain(path, error) from error
    check_inputs(name, shape, dtype, str(path))
    return Member(path, name, shape, dtype, is_transposed)


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns follow each other, and type; the stream stands at the first row then."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_transposed, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds objects, which are code")
    return shape, is_transposed, dtype


MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
TARGET_COLUMNS = ("target", "label", "class", "y")


@final
@dataclass(frozen=True)
class Rows:
    """Some rows of a table, column by column, and what each row is called in messages."""

    columns: dict[str, Sequence[Any] | NDArray[Any]]
    labels: list[str]


def table_batches(path: Path, size: int) -> Iterator[Rows]:
    """The rows of a CSV or parquet file, `size` at a time."""
    return _parquet_batches(path, size) if path.suffix.lower() == ".parquet" else _csv_batches(path, size)


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
    usual = [name for name in names if name.lower() in TARGET_COLUMNS]
    if len(usual) != 1:
        found = nearest("", names)
        raise CommandError(f"say which column of {path} is to be predicted, with --target NAME; {found}")
    return usual[0]


def _csv_batches(path: Path, size: int) -> Iterator[Rows]:
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


def _parquet_batches(path: Path, size: int) -> Iterator[Rows]:
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


Batch = Mapping[str, Sequence[Any]]
Write = Callable[[Batch], None]


@contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """A function that takes batches of columns; CSV or parquet, by the ending of the path."""
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise CommandError(f"{path} must end in .csv or .parquet")
    table = _csv_writer if ending == ".csv" else _parquet_writer
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
def _csv_writer(path: Path) -> Iterator[Write]:
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
def _parquet_writer(path: Path) -> Iterator[Write]:
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


ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm"}
GREY = {"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}


@final
@dataclass(frozen=True)
class Images:
    """Images [n, …] that could be read, their places in the list of files, and why others could not."""

    pixels: NDArray[np.float64]
    kept: list[int]
    failures: dict[Path, str]


def is_image(name: str) -> bool:
    """Whether a name ends like an image's."""
    return Path(name).suffix.lower() in ENDINGS


def class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """The images in the sub-folders of a folder, and the names of these as labels, in order of names."""
    parts = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    found = [(file, part.name) for part in parts for file in images_in(part)]
    if not found:
        raise CommandError(
            f"{folder} has no images in sub-folders; put the images of every class in a sub-folder with the "
            "name of the class"
        )
    return [file for file, _ in found], [label for _, label in found]


def images_in(folder: Path) -> list[Path]:
    """All images in a folder and below, in order of names."""
    files = (file for file in folder.rglob("*") if is_image(file.name) and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())


def load_images(
    files: Sequence[Path], shape: Sequence[int] | None = None, resize: Sequence[int] | None = None
) -> Images:
    """The images of files, brought to (height, width) `resize` and to `shape`'s colours if these are given.

    Without `resize` all must be of one size, that of `shape` if it is given.
    """
    arrays, kept, failures = [], [], {}
    for place, file in enumerate(files):
        try:
            arrays.append(_pixels(file, resize))
            kept.append(place)
        except CommandError:
            raise
        except Exception as error:  # the many decoders of Pillow raise whatever they like
            failures[file] = " ".join(str(error).split()) or type(error).__name__
    wanted = None if shape is None else tuple(shape)[-2:]
    sizes = Counter(array.shape[-2:] for array in arrays)
    if len(sizes) > 1 or (wanted is not None and set(sizes) - {wanted}):
        common = wanted or max(sizes, key=lambda size: sizes[size])
        odd = next(place for place, array in zip(kept, arrays, strict=True) if array.shape[-2:] != common)
        size = next(array.shape[-2:] for array in arrays if array.shape[-2:] != common)
        said = "the model takes" if wanted else "others are of"
        raise CommandError(
            f"{files[odd]} is {_size_text(size)} pixels (height x width) and {said} {_size_text(common)}; "
            f"bring all to one size with --resize {_size_text(common)}"
        )
    coloured = len(shape) == 3 and shape[0] == 3 if shape is not None else any(a.ndim == 3 for a in arrays)
    same = [_coloured(array) if coloured else _grey(array) for array in arrays]
    if shape is not None and len(shape) == 3 and not coloured:
        same = [array[None] for array in same]
    return Images(np.array(same, dtype=np.float64), kept, failures)


def _pixels(file: Path, resize: Sequence[int] | None) -> NDArray[np.float64]:
    image_module = pillow()
    with warnings.catch_warnings():
        # a picture of a hundred million pixels is a warning, or an attack
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with image_module.open(file) as image:
            image.load()
            if image.mode not in GREY and image.mode != "RGB":
                image = image.convert("RGB")
            elif image.mode in ("1", "LA", "La"):
                image = image.convert("L")
            depth = 255.0 if image.mode in ("L", "RGB") else 1.0 if image.mode == "F" else 65535.0
            if resize is not None:
                image = image.resize((resize[1], resize[0]), image_module.Resampling.BILINEAR)
            array = np.asarray(image, dtype=np.float64) / depth
    return array if array.ndim == 2 else np.moveaxis(array, -1, 0)


def pillow() -> Any:
    """Pillow's module, or a sentence that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CommandError("reading images needs Pillow: pip install pillow") from error
    return Image


def _coloured(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array if array.ndim == 3 else np.repeat(array[None], 3, axis=0)


def _grey(array: NDArray[np.float64]) -> NDArray[np.float64]:
    # luminance, as Pillow's own conversion
    return array if array.ndim == 2 else np.tensordot([0.299, 0.587, 0.114], array, axes=1)


def _size_text(size: Sequence[int]) -> str:
    return "x".join(str(each) for each in size)
