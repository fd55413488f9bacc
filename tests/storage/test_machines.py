"""Kernel machines come back bit for bit, with their losses; those that make no sense are refused."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import PolynomialKernel, RBFKernel, ScaleKernel
from sklearn.base import clone

from orbitwise.estimators.kernel_ridge import InvariantKernelRidge
from orbitwise.estimators.laplacian import LaplacianSVC
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.functionals import Difference, Evaluation, FeatureMap, Gradient
from orbitwise.inference.risk.machines import Machine
from orbitwise.losses import EpsilonInsensitive, Hinge, Logistic, Squared, SquaredHinge
from orbitwise.process import Process
from orbitwise.storage import StorageError, describe, load, save
from orbitwise.storage import models as stored
from tests.storage import round_trip

RNG = np.random.default_rng(0)
X, NEW, MORE = RNG.normal(size=(18, 2)), RNG.normal(size=(7, 2)), RNG.normal(size=(5, 2))
LABELS = np.array(["cat", "dog", "owl"])[np.arange(18) % 3]
TWO = (X[:, 0] > 0).astype(int)
IMAGES, NEW_IMAGES = RNG.normal(size=(12, 4, 4)), RNG.normal(size=(5, 4, 4))
PAIRS = RNG.normal(size=(6, 2, 2))

MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "logistic": (InvariantSVC(), (X, LABELS, MORE)),
    "hinge of a width": (InvariantSVC(loss=Hinge(0.3), class_weight={0: 2.0, 1: 0.5}), (X, TWO)),
    "names and numbers": (
        InvariantSVC(class_weight={"cat": 3}, loss="squared_hinge", basis="linear"),
        (X, LABELS),
    ),
    "other loss of rows": (
        InvariantSVC(ScaleKernel(RBFKernel()), invariance_loss=EpsilonInsensitive(0.2, 0.1), random_state=3),
        (X, TWO),
    ),
    "local average": (InvariantSVC(invariance="local_average", basis="none"), (X, TWO, MORE)),
    "pairs": (
        InvariantSVC(invariance=[(Difference(), PAIRS, np.arange(1.0, 7)), (Gradient([1]), MORE)]),
        (X, TWO),
    ),
    "polynomial": (InvariantSVC(PolynomialKernel(power=3)), (X, TWO)),
    "evidence": (
        InvariantSVC(strength="evidence", Cs=[0.1, 1.0], strengths=np.array([0.0, 0.1]), loss="logistic"),
        (X, TWO),
    ),
    "cross-validation": (
        InvariantSVC(strength="cross_validation", Cs=(0.1, 1.0), strengths=[0.1], random_state=0),
        (X, TWO),
    ),
    "multinomial": (InvariantSVC(multi_class="multinomial"), (X, LABELS)),
    "unlabelled rows": (InvariantSVC(unlabeled_label="owl"), (X, LABELS)),
    "graph": (LaplacianSVC(num_neighbours=3, weighting="binary", normalized=False), (X, LABELS, MORE)),
    "chosen graph": (
        LaplacianSVC(strength="cross_validation", Cs=[1.0], strengths=[0.1], neighbours=[2, 4]),
        (X, TWO),
    ),
    "tangent": (InvariantSVC(invariance="tangent"), (IMAGES, TWO[:12])),
    "moves": (InvariantSVC(invariance="moves", image_shape=(4, 4)), (IMAGES.reshape(12, 16), TWO[:12])),
}


@pytest.fixture
def again(tmp_path: Path):
    def through_a_file(model: Any) -> Any:
        save(model, tmp_path / "model.orbitwise")
        return load(tmp_path / "model.orbitwise")

    return through_a_file


@pytest.mark.parametrize("name", MODELS)
def test_estimators_come_back(again, name: str):
    model, data = MODELS[name]
    model = clone(model).fit(*data)
    assert stored.take_apart(model)[0]["notes"] == []
    back = again(model)
    new = NEW if model.n_features_in_ == 2 else NEW_IMAGES.reshape(5, 16)
    for question in ("decision_function", "predict_proba", "predict"):
        first, second = getattr(model, question)(new), getattr(back, question)(new)
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    assert set(vars(model)) == set(vars(back))
    for attribute, value in vars(model).items():
        if isinstance(value, bool | int | float | str | dict | np.ndarray | type(None)):
            np.testing.assert_equal(getattr(back, attribute), value, err_msg=attribute)
    assert [type(block) for block in back.machine_.rows] == [type(block) for block in model.machine_.rows]


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({}, X[:, 0]),
        ({"basis": "linear", "loss": EpsilonInsensitive(0.2, 0.1), "random_state": 1}, X[:, 1]),
        ({"invariance_loss": "absolute", "invariance": "local_average"}, X),
        ({"strength": "evidence", "Cs": [1.0, 10.0], "strengths": (0.0, 0.1)}, X**2),
        ({"kernel": ScaleKernel(RBFKernel()), "invariance": None}, X[:, :1]),
    ],
)
def test_ridge_comes_back(again, settings: dict[str, Any], targets: np.ndarray):
    model = clone(InvariantKernelRidge(**settings)).fit(X, targets, MORE)
    assert stored.take_apart(model)[0]["notes"] == []
    back = again(model)
    assert set(vars(model)) == set(vars(back))
    for first, second in (
        (model.predict(NEW), back.predict(NEW)),
        (model.predict_functional(Gradient(), NEW), back.predict_functional(Gradient(), NEW)),
    ):
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    np.testing.assert_array_equal(clone(back).fit(X, targets, MORE).predict(NEW), model.predict(NEW))


@pytest.mark.parametrize("name", ["hinge of a width", "pairs", "evidence"])
def test_a_loaded_estimator_learns_the_same_again(again, name: str):
    model, data = MODELS[name]
    model = clone(model).fit(*data)
    fresh = clone(again(model)).fit(*data)
    np.testing.assert_array_equal(fresh.decision_function(NEW), model.decision_function(NEW))


def test_images_of_a_loaded_estimator_may_keep_their_shape(again):
    model = InvariantSVC(invariance="tangent").fit(IMAGES, TWO[:12])
    back = again(model)
    np.testing.assert_array_equal(back.predict_proba(NEW_IMAGES), model.predict_proba(NEW_IMAGES))


def test_an_invariance_that_is_code_is_left_out_and_its_rows_stay(again):
    mirrored = FeatureMap(lambda x: x.flip(-1)) - Evaluation()
    model = InvariantSVC(invariance=mirrored, random_state=np.random.RandomState(0)).fit(X, TWO)
    notes = stored.take_apart(model)[0]["notes"]
    assert [note.split()[0] for note in notes] == ["random_state", "invariance"]
    assert "FeatureMap evaluates a function of your own" in notes[1]
    back = again(model)
    assert back.invariance is None
    np.testing.assert_array_equal(back.decision_function(NEW), model.decision_function(NEW))
    assert model.invariance is mirrored


@pytest.mark.parametrize(
    "loss",
    [Logistic(), Hinge(0.7), SquaredHinge(), Squared(), EpsilonInsensitive(0.3), EpsilonInsensitive(0)],
)
def test_losses_come_back(loss: Any):
    back = round_trip.again(loss)
    assert type(back) is type(loss)
    assert vars(back) == vars(loss)
    f, y = torch.linspace(-2, 2, 9).double(), torch.ones(9).double()
    assert torch.equal(back.value(f, y), loss.value(f, y))


def test_a_file_tells_of_its_machine(tmp_path: Path):
    model = InvariantSVC(strength="evidence", Cs=[1.0], strengths=[0.5]).fit(X, TWO, MORE)
    save(model, tmp_path / "model")
    about = describe(tmp_path / "model")
    assert about["estimator"] == "InvariantSVC"
    assert about["classes"] == ["0", "1"]
    assert about["log_evidence"] == model.log_evidence_
    assert about["evidence_kind"] == "expectation propagation"
    assert about["functional"] == "gradient"
    assert about["num_rows"] == 18 + 2 * 23
    assert about["converged"] is True
    assert "C = 1, strength = 0.5" in about["learned_text"]
    save(InvariantSVC().fit(X, TWO), tmp_path / "other")
    assert describe(tmp_path / "other")["evidence_kind"] == "not computed"


def machine(**changes: Any) -> Machine:
    x = torch.from_numpy(X)
    rows = [Evaluation().atoms(x), Gradient().atoms(x[:3])]
    built = Machine(
        Process(None, RBFKernel().double()),
        rows,
        torch.ones(24, 2).double(),
        torch.ones(1, 2).double(),
        "bias",
    )
    for name, value in changes.items():
        setattr(built, name, value)
    return built


def test_machines_come_back():
    one = machine()
    back = round_trip.again(one)
    for functional in (Evaluation(), Gradient()):
        x = torch.from_numpy(NEW)
        assert torch.equal(back.values(functional, x), one.values(functional, x))


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": []},
        {"rows": [Evaluation().atoms(torch.zeros(12, width).double()) for width in (2, 3)]},
        {"coefficients": torch.ones(23, 2).double()},
        {"coefficients": torch.ones(24).double()},
        {"beta": torch.ones(2, 2).double()},
        {"beta": torch.ones(1, 3).double()},
        {"basis": "cubic"},
        {"basis": "linear"},
    ],
)
def test_machines_that_make_no_sense_are_refused(changes: dict[str, Any]):
    with pytest.raises(StorageError, match="no Machine can be built from what it holds"):
        round_trip.again(machine(**changes))


def test_machines_of_other_classes_or_inputs_are_refused(tmp_path: Path):
    save(InvariantSVC().fit(X, TWO), tmp_path / "model")

    def widened(structure: dict[str, Any]) -> None:
        structure["fitted"]["n_features_in_"] = 3

    def renamed(structure: dict[str, Any]) -> None:
        structure["fitted"]["classes_"] = {"array": {"width": 1, "values": ["a", "b", "c"]}}

    for change, message in ((widened, "a machine of other inputs"), (renamed, "a machine of other classes")):
        with pytest.raises(StorageError, match=message):
            load(round_trip.edit(tmp_path / "model", tmp_path / "edited", change))


def test_files_of_machines_hold_no_pickle(tmp_path: Path):
    save(InvariantSVC().fit(X, TWO), tmp_path / "model")
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        pickle.loads((tmp_path / "model").read_bytes())
