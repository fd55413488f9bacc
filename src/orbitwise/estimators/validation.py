"""What estimators accept: a matrix or images, targets of one or several outputs, weights that count rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data

from orbitwise.declarations import require
from orbitwise.estimators.forms import (
    PLURALS,
    InputForm,
    check_channels,
    check_family,
    check_picture,
    family_of,
    image_layout,
    input_shape,
    is_picture,
    looks_like,
    named,
    own_shape,
    refuse_dates,
    whole_points,
)
from orbitwise.transforms.images import check_image_shape

LARGEST = 1e70
"""X and y beyond this, or all below its inverse, are refused: their squares, and products of a few of these,
would leave double precision, and what a model file may hold."""

HEAVIEST = 1e12
"""Weights above this count more copies of a row than sums over all rows can tell apart."""
VALIDATE = cast("Callable[..., Any]", validate_data)
"""scikit-learn's checker, which declares arrays as text."""
NO_TARGETS = object()
"""Stands for targets that are not asked for; scikit-learn's own word for it could be given by a user."""


def as_array(values: object) -> Any:
    """Tensors, and lists of them, as arrays without gradients; anything else as it is."""
    if np.ma.is_masked(values):
        raise ValueError(
            "A masked array was passed, and its masked entries would be taken for data: fill them, or drop "
            "their rows, first."
        )
    if isinstance(values, list | tuple) and any(isinstance(each, torch.Tensor) for each in values):
        return [as_array(each) for each in values]
    if not isinstance(values, torch.Tensor):
        return values
    if values.layout != torch.strided:
        raise TypeError("A sparse tensor was passed, but dense data are required: use X.to_dense().")
    numbers = values.detach().cpu().resolve_conj()
    return (numbers.double() if numbers.dtype == torch.bfloat16 else numbers).numpy()


def check_data(estimator: BaseEstimator, X: object, y: object = NO_TARGETS, **settings: bool | int) -> Any:
    """X, or (X, y), validated by scikit-learn, as doubles whose squares are neither 0 nor infinite.

    Tensors lose their gradients; dates and numbers that cannot be squared are refused. y is checked for its
    size where it is to be numbers. Rows that run backwards in memory, which tensors cannot, are copied.
    """
    X = as_array(X)
    refuse_dates(X, "X")
    if y is NO_TARGETS:
        x = VALIDATE(estimator, X, dtype=np.float64, order="C", **settings)
        _check_size(x, "X", smallest=False)
        return x
    if isinstance(y, str):
        raise ValueError(f"y must hold a target for every row of X, but it is the text {y!r}.")
    y = as_array(y)
    refuse_dates(y, "y")
    x, targets = VALIDATE(estimator, X, y, dtype=np.float64, order="C", **settings)
    _check_size(x, "X")
    if settings.get("y_numeric", False):
        _check_size(np.asarray(targets, dtype=np.float64), "y")
    return x, targets


def _check_size(values: NDArray[np.float64], name: str, smallest: bool = True) -> None:
    sizes = np.abs(values)
    largest = float(sizes.max(initial=0.0))
    if largest > LARGEST or (smallest and 0 < largest < 1 / LARGEST):
        place = np.unravel_index(int(sizes.argmax()), sizes.shape)
        raise ValueError(
            f"The largest entry of {name}, at {tuple(map(int, place))}, is {values[place]:.3g}, but sizes "
            f"from {1 / LARGEST:.0e} to {LARGEST:.0e} are accepted, whose squares double precision can hold: "
            f"use other units, or scale {name} (sklearn.preprocessing.StandardScaler)."
        )


def flatten_images(estimator: object, X: ArrayLike, reset: bool = True) -> tuple[ArrayLike, InputForm]:
    """X as a matrix, in the order it was given, and the layout of its images where it holds images.

    Images come as [n, h, w], [n, c, h, w] or [n, h, w, c], or in rows with `image_shape`; `reset=False` means
    those of the fit. Signals and clouds of points may have the dimensions that their orbit knows.
    """
    X = as_array(X)
    dimensions = _dimensions(X)
    if reset:
        layout = _layout(estimator, dimensions)
    else:
        layout = layout_of(estimator)
        if dimensions is not None:
            _check_dimensions(estimator, dimensions, layout)
    if dimensions is None:
        return X, layout
    array = np.asarray(X)
    return array.reshape(len(array), math.prod(dimensions)), layout


def set_layout(estimator: object, form: InputForm, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows with their channels first; the estimator remembers how they were given."""
    vars(estimator)["form_"] = form
    return form.inward(x)


def layout_of(estimator: object) -> InputForm:
    """The form of the inputs of a fitted estimator."""
    return getattr(estimator, "form_", InputForm())


def _dimensions(X: ArrayLike) -> tuple[int, ...] | None:
    """The shape of one input where X is an array, or a list of arrays, with dimensions."""
    is_array = isinstance(X, np.ndarray)
    is_list = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(next(iter(X))) in (2, 3)
    shape: tuple[int, ...] = tuple(np.shape(cast(Any, X))) if is_array or is_list else ()
    return shape[1:] if len(shape) in (3, 4) else None


def _layout(estimator: object, dimensions: tuple[int, ...] | None) -> InputForm:
    """The layout of training data, after a look whether the invariance is one of such data."""
    invariance: object = getattr(estimator, "invariance", None)
    announced: Sequence[int] | None = getattr(estimator, "image_shape", None)
    channels = getattr(estimator, "channels", "auto")
    check_channels(channels)
    own = own_shape(invariance)
    if announced is not None:
        check_family(invariance, "image")
        layout = image_layout(dimensions, announced, channels)
    elif dimensions is None:
        return InputForm()
    elif own is not None and own[0] != "image":
        if dimensions != own[1]:
            raise ValueError(
                f"X has inputs of shape {dimensions}, but {named(invariance)} moves {PLURALS[own[0]]} of "
                f"shape {own[1]}."
            )
        return InputForm()
    elif own is not None:
        plane = own[1][1:] if own[1][0] == 1 and len(dimensions) == 2 else own[1]
        matches = dimensions in (plane, (*plane[1:], plane[0]))
        layout = image_layout(dimensions, dimensions if matches else plane, channels)
    elif family_of(invariance) == "image":
        check_picture(invariance, dimensions)
        layout = image_layout(dimensions, None, channels)
    elif family_of(invariance) in ("signal", "cloud") and len(dimensions) == 2:
        return InputForm(input_shape=dimensions)
    else:
        raise ValueError(
            f"Found array with dim {len(dimensions) + 1} and inputs of shape {dimensions}: "
            f"{_no_table(estimator, dimensions)}"
        )
    if own is not None and layout.shape is not None and check_image_shape(layout.shape) != own[1]:
        raise ValueError(
            f"{named(invariance)} moves images of shape {own[1]}, channels first, but these are of shape "
            f"{layout.shape}."
        )
    if layout.channels == "last" and isinstance(invariance, list | tuple):
        layout.require_channels_first("Functionals at other inputs")
    return layout


def _no_table(estimator: object, dimensions: tuple[int, ...]) -> str:
    """What to do with inputs that have dimensions where the invariance is one of tables, or there is none."""
    invariance: object = getattr(estimator, "invariance", None)
    images = "Images need an invariance of images or image_shape=(height, width)."
    looks = f" They look like {looks_like(dimensions)}." if _is_odd(dimensions) else ""
    if family_of(invariance) != "table":
        return f"X must be [n_samples, n_features], say X.reshape(len(X), -1). {images}{looks}"
    if not _is_odd(dimensions):
        return f"{named(invariance)} moves single columns of X [n_samples, n_features]. {images}"
    return f"{whole_points(str(invariance), dimensions, type(estimator).__name__)}\n{looks.strip()} {images}"


def _is_odd(dimensions: Sequence[int]) -> bool:
    return len(dimensions) == 2 and not is_picture(dimensions)


def _check_dimensions(estimator: object, dimensions: tuple[int, ...], layout: InputForm) -> None:
    """Raise a ValueError where inputs have other dimensions than those that the estimator was fitted to."""
    known = layout.given if layout.given is not None else input_shape(estimator)
    if known is None:
        raise ValueError(
            f"Found array with dim {len(dimensions) + 1} and inputs of shape {dimensions}: X must be "
            "[n_samples, n_features], as in fit. Images need an invariance of images or "
            "image_shape=(height, width)."
        )
    if dimensions != tuple(known):
        order = f", channels {layout.channels}" if layout.channels is not None else ""
        what = "inputs" if layout.given is None else "images"
        raise ValueError(
            f"X has {what} of shape {dimensions}, but {what} of shape {tuple(known)}{order} were announced."
        )


class TrainingData(NamedTuple):
    """Validated inputs, targets [n, c] and weights, and whether the targets were given as a vector."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    is_vector: bool


def check_training(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, reset: bool = True
) -> TrainingData:
    """Validated inputs, targets and weights.

    It sets `n_features_in_` and `form_`, unless they are to be met (`reset=False`).
    """
    _check_arguments(estimator)
    flat, layout = flatten_images(estimator, X, reset)
    x, targets = check_data(
        estimator, flat, y, multi_output=True, y_numeric=True, ensure_min_samples=1, reset=reset
    )
    targets = np.asarray(targets, dtype=np.float64)
    x = set_layout(estimator, layout, x) if reset else layout.inward(x)
    weight = check_weights(sample_weight, x)
    return TrainingData(x, targets.reshape(len(x), -1), weight, targets.ndim == 1)


def check_sizes(x: NDArray[np.float64], y: NDArray[np.float64] | None = None) -> None:
    """Raise a ValueError where inputs, or targets that are numbers, are of a size that `fit` would refuse."""
    _check_size(x, "X")
    if y is not None:
        _check_size(y, "y")


def check_weights(sample_weight: object, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight of at least 0 for every row, 1 where none were given."""
    refuse_dates(sample_weight, "sample_weight")
    weights = _check_sample_weight(as_array(sample_weight), x, dtype=np.float64, ensure_non_negative=True)
    if weights.max(initial=0.0) > HEAVIEST:
        raise ValueError(
            f"sample_weight counts copies of a row, but one weight is {weights.max():.3g}: divide all "
            f"weights by the same number, so that none is above {HEAVIEST:.0e}."
        )
    return weights


def check_inputs(estimator: Any, X: ArrayLike, plain: bool = True) -> torch.Tensor:
    """Validated inputs of a fitted estimator; those of other functionals may be pairs [n, 2, d]."""
    X = as_array(X)
    layout = layout_of(estimator)
    if not plain:
        layout.require_channels_first("Functionals")
    if plain or np.shape(X)[1:] == layout.given:
        flat, _ = flatten_images(estimator, X, reset=False)
        return torch.from_numpy(layout.inward(np.array(check_data(estimator, flat, reset=False))))
    return check_rows(X, estimator.n_features_in_, "X")


def check_rows(inputs: object, width: int, name: str) -> torch.Tensor:
    """Finite inputs of a functional, [n, …, d] with d the width of the training inputs."""
    x = check_numbers(inputs, name)
    if x.shape[-1] != width:
        raise ValueError(f"{name}: shape {x.shape}, but inputs of width {width} are expected.")
    return torch.from_numpy(x)


def check_numbers(values: object, name: str, ensure_2d: bool = True) -> NDArray[np.float64]:
    """A copy of finite numbers of any number of dimensions, at least two unless said otherwise."""
    values = as_array(values)
    refuse_dates(values, name)
    array: Any = check_array(
        values, dtype=cast(Any, np.float64), allow_nd=True, ensure_2d=ensure_2d, input_name=name
    )
    _check_size(array, name, smallest=False)
    return np.array(array)


def _check_arguments(estimator: Any) -> None:
    if not (estimator.kernel is None or isinstance(estimator.kernel, Kernel)):
        raise TypeError(
            f"kernel must be a gpytorch.kernels.Kernel or None, not {type(estimator.kernel).__name__}."
        )
    if estimator.kernel is not None and len(estimator.kernel.batch_shape):
        raise ValueError(
            f"kernel must be one kernel, but has batch shape {tuple(estimator.kernel.batch_shape)}."
        )
    if estimator.noise is not None:
        check_variance(estimator.noise, "noise")
    check_counts(estimator, [n for n in ("max_iterations", "num_restarts") if hasattr(estimator, n)], least=0)
    check_search(estimator)


def check_search(estimator: object) -> None:
    """Raise a ValueError where the limits of a search for an orbit make no sense."""
    check_counts(estimator, [n for n in ("num_nodes", "max_nodes") if hasattr(estimator, n)])
    seconds = getattr(estimator, "max_seconds", None)
    if seconds is not None and not (isinstance(seconds, Real) and float(seconds) > 0):
        raise ValueError(f"max_seconds must be a positive number, or None for no limit, not {seconds!r}.")


def check_counts(estimator: object, names: Sequence[str], least: int = 1) -> None:
    """Raise a ValueError unless these settings are whole numbers of at least `least`, or None by default."""
    for name in names:
        count = getattr(estimator, name)
        if count is None and signature(type(estimator)).parameters[name].default is None:
            continue
        if not isinstance(count, Integral) or count < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {count!r}.")


def check_variance(value: object, name: str) -> None:
    """Raise a ValueError unless `value` is a finite number of at least 0."""
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"{name} must be a finite variance of at least 0, or None to learn it, not {value!r}."
        )


def check_classes(classes: NDArray[np.generic]) -> None:
    """Raise a ValueError unless these are different labels of one kind, in order."""
    require(classes.ndim == 1 and len(classes) >= 2, "classes that are no list of labels")
    labels = classes.tolist()
    kinds = str if isinstance(labels[0], str) else (bool, int, float)
    require(all(isinstance(each, kinds) for each in labels), "classes of several kinds")
    # false for NaN, and for classes that come twice
    require(all(a < b for a, b in pairwise(labels)), "classes that are not in order")
