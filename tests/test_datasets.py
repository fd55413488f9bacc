"""Data sets: files against their pins, the bundled sets, OpenML's tables (faked), and what goes wrong."""

import copy
import hashlib
import io
import pickle
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from orbitwise import datasets
from orbitwise.datasets import available, load

BUNDLED = ["digits", "diabetes", "iris", "wine", "breast_cancer"]
AT_OPENML = [name for name, entry in datasets._TABLE.items() if entry.openml and "rot" not in name]
NOWHERE = [name for name, entry in datasets._TABLE.items() if entry.sha256 and not entry.openml]


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)


def refuse(*arguments, **options):
    raise AssertionError("the network was touched")


def fake_openml(monkeypatch, expected_id, **contents):
    """Let `fetch_openml` answer with these contents."""

    def fetch(data_id, as_frame, parser):
        assert (data_id, as_frame, parser) == (expected_id, False, "liac-arff")
        return SimpleNamespace(**contents)

    monkeypatch.setattr(datasets.scikit_learn, "fetch_openml", fetch)


def pin(monkeypatch, name, **changes):
    """Give one row of the table other contents."""
    changed = datasets._Entry(**{**vars(datasets._TABLE[name]), **changes})
    monkeypatch.setitem(datasets._TABLE, name, changed)


# The table


def test_every_set_has_words_and_a_sound_pin():
    assert len(datasets._TABLE) == 31
    assert len({entry.sha256 for entry in datasets._TABLE.values() if entry.sha256}) == 26
    for entry in datasets._TABLE.values():
        assert entry.about
        assert entry.source
        assert not entry.sha256 or len(bytes.fromhex(entry.sha256)) == 32
        assert bool(entry.openml) == (entry.fingerprint != (0, 0))


@pytest.mark.requires_data
def test_every_pinned_file_is_there_and_loads_as_described():
    for entry in datasets._TABLE.values():
        if not entry.sha256 or "mnist" in entry.name:
            continue
        dataset = load(entry.name)
        assert dataset.where == "ORBITWISE_DATA"
        x = dataset.x_train if "x_train" in dataset.arrays else dataset.x
        numbers = [int(word) for word in entry.shape.replace(",", " ").split() if word.isdigit()]
        assert numbers[0] == len(x)
        if entry.name.startswith(("uci_", "ssl_")):
            assert tuple(numbers) == x.shape
        assert ("test_idx" in dataset.arrays) == ("test_idx" in dataset.description)


@pytest.mark.requires_data
def test_mnist_file_has_the_published_label_counts():
    mnist = load("mnist")
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.y_train).tolist() == counts
    assert mnist.x_train.shape == (60_000, 28, 28)
    assert mnist.x_test.dtype == np.uint8


@pytest.mark.requires_data
@pytest.mark.parametrize("name", [*AT_OPENML, "mnist_rot_generated"])
def test_fingerprints_are_those_of_the_files(name):
    dataset = load(name)
    assert datasets._checked(datasets._TABLE[name], dict(dataset.arrays)) == dataset.arrays
    key = "x" if "x" in dataset.arrays else "x_train"
    columns_reversed = {
        **dataset.arrays,
        key: dataset.arrays[key].reshape(len(dataset.arrays[key]), -1)[:, ::-1],
    }
    with pytest.raises(ValueError, match="fingerprint"):
        datasets._checked(datasets._TABLE[name], columns_reversed)


# The sets that scikit-learn carries


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_need_neither_folder_nor_network(name, no_folder, monkeypatch):
    monkeypatch.setattr(datasets.scikit_learn, "fetch_openml", refuse)
    dataset = load(name)
    assert dataset.where == dataset.source == "scikit-learn"
    assert dataset.x.dtype == np.float32
    assert dataset.y.dtype == (np.float32 if name == "diabetes" else np.int64)
    assert len(dataset.x) == len(dataset.y) == int(datasets._TABLE[name].shape.split()[0])


def test_digits_are_images_in_0_to_16():
    digits = load("digits")
    assert digits.x.shape == (1797, 8, 8)
    assert (digits.x.min(), digits.x.max()) == (0, 16)
    assert set(digits.y) == set(range(10))


def test_diabetes_features_are_raw():
    assert 18 < load("diabetes").x[:, 0].min() < load("diabetes").x[:, 0].max() < 80  # age in years


# The object


def test_arrays_are_attributes_and_the_object_travels():
    iris = load("iris")
    assert iris.x is iris.arrays["x"]
    assert "y" in dir(iris)
    assert "x float32 (150, 4)" in repr(iris)
    for twin in (pickle.loads(pickle.dumps(iris)), copy.deepcopy(iris)):
        assert np.array_equal(twin.x, iris.x)
    with pytest.raises(AttributeError, match=r"'iris' from scikit-learn has no 'x_train'; it has x, y"):
        _ = iris.x_train
    with pytest.raises(AttributeError):
        iris.name = "other"


# What goes wrong


@pytest.mark.parametrize(
    ("given", "nearest"), [("MNIST", "mnist"), ("boston", "uci_reg_boston"), ("qm_7", "qm7")]
)
def test_unknown_names_bring_the_nearest(given, nearest):
    with pytest.raises(ValueError, match=rf"unknown dataset {given!r}; nearest: {nearest}\b"):
        load(given)


def test_a_name_like_no_other_brings_all():
    with pytest.raises(ValueError, match=r"rmd17_benzene.*qm7"):
        load("!!!!!")


def test_a_missing_folder_is_said(monkeypatch, tmp_path):
    missing = str(tmp_path / "nowhere")
    monkeypatch.setenv("ORBITWISE_DATA", missing)
    for call in (lambda: load("mnist"), available):
        with pytest.raises(FileNotFoundError, match=r"ORBITWISE_DATA is .*nowhere.* not a folder.*unset"):
            call()
    assert load("iris").where == "scikit-learn"


@pytest.mark.parametrize("damage", ["truncated", "empty", "one byte", "another set", "pickled"])
def test_damaged_files_are_refused_by_name(damage, monkeypatch, tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(12.0).reshape(4, 3), y=np.zeros(4))
    good = buffer.getvalue()
    pin(monkeypatch, "uci_bupa", sha256=hashlib.sha256(good).hexdigest())
    monkeypatch.setenv("ORBITWISE_DATA", str(tmp_path))
    file = tmp_path / "uci_bupa.npz"
    file.write_bytes(good)
    assert load("uci_bupa").x.shape == (4, 3)

    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    middle = len(good) // 2
    contents = {
        "truncated": good[:middle],
        "empty": b"",
        "one byte": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "another set": (tmp_path / "other.npz").read_bytes(),
        "pickled": (tmp_path / "pickled.npz").read_bytes(),
    }
    file.write_bytes(contents[damage])
    with pytest.raises(ValueError, match=r"uci_bupa\.npz is damaged.*sha256 .*expected .*Replace it"):
        load("uci_bupa")


def test_pickled_arrays_are_refused_even_under_the_right_pin(monkeypatch, tmp_path):
    file = tmp_path / "uci_bupa.npz"
    np.savez(file, x=np.array([{}], dtype=object))
    pin(monkeypatch, "uci_bupa", sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setenv("ORBITWISE_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load("uci_bupa")


@pytest.mark.parametrize("name", [*AT_OPENML, "mnist_rot_generated"])
def test_without_a_network_the_remedy_is_said(name, no_folder, monkeypatch):
    def fetch(**options):
        raise URLError("Name or service not known")

    monkeypatch.setattr(datasets.scikit_learn, "fetch_openml", fetch)
    carrier = "mnist" if "rot" in name else name
    pattern = rf"'{carrier}'.*OpenML.*not be reached.*ORBITWISE_DATA.*{carrier}\.npz.*available from: \w+"
    with pytest.raises(ConnectionError, match=pattern):
        load(name)


@pytest.mark.parametrize("name", NOWHERE)
def test_sets_with_no_public_source_name_their_origin(name, no_folder, monkeypatch):
    monkeypatch.setattr(datasets.scikit_learn, "fetch_openml", refuse)
    with pytest.raises(FileNotFoundError, match=rf"{name!r} has no public.*{name}\.npz.*(PyPI|GitHub) \w+"):
        load(name)


# Where sets are


def test_available_says_where_without_the_network(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.scikit_learn, "fetch_openml", refuse)
    monkeypatch.delenv("ORBITWISE_DATA", raising=False)
    where = {row.name: row.where for row in available()}
    assert where["digits"] == "scikit-learn"
    assert where["mnist"] == where["mnist_rot_generated"] == "OpenML"
    assert where["ssl_bci"] == where["uci_bupa"] == where["uci_reg_power"] == "not available programmatically"
    assert set(where.values()) == {"scikit-learn", "OpenML", "not available programmatically"}

    (tmp_path / "mnist.npz").touch()
    monkeypatch.setenv("ORBITWISE_DATA", str(tmp_path))
    where = {row.name: row.where for row in available()}
    assert where["mnist"] == where["mnist_rot_generated"] == "ORBITWISE_DATA"
    assert where["usps"] == "OpenML"
    assert all(row.shape and row.source for row in available())


def test_an_empty_setting_is_none(monkeypatch):
    monkeypatch.setenv("ORBITWISE_DATA", "")
    assert "ORBITWISE_DATA" not in {row.where for row in available()}


# What OpenML gives


def test_nominal_columns_and_classes_are_decoded(no_folder, monkeypatch):
    fake_openml(
        monkeypatch,
        40981,
        data=np.array([[0.5, 2], [1.5, 0], [2.5, 1]]),
        target=np.array(["0", "1", "1"], dtype=object),
        feature_names=["A1", "A2"],
        categories={"A2": ["1", "2", "14"]},
    )
    pin(monkeypatch, "uci_australian", fingerprint=(1.5 + 2 * 17 / 3, 2 / 3))
    dataset = load("uci_australian")
    assert dataset.x.tolist() == [[0.5, 14], [1.5, 1], [2.5, 2]]
    assert dataset.y.tolist() == [0, 1, 1]
    assert (dataset.x.dtype, dataset.y.dtype) == (np.float32, np.int8)
    assert (dataset.where, dataset.source) == ("OpenML", "OpenML data set 40981")


@pytest.mark.parametrize("target_named", [True, False])
def test_regression_sets_come_without_splits(target_named, no_folder, monkeypatch):
    table = np.array([[1.0, 2, 8, 5], [3, 4, 9, 7]])
    names = ["relative_compactness", "surface_area", "cooling_load", "heating_load"]
    data, names = (table[:, :3], names[:3]) if target_named else (table, names)
    target = table[:, 3] if target_named else None
    fake_openml(monkeypatch, 44960, data=data, target=target, feature_names=names, categories={})
    pin(monkeypatch, "uci_reg_energy", fingerprint=(2 + 2 * 3, 6))
    dataset = load("uci_reg_energy")
    assert dataset.x.tolist() == [[1, 2], [3, 4]]
    assert dataset.y.tolist() == [5, 7]
    assert dataset.x.dtype == dataset.y.dtype == np.float32
    assert "without test_idx" in dataset.description
    with pytest.raises(AttributeError, match="from OpenML has no 'test_idx'"):
        _ = dataset.test_idx


def flat(name, label_shift):
    """The arrays of a file of images as OpenML lays them out."""
    images = load(name)
    x = np.concatenate([images.x_train, images.x_test])
    y = np.concatenate([images.y_train, images.y_test]) + label_shift
    columns = [f"pixel{number}" for number in range(x[0].size)]
    target = y.astype(str).astype(object)
    return {"data": x.reshape(len(x), -1), "target": target, "feature_names": columns, "categories": {}}


@pytest.mark.requires_data
@pytest.mark.parametrize(("name", "number", "label_shift"), [("mnist", 554, 0), ("usps", 41082, 1)])
def test_images_from_openml_equal_the_files(name, number, label_shift, monkeypatch):
    expected = load(name)
    fake_openml(monkeypatch, number, **flat(name, label_shift))
    monkeypatch.delenv("ORBITWISE_DATA")
    dataset = load(name)
    assert dataset.where == "OpenML"
    assert set(dataset.arrays) == set(expected.arrays)
    for key, array in expected.arrays.items():
        assert dataset.arrays[key].dtype == array.dtype
        assert np.array_equal(dataset.arrays[key], array)


@pytest.mark.requires_data
@pytest.mark.parametrize(
    ("name", "number", "classes"),
    [
        ("uci_heart", 53, ["absent", "present"]),
        ("uci_australian", 40981, ["0", "1"]),
        ("uci_ionosphere", 59, ["b", "g"]),
        ("uci_sonar", 40, ["Rock", "Mine"]),
    ],
)
def test_two_classes_from_openml_equal_the_file(name, number, classes, monkeypatch):
    expected = load(name)
    columns = [f"column{number}" for number in range(expected.x.shape[1])]
    target = np.array(classes, dtype=object)[expected.y]
    table = expected.x.astype(float)
    fake_openml(monkeypatch, number, data=table, target=target, feature_names=columns, categories={})
    monkeypatch.delenv("ORBITWISE_DATA")
    dataset = load(name)
    assert dataset.where == "OpenML"
    for key, array in expected.arrays.items():
        assert dataset.arrays[key].dtype == array.dtype
        assert np.array_equal(dataset.arrays[key], array)


@pytest.mark.requires_data
def test_another_set_under_the_same_number_is_refused(monkeypatch):
    fake_openml(monkeypatch, 41082, **flat("usps", label_shift=0))
    monkeypatch.delenv("ORBITWISE_DATA")
    with pytest.raises(ValueError, match="OpenML set 41082 does not give the expected 'usps'"):
        load("usps")


# The rotated digits


def test_a_quarter_turn_is_rot90_and_none_is_none():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    angle = np.array([0, 0.5, -0.5]) * np.pi
    turned = datasets._rotate(images, np.where(angle == 0, 0, angle * (1 - 1e-12)))
    expected = [images[0], np.rot90(images[1]), np.rot90(images[2], -1)]
    inner = np.s_[:, 1:-1, 1:-1]  # on the border a rounding error may fall outside
    assert np.array_equal(turned[inner], np.stack(expected)[inner])


def test_half_a_right_angle_is_bilinear_and_dark_outside():
    white = np.full((1, 28, 28), 200, dtype=np.uint8)
    turned = datasets._rotate(white, np.array([np.pi / 4]))[0]
    distance = np.abs(np.arange(28) - 13.5)
    reach = distance[:, None] + distance  # inside the turned square where this is at most 13.5 √2
    assert np.array_equal(turned, np.where(reach <= 13.5 * np.sqrt(2), 200, 0))


@pytest.mark.requires_data
def test_rotated_digits_equal_the_file_bit_for_bit(data, monkeypatch, tmp_path):
    expected = load("mnist_rot_generated")
    (tmp_path / "mnist.npz").symlink_to(data.resolve() / "mnist.npz")
    monkeypatch.setenv("ORBITWISE_DATA", str(tmp_path))
    rotate, kept = datasets._rotate, []

    def every_tenth_block(images, angle):
        kept.append(len(kept) % 10 == 0)
        return rotate(images, angle) if kept[-1] else np.zeros_like(images)

    monkeypatch.setattr(datasets, "_rotate", every_tenth_block)
    monkeypatch.setattr(datasets, "_checked", lambda entry, arrays: arrays)
    made = load("mnist_rot_generated")
    assert set(made.arrays) == set(expected.arrays)
    for key, array in expected.arrays.items():
        assert made.arrays[key].dtype == array.dtype
        if not key.startswith("x_"):
            assert np.array_equal(made.arrays[key], array)
    rows = np.repeat(kept, 500)
    for part, where in (("train", rows[:12_000]), ("test", rows[12_000:])):
        assert np.array_equal(made.arrays[f"x_{part}"][where], expected.arrays[f"x_{part}"][where])
