"""Images may come in any form, with an invariance or without: predictions are those of the same rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import Kernel
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from orbitwise import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
    compare,
)
from orbitwise.kernels import WideConvolutionKernel
from orbitwise.orbits import FiniteOrbit
from orbitwise.transforms import negation

QUICK = {"max_iterations": 0}
COLOUR, GREY = (5, 6, 3), (5, 6)


def pixels(shape: tuple[int, ...], count: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(count, *shape), dtype=np.uint8)


def labels(images: np.ndarray) -> np.ndarray:
    brightness = images.reshape(len(images), -1).mean(1)
    return (brightness > np.median(brightness)).astype(int)


def pictures(images: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(each) for each in images]


def rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


FORMS = {
    "uint8": lambda images: images,
    "float32": lambda images: images.astype(np.float32),
    "float64": lambda images: images.astype(float),
    "tensor": lambda images: torch.from_numpy(images.astype(float)).requires_grad_(),
    "uint8 tensor": torch.from_numpy,
    "PIL": pictures,
    "list": list,
    "list of tensors": lambda images: [torch.from_numpy(each) for each in images],
    "nested lists": lambda images: images.tolist(),
    "frame": lambda images: pd.DataFrame(rows(images)),
    "uint8 rows": rows,
}
MODELS = [
    InvariantGPClassifier(**QUICK),
    InvariantGPRegressor(**QUICK),
    SparseGPRegressor(num_inducing=4, tolerance=10.0, random_state=0, **QUICK),
    InvariantSVC(random_state=0),
    InvariantSVC(invariance=None, random_state=0),
    InvariantKernelRidge(),
    LaplacianSVC(num_neighbours=2, random_state=0),
    VirtualSVC(),
]


def answer(model: object, given: object) -> np.ndarray:
    for name in ("predict_proba", "decision_function", "predict"):
        if hasattr(model, name):
            return getattr(model, name)(given)
    raise AssertionError


@pytest.mark.parametrize("shape", [GREY, COLOUR, (3, 5, 6), (4, 7, 4)], ids=str)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{type(model).__name__}")
def test_every_estimator_takes_images_without_an_invariance_of_images(model, shape):
    images = pixels(shape)
    y = labels(images)
    expected = answer(clone(model).fit(rows(images).astype(float), y), rows(images).astype(float))
    fitted = clone(model).fit(images, y)
    np.testing.assert_array_equal(answer(fitted, images), expected)
    np.testing.assert_array_equal(answer(fitted, rows(images)), expected)
    assert fitted.n_features_in_ == np.prod(shape)
    assert fitted.channels_ is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("invariance", [None, "flip"])
@pytest.mark.parametrize("kind", [InvariantGPClassifier, InvariantSVC])
def test_every_form_gives_the_predictions_of_its_rows(kind, invariance, shape, form):
    images = pixels(shape)
    y, given = labels(images), FORMS[form](images)
    settings = {"random_state": 0} if kind is InvariantSVC else QUICK
    announced = None if invariance is None else shape
    expected = kind(invariance=invariance, image_shape=announced, **settings).fit(rows(images) * 1.0, y)
    announced = announced if form in ("frame", "uint8 rows") else None
    model = kind(invariance=invariance, image_shape=announced, **settings).fit(given, y)
    np.testing.assert_array_equal(answer(model, given), answer(expected, rows(images) * 1.0))


def test_the_numbers_of_a_palette_are_not_taken_for_colours():
    images = pixels(COLOUR)
    model = InvariantGPClassifier(**QUICK).fit(images, labels(images))
    palettes = [each.quantize(256) for each in pictures(images)]
    assert palettes[0].mode == "P"
    colours = np.stack([np.asarray(each.convert("RGB")) for each in palettes])
    np.testing.assert_array_equal(model.predict_proba(palettes), model.predict_proba(colours))


@pytest.mark.parametrize("form", [pictures, list], ids=["PIL", "arrays"])
def test_images_of_several_shapes_are_refused(form):
    mixed = [*form(pixels(GREY, 3)), *form(pixels((7, 7), 1))]
    with pytest.raises(ValueError, match=r"several shapes, such as \(5, 6\) and \(7, 7\)"):
        InvariantGPClassifier(**QUICK).fit(mixed, [0, 1, 0, 1])


def test_images_of_another_shape_are_refused_without_an_invariance_too():
    images = pixels(COLOUR)
    model = InvariantGPClassifier(**QUICK).fit(images, labels(images))
    with pytest.raises(ValueError, match=r"shape \(3, 5, 6\), but inputs of shape \(5, 6, 3\)"):
        model.predict(np.moveaxis(images, -1, 1))


def test_an_orbit_of_any_rows_takes_images():
    images = pixels(GREY).astype(float) - 128
    orbit = FiniteOrbit(negation(30))
    model = InvariantGPRegressor(invariance=orbit, **QUICK).fit(images, labels(images))
    np.testing.assert_allclose(model.predict(-images), model.predict(images), rtol=1e-9)


def convolutional() -> Kernel:
    return WideConvolutionKernel((3, 5, 6), filter_size=3, depth=1)


def test_a_kernel_of_images_asks_where_their_channels_are():
    images = pixels(COLOUR).astype(float) / 255
    y = labels(images)
    first = np.ascontiguousarray(np.moveaxis(images, -1, 1))
    expected = InvariantGPRegressor(convolutional(), **QUICK).fit(rows(first), y).predict(rows(first))
    for given, order in ((images, "last"), (first, "first")):
        model = InvariantGPRegressor(convolutional(), **QUICK).fit(given, y)
        assert model.channels_ == order
        np.testing.assert_allclose(model.predict(given), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="images of shape"):
        InvariantGPRegressor(convolutional(), **QUICK).fit(images[:, 1:], y)


def test_unlabelled_images_may_be_pictures():
    images = pixels(GREY)
    y = labels(images)
    expected = InvariantSVC().fit(rows(images)[:6], y[:6], unlabeled=rows(images)[6:])
    model = InvariantSVC().fit(pictures(images[:6]), y[:6], unlabeled=pictures(images[6:]))
    np.testing.assert_array_equal(model.decision_function(images), expected.decision_function(rows(images)))


@pytest.mark.parametrize("invariance", [None, "flip", "rotation"])
@pytest.mark.parametrize("kind", [InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, VirtualSVC])
def test_pixels_up_to_1_and_up_to_255_are_not_mixed(kind, invariance):
    images = pixels(COLOUR)
    y, quick = labels(images), {"num_nodes": 4, **QUICK}
    quick = {} if kind is VirtualSVC else {**quick, "num_inducing": 4} if kind is SparseGPRegressor else quick
    settings = {"invariance": "affine" if kind is VirtualSVC else invariance, **quick}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole, unit = kind(**settings).fit(images, y), kind(**settings).fit(images / 255, y)
    with pytest.raises(ValueError, match="fractions from 0 to 1, but those of the fit were whole numbers"):
        whole.predict(images / 255)
    with pytest.raises(ValueError, match="whole numbers up to 255, but those of the fit were fractions"):
        unit.predict(images)
    # black and white is either, and so is what was standardised
    for model in (whole, unit):
        assert len(model.predict(np.zeros_like(images))) == len(images)
        assert len(model.predict((images - 100.0) / 50)) == len(images)
    np.testing.assert_array_equal(whole.predict(images.astype(float)), whole.predict(images))


def test_tables_may_hold_whole_numbers_and_fractions():
    table = pixels((6,))
    model = InvariantGPRegressor(**QUICK).fit(table, labels(table))
    assert np.isfinite(model.predict(table / 255)).all()


@pytest.mark.parametrize("invariance", [None, "flip"])
def test_one_channel_is_none(invariance):
    images = pixels(GREY)
    y = labels(images)
    forms = [images, images[..., None], images[:, None]]
    expected = InvariantGPClassifier(invariance=invariance, **QUICK).fit(images, y).predict_proba(images)
    for given in forms:
        model = InvariantGPClassifier(invariance=invariance, **QUICK).fit(given, y)
        for other in forms if given is images else (given, images):
            np.testing.assert_array_equal(model.predict_proba(other), expected)


def test_black_and_white_pictures_are_as_bright_as_grey_ones():
    images = np.where(pixels(GREY) > 128, 255, 0).astype(np.uint8)
    model = InvariantGPClassifier(**QUICK).fit(images, labels(images))
    black_and_white = [each.convert("1") for each in pictures(images)]
    np.testing.assert_array_equal(model.predict_proba(black_and_white), model.predict_proba(images))


@pytest.mark.parametrize("invariance", [None, "flip"])
def test_columns_of_images_are_lists_of_them(invariance):
    images = pixels(COLOUR)
    y = labels(images)
    model = InvariantGPClassifier(invariance=invariance, **QUICK).fit(images, y)
    column = pd.Series(list(images), index=range(5, 5 + len(images)))
    given = [column, column.to_frame(), column.to_numpy(), pd.Series(pictures(images))]
    for each in given:
        np.testing.assert_array_equal(model.predict_proba(each), model.predict_proba(images))
        again = InvariantGPClassifier(invariance=invariance, **QUICK).fit(each, y)
        np.testing.assert_array_equal(again.predict_proba(each), model.predict_proba(images))


def test_what_is_no_set_of_images_says_what_is():
    images = pixels(COLOUR)
    model = InvariantGPClassifier(invariance="flip", **QUICK).fit(images, labels(images))
    with pytest.raises(ValueError, match=r"A single image is X\[None\]"):
        model.predict(images[0])
    with pytest.raises(ValueError, match=r"dim 5, \(12, 1, 5, 6, 3\), but images are"):
        model.fit(images[:, None], labels(images))
    mixed = [pictures(images)[0].convert("L"), *pictures(images)[1:]]
    with pytest.raises(ValueError, match="convert"):
        model.fit(mixed, labels(images))


@pytest.mark.parametrize("shape", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("form", ["uint8", "tensor", "PIL", "list of tensors", "nested lists"])
def test_candidates_are_compared_on_images_of_every_form(shape, form):
    images = pixels(shape)
    y = labels(images)
    expected = compare(images.astype(float), y, [None, "flip"], **QUICK)
    found = compare(FORMS[form](images), torch.from_numpy(y), [None, "flip"], **QUICK)
    for one, other in zip(found.candidates, expected.candidates, strict=True):
        assert (one.name, one.log_evidence) == (other.name, other.log_evidence)
