"""Support vector machines come back bit for bit; arrays that would mislead libsvm are refused."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.svm import SVC

from orbitwise.estimators.virtual import VirtualSVC
from orbitwise.orbits import ImageOrbit
from orbitwise.storage import StorageError, describe, load, save
from orbitwise.storage import models as stored
from orbitwise.storage.recipes import rebuild, recipe_of
from tests.storage import round_trip

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(24, 2)), RNG.normal(size=(9, 2))
TWO = (X[:, 0] > 0).astype(int)
LABELS = np.array(["cat", "dog", "owl"])[np.arange(24) % 3]
IMAGES, NEW_IMAGES = RNG.normal(size=(12, 4, 4)), RNG.normal(size=(5, 4, 4))
MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "two classes": (VirtualSVC(C=2.0), (X, TWO)),
    "three classes": (VirtualSVC(class_weight="balanced"), (X, LABELS)),
    "weights by name": (VirtualSVC(class_weight={"cat": 2.0}), (X, LABELS.astype(object))),
    "moves": (VirtualSVC("moves", bandwidth=3.0), (IMAGES, TWO[:12])),
    "orbit": (
        VirtualSVC(ImageOrbit((4, 4), {"angle": 0.3}), num_copies=2, random_state=0, image_shape=(4, 4)),
        (IMAGES.reshape(12, 16), TWO[:12]),
    ),
    "support vectors": (
        VirtualSVC("moves", C=100.0, virtual="support_vectors", moves=[("shift_x", 1.0)]),
        (IMAGES, TWO[:12]),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_estimators_come_back(tmp_path: Path, name: str):
    model, data = MODELS[name]
    model = clone(model).fit(*data)
    assert stored.take_apart(model)[0]["notes"] == []
    save(model, tmp_path / "model")
    back = load(tmp_path / "model")
    new = NEW if model.n_features_in_ == 2 else NEW_IMAGES.reshape(5, 16)
    for question in ("decision_function", "predict"):
        first, second = getattr(model, question)(new), getattr(back, question)(new)
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)
    assert set(vars(model)) == set(vars(back))
    assert set(vars(model.svc_)) == set(vars(back.svc_))
    for attribute, value in vars(model.svc_).items():
        np.testing.assert_equal(getattr(back.svc_, attribute), value, err_msg=attribute)
    np.testing.assert_array_equal(clone(back).fit(*data).decision_function(new), model.decision_function(new))


def test_a_function_that_makes_copies_is_left_out_and_its_lesson_stays(tmp_path: Path):
    model = VirtualSVC(lambda x: -x[:, None]).fit(X, TWO)
    (note,) = stored.take_apart(model)[0]["notes"]
    assert note.startswith("invariance was left out")
    save(model, tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.invariance is None
    np.testing.assert_array_equal(back.decision_function(NEW), model.decision_function(NEW))


def test_a_file_tells_of_its_machine_and_holds_no_pickle(tmp_path: Path):
    model = VirtualSVC("moves", C=2.0).fit(IMAGES, TWO[:12])
    save(model, tmp_path / "model")
    about = describe(tmp_path / "model")
    assert about["estimator"] == "VirtualSVC"
    assert about["num_rows"] == model.num_samples_ == 12 * 13
    assert f"C = 2, bandwidth = {model.bandwidth_:.4g}" in about["learned_text"]
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        pickle.loads((tmp_path / "model").read_bytes())


def test_an_estimator_without_a_fit_is_refused(tmp_path: Path):
    with pytest.raises((StorageError, NotFittedError), match="not fitted"):
        save(VirtualSVC(), tmp_path / "model")


@pytest.mark.parametrize("machine", [SVC(kernel="linear"), SVC(gamma="scale")])
def test_other_kernels_are_refused(machine: SVC):
    with pytest.raises(StorageError, match="only an SVC with the radial kernel"):
        round_trip.again(machine.fit(X, TWO))


WRONG: list[tuple[str, Callable[[np.ndarray], np.ndarray], str]] = [
    ("classes", lambda a: a[::-1], "classes out of order"),
    ("classes", lambda a: a[:1], "not a list of at least two"),
    ("num_support", lambda a: a + 1, "do not add up to the number"),
    (
        "num_support",
        lambda a: a + np.array([-1000, 1000, 0]),
        "do not add up to the number",
    ),
    ("num_support", lambda a: a[:-1], "an array of shape"),
    ("num_support", lambda a: a.astype(float), "an array of shape"),
    ("support", lambda a: a[:-1], "an array of shape"),
    ("support_vectors", lambda a: a[:-1], "an array of shape"),
    ("support_vectors", lambda a: a[0], "not a matrix"),
    ("support_vectors", lambda a: a[:, :0], "not a matrix"),
    ("dual_coefficients", lambda a: a[:1], "an array of shape"),
    ("dual_coefficients", lambda a: np.nan * a, "not finite"),
    ("intercept", lambda a: a[:-1], "an array of shape"),
    ("class_weights", lambda a: a[:-1], "an array of shape"),
    ("num_iterations", lambda a: a[:-1], "an array of shape"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_arrays_that_do_not_fit_together_are_refused(name: str, change: Any, message: str):
    machine = SVC(gamma=0.5).fit(X, LABELS)
    recipe = recipe_of(SVC)
    assert recipe is not None
    given = {name: recipe.argument_of(machine, name) for name in recipe.arguments}
    np.testing.assert_array_equal(rebuild(**given).decision_function(NEW), machine.decision_function(NEW))
    with pytest.raises(ValueError, match=message):
        rebuild(**{**given, name: change(given[name])})


def test_machines_of_other_classes_or_inputs_are_refused(tmp_path: Path):
    save(VirtualSVC().fit(X, TWO), tmp_path / "model")

    def widened(structure: dict[str, Any]) -> None:
        structure["fitted"]["n_features_in_"] = 3

    def renamed(structure: dict[str, Any]) -> None:
        structure["fitted"]["classes_"] = {"array": {"width": 1, "values": ["a", "b"]}}

    for change, message in ((widened, "vectors of other inputs"), (renamed, "vectors of other classes")):
        with pytest.raises(StorageError, match=message):
            load(round_trip.edit(tmp_path / "model", tmp_path / "edited", change))
