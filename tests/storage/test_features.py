"""Features in model files: weights and a few rows, no code; `load` is given the code again and checks it."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from torch import nn

import orbitwise
from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor
from orbitwise.functionals.averages import features_of
from orbitwise.storage import StorageError, describe
from orbitwise.storage.container import unpack
from orbitwise.storage.models import packed, put_together

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK = {"max_iterations": 1}
MODELS = [
    InvariantGPClassifier(invariance="flip", **QUICK),
    InvariantGPRegressor(**QUICK),
    SparseGPRegressor(invariance="flip", num_inducing=6, tolerance=10.0, random_state=0, **QUICK),
]


def network(seed: int = 0, activation: type[nn.Module] = nn.ReLU, width: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), activation(), nn.Flatten()]
        return nn.Sequential(*layers)


def brightness(array: np.ndarray) -> np.ndarray:
    return array.mean((1, 2))[:, None]


def images() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(20, 5, 6))


def labels() -> np.ndarray:
    return np.arange(20) % 2


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("kind", ["module", "half", "function", "transformer"])
def test_a_model_is_loaded_with_its_features(tmp_path: Path, model, kind):
    """A network may have any weights when it is given to load: it takes those of the file."""
    features, again = {
        "module": (network(), network(1)),
        "half": (network().to(torch.bfloat16), network(1).to(torch.bfloat16)),
        "function": (brightness, brightness),
        "transformer": (PCA(3), None),
    }[kind]
    fitted = clone(model).set_params(features=features).fit(images(), labels())
    path = tmp_path / "model.orbitwise"
    orbitwise.save(fitted, path)
    assert describe(path)["features"] == features_of(fitted.functional_).fingerprint
    again = fitted.features_ if again is None else again
    before = {name: value.clone() for name, value in again.state_dict().items()} if kind == "module" else {}
    loaded = orbitwise.load(path, features=again)
    np.testing.assert_array_equal(loaded.predict(images()), fitted.predict(images()))
    assert all(torch.equal(again.state_dict()[name], value) for name, value in before.items())
    # the setting is what a later fit takes
    refitted = clone(loaded).fit(images(), labels())
    expected = features_of(fitted.functional_).answers
    torch.testing.assert_close(features_of(refitted.functional_).answers, expected, rtol=1e-5, atol=1e-6)
    assert packed(loaded) == packed(fitted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"torch module Sequential, which is code.*load\(path, features=network\)"),
        (network(1, nn.Tanh), "gives other features than at the fit"),
        (network(1, width=5), r"0.weight has the shape \(5, 1, 3, 3\), but \(4, 1, 3, 3\) in the file"),
        (
            nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(6, 4)),
            "2.weight is in the module only",
        ),
        (nn.Flatten(), "but features= is the torch module Flatten"),
        (brightness, "but features= is the function brightness"),
        (PCA(3), "but features= is the transformer PCA"),
    ],
)
def test_what_is_not_the_network_of_the_fit_is_refused(tmp_path: Path, given, message):
    path = tmp_path / "model.orbitwise"
    orbitwise.save(InvariantGPRegressor(features=network(), **QUICK).fit(images(), labels()), path)
    with pytest.raises(StorageError, match=message):
        orbitwise.load(path, features=given)


def test_another_function_or_transformer_is_refused(tmp_path: Path):
    path, rows = tmp_path / "model.orbitwise", images().reshape(20, -1)
    orbitwise.save(InvariantGPRegressor(features=PCA(3).fit(rows), **QUICK).fit(rows, labels()), path)
    with pytest.raises(StorageError, match="the transformer PCA gives other features"):
        orbitwise.load(path, features=PCA(3).fit(rows[10:]))
    with pytest.raises(StorageError, match=r"transformer PCA failed on inputs.*not fitted"):
        orbitwise.load(path, features=PCA(3))
    with pytest.raises(StorageError, match="that was fitted then"):
        orbitwise.load(path)


def test_a_model_without_features_takes_none(tmp_path: Path):
    path = tmp_path / "model.orbitwise"
    orbitwise.save(InvariantGPRegressor(**QUICK).fit(images().reshape(20, -1), labels()), path)
    with pytest.raises(StorageError, match="fitted without features"):
        orbitwise.load(path, features=network())


def test_the_file_holds_no_code():
    model = InvariantGPClassifier(features=network(), **QUICK).fit(images(), labels())
    data = packed(model)
    assert b"Conv2d" not in data
    assert pickle.dumps(model.features_)[:2] not in data[:2]
    structure, _ = unpack(data)
    assert structure["parameters"]["features"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "command"}, "unknown kind"),
        ({"shape": {"tuple": [1, 5, 7]}}, "inputs of another shape"),
        ({"weights": {"mapping": {"0.weight": "no array"}}}, "weights of FixedFeatures"),
    ],
)
def test_edited_features_are_refused(change, message):
    structure, arrays = unpack(
        packed(InvariantGPRegressor(features=network(), **QUICK).fit(images(), labels()))
    )
    (node,) = [each for each in structure["objects"] if each["type"] == "FixedFeatures"]
    node["arguments"] |= change
    with pytest.raises(StorageError, match=message):
        put_together(structure, arrays, features=network())


def test_a_checkpoint_is_of_the_features_of_the_fit(tmp_path: Path):
    """Another network does not resume from what a first one left."""
    for seed, files in ((0, 1), (0, 1), (1, 2)):
        model = InvariantGPRegressor(
            features=network(seed), checkpoint=str(tmp_path), random_state=0, **QUICK
        )
        model.fit(images(), labels())
        assert len(list(tmp_path.iterdir())) == files
