"""Model files that were edited and sealed again: refused with a StorageError, or models that work."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orbitwise.storage import StorageError, describe, load
from tests.hostile.model_files import outcome
from tests.hostile.model_zoo import saved_model
from tests.hostile.mutations import File, mutant, opened, sealed

COUNT = 150


def test_mutants_are_refused_or_work():
    """In a process of its own, because types are not checked at every call where people load files."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.model_files", "--count", str(COUNT), "--seed", "0"],
        capture_output=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works" in done.stdout
    assert "refused" in done.stdout


def test_a_mutant_is_the_same_for_its_seed():
    models = {"exact": saved_model("exact")}
    assert mutant(models, 5) == mutant(models, 5)
    assert mutant(models, 5) != mutant(models, 6)


def changed(name: str) -> File:
    return opened(saved_model(name))


def node(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"type": kind, "arguments": arguments, "attributes": {}, "state": {}, "learned": []}


def refused(file: File, folder: Path, message: str) -> None:
    """The file is refused with these words, and took little memory."""
    path = folder / "file"
    path.write_bytes(sealed(file))
    with pytest.raises(StorageError, match=message):
        load(path)
    found = outcome(sealed(file), folder)
    assert (found.verdict, found.is_finding) == ("refused", False)


def test_many_large_objects_share_one_budget(tmp_path: Path):
    """A few kilobytes that would name two million pixels, two hundred times."""
    file = changed("digits")
    shape = {"tuple": [1024, 1024]}
    deformation = node("TangentDeformation", image_shape=shape, tangent_width=1.0, clip=None)
    file.structure["objects"] += [deformation] * 200
    assert len(sealed(file)) < 60_000
    refused(file, tmp_path, "far more memory than what it holds")


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_sparse_file_is_refused_unread(tmp_path: Path, is_declared: bool):
    """Forty gigabytes of zeros that take no room on the disk."""
    file, size = changed("exact"), 40 * 2**30
    end = sum(array.nbytes for array in file.arrays.values())
    if is_declared:
        file.header["zeros"] = {"dtype": "F64", "shape": [size // 8], "data_offsets": [end, end + size]}
    path = tmp_path / "sparse"
    path.write_bytes(sealed(file))
    os.truncate(path, path.stat().st_size + size)
    for ask in (load, describe):
        with pytest.raises(StorageError, match=r"asks for 85\.9 GB of memory.* max_bytes"):
            ask(path)
    if not is_declared:
        with pytest.raises(StorageError, match="its arrays take"):
            load(path, max_bytes=2**60)


def test_the_budget_is_an_argument(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(saved_model("exact"))
    assert load(path, max_bytes=2 * path.stat().st_size).n_features_in_ == 2
    with pytest.raises(StorageError, match=r"asks for .* pass a greater max_bytes"):
        load(path, max_bytes=path.stat().st_size)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_bytes must be a whole number"):
            load(path, max_bytes=wrong)


def test_an_empty_array_has_no_absurd_shape(tmp_path: Path):
    file = changed("support vectors")
    file.arrays["empty"] = np.zeros((0, 1))
    file.header["empty"] = {"shape": [0, 10**9]}
    refused(file, tmp_path, "arrays are not where they should be")


def test_settings_of_a_machine_are_never_read(tmp_path: Path):
    for name, settings in (
        ("exact", {"checkpoint": str(tmp_path / "elsewhere"), "callback": "print"}),
        ("search", {"n_jobs": 10_000}),
    ):
        file = changed(name)
        file.structure["parameters"] |= settings
        (tmp_path / "file").write_bytes(sealed(file))
        model = load(tmp_path / "file")
        assert all(getattr(model, each) is None for each in settings)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("digits", ["owl", "dog", "cat"], "not in order"),
        ("digits", ["cat", "cat", "owl"], "not in order"),
        ("digits", ["cat", "dog"], "outputs of other classes"),
        ("digits", ["a", "b", "c", "d"], "outputs of other classes"),
        ("digits", ["cat", 3, "owl"], "several kinds"),
        ("machine", ["cat", "dog", "owl", "yak"], "machine of other classes"),
        ("support vectors", ["cat", "dog", "yak"], "support vectors of other classes"),
    ],
)
def test_classes_that_are_not_those_of_the_model_are_refused(
    tmp_path: Path, name: str, labels: list[Any], message: str
):
    file = changed(name)
    file.structure["fitted"]["classes_"] = {"array": {"width": None, "values": labels}}
    refused(file, tmp_path, message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_no_number_of_a_posterior_is_absurd(tmp_path: Path, value: float):
    places = [each for each in changed("exact").structure["objects"] if each["type"] == "ExactPosterior"]
    for part in ("targets", "weights", "lower"):
        file = changed("exact")
        name = places[0]["arguments"][part]["tensor"]["name"]
        file.arrays[name].reshape(-1)[0] = value
        refused(file, tmp_path, "out of range")


def test_a_posterior_that_does_not_solve_its_equations_is_refused(tmp_path: Path):
    file = changed("exact")
    (posterior,) = [each for each in file.structure["objects"] if each["type"] == "ExactPosterior"]
    name = posterior["arguments"]["weights"]["tensor"]["name"]
    file.arrays[name] = 2 * file.arrays[name]
    refused(file, tmp_path, "do not solve what they should")


def test_a_summary_prints_nothing_that_a_terminal_obeys(tmp_path: Path):
    file = changed("digits")
    about = file.structure["summary"]["mapping"]
    about["learned_text"] = "\x1b]0;owned\x07\x1b[31mred [bold]"
    file.structure["versions"] = {"orbitwise\x1b[2J": "1\r2"}
    (tmp_path / "file").write_bytes(sealed(file))
    text = str(describe(tmp_path / "file"))
    assert "?[31mred [bold]" in text
    assert text.isprintable()
    assert "\\x" not in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log_evidence", "much"),
        ("log_evidence", 10**400),
        ("learned_errors", {"mapping": {"angle": None}}),
        ("noise", "loud"),
        ("image_shape", {"tuple": [4, "4"]}),
        ("classes", [1, 2]),
        ("evidence_kind", None),
    ],
)
def test_a_summary_of_other_types_is_refused(tmp_path: Path, key: str, value: Any):
    file = changed("digits")
    file.structure["summary"]["mapping"][key] = value
    (tmp_path / "file").write_bytes(sealed(file))
    with pytest.raises(StorageError, match=f"{key} of its summary"):
        describe(tmp_path / "file")
