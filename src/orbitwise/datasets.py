"""The data sets used in examples and experiments, found by name.

A set is looked for in this order: as `<name>.npz` in the folder named by the environment variable
ORBITWISE_DATA, where its SHA-256 is checked; among the sets that come with scikit-learn; at OpenML. A set
from OpenML is converted to the arrays, dtypes and meaning of the file, and its fingerprint is checked.
"""

import difflib
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets as scikit_learn

__all__ = ["Dataset", "DatasetInfo", "available", "load"]

Array = NDArray[Any]


@dataclass(frozen=True)
class _Entry:
    """A set of `datasets.json`: what it is, where it comes from, and how a copy of it is checked.

    `sha256` is that of the .npz file; the sets of scikit-learn have none. `openml` is the data_id of an
    equivalent set at OpenML, if one is known. `fingerprint` is (Σ_j j · mean x_j, mean y), and `positive` is
    OpenML's name of the class that becomes y = 1.
    """

    name: str
    shape: str
    about: str
    source: str
    sha256: str = ""
    openml: int = 0
    fingerprint: Sequence[float] = (0, 0)
    positive: str = ""


def _entries() -> dict[str, _Entry]:
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return {row["name"]: _Entry(**row) for row in json.loads(text)}


_TABLE = _entries()
_GIVEN_SPLITS = "; rows of test_idx: test points of the splits of Hernandez-Lobato & Adams 2015"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A loaded set; its arrays are also attributes, as in `load("mnist").x_train`.

    `source` is the public origin of the data, and `where` the place from which this copy was read.
    """

    name: str
    arrays: Mapping[str, Array]
    description: str
    source: str
    where: str

    def __getattr__(self, attribute: str) -> Array:
        known = self.__dict__  # still empty while pickle asks
        if attribute in known.get("arrays", {}):
            return known["arrays"][attribute]
        raise AttributeError(
            f"dataset {known.get('name')!r} from {known.get('where')} has no {attribute!r}; "
            f"it has {', '.join(known.get('arrays', {}))}"
        )

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.arrays]

    def __repr__(self) -> str:
        shapes = (f"{key} {value.dtype} {value.shape}" for key, value in self.arrays.items())
        return f"Dataset({self.name!r}: {', '.join(shapes)})"


@dataclass(frozen=True)
class DatasetInfo:
    """A row of `available()`; `where` is the place from which `load` would take the set now."""

    name: str
    shape: str
    source: str
    where: str


def available() -> list[DatasetInfo]:
    """List every set that `load` knows, without touching the network."""
    return [DatasetInfo(entry.name, entry.shape, entry.source, _where(entry)) for entry in _TABLE.values()]


def load(name: str) -> Dataset:
    """Load a set by its name, with raw features, from the first place that has it.

    Rows from OpenML may be in another order, and splits that OpenML does not have are left out. MNIST from
    OpenML takes about half a minute to parse, every time.

    Parameters
    ----------
    name : str
        One of the names that `available` lists.

    Returns
    -------
    Dataset
        Arrays by name, mostly `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`.

    Raises
    ------
    ValueError
        If there is no set of this name, or if its file or the answer of OpenML is not as expected.
    FileNotFoundError, ConnectionError
        If the set is not on this machine and cannot be fetched; the message says where to get it.

    Examples
    --------
    >>> from orbitwise import datasets
    >>> datasets.load("iris").x.shape
    (150, 4)
    """
    if name not in _TABLE:
        near = difflib.get_close_matches(str(name).lower(), _TABLE, n=3, cutoff=0.4) or _TABLE
        raise ValueError(f"unknown dataset {name!r}; nearest: {', '.join(near)}; available() lists all")
    entry = _TABLE[name]
    about, source, where = entry.about, entry.source, _where(entry)
    if file := _file(entry):
        arrays = _read(entry, file)
    elif name == "mnist_rot_generated":
        arrays = _checked(entry, _rotated(load("mnist")))
    elif where == "scikit-learn":
        arrays = _bundled(name)
    elif where == "OpenML":
        arrays = _checked(entry, _fetched(entry))
        source = f"OpenML data set {entry.openml}"
        about = about.replace(_GIVEN_SPLITS, "; without test_idx, because OpenML does not have these splits")
    else:
        raise FileNotFoundError(f"dataset {name!r} has no public source to fetch it from. {_remedy(entry)}")
    return Dataset(name, arrays, about, source, where)


def _where(entry: _Entry) -> str:
    if not entry.sha256:
        return "scikit-learn"
    if _file(entry):
        return "ORBITWISE_DATA"
    if entry.name == "mnist_rot_generated":
        return _where(_TABLE["mnist"])
    return "OpenML" if entry.openml else "not available programmatically"


def _remedy(entry: _Entry) -> str:
    return (
        f"Set ORBITWISE_DATA to a folder with {entry.name}.npz; the data are available from: {entry.source}."
    )


def _file(entry: _Entry) -> Path | None:
    setting = os.environ.get("ORBITWISE_DATA")
    if not setting or not entry.sha256:
        return None
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"ORBITWISE_DATA is {setting!r}, which is not a folder; name a folder of .npz files, or unset it"
        )
    file = folder / f"{entry.name}.npz"
    return file if file.is_file() else None


def _read(entry: _Entry, file: Path) -> dict[str, Array]:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.sha256:
        raise ValueError(
            f"{file} is damaged, cut short or of another version: sha256 {digest}, expected {entry.sha256}. "
            "Replace it, or remove it from the folder to load the set from elsewhere."
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _bundled(name: str) -> dict[str, Array]:
    regression = name == "diabetes"
    bunch = getattr(scikit_learn, f"load_{name}")(**({"scaled": False} if regression else {}))
    x = bunch.images if name == "digits" else bunch.data
    return {"x": x.astype(np.float32), "y": bunch.target.astype(np.float32 if regression else np.int64)}


def _fetched(entry: _Entry) -> dict[str, Array]:
    """The set from OpenML, with the same arrays as the file."""
    try:
        # The other parser needs pandas, and version 3 of it fails on classes that are written as numbers.
        bunch: Any = scikit_learn.fetch_openml(data_id=entry.openml, as_frame=False, parser="liac-arff")
    except (OSError, HTTPException) as error:
        problem = f"dataset {entry.name!r} is at OpenML, which could not be reached ({error})"
        raise ConnectionError(f"{problem}. {_remedy(entry)}") from error
    x, y, names = bunch.data, bunch.target, bunch.feature_names
    for column, name in enumerate(names):
        # OpenML encodes a nominal value by its position in the list of categories
        if name in bunch.categories:
            x[:, column] = np.asarray(bunch.categories[name], dtype=float)[x[:, column].astype(int)]
    x = x[:, [name != "cooling_load" for name in names]].astype(
        np.float32
    )  # the second target of the set energy
    if y is None:  # if OpenML names no target, it is the last column
        x, y = x[:, :-1], x[:, -1]
    if entry.positive:
        return {"x": x, "y": (y.astype(str) == entry.positive).astype(np.int8)}
    y = y.astype(np.float32)
    if entry.name == "mnist":
        return _split({"x": x.reshape(-1, 28, 28).astype(np.uint8), "y": y.astype(np.uint8)}, 60_000)
    if entry.name == "usps":  # OpenML numbers the digits from 1
        return _split({"x": x.reshape(-1, 16, 16), "y": (y - 1).astype(np.uint8)}, 7_291)
    return {"x": x, "y": y}


def _split(arrays: dict[str, Array], num_train: int) -> dict[str, Array]:
    parts = {"train": slice(num_train), "test": slice(num_train, None)}
    return {f"{key}_{part}": array[rows] for part, rows in parts.items() for key, array in arrays.items()}


def _checked(entry: _Entry, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays, after a check of their fingerprint, which other columns, classes or splits would change."""
    x, y = (arrays[key] if key in arrays else arrays[f"{key}_train"] for key in "xy")
    column_means = x.reshape(len(x), -1).mean(0, dtype=np.float64)
    found = float(column_means @ np.arange(1, column_means.size + 1)), float(y.mean(dtype=np.float64))
    if not np.allclose(found, entry.fingerprint, rtol=1e-4, atol=0):
        raise ValueError(
            f"OpenML set {entry.openml} does not give the expected {entry.name!r}: its fingerprint is "
            f"{found}, not {entry.fingerprint}. {_remedy(entry)}"
        )
    return arrays


def _rotated(mnist: Dataset) -> dict[str, Array]:
    """62,000 of the 70,000 digits of MNIST, none twice, each turned by a uniform angle."""
    generator = np.random.default_rng(2007)
    source = generator.permutation(70_000)[:62_000]
    angle = generator.uniform(0, 2 * np.pi, 62_000)
    images = np.concatenate([mnist.x_train, mnist.x_test])[source]
    y = np.concatenate([mnist.y_train, mnist.y_test])[source]
    blocks = (slice(start, start + 500) for start in range(0, 62_000, 500))
    x = np.concatenate([_rotate(images[rows], angle[rows]) for rows in blocks])
    angle, source = angle.astype(np.float32), source.astype(np.int32)
    return _split({"x": x, "y": y, "angle": angle, "source": source}, 12_000)


def _rotate(images: Array, angle: Array) -> Array:
    """Images [n 28 28] turned counter-clockwise about pixel 13.5: bilinear, zero outside, rounded."""
    right = np.arange(28) - 13.5
    down = right[:, None]
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    # the position in the image from which each pixel of the result is read
    row, column = 13.5 + sin * right + cos * down, 13.5 + cos * right - sin * down
    inside = (abs(row - 13.5) <= 13.5) & (abs(column - 13.5) <= 13.5)
    i = np.arange(len(images))[:, None, None]
    r, c = (np.clip(np.floor(place), 0, 26).astype(np.intp) for place in (row, column))
    v, u = row - r, column - c
    upper = (1 - u) * images[i, r, c] + u * images[i, r, c + 1]
    lower = (1 - u) * images[i, r + 1, c] + u * images[i, r + 1, c + 1]
    # in single precision before rounding, because some values lie within 1e-5 of a half
    return np.rint((inside * ((1 - v) * upper + v * lower)).astype(np.float32)).astype(np.uint8)
