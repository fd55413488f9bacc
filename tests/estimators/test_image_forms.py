"""Images may come in any form, with an invariance or without: predictions are those of the same rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import Kernel
from PIL import Image
from sklearn.base import clone

from orbitwise import (
    InvariantGPClassifier,
    InvariantGPRegressor,
    InvariantKernelRidge,
    InvariantSVC,
    LaplacianSVC,
    SparseGPRegressor,
    VirtualSVC,
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
