"""What estimators accept, and the errors that say what they do not."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF

from orbitwise import (
    AutoGPRegressor,
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    SparseGPRegressor,
    VirtualSVC,
)
from orbitwise.estimators.regression_model import check_variance
from orbitwise.estimators.training_data import check_training
from orbitwise.estimators.validation import (
    as_array,
    check_inputs,
    check_rows,
    flatten_images,
)
from orbitwise.functionals import Difference, Gradient
from orbitwise.orbits import ImageOrbit, PointCloudOrbit, SignalOrbit

QUICK = {"max_iterations": 0}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def data(rng) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(9, 4))
    return x, x[:, 0] - x[:, 1]


def bad_inputs() -> dict[str, tuple[object, str]]:
    good = np.ones((9, 4))
    nan, infinite = good.copy(), good.copy()
    nan[2, 1], infinite[3, 2] = np.nan, np.inf
    return {
        "nan": (nan, "contains NaN"),
        "infinity": (infinite, "contains infinity"),
        "no rows": (good[:0], r"0 sample\(s\)"),
        "no columns": (good[:, :0], r"0 feature\(s\)"),
        "one dimension": (good[:, 0], "Expected 2D array"),
        "five dimensions": (good.reshape(9, 1, 2, 2, 1), "dim 5"),
        "strings": (np.full((9, 4), "a"), "could not convert string"),
        "complex": (good + 1j, "Complex data not supported"),
        "ragged": ([[1.0, 2.0], [3.0]], "inhomogeneous"),
    }


@pytest.mark.parametrize("case", bad_inputs())
@pytest.mark.parametrize("when", ["fit", "predict"])
def test_bad_inputs_are_refused(case, when, data):
    bad, message = bad_inputs()[case]
    model = InvariantGPRegressor(**QUICK)
    if when == "fit":
        with pytest.raises(ValueError, match=message):
            model.fit(bad, np.arange(float(len(bad))))
    else:
        model.fit(*data)
        with pytest.raises(ValueError, match=message):
            model.predict(bad)


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist], ids=["array", "lists"])
def test_inputs_with_dimensions_are_refused_after_a_fit_to_rows(kind, data):
    model = InvariantGPRegressor(**QUICK).fit(*data)
    with pytest.raises(ValueError, match=r"dim 3.*image_shape"):
        model.predict(kind(np.ones((9, 2, 2))))


def test_inputs_of_another_width_are_refused(data):
    model = InvariantGPRegressor(**QUICK).fit(*data)
    for ask in (model.predict, model.sample_y, lambda x: model.predict_functional(Gradient(), x)):
        with pytest.raises(ValueError, match=r"3 features.*4 features|width 4"):
            ask(data[0][:, :3])


def bad_targets() -> dict[str, tuple[object, str]]:
    good = np.arange(9.0)
    return {
        "nan": (np.where(good == 3, np.nan, good), "contains NaN"),
        "infinity": (np.where(good == 3, np.inf, good), "contains infinity"),
        "too few": (good[:-1], "inconsistent numbers of samples"),
        "three dimensions": (np.ones((9, 2, 2)), "dim 3"),
        "strings": (np.full(9, "a"), "could not convert string"),
        "complex": (good + 1j, "Complex data not supported"),
    }


@pytest.mark.parametrize("case", bad_targets())
def test_bad_targets_are_refused(case, data):
    bad, message = bad_targets()[case]
    with pytest.raises(ValueError, match=message):
        InvariantGPRegressor(**QUICK).fit(data[0], bad)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.full(9, -1.0), "Negative values"),
        (np.full(9, np.nan), "contains NaN"),
        (np.ones(8), r"sample_weight\.shape"),
        (np.ones((9, 2)), "Sample weights must be 1D"),
        (np.zeros(9), "zero"),
    ],
)
def test_bad_weights_are_refused(weight, message, data):
    with pytest.raises(ValueError, match=message):
        InvariantGPRegressor(**QUICK).fit(*data, sample_weight=weight)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"noise": -0.1}, "noise must be a finite variance"),
        ({"noise": np.nan}, "noise must be a finite variance"),
        ({"noise": "small"}, "noise must be a finite variance"),
        ({"mean": "cubic"}, "mean must be 'zero', 'constant' or 'linear', not 'cubic'"),
        ({"max_iterations": -1}, "max_iterations must be a whole number"),
        ({"num_restarts": 1.5}, "num_restarts must be a whole number"),
        ({"kernel": RBFKernel(batch_shape=torch.Size([2]))}, "batch shape"),
        ({"kernel": RBFKernel(ard_num_dims=3)}, "kernel does not take points of width 4"),
        ({"kernel": RBFKernel(active_dims=[7])}, "kernel does not take points of width 4"),
        (
            {"invariance": "flip", "image_shape": (2, 3)},
            "have 6 pixels, but the rows have 4 columns",
        ),
        ({"invariance": "flip", "image_shape": (4,)}, "image_shape must be"),
        ({"invariance": "quarter_turn", "image_shape": (1, 4)}, "square"),
        ({"invariance": Gradient()}, "one row per input"),
    ],
)
def test_bad_arguments_are_refused_by_fit(argument, message, data):
    model = InvariantGPRegressor().set_params(**argument)
    with pytest.raises(ValueError, match=message):
        model.fit(*data)


def test_a_kernel_of_another_library_is_refused(data):
    with pytest.raises(TypeError, match=r"gpytorch\.kernels\.Kernel or None, not RBF"):
        InvariantGPRegressor().set_params(kernel=RBF()).fit(*data)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.float32),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(int),
        lambda x: x.astype(object),
        lambda x: np.asfortranarray(x),
        lambda x: x.tolist(),
        lambda x: torch.from_numpy(x),
        lambda x: pd.DataFrame(x),
    ],
    ids=["float32", "float16", "int", "object", "fortran", "list", "tensor", "frame"],
)
def test_every_numeric_kind_of_input_gives_the_same_model(change, rng):
    x = rng.integers(-4, 5, size=(9, 4)).astype(float)
    y = rng.integers(-4, 5, size=9).astype(float)
    expected = InvariantGPRegressor(**QUICK).fit(x, y).predict(x[:3])
    given = change(x)
    model = InvariantGPRegressor(**QUICK).fit(given, y.astype(np.float32))
    assert model.predict(given)[:3].dtype == np.float64
    np.testing.assert_allclose(model.predict(given)[:3], expected, rtol=1e-12)


def test_names_of_columns_are_kept_and_checked(data):
    frame = pd.DataFrame(data[0], columns=["a", "b", "c", "d"])
    model = InvariantGPRegressor(**QUICK).fit(frame, pd.Series(data[1]))
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert model.n_features_in_ == 4
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c", "d"]])


@pytest.mark.parametrize("kind", [np.asarray, list, torch.from_numpy])
def test_images_come_with_their_dimensions_or_as_rows(kind, rng):
    images = rng.normal(size=(6, 4, 5))
    y = images.sum((1, 2))
    model = InvariantGPRegressor(invariance="flip", **QUICK).fit(kind(images), y)
    assert model.n_features_in_ == 20
    flat = InvariantGPRegressor(invariance="flip", image_shape=(4, 5), **QUICK).fit(images.reshape(6, 20), y)
    np.testing.assert_array_equal(model.predict(images), flat.predict(images.reshape(6, 20)))
    np.testing.assert_array_equal(model.predict(images.reshape(6, 20)), flat.predict(kind(images)))
    np.testing.assert_allclose(model.predict(images[..., ::-1]), model.predict(images), atol=1e-12)


def test_colour_images_have_four_dimensions(rng):
    images = rng.normal(size=(5, 3, 2, 2))
    model = InvariantGPRegressor(invariance="quarter_turn", **QUICK).fit(images, images.sum((1, 2, 3)))
    turned = np.rot90(images, axes=(2, 3)).copy()
    np.testing.assert_allclose(model.predict(turned), model.predict(images), atol=1e-12)
    mixed = images[:, ::-1].copy()
    assert np.abs(model.predict(mixed) - model.predict(images)).max() > 1e-3


def test_images_of_another_shape_are_refused(rng):
    images = rng.normal(size=(6, 4, 5))
    model = InvariantGPRegressor(invariance="flip", **QUICK).fit(images, np.arange(6))
    with pytest.raises(ValueError, match=r"\(5, 4\), but images of shape \(4, 5\) are expected"):
        model.predict(images.reshape(6, 5, 4))
    with pytest.raises(ValueError, match=r"\(4, 5\), but image_shape is \(20, 1\)"):
        InvariantGPRegressor(invariance="flip", image_shape=(20, 1), **QUICK).fit(images, np.arange(6))
    model.fit(images.reshape(6, 5, 4), np.arange(6))
    assert model.predict(images.reshape(6, 5, 4)).shape == (6,)


def test_training_data_are_matrices_of_doubles(data):
    model = InvariantGPRegressor()
    x, targets, weight, is_vector = check_training(model, data[0].astype(np.float32), data[1], None)
    assert (x.dtype, targets.shape, weight.tolist()) == (np.float64, (9, 1), [1.0] * 9)
    assert is_vector
    _, targets, _, is_vector = check_training(model, data[0], np.stack([data[1]] * 3, 1), None)
    assert targets.shape == (9, 3)
    assert not is_vector


def test_inputs_of_other_functionals_may_be_pairs(data):
    model = InvariantGPRegressor(**QUICK).fit(*data)
    pairs = np.stack([data[0], data[0][::-1]], axis=1)
    assert check_inputs(model, pairs, plain=False).shape == (9, 2, 4)
    difference = model.predict_functional(Difference(), pairs)
    np.testing.assert_allclose(difference, model.predict(data[0]) - model.predict(data[0][::-1]), atol=1e-12)
    with pytest.raises(ValueError, match="image_shape"):
        check_inputs(model, pairs)
    pairs[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.predict_functional(Difference(), pairs)


def test_rows_have_the_width_they_are_said_to_have():
    assert check_rows([[1, 2], [3, 4]], 2, "X").dtype == torch.float64
    with pytest.raises(ValueError, match=r"X: shape \(1, 2\), but inputs of width 3"):
        check_rows([[1, 2]], 3, "X")
    with pytest.raises(ValueError, match="Complex"):
        check_rows(np.array([[1j]]), 1, "X")


@pytest.mark.parametrize("value", [0, 0.5, np.float32(1e-3), 3])
def test_variances_are_finite_and_not_negative(value):
    check_variance(value, "noise")


def test_only_arrays_of_images_are_flattened(data):
    model = InvariantGPRegressor(invariance="flip")
    same, layout = flatten_images(model, data[0])
    assert same is data[0]
    assert layout.image_shape is None
    images = np.repeat(data[0], 4, axis=1)
    flat, layout = flatten_images(model, images.reshape(9, 4, 4))
    assert layout.image_shape == (4, 4)
    np.testing.assert_array_equal(flat, images)


@pytest.mark.parametrize("size", [1e71, 1e154, 1e200, 1e-71, 1e-200, 1e-310])
def test_sizes_whose_squares_cannot_be_held_are_refused(data, size):
    x, y = data
    for inputs, targets, name in ((size * x, y, "X"), (x, size * y, "y")):
        with pytest.raises(
            ValueError, match=rf"largest entry of {name}, at .* 1e-70 to 1e\+70.*scale {name}"
        ):
            InvariantGPRegressor().fit(inputs, targets)


def test_one_entry_that_is_too_large_is_named(data):
    x, y = data
    x[3, 1] = -1e200
    with pytest.raises(ValueError, match=r"at \(3, 1\), is -1e\+200"):
        InvariantGPRegressor().fit(x, y)
    x[3, 1] = 1.0
    model = InvariantGPRegressor(**QUICK).fit(x, y)
    with pytest.raises(ValueError, match="largest entry of X"):
        model.predict(1e200 * x)
    assert np.isfinite(model.predict(1e-200 * x)).all(), "rows near the origin are rows like others"


@pytest.mark.parametrize("size", [1e-60, 1e-30, 1e30, 1e60])
def test_units_of_inputs_and_targets_do_not_matter(rng, size):
    x = rng.normal(size=(40, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)
    mean, deviation = InvariantGPRegressor().fit(x, y).predict(x, return_std=True)
    model = InvariantGPRegressor().fit(size * x, size * y)
    np.testing.assert_allclose(model.predict(size * x, return_std=True)[0] / size, mean, rtol=1e-4)
    np.testing.assert_allclose(model.predict(size * x, return_std=True)[1] / size, deviation, rtol=1e-4)


def test_a_tiny_column_beside_others_is_seen():
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.sin(x[:, 0])
    tiny = x * np.array([1e-200, 1.0])
    np.testing.assert_allclose(
        InvariantGPRegressor().fit(tiny, y).predict(tiny),
        InvariantGPRegressor().fit(x, y).predict(x),
        atol=1e-4,
    )


@pytest.mark.parametrize("kind", ["datetime64[D]", "timedelta64[D]"])
def test_dates_are_refused_with_advice(data, kind):
    dates = np.arange(36).reshape(9, 4).astype(kind)
    for x, y, name in ((dates, data[1], "X"), (data[0], dates[:, 0], "y")):
        with pytest.raises(TypeError, match=f"{name} holds dates or durations"):
            InvariantGPRegressor(**QUICK).fit(x, y)


@pytest.mark.parametrize("model", [InvariantGPRegressor(), InvariantSVC(), InvariantKernelRidge()], ids=str)
@pytest.mark.parametrize("word", ["no_validation", "abc"])
def test_a_word_is_no_list_of_targets(model, word, data):
    with pytest.raises(
        ValueError, match=f"y must hold a target for every row of X, but it is the text '{word}'"
    ):
        model.fit(data[0], word)


@pytest.mark.parametrize("channels", ["lst", 7, None])
@pytest.mark.parametrize("kind", [InvariantGPRegressor, InvariantSVC])
def test_channels_are_checked_where_there_are_none_too(kind, channels, data):
    with pytest.raises(ValueError, match=f"channels must be 'auto', 'first' or 'last', not {channels!r}"):
        kind().set_params(channels=channels).fit(data[0], np.arange(9) % 2)


def test_tensors_of_all_kinds_are_arrays():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    np.testing.assert_array_equal(as_array(x), [[1.0, 2.0]])
    np.testing.assert_array_equal(as_array(x.bfloat16()), [[1.0, 2.0]])
    np.testing.assert_array_equal(as_array([x[0], x[0]]), [[1.0, 2.0], [1.0, 2.0]])
    frame = pd.DataFrame({"a": [1.0]})
    assert as_array(frame) is frame
    with pytest.raises(TypeError, match="dense data are required"):
        as_array(x.to_sparse())


@pytest.mark.parametrize("unlabeled", ["abc", 3.0])
def test_unlabelled_rows_must_be_rows(data, unlabeled):
    with pytest.raises(ValueError, match=r"unlabeled must be rows of inputs \[n, 4\]"):
        InvariantSVC().fit(data[0], np.arange(9) % 2, unlabeled=unlabeled)
    with pytest.raises(ValueError, match="could not convert"):
        InvariantSVC().fit(data[0], np.arange(9) % 2, unlabeled=[["a"] * 4])


def colours(rng, count: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Colour images [n, 3, h, w] of bars, and how far they lean."""
    images = 0.1 * rng.random((count, 3, 6, 5))
    images[:, 0, 1:5, 2] += np.linspace(0, 1, count)[:, None]
    return images, np.linspace(0, 1, count)


LAST = {
    "array": lambda x: x,
    "tensor": torch.from_numpy,
    "list": list,
    "rows": lambda x: x.reshape(len(x), -1),
}


@pytest.mark.parametrize("kind", LAST)
def test_channels_may_come_last(kind, rng):
    images, y = colours(rng)
    last = np.ascontiguousarray(np.moveaxis(images, 1, -1))
    settings = {"num_nodes": 2, "random_state": 0, "invariance": "rotation", "max_iterations": 0}
    expected = InvariantGPRegressor(**settings).fit(images, y)
    shape = (6, 5, 3) if kind == "rows" else None
    model = InvariantGPRegressor(image_shape=shape, **settings).fit(LAST[kind](last), y)
    assert (expected.channels_, model.channels_) == ("first", "last")
    assert model.form_.image_shape == (3, 6, 5)
    assert model.orbit_.learned()["angle"] == pytest.approx(expected.orbit_.learned()["angle"], rel=1e-9)
    np.testing.assert_allclose(model.predict(LAST[kind](last)), expected.predict(images), rtol=1e-9)
    np.testing.assert_allclose(model.predict(last.reshape(10, -1)), expected.predict(images), rtol=1e-9)
    moved = model.sample_orbit(last, n=3).reshape(10, 3, 6, 5, 3)
    np.testing.assert_allclose(
        np.moveaxis(moved, -1, 2), expected.sample_orbit(images, n=3).reshape(10, 3, 3, 6, 5), atol=1e-9
    )


def test_one_channel_may_come_last(rng):
    images, y = colours(rng)
    grey = images[:, 0]
    expected = InvariantGPRegressor(invariance="flip", **QUICK).fit(grey, y).predict(grey)
    for given, order in ((grey[..., None], "last"), (grey[:, None], "first")):
        model = InvariantGPRegressor(invariance="flip", **QUICK).fit(given, y)
        assert model.channels_ == order
        np.testing.assert_allclose(model.predict(given), expected, rtol=1e-9)


def test_images_are_predicted_in_the_order_of_the_fit(rng):
    images, y = colours(rng)
    model = InvariantGPRegressor(invariance="flip", **QUICK).fit(np.moveaxis(images, 1, -1), y)
    with pytest.raises(ValueError, match=r"\(3, 6, 5\), but images of shape \(6, 5, 3\), channels last"):
        model.predict(images)
    with pytest.raises(ValueError, match="channels first"):
        model.predict_functional(Gradient(), images.reshape(10, -1))


def test_an_order_that_cannot_be_told_is_asked_for(rng):
    images = rng.normal(size=(4, 3, 6, 3))
    with pytest.raises(ValueError, match=r'channels="first" or channels="last"'):
        InvariantGPRegressor(invariance="flip", **QUICK).fit(images, np.arange(4))
    for order in ("first", "last"):
        model = InvariantGPRegressor(invariance="flip", channels=order, **QUICK).fit(images, np.arange(4))
        mirrored = images[..., ::-1] if order == "first" else images[:, :, ::-1]
        np.testing.assert_allclose(model.predict(mirrored.copy()), model.predict(images), atol=1e-9)
    with pytest.raises(ValueError, match="channels must be 'auto', 'first' or 'last', not 'middle'"):
        InvariantGPRegressor(invariance="flip").set_params(channels="middle").fit(images, np.arange(4))


def test_clouds_and_signals_are_not_taken_for_images(rng):
    clouds, signals, y = rng.normal(size=(9, 12, 2)), rng.normal(size=(9, 3, 30)), np.arange(9.0)
    with pytest.raises(ValueError, match=r"PointCloudOrbit\(num_points=12, num_dim.*image_shape=\(12"):
        InvariantGPRegressor(invariance="rotation").fit(clouds, y)
    with pytest.raises(ValueError, match=r"SignalOrbit\(signal_shape=\(3, 30\)"):
        InvariantGPRegressor(invariance="flip").fit(signals, y)
    with pytest.raises(ValueError, match=r"(?s)dim 3.*PointCloudOrbit"):
        InvariantGPRegressor(invariance="permutation").fit(clouds, y)
    said = InvariantGPRegressor(invariance="flip", image_shape=(12, 2), **QUICK).fit(clouds, y)
    np.testing.assert_allclose(said.predict(clouds[..., ::-1].copy()), said.predict(clouds), atol=1e-9)
    named = InvariantGPRegressor(invariance="flip", **QUICK).fit(clouds[:, None], y)
    np.testing.assert_allclose(named.predict(clouds[:, None]), said.predict(clouds), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "points", "move"),
    [
        ("permutation", 3, lambda x: x[:, [2, 0, 1]]),
        ("permutation", 12, lambda x: x[:, [3, 2, 1, 0, *range(4, 12)]]),
        ("permutation", 40, lambda x: x[:, [3, 2, 1, 0, *range(4, 40)]]),
        ("cyclic", 5, lambda x: np.roll(x, 2, axis=1)),
        ("sign", 3, lambda x: x * np.array([-1, 1])),
    ],
)
def test_names_of_columns_say_how_to_move_whole_points(name, points, move, rng):
    clouds = rng.normal(size=(12, points, 2))
    y = clouds[:, 0, 0]
    with pytest.raises(ValueError, match="single columns") as caught:
        InvariantGPRegressor(invariance=name).fit(clouds, y)
    text = str(caught.value)
    assert "angle=0.5" in text
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert all("invariance=orbit" in line for line in lines if "reshape" in line)
    known = {"InvariantGPRegressor": partial(InvariantGPRegressor, **QUICK), "X": clouds, "y": y}
    exec("\n".join(lines[:-1]), known)
    model = eval(lines[-1], known)
    predicted = model.predict(clouds.reshape(12, -1))
    np.testing.assert_allclose(model.predict(move(clouds).reshape(12, -1)), predicted, atol=1e-9)
    exchanged = np.abs(model.predict(clouds[..., ::-1].reshape(12, -1)) - predicted).max()
    assert exchanged > 1e-3, "x and y are different"


def test_names_of_columns_do_not_ask_for_images_as_rows(rng):
    with pytest.raises(ValueError, match="single columns") as caught:
        InvariantGPRegressor(invariance="permutation").fit(rng.normal(size=(5, 8, 8)), np.arange(5))
    assert "reshape" not in str(caught.value)


@pytest.mark.parametrize(
    ("orbit", "shape"),
    [(PointCloudOrbit(5, 2, angle=0.5), (5, 2)), (SignalOrbit((2, 7), shift=1.0), (2, 7))],
    ids=["cloud", "signal"],
)
def test_an_orbit_takes_inputs_with_its_own_dimensions(orbit, shape, rng):
    x, y = rng.normal(size=(8, *shape)), np.arange(8.0)
    settings = {"invariance": orbit, "num_nodes": 2, "random_state": 0, **QUICK}
    model = InvariantGPRegressor(**settings).fit(x, y)
    assert model.form_.image_shape is None
    expected = InvariantGPRegressor(**settings).fit(x.reshape(8, -1), y).predict(x.reshape(8, -1))
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-9)
    turned = np.swapaxes(x, 1, 2)
    with pytest.raises(ValueError, match="moves"):
        InvariantGPRegressor(**settings).fit(turned, y)
    with pytest.raises(ValueError, match="inputs of shape"):
        model.predict(turned)
    with pytest.raises(ValueError, match="but these inputs are images"):
        InvariantGPRegressor(image_shape=shape, **settings).fit(x.reshape(8, -1), y)


@pytest.mark.parametrize("name", ["cyclic", "permutation", "sign"])
def test_invariances_of_columns_do_not_move_images(name, rng):
    images = rng.normal(size=(5, 2, 2))
    with pytest.raises(ValueError, match="of tables, but these inputs are images: use an invariance of im"):
        InvariantGPRegressor(invariance=name, image_shape=(2, 2), **QUICK).fit(images, np.arange(5))
    InvariantGPRegressor(invariance="negation", image_shape=(2, 2), **QUICK).fit(images, np.arange(5))


def test_an_orbit_of_other_images_is_refused(rng):
    orbit = ImageOrbit((4, 4), {"angle": 0.1})
    with pytest.raises(ValueError, match=r"moves images of shape \(1, 4, 4\)"):
        InvariantGPRegressor(invariance=orbit, image_shape=(2, 8)).fit(rng.normal(size=(5, 16)), np.arange(5))


@pytest.mark.parametrize(
    "model",
    [
        InvariantGPClassifier(invariance="flip", max_iterations=0),
        InvariantSVC(invariance="differences"),
        InvariantSVC(invariance="tangent"),
        VirtualSVC(invariance="moves"),
        SparseGPRegressor(
            invariance="flip", max_iterations=0, num_inducing=4, tolerance=10.0, random_state=0
        ),
        InvariantKernelRidge(invariance="moves"),
    ],
    ids=lambda model: f"{type(model).__name__} {model.invariance}",
)
def test_every_estimator_reads_both_orders_and_no_clouds(model, rng):
    images, y = colours(rng)
    y = (y > 0.5).astype(int)
    ask = "decision_function" if hasattr(model, "decision_function") else "predict"
    ask = "predict_proba" if isinstance(model, InvariantGPClassifier) else ask
    last = np.moveaxis(images, 1, -1)
    expected = getattr(clone(model).fit(images, y), ask)(images)
    fitted = clone(model).fit(last, y)
    assert fitted.channels_ == "last"
    np.testing.assert_allclose(getattr(fitted, ask)(last), expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="PointCloudOrbit"):
        clone(model).fit(rng.normal(size=(10, 12, 2)), y)


def test_functions_of_the_user_move_rows_as_they_were_given(rng):
    images, y = colours(rng)
    last = np.ascontiguousarray(np.moveaxis(images, 1, -1))
    seen = []

    def copied(rows):
        seen.append(rows.copy())
        return rows[:, None]

    VirtualSVC(invariance=copied, image_shape=(6, 5, 3)).fit(last, y > 0.5)
    np.testing.assert_array_equal(seen[0], last.reshape(10, -1))


def test_masked_entries_are_not_taken_for_data(data):
    x, y = data
    with pytest.raises(ValueError, match="masked array"):
        InvariantGPRegressor(**QUICK).fit(np.ma.masked_greater(x, 0), y)
    with pytest.raises(ValueError, match="masked array"):
        InvariantSVC().fit(x, np.ma.masked_equal(np.arange(9) % 2, 0))
    InvariantGPRegressor(**QUICK).fit(np.ma.masked_array(x, np.zeros_like(x)), y)


def test_weights_that_no_sum_can_hold_are_refused(data):
    x, y = data
    with pytest.raises(ValueError, match=r"one weight is 1e\+60: divide all weights"):
        SparseGPRegressor().fit(x, y, sample_weight=np.r_[1e60, np.ones(8)])


@pytest.mark.parametrize("equal", [False, True])
def test_rows_that_run_backwards_in_memory_are_rows(equal):
    x = np.ones((12, 2)) if equal else np.random.default_rng(0).normal(size=(12, 2))
    y = np.random.default_rng(1).normal(size=12)
    small = {"base_kernels": ["rbf"], "invariances": [], "num_restarts": 0}
    search = AutoGPRegressor(max_depth=1, random_state=0, **small)
    for model in (InvariantGPRegressor(max_iterations=0), search):
        backwards = clone(model).fit(x[::-1], y[::-1])
        forwards = clone(model).fit(x[::-1].copy(), y[::-1].copy())
        np.testing.assert_array_equal(backwards.predict(x[::-1]), forwards.predict(x[::-1].copy()))
