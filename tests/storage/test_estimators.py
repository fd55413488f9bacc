"""Every estimator, engine and kind of invariance comes back, and what cannot is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from sklearn.base import clone

from orbitwise import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    SparseGPRegressor,
    VirtualSVC,
)
from orbitwise.functionals import DirectionalDerivative, FeatureMap, Gradient, OrbitAverage, OrbitSum
from orbitwise.orbits import FiniteOrbit, JitterOrbit, ModuleOrbit, PatchOrbit, WeightedOrbit
from orbitwise.storage import StorageError, describe, load, save
from orbitwise.storage import models as stored
from orbitwise.transforms import coordinate_permutations

# Few iterations, or labels that tell nothing, are enough for what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:InvariantGPClassifier predicts class:UserWarning"),
]

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(18, 2)), RNG.normal(size=(7, 2))
Y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * RNG.normal(size=18)
IMAGES, NEW_IMAGES = RNG.normal(size=(14, 4, 4)), RNG.normal(size=(5, 4, 4))
LABELS = np.array(["cat", "dog", "owl"])[np.arange(14) % 3]
QUICK: dict[str, Any] = {
    "max_iterations": 2, "num_steps": 4, "num_inducing": 8, "batch_size": 6, "num_nodes": 2,
    "random_state": 0,
}  # fmt: skip


@pytest.fixture
def again(tmp_path: Path):
    def through_a_file(model: Any, **options: Any) -> Any:
        save(model, tmp_path / "model.orbitwise", **{"error_seconds": 20.0, **options})
        return load(tmp_path / "model.orbitwise")

    return through_a_file


def assert_same_bits(one: Any, other: Any) -> None:
    one, other = (each if isinstance(each, tuple) else (each,) for each in (one, other))
    for first, second in zip(one, other, strict=True):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert first.tobytes() == second.tobytes()


def timeless(value: Any) -> Any:
    """A fact without how long it took, which no file tells."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [{name: each for name, each in stage.items() if name != "seconds"} for stage in value]
    return value


def assert_same_facts(model: Any, back: Any) -> None:
    for name, value in vars(model).items():
        if name not in stored.NEVER_STORED and isinstance(
            value, bool | int | float | str | list | dict | type(None)
        ):
            np.testing.assert_equal(timeless(getattr(back, name)), timeless(value), err_msg=name)
    assert set(vars(model)) - stored.NEVER_STORED == set(vars(back)) - stored.NEVER_STORED
    assert repr(back.orbit_) == repr(model.orbit_)
    assert back.orbit_errors_ == model.orbit_errors_


ENGINES = ["exact", "collapsed", "variational"]
INVARIANCES = {
    "none": None,
    "named": "permutation",
    "drawn": JitterOrbit(2, 0.2),
    "subsampled": FiniteOrbit(coordinate_permutations(2), num_samples=4),
    "sum": OrbitSum(FiniteOrbit(coordinate_permutations(2))),
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *(("none", engine) for engine in ENGINES),
        *(("drawn", engine) for engine in ENGINES),
        *(("named", engine) for engine in ENGINES[:2]),
        *(("subsampled", engine) for engine in ENGINES[1:]),
        ("sum", "exact"),
    ],
)
def test_regressors_come_back(again, name: str, engine: str):
    model = InvariantGPRegressor(invariance=INVARIANCES[name], inference=engine, **QUICK).fit(X, Y)
    back = again(model)
    assert_same_bits(model.predict(NEW), back.predict(NEW))
    assert_same_bits(
        model.predict(NEW, return_std=True, include_noise=True),
        back.predict(NEW, return_std=True, include_noise=True),
    )
    assert_same_bits(model.predict(NEW, return_cov=True), back.predict(NEW, return_cov=True))
    slope = DirectionalDerivative(torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert_same_bits(
        model.predict_functional(slope, NEW, return_std=True),
        back.predict_functional(slope, NEW, return_std=True),
    )
    assert_same_bits(model.sample_y(NEW, 2), back.sample_y(NEW, 2))
    assert_same_bits(model.sample_orbit(NEW, 2), back.sample_orbit(NEW, 2))
    assert model.insensitivity(NEW[:2]) == back.insensitivity(NEW[:2])
    assert_same_facts(model, back)


@pytest.mark.parametrize(
    ("engine", "likelihood", "invariance"),
    [
        ("exact", "one_hot", "affine+deformation"),
        ("exact", "one_hot", "quarter_turn"),
        ("collapsed", "one_hot", "rotation"),
        ("collapsed", "stick_breaking", "flip"),
        ("collapsed", "dirichlet", "flip+quarter_turn"),
        ("variational", "one_hot", "translation"),
        ("variational", "stick_breaking", "rotation"),
        ("variational", "dirichlet", "flip"),
    ],
)
def test_classifiers_come_back(again, engine: str, likelihood: str, invariance: str):
    model = InvariantGPClassifier(
        invariance=invariance, inference=engine, likelihood=likelihood, **QUICK
    ).fit(IMAGES, LABELS)  # fmt: skip
    back = again(model)
    assert_same_bits(model.predict_proba(NEW_IMAGES), back.predict_proba(NEW_IMAGES))
    assert list(model.predict(NEW_IMAGES)) == list(back.predict(NEW_IMAGES))
    assert_same_bits(model.sample_orbit(NEW_IMAGES, 2), back.sample_orbit(NEW_IMAGES, 2))
    assert model.insensitivity(NEW_IMAGES[:2]) == back.insensitivity(NEW_IMAGES[:2])
    assert_same_facts(model, back)
    if back.orbit_ is not None:
        assert back.orbit_errors_.keys() == back.orbit_.learned().keys()


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([False, True]),
        np.array([3, 10**12]),
        np.array([-1.0, 2.0]),
        np.array([1, 2], dtype=np.uint8),
    ],
)
def test_labels_of_any_type_come_back(again, labels: np.ndarray):
    model = InvariantGPClassifier(noise="leave_one_out", **QUICK).fit(X, labels[np.arange(18) % 2])
    back = again(model)
    assert back.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(back.predict(NEW), model.predict(NEW))


@pytest.mark.parametrize(
    ("dtype", "engine"), [(np.float32, "exact"), (np.float64, "collapsed"), (np.float32, "variational")]
)
def test_several_outputs_and_precisions_come_back(again, dtype: type, engine: str):
    targets = np.stack([Y, X[:, 0], Y**2], axis=1).astype(dtype)
    model = InvariantGPRegressor(inference=engine, **QUICK).fit(X.astype(dtype), targets)
    back = again(model)
    new = NEW.astype(dtype)
    assert_same_bits(model.predict(new, return_std=True), back.predict(new, return_std=True))
    np.testing.assert_array_equal(model.noise_, back.noise_)


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_observations_means_weights_and_given_noise_come_back(again, mean: str):
    observations = [(Gradient(), NEW, np.ones((7, 2)), None), (Gradient([0]), NEW, np.zeros((7, 1)), 0.2)]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=GammaPrior(2.0, 1.0)))
    weight = np.where(np.arange(18) < 3, 2.0, 1.0)
    model = InvariantGPRegressor(
        kernel, OrbitAverage(FiniteOrbit(coordinate_permutations(2))), mean=mean, noise=0.03, **QUICK
    ).fit(X, Y, weight, observations)  # fmt: skip
    back = again(model)
    assert_same_bits(model.predict(NEW, return_std=True), back.predict(NEW, return_std=True))
    assert back.observation_noise_ == model.observation_noise_
    assert back.evidence_terms_ == model.evidence_terms_
    assert_same_facts(model, back)


@pytest.mark.parametrize(
    ("bound", "invariance"), [("tight", "permutation"), ("cg", None), ("tight", JitterOrbit(2, 0.2))]
)
def test_sparse_regressors_come_back(again, bound: str, invariance: Any):
    model = SparseGPRegressor(
        invariance=invariance, bound=bound, num_inducing=6, max_iterations=2, num_nodes=2, random_state=0
    ).fit(X, Y)  # fmt: skip
    back = again(model)
    for _ in range(2):
        assert_same_bits(model.predict(NEW, return_std=True), back.predict(NEW, return_std=True))
        assert_same_bits(model.sample_y(NEW), back.sample_y(NEW))
        assert str(back.certificate_) == str(model.certificate_)
        for each in (model, back):
            each.partial_fit(NEW, NEW[:, 0])
    assert_same_facts(model, back)


def test_patches_with_learned_weights_come_back(again):
    orbit = WeightedOrbit(PatchOrbit((4, 4), (2, 2)))
    model = InvariantGPClassifier(invariance=orbit, image_shape=(4, 4), **QUICK).fit(IMAGES, LABELS)
    assert_same_bits(model.predict_proba(NEW_IMAGES), again(model).predict_proba(NEW_IMAGES))


@pytest.mark.parametrize("sizes", [(1e60, 1e-60), (1e-60, 1e60)])
@pytest.mark.parametrize("kind", [InvariantGPRegressor, SparseGPRegressor, InvariantKernelRidge])
def test_every_unit_that_can_be_learned_from_can_be_saved(again, kind: type, sizes: tuple[float, float]):
    model = kind(random_state=0).fit(sizes[0] * X, sizes[1] * Y)
    assert_same_bits(model.predict(sizes[0] * NEW), again(model).predict(sizes[0] * NEW))


def test_names_of_features_come_back(again):
    frame = pd.DataFrame(X, columns=["a", "b"])
    back = again(InvariantGPRegressor(**QUICK).fit(frame, Y))
    assert list(back.feature_names_in_) == ["a", "b"]
    back.predict(frame)
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame.rename(columns={"a": "c"}))


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (InvariantGPRegressor, "exact"),
        (InvariantGPRegressor, "collapsed"),
        (InvariantGPClassifier, "variational"),
    ],
)
def test_training_goes_on_from_a_loaded_model(again, kind: type, engine: str):
    targets = Y if kind is InvariantGPRegressor else Y > 0
    model = kind(invariance=JitterOrbit(2, 0.2), inference=engine, warm_start=True, **QUICK).fit(X, targets)
    back = again(model)
    for each in (model, back):
        each.fit(X, targets)
    assert back.log_evidence_ == model.log_evidence_
    assert back.orbit_.learned() == model.orbit_.learned()


def test_natural_sizes_come_back_and_files_without_them_load(again):
    model = InvariantGPRegressor(invariance=JitterOrbit(2, 0.23), **QUICK).fit(X, Y)
    back = again(model)
    assert back.orbit_.widths.natural == model.orbit_.widths.natural == (0.23,)
    structure, writer = stored.take_apart(model)
    jitters = [each for each in structure["objects"] if each["type"] == "JitterOrbit"]
    assert jitters
    for each in jitters:
        del each["attributes"]["widths.natural"]
    arrays = {name: np.asarray(array) for name, array in writer.arrays.items()}
    earlier = stored.put_together(structure, arrays)
    assert earlier.orbit_.learned() == model.orbit_.learned()
    assert earlier.orbit_.widths.natural == (0.1,)
    for wrong in ((0.1, 0.2), (0.0,), (-1.0,)):
        for each in jitters:
            each["attributes"]["widths.natural"] = {"tuple": list(wrong)}
        with pytest.raises(StorageError, match="damaged or hostile"):
            stored.put_together(structure, arrays)


def test_equal_fits_give_equal_files():
    one, other = (InvariantGPRegressor(invariance=JitterOrbit(2), **QUICK).fit(X, Y) for _ in range(2))
    assert one.search_[0]["seconds"] > 0
    first, second = (stored.take_apart(each)[0] for each in (one, other))
    np.testing.assert_equal(first["fitted"]["search_"], second["fitted"]["search_"])


def test_parameters_come_back_and_can_be_cloned(again):
    kernel = ScaleKernel(RBFKernel())
    model = InvariantGPRegressor(kernel, FiniteOrbit(coordinate_permutations(2)), **QUICK).fit(X, Y)
    fresh = clone(again(model)).fit(X, Y)
    assert_same_bits(model.predict(NEW), fresh.predict(NEW))


def test_what_is_code_is_left_out_with_a_note():
    quick = {**QUICK, "random_state": np.random.RandomState(0)}
    model = InvariantGPRegressor(callback=print, **quick)
    model.callback = lambda step, bound: None
    model.fit(X, Y).favourite = "blue"
    structure, _ = stored.take_apart(model)
    assert structure["parameters"]["callback"] is None
    assert structure["parameters"]["random_state"] is None
    assert [note.split()[0] for note in structure["notes"]] == ["callback", "random_state", "favourite"]


def test_a_fit_leaves_nothing_out():
    for model in (
        InvariantGPRegressor(invariance=JitterOrbit(2), **QUICK).fit(X, Y),
        InvariantGPClassifier(invariance="rotation", **QUICK).fit(IMAGES, LABELS),
        SparseGPRegressor(num_inducing=4, max_iterations=1).fit(X, Y),
    ):
        assert stored.take_apart(model)[0]["notes"] == []


def test_saving_computes_no_error_bars_unless_asked_to(again, tmp_path: Path):
    # an exact fit has found them already
    model = InvariantGPRegressor(invariance=JitterOrbit(2), inference="collapsed", **QUICK).fit(X, Y)
    assert "takes long" in stored.take_apart(model, error_seconds=1e-9)[0]["notes"][0]
    save(model, tmp_path / "model")
    back = load(tmp_path / "model")
    assert not model.knows_orbit_errors, "saving computed error bars"
    assert "was not computed" in stored.take_apart(model)[0]["notes"][0]
    with pytest.raises(ValueError, match="read orbit_errors_ of the fitted model, then save it again"):
        _ = back.orbit_errors_
    again(back)
    again(model, error_seconds=1e-9)
    asked = again(model, error_seconds=100.0).orbit_errors_
    assert asked == model.orbit_errors_ == again(model).orbit_errors_


def test_training_targets_of_sparse_models_are_not_stored():
    model = InvariantGPRegressor(inference="collapsed", **QUICK).fit(X, Y)
    _, writer = stored.take_apart(model)
    assert all(array.shape[:1] != (18,) for array in writer.arrays.values())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (InvariantGPRegressor(), "is not fitted, because it has no .*: call fit before save"),
        (
            "model",
            "A str cannot be stored; AutoGPRegressor, InvariantGPClassifier, InvariantGPRegressor",
        ),
        (InvariantGPRegressor(invariance=FeatureMap(torch.sin), **QUICK), "FeatureMap evaluates a function"),
        (
            InvariantGPRegressor(type("Mine", (RBFKernel,), {})(), **QUICK),
            "is a Mine, which cannot be stored",
        ),
        (
            InvariantGPRegressor(invariance=ModuleOrbit(torch.nn.Bilinear(2, 2, 2), 2), **QUICK),
            "ModuleOrbit moves inputs by a module of your own",
        ),
    ],
)
def test_models_that_cannot_be_stored_are_named(tmp_path: Path, model: Any, message: str):
    if getattr(model, "kernel", None) is not None or getattr(model, "invariance", None) is not None:
        if isinstance(model.invariance, ModuleOrbit):
            model.invariance.module = _Shift()
        model.fit(X, Y)
    with pytest.raises(StorageError, match=message):
        save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


class _Shift(torch.nn.Module):
    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return x[:, None] + 0.1 * noise


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_here_becomes_the_cpu(device: str):
    structure, writer = stored.take_apart(InvariantGPRegressor(**QUICK).fit(X, Y))
    structure["parameters"]["device"] = structure["fitted"]["device_"] = device
    model = stored.put_together(structure, writer.arrays, "cpu")
    assert model.device == "cpu"
    if not torch.cuda.is_available():
        for asked, kept in ((device, "cpu"), ("auto", "auto")):
            structure["parameters"]["device"] = asked
            for wanted in (None, "auto"):
                model = stored.put_together(structure, writer.arrays, wanted)
                assert (model.device, model.device_) == (kept, "cpu")
                assert np.isfinite(model.predict(X)).all()
        with pytest.raises(StorageError, match="there is no device"):
            stored.put_together(structure, writer.arrays, device)
    with pytest.raises(StorageError, match="device must be"):
        stored.put_together(structure, writer.arrays, "/dev/sda")


COLOURS = RNG.normal(size=(14, 5, 6, 3))


@pytest.mark.parametrize(
    "model",
    [
        InvariantGPClassifier(invariance="rotation", **QUICK),
        InvariantSVC(invariance="tangent"),
        VirtualSVC(invariance="moves"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_where_images_have_their_channels_comes_back(again, model, tmp_path):
    model = clone(model).fit(COLOURS, LABELS)
    back = again(model)
    assert back.channels_ == "last"
    assert describe(tmp_path / "model.orbitwise")["channels"] == "last"
    assert_same_bits(model.predict(COLOURS), back.predict(COLOURS))
    with pytest.raises(ValueError, match="channels last are expected"):
        back.predict(np.moveaxis(COLOURS, -1, 1))


def test_files_of_earlier_versions_had_their_channels_first(tmp_path):
    images = np.moveaxis(COLOURS, -1, 1)
    model = InvariantGPClassifier(invariance="flip", **QUICK).fit(images, LABELS)
    structure, writer = stored.take_apart(model)
    # what a file held before there were orders of channels, and orbits of finite invariances
    del structure["parameters"]["channels"], structure["fitted"]["form_"]
    structure["fitted"] |= {"orbit_": None, "_image_shape": {"tuple": [3, 5, 6]}, "_background": 0.0}
    structure["fitted"]["_scale"] = structure["fitted"].pop("scale_")
    back = stored.put_together(structure, writer.arrays)
    assert (back.channels, back.channels_) == ("auto", "first")
    assert back.orbit_.size == 2
    assert_same_bits(model.predict_proba(images), back.predict_proba(images))
    with pytest.raises(ValueError, match="channels first are expected"):
        back.predict(COLOURS)


@pytest.mark.parametrize(
    "change",
    [
        {"channels": "middle"},
        {"channels": 1},
        {"image_shape": {"tuple": [4, 4]}},
        {"image_shape": None},
        {"background": {"float": "nan"}},
    ],
)
def test_channels_that_cannot_be_are_refused(change):
    model = InvariantGPClassifier(invariance="flip", **QUICK).fit(COLOURS, LABELS)
    structure, writer = stored.take_apart(model)
    (form,) = [each for each in structure["objects"] if each["type"] == "InputForm"]
    form["arguments"] |= change
    with pytest.raises(StorageError, match="damaged or hostile"):
        stored.put_together(structure, writer.arrays)


def test_a_finite_orbit_comes_back(again):
    model = InvariantGPClassifier(invariance="flip", **QUICK).fit(IMAGES, LABELS)
    back = again(model)
    assert back.orbit_.size == model.orbit_.size == 2
    assert stored.take_apart(model)[0]["notes"] == []
    assert_same_bits(model.sample_orbit(IMAGES), back.sample_orbit(IMAGES))
