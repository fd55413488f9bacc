"""Files of models: other processes, random damage, hostile edits, and what a file tells of itself."""

import copy
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orbitwise import InvariantGPClassifier, InvariantGPRegressor
from orbitwise.export import from_json, to_json
from orbitwise.functionals import Composition, OrbitSum
from orbitwise.orbits import FiniteOrbit, PatchOrbit
from orbitwise.process.process import as_blocks
from orbitwise.storage import StorageError, describe, load, save
from orbitwise.storage.container import pack, unpack
from orbitwise.storage.models import MOST_PAIRS
from orbitwise.transforms import flips
from tests.storage.round_trip import edit

# Few iterations, or labels that tell nothing, are enough for what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:InvariantGPClassifier predicts class:UserWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X.sum(1) + 0.1 * RNG.normal(size=12)
IMAGES = RNG.normal(size=(9, 4, 4))
LABELS = np.arange(9) % 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    folder = tmp_path_factory.mktemp("models")
    exact = InvariantGPRegressor(invariance="permutation", max_iterations=2, random_state=0).fit(X, Y)
    sparse = InvariantGPClassifier(
        invariance="affine+deformation", inference="collapsed", likelihood="stick_breaking",
        num_inducing=5, num_nodes=2, max_iterations=2, random_state=0,
    ).fit(IMAGES, LABELS)  # fmt: skip
    models = {"exact": exact, "sparse": sparse}
    for name, model in models.items():
        save(model, folder / f"{name}.orbitwise", error_seconds=20.0)
    return {name: (model, folder / f"{name}.orbitwise") for name, model in models.items()}


def predictions(model: Any) -> bytes:
    values = model.predict(X) if isinstance(model, InvariantGPRegressor) else model.predict_proba(IMAGES)
    return values.tobytes()


def test_another_process_predicts_the_same_bits(files, tmp_path: Path):
    np.savez(tmp_path / "inputs.npz", exact=X, sparse=IMAGES)
    code = (
        "import sys, numpy; from orbitwise.storage import load; "
        "exact, sparse = (load(path) for path in sys.argv[1:3]); inputs = numpy.load(sys.argv[3]); "
        "sys.stdout.buffer.write(exact.predict(inputs['exact']).tobytes()); "
        "sys.stdout.buffer.write(sparse.predict_proba(inputs['sparse']).tobytes())"
    )
    paths = [path for _, path in files.values()]
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths), str(tmp_path / "inputs.npz")],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stdout == b"".join(predictions(model) for model, _ in files.values())


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one accident: a flipped bit, an end cut off, or bytes replaced, inserted or removed."""
    start, length = chance.randrange(len(data)), chance.randrange(1, 65)
    kind = chance.randrange(5)
    if kind == 0:
        return data[:start] + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :]
    if kind == 1:
        return data[:start]
    if kind == 2:
        return data[:start] + chance.randbytes(length) + data[start + length :]
    if kind == 3:
        return data[:start] + chance.randbytes(length) + data[start:]
    return data[:start] + data[start + length :]


@pytest.mark.parametrize("name", ["exact", "sparse"])
def test_damaged_files_load_equal_or_fail_clearly(files, tmp_path: Path, name: str):
    model, path = files[name]
    data, chance = path.read_bytes(), random.Random(0)
    copy_path = tmp_path / "damaged"
    failures = 0
    for _ in range(120):
        changed = damaged(data, chance)
        copy_path.write_bytes(changed)
        try:
            back = load(copy_path)
        except StorageError:
            failures += 1
        else:
            assert changed == data
            assert predictions(back) == predictions(model)
    assert failures > 100


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in entries:
        yield (*path, key)
        yield from places(each, (*path, key))


HOSTILE: list[Any] = [
    None, True, -1, 0, 7, 10**6, 10**12, -(10**12), 0.5, "x", "os.system", [], {}, [[[]]], {"object": 0},
    {"object": 10**9}, {"object": -1}, {"float": "nan"}, {"tuple": [10**9, 10**9]}, {"tuple": [-1, 3]},
    {"array": {"width": 10**12, "values": ["a"]}},
    {"tensor": {"name": "tensor_0", "shape": [10**9], "order": [0], "shared": [0]}},
]  # fmt: skip


@pytest.mark.parametrize("name", ["exact", "sparse"])
def test_hostile_edits_with_a_right_checksum_load_or_fail_clearly(files, tmp_path: Path, name: str):
    """Any part of the structure is removed, or replaced by something absurd or by another part."""
    _, path = files[name]
    structure, arrays = unpack(path.read_bytes())
    where, chance, failures = list(places(structure)), random.Random(1), 0
    for _ in range(100):
        changed = copy.deepcopy(structure)
        *way, last = chance.choice(where)
        parent = changed
        for key in way:
            parent = parent[key]
        kind = chance.randrange(4)
        if kind == 0:
            del parent[last]
        elif kind == 1:
            parent[last] = part_of(structure, chance.choice(where))
        else:
            parent[last] = copy.deepcopy(chance.choice(HOSTILE))
        (tmp_path / "edited").write_bytes(pack(changed, arrays))
        try:
            load(tmp_path / "edited")
        except StorageError:
            failures += 1
    assert failures > 50


def part_of(structure: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        structure = structure[key]
    return copy.deepcopy(structure)


@pytest.mark.parametrize("name", ["exact", "sparse"])
def test_missing_and_swapped_tensors_fail_clearly(files, tmp_path: Path, name: str):
    _, path = files[name]
    structure, arrays = unpack(path.read_bytes())
    for each in arrays:
        for other in (None, np.zeros((7, 1))):
            changed = {key: value for key, value in arrays.items() if key != each}
            if other is not None:
                changed[each] = other
            (tmp_path / "edited").write_bytes(pack(structure, changed))
            if other is None or other.shape != arrays[each].shape:
                with pytest.raises(StorageError):
                    load(tmp_path / "edited")


def test_unknown_names_are_refused(files, tmp_path: Path):
    _, path = files["exact"]

    def rename(structure: dict[str, Any]) -> None:
        structure["estimator"] = "Popen"

    def import_(structure: dict[str, Any]) -> None:
        structure["objects"][0]["type"] = "subprocess.Popen"

    def add(structure: dict[str, Any]) -> None:
        structure["fitted"]["predict"] = 3

    def call(structure: dict[str, Any]) -> None:
        structure["parameters"]["__class__"] = "x"

    for change, message in (
        (rename, "unknown estimator, Popen"),
        (import_, "unknown class subprocess.Popen"),
        (add, "lacks fitted attributes of .*, or has others"),
        (call, "parameters that .* does not have"),
    ):
        with pytest.raises(StorageError, match=message):
            load(edit(path, tmp_path / "edited", change))


def test_an_interrupted_save_keeps_the_old_model(files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, source = files["exact"]
    path = tmp_path / "model.orbitwise"
    path.write_bytes(source.read_bytes())

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save(model, path)
    assert path.read_bytes() == source.read_bytes()
    assert list(tmp_path.iterdir()) == [path]
    assert predictions(load(path)) == predictions(model)


def test_folders_are_neither_overwritten_nor_loaded(files, tmp_path: Path):
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        save(files["exact"][0], tmp_path)
    for ask in (load, describe):
        with pytest.raises(StorageError, match="is a folder"):
            ask(tmp_path)
        with pytest.raises(StorageError, match="There is no file"):
            ask(tmp_path / "none")


def test_a_link_that_is_saved_to_is_followed(files, tmp_path: Path):
    (tmp_path / "latest").symlink_to("model.orbitwise")
    save(files["exact"][0], tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert not (tmp_path / "model.orbitwise").is_symlink()
    assert describe(tmp_path / "model.orbitwise")


def test_saving_twice_gives_the_same_bytes(files, tmp_path: Path):
    model, path = files["sparse"]
    save(model, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_a_loaded_model_can_be_saved(files, tmp_path: Path):
    model, path = files["sparse"]
    save(load(path), tmp_path / "again")
    assert predictions(load(tmp_path / "again")) == predictions(model)


def test_a_part_that_would_be_lost_stops_the_save(files, tmp_path: Path):
    model = copy.deepcopy(files["exact"][0])
    model.functional_.register_buffer("more", model.target_scale_.scale)
    with pytest.raises(StorageError, match="OrbitAverage has other tensors") as caught:
        save(model, tmp_path / "model")
    assert str(caught.value).startswith("This model cannot be saved: ")
    assert list(tmp_path.iterdir()) == []


def test_who_saves_a_model_beyond_the_limits_is_told_which(files, tmp_path: Path):
    model = copy.deepcopy(files["exact"][0])
    for _ in range(8):
        model.functional_ = Composition(files["exact"][0].functional_, model.functional_)
    with pytest.raises(StorageError) as caught:
        save(model, tmp_path / "model")
    assert str(caught.value) == (
        "This model cannot be saved: it holds a functional of far too many points: it moves a row to "
        "10,077,696, and 8,192 are allowed."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_convolutional_model_of_many_points_is_saved(tmp_path: Path):
    """Each row has 4,225 patches, and the rows have more than 2²⁶ pairs of them with a new row's."""
    x = RNG.normal(size=(4, 67 * 67))
    model = InvariantGPRegressor(
        invariance=OrbitSum(PatchOrbit((1, 67, 67), (3, 3))), inference="exact", max_iterations=0
    )
    model.fit(x, x[:, 0])
    assert 4225 * math.prod(as_blocks(model.posterior_.rows)[0].points.shape[:2]) > MOST_PAIRS
    # which reads it back
    save(model, tmp_path / "model")
    assert (tmp_path / "model").is_file()


def test_a_finite_orbit_that_knows_its_images_still_does(tmp_path: Path):
    images = RNG.normal(size=(9, 5, 5))
    orbit = from_json(to_json(FiniteOrbit(flips((1, 5, 5))), (1, 5, 5)))
    y = images.sum((1, 2))
    model = InvariantGPRegressor(invariance=orbit, max_iterations=0, random_state=0).fit(images, y)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.invariance.image_shape == (1, 5, 5)
    np.testing.assert_array_equal(loaded.fit(images, y).predict(images), model.predict(images))


def test_a_file_tells_what_it_holds(files, tmp_path: Path):
    model, path = files["sparse"]
    about = describe(path)
    assert about["estimator"] == "InvariantGPClassifier"
    assert about["learned"] == model.orbit_.learned()
    assert about["learned_text"] == model.orbit_.describe()
    assert about["learned_errors"] == model.orbit_errors_
    assert about["log_evidence"] == model.log_evidence_
    assert about["evidence_kind"] == "lower bound"
    assert about["classes"] == ["0", "1", "2"]
    assert set(about["versions"]) == {"gpytorch", "numpy", "orbitwise", "python", "torch"}
    assert about["notes"] == []

    def colour(structure: dict[str, Any]) -> None:
        structure["notes"] = ["\x1b[31mred"]

    assert describe(edit(path, tmp_path / "edited", colour))["notes"] == ["?[31mred"]

    def forget(structure: dict[str, Any]) -> None:
        del structure["summary"]

    with pytest.raises(StorageError, match="no summary"):
        describe(edit(path, tmp_path / "edited", forget))
