"""The files that the command reads and writes: arrays, tables and images, in batches where they may be large.

CSV is read and written by the standard library, parquet by pyarrow, images by Pillow. Nothing in a file is
executed, neither here nor by a spreadsheet: text that begins like a formula is written with a quote before
it. Spreadsheets take the quote for "this is text", and it is removed again on reading.
"""

from __future__ import annotations

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
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast, final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from orbitwise.cli.errors import CommandError, nearest
from orbitwise.inference.disk import REASONS, replacing

INPUTS = ("x", "X", "images", "inputs", "data")
"""Usual names of arrays of inputs."""
TARGETS = ("y", "target", "targets", "label", "labels")
"""Usual names of arrays of targets."""
TARGET_COLUMNS = ("target", "label", "class", "y")
"""Usual names of target columns, in lower case."""
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    NotImplementedError,
)
"""What reading an .npz file raises if it is damaged or of another kind."""
NPY = ".npy"
FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Cells that count as empty, in lower case."""
IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm"}
GREY_MODES = {"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
"""Modes of Pillow in which images have one channel."""
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in Pillow's conversion to grey."""

Batch = Mapping[str, Sequence[object]]
Write = Callable[[Batch], None]


@contextmanager
def _plain_arrays(path: Path) -> Iterator[None]:
    """Turn what a damaged .npz file raises into one sentence."""
    try:
        yield
    except DAMAGE as error:
        raise CommandError(
            f"{path} is not an .npz file of plain arrays ({' '.join(str(error).split())}); write one with "
            "numpy.savez(path, x=…, y=…)"
        ) from error


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file."""
    with _plain_arrays(path), np.load(path, allow_pickle=False) as file:
        return dict(file)


def inputs_and_targets(
    arrays: Mapping[str, NDArray[Any]], target: str | None, part: str, path: str
) -> tuple[NDArray[Any], NDArray[Any], str]:
    """The inputs, the targets and their name: `x` and `y`, or `x_train` and `y_train`, or as asked for."""
    x_name = inputs_name(arrays, part, path)
    x = arrays[x_name]
    check_inputs(x_name, x.shape, x.dtype, path)
    suffix = next(each for each in ("_test", "_train", "") if x_name.endswith(each))
    is_given = target is not None and target in arrays
    if is_given and suffix != "_test":
        y_name = target
    else:
        base = TARGETS if target is None else (_without_part(target),)
        y_name = _first_name(arrays, base, (suffix, "") if is_given else (suffix,))
        y_name = target if y_name is None and is_given else y_name
    if y_name is None:
        asked = "--target NAME" if target is None else repr(target)
        raise CommandError(f"{path} has no array {asked} of targets; {nearest(target or '', arrays)}")
    y = arrays[y_name]
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise CommandError(
            f"{y_name} of {path} must have one target per row of {x_name}, which has {len(x)}, but it has "
            f"shape {y.shape}"
        )
    return x, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y, _without_part(y_name)


def has_test_part(path: Path, target: str | None) -> bool:
    """Whether an .npz file holds inputs and targets to test on, beside those to learn from."""
    with _plain_arrays(path), np.load(path, allow_pickle=False) as file:
        names = list(file)
    targets = TARGETS if target is None else (_without_part(target),)
    parts = [_first_name(names, INPUTS, ends) for ends in (("", "_train"), ("_test",))]
    return None not in (*parts, _first_name(names, targets, ("_test",)))


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
            f"{name} of {path} must hold numbers, with one row per input, but it holds {dtype} of shape "
            f"{shape}"
        )


def _without_part(name: str) -> str:
    return name.removesuffix("_train").removesuffix("_test")


def _first_name(arrays: Collection[str], names: tuple[str, ...], suffixes: tuple[str, ...]) -> str | None:
    known = (name + suffix for suffix in suffixes for name in names)
    return next((name for name in known if name in arrays), None)


@final
@dataclass(frozen=True)
class Member:
    """One array of an .npz file, by its header; the file may be larger than the memory.

    Attributes
    ----------
    path, name : Path, str
        The file, and the name of the array in it.
    shape, dtype : tuple of int, numpy.dtype
        The shape and the type of the array.
    is_transposed : bool
        Whether the file holds column after column (Fortran order): it is then read as a whole.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_transposed: bool

    def batches(self, size: int) -> Iterator[NDArray[Any]]:
        """All rows, `size` at a time; a file that was cut short is an error."""
        if self.is_transposed:
            # each row is spread over the whole file
            whole = npz_arrays(self.path)[self.name]
            yield from (whole[start : start + size] for start in range(0, len(whole), size))
            return
        width = self.dtype.itemsize * math.prod(self.shape[1:])
        with (
            _plain_arrays(self.path),
            zipfile.ZipFile(self.path) as file,
            file.open(self.name + NPY) as stream,
        ):
            _header(stream)
            for start in range(0, self.shape[0], size):
                count = min(size, self.shape[0] - start)
                content = stream.read(count * width)
                if len(content) < count * width:
                    raise EOFError(f"{self.name} ends in row {start + len(content) // max(width, 1) + 1}")
                yield np.frombuffer(content, dtype=self.dtype).reshape(count, *self.shape[1:])


def inputs_member(path: Path, part: str) -> Member:
    """The inputs in a file, found by their name; only the header is read."""
    with _plain_arrays(path), zipfile.ZipFile(path) as file:
        names = [name.removesuffix(NPY) for name in file.namelist() if name.endswith(NPY)]
        name = inputs_name(names, part, str(path))
        with file.open(name + NPY) as stream:
            shape, is_transposed, dtype = _header(stream)
    check_inputs(name, shape, dtype, str(path))
    return Member(path, name, shape, dtype, is_transposed)


def _header(stream: IO[bytes] | zipfile.ZipExtFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns follow each other, and type; leaves the stream at the first row."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_transposed, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which may be code")
    return shape, is_transposed, dtype


@final
@dataclass(frozen=True)
class Rows:
    """Some rows of a table: cells by name of the column, and what each row is called in messages.

    Cells of a CSV file are text; those of a parquet file have the types that the file gives them.
    """

    columns: Mapping[str, Sequence[Any]]
    labels: list[str]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as numbers, NaN where a cell is empty; text is an error that names the cell."""
        values = self.columns[name]
        try:
            return np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            return np.array([self._number(*cell, name) for cell in zip(values, self.labels, strict=True)])

    def image_column(self, target: str | None) -> str | None:
        """The column that names image files, None where there is none."""
        for name, values in self.columns.items():
            first = next((each for each in values if not is_missing(each)), None)
            if name != target and isinstance(first, str) and is_image(first):
                return name
        return None

    @staticmethod
    def _number(cell: object, label: str, name: str) -> float:
        found = np.nan if is_missing(cell) else number_in(cell)
        if found is None:
            raise CommandError(
                f"column {name!r} holds {str(cell)!r} in {label}, but inputs must be numbers: replace it by "
                f"a number, or leave the column out with --ignore {name}"
            )
        return found


def number_in(cell: object) -> float | None:
    """The number that a cell holds, None where it holds something else."""
    try:
        return float(cast("str | float", cell))
    except (TypeError, ValueError):
        return None


def is_missing(cell: object) -> bool:
    """Whether a cell is empty, by any of the usual signs."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def target_column(wanted: str | None, names: Sequence[str], path: Path) -> str:
    """The column to predict: the one asked for, or the only one with a usual name."""
    if wanted is not None:
        if wanted not in names:
            raise CommandError(f"{path} has no column {wanted!r}; {nearest(wanted, names)}")
        return wanted
    usual = [name for name in names if name.lower() in TARGET_COLUMNS]
    if len(usual) != 1:
        found = nearest("", names)
        raise CommandError(f"say which column of {path} to predict, with --target NAME; {found}")
    return usual[0]


def table_batches(path: Path, size: int | None = None) -> Iterator[Rows]:
    """The rows of a CSV or parquet file, `size` at a time; all at once without a size."""
    start = 0
    for columns in (_parquet_batches if path.suffix.lower() == ".parquet" else _csv_batches)(path, size):
        count = len(next(iter(columns.values()), ()))
        yield Rows(columns, [f"row {start + i + 1}" for i in range(count)])
        start += count


def _csv_batches(path: Path, size: int | None) -> Iterator[dict[str, Sequence[str]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [unescaped(name.strip()) for name in next(reader, [])]
            _check_header(header, path)

            def checked() -> Iterator[list[str]]:
                for row in filter(None, reader):
                    if len(row) != len(header):
                        raise CommandError(
                            f"line {reader.line_num} of {path} has {len(row)} cells, but its header names "
                            f"{len(header)} columns; correct that line"
                        )
                    yield [unescaped(cell) for cell in row]

            lines = checked()
            while rows := list(islice(lines, size)):
                yield dict(zip(header, zip(*rows, strict=True), strict=True))
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{path} is not a CSV file in UTF-8 ({error.reason}); save it with that encoding"
        ) from error
    except csv.Error as error:
        raise CommandError(f"{path} is not a CSV file: {error}") from error


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise CommandError(f"{path} is empty; it needs a header line with the names of its columns, and rows")
    if all(number_in(name) is not None for name in header):
        raise CommandError(
            f"the first line of {path} holds numbers; add a header line with the names of columns"
        )
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise CommandError(f"{path} has several columns called {repeated!r}; rename them")


def _parquet_batches(path: Path, size: int | None) -> Iterator[dict[str, list[Any]]]:
    pyarrow, parquet = _pyarrow(path)
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CommandError(f"{path} is not a parquet file: {error}") from error
    for batch in [file.read()] if size is None else file.iter_batches(batch_size=size):
        yield batch.to_pydict()


def _pyarrow(path: Path) -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CommandError(
            f'{path} is a parquet file, which needs pyarrow: pip install "orbitwise[tables]", or use a CSV '
            "file"
        ) from error
    return pyarrow, parquet


def escaped(cell: object) -> object:
    """A cell or heading to write: numbers stay, text that begins like a formula gets a quote before it."""
    if not isinstance(cell, str) or NUMBER.fullmatch(cell) or not FORMULA.match(cell):
        return cell
    return "'" + cell


def unescaped(cell: str) -> str:
    """The cell that `escaped` wrote."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


@contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """A function that takes batches of columns; CSV or parquet, by the ending of the path.

    The file is there in full when all went well, and not at all otherwise.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise CommandError(f"{path} must end in .csv or .parquet")
    if ending == ".parquet":
        _pyarrow(path)
    try:
        with replacing(path.resolve()) as (temporary, _):
            writing = _csv_writer(temporary) if ending == ".csv" else _parquet_writer(temporary, path)
            with writing as write:
                yield write
    except OSError as error:
        reason = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise OSError(error.errno, f"Cannot write {path}: {reason}") from error


@contextmanager
def _csv_writer(temporary: Path) -> Iterator[Write]:
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)

        def write(batch: Batch) -> None:
            if file.tell() == 0:
                writer.writerow([escaped(name) for name in batch])
            columns = [[escaped(cell) for cell in column] for column in batch.values()]
            writer.writerows(zip(*columns, strict=True))

        yield write


@contextmanager
def _parquet_writer(temporary: Path, path: Path) -> Iterator[Write]:
    pyarrow, parquet = _pyarrow(path)
    writers: list[Any] = []

    def write(batch: Batch) -> None:
        table = pyarrow.table({name: list(values) for name, values in batch.items()})
        if not writers:
            writers.append(parquet.ParquetWriter(temporary, table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


@final
@dataclass(frozen=True)
class Images:
    """The images that could be read.

    Attributes
    ----------
    pixels : ndarray of shape (n, h, w) or (n, 3, h, w)
        Grey or coloured images, with values between 0 and 1.
    kept : list of int
        The place of each image in the list of files.
    failures : dict of Path to str
        Why the other files could not be read.
    """

    pixels: NDArray[np.float64]
    kept: list[int]
    failures: dict[Path, str]


def is_image(name: str) -> bool:
    """Whether a name ends like that of an image."""
    return Path(name).suffix.lower() in IMAGE_ENDINGS


def class_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """The images in the sub-folders of a folder, and the names of these as labels, in order of names."""
    parts = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    found = [(file, part.name) for part in parts for file in images_in(part)]
    if not found:
        raise CommandError(
            f"{folder} has no images in sub-folders; put the images of each class in a sub-folder with the "
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
    arrays: dict[int, NDArray[np.float64]] = {}
    failures: dict[Path, str] = {}
    for place, file in enumerate(files):
        try:
            arrays[place] = _pixels(file, resize)
        except CommandError:
            raise
        except Exception as error:  # the many decoders of Pillow raise whatever they like
            failures[file] = " ".join(str(error).split()) or type(error).__name__
    wanted = None if shape is None else tuple(shape)[-2:]
    sizes = Counter(array.shape[-2:] for array in arrays.values())
    if len(sizes) > 1 or (wanted is not None and set(sizes) - {wanted}):
        common = wanted or max(sizes, key=lambda size: sizes[size])
        odd = next(place for place, array in arrays.items() if array.shape[-2:] != common)
        others = "the model takes" if wanted else "other images have"
        raise CommandError(
            f"{files[odd]} has {_by(arrays[odd].shape[-2:])} pixels (height x width), but {others} "
            f"{_by(common)}; bring all images to one size with --resize {_by(common)}"
        )
    if shape is None:
        has_colour = any(array.ndim == 3 for array in arrays.values())
    else:
        has_colour = len(shape) == 3 and shape[0] == 3
    same = [_coloured(array) if has_colour else _grey(array) for array in arrays.values()]
    if shape is not None and len(shape) == 3 and not has_colour:
        same = [array[None] for array in same]
    return Images(np.array(same, dtype=np.float64), list(arrays), failures)


def _pixels(file: Path, resize: Sequence[int] | None) -> NDArray[np.float64]:
    try:
        from PIL import Image
    except ImportError as error:
        raise CommandError("reading images needs Pillow: pip install pillow") from error
    with warnings.catch_warnings():
        # a picture of a hundred million pixels is a warning, or an attack
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file) as opened:
            opened.load()
            image: Image.Image = opened
            if image.mode not in GREY_MODES and image.mode != "RGB":
                image = image.convert("RGB")
            elif image.mode in ("1", "LA", "La"):
                image = image.convert("L")
            depth = 255.0 if image.mode in ("L", "RGB") else 1.0 if image.mode == "F" else 65535.0
            if resize is not None:
                image = image.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
            array = np.asarray(image, dtype=np.float64) / depth
    return array if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _coloured(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array if array.ndim == 3 else np.repeat(array[None], 3, axis=0)


def _grey(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array if array.ndim == 2 else np.tensordot(LUMINANCE, array, axes=1)


def _by(size: Sequence[int]) -> str:
    return "x".join(str(each) for each in size)
