"""What estimators accept: a matrix or images, targets of one or several outputs, weights that count rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data

from orbitwise.estimators.names import is_of_images

LARGEST = 1e140
"""Numbers beyond this, or all below its inverse, have variances that double precision cannot hold."""


def as_array(values: Any) -> Any:
    """Tensors, and lists of them, as arrays without gradients; anything else as it is."""
    if isinstance(values, list | tuple) and any(isinstance(each, torch.Tensor) for each in values):
        return [as_array(each) for each in values]
    if not isinstance(values, torch.Tensor):
        return values
    if values.layout != torch.strided:
        raise TypeError("A sparse tensor was passed, but dense data are required: use X.to_dense().")
    numbers = values.detach().cpu().resolve_conj()
    return (numbers.double() if numbers.dtype == torch.bfloat16 else numbers).numpy()


def check_data(estimator: Any, X: Any, y: Any = "no_validation", **settings: Any) -> Any:
    """X, or (X, y), validated by scikit-learn, as doubles whose squares are neither 0 nor infinite.

    Tensors lose their gradients; dates and numbers that cannot be squared are refused. y is checked for its
    size where it is to be numbers.
    """
    X = as_array(X)
    _refuse_dates(X, "X")
    if isinstance(y, str) and y == "no_validation":
        x: Any = validate_data(estimator, X, dtype=np.float64, **settings)
        _check_size(x, "X", smallest=False)
        return x
    y = as_array(y)
    _refuse_dates(y, "y")
    x, targets = cast(Any, validate_data(estimator, X, y, dtype=np.float64, **settings))
    _check_size(x, "X")
    if settings.get("y_numeric", False):
        _check_size(np.asarray(targets, dtype=np.float64), "y")
    return x, targets


def _refuse_dates(values: Any, name: str) -> None:
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind in ("M", "m"):
        raise TypeError(
            f"{name} holds dates or durations ({values.dtype}), but numbers are required: turn them into "
            "numbers, say decimal years. AutoGPRegressor does so itself with dates in X."
        )


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


def flatten_images(estimator: Any, X: ArrayLike) -> tuple[ArrayLike, tuple[int, ...] | None]:
    """X as a matrix, and the shape of one image when X came as images [n, h, w] or [n, c, h, w]."""
    X = as_array(X)
    is_array = isinstance(X, np.ndarray)
    is_list = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(next(iter(X))) in (2, 3)
    shape: tuple[int, ...] = np.shape(cast(Any, X)) if is_array or is_list else ()
    if len(shape) not in (3, 4):
        return X, None
    expects_images = is_of_images(estimator.invariance) or estimator.image_shape is not None
    if not expects_images:
        raise ValueError(
            f"Found array with dim {len(shape)} and shape {tuple(shape)}: X must be [n_samples, n_features]. "
            "Images need an invariance of images or image_shape=(height, width)."
        )
    known = getattr(estimator, "_image_shape", None) or estimator.image_shape
    if known is not None and tuple(known) != tuple(shape[1:]):
        raise ValueError(
            f"X has images of shape {tuple(shape[1:])}, but images of shape {tuple(known)} were announced."
        )
    return np.asarray(X).reshape(len(np.asarray(X)), math.prod(shape[1:])), tuple(shape[1:])


def check_training(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, reset: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Validated inputs, targets [n, c] and weights.

    It sets `n_features_in_`, `_image_shape` and `_is_vector`, unless they are to be met (`reset=False`).
    """
    _check_arguments(estimator)
    if reset:
        estimator._image_shape = None
    flat, shape = flatten_images(estimator, X)
    x, targets = check_data(
        estimator, flat, y, multi_output=True, y_numeric=True, ensure_min_samples=1, reset=reset
    )
    targets = np.asarray(targets, dtype=np.float64)
    if reset:
        estimator._image_shape = estimator.image_shape if shape is None else shape
        estimator._is_vector = targets.ndim == 1
    return cast(Any, x), targets.reshape(len(x), -1), check_weights(sample_weight, x)


def check_weights(sample_weight: Any, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight of at least 0 for every row, 1 where none were given."""
    _refuse_dates(sample_weight, "sample_weight")
    return _check_sample_weight(as_array(sample_weight), x, dtype=np.float64, ensure_non_negative=True)


def check_inputs(estimator: Any, X: ArrayLike, plain: bool = True) -> torch.Tensor:
    """Validated inputs of a fitted estimator; those of other functionals may be pairs [n, 2, d]."""
    X = as_array(X)
    if plain or np.shape(X)[1:] == estimator._image_shape:
        flat, _ = flatten_images(estimator, X)
        return torch.from_numpy(np.array(check_data(estimator, flat, reset=False)))
    return check_rows(X, estimator.n_features_in_, "X")


def check_rows(inputs: Any, width: int, name: str) -> torch.Tensor:
    """Finite inputs of a functional, [n, …, d] with d the width of the training inputs."""
    x = check_numbers(inputs, name)
    if x.shape[-1] != width:
        raise ValueError(f"{name}: shape {x.shape}, but inputs of width {width} are expected.")
    return torch.from_numpy(x)


def check_numbers(values: Any, name: str, ensure_2d: bool = True) -> NDArray[np.float64]:
    """A copy of finite numbers of any number of dimensions, at least two unless said otherwise."""
    values = as_array(values)
    _refuse_dates(values, name)
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


def check_counts(estimator: Any, names: Sequence[str], least: int = 1) -> None:
    """Raise a ValueError unless these settings are whole numbers of at least `least`."""
    for name in names:
        count = getattr(estimator, name)
        if not isinstance(count, Integral) or count < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {count!r}.")


def check_variance(value: Any, name: str) -> None:
    """Raise a ValueError unless `value` is a finite number of at least 0."""
    if not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ValueError(
            f"{name} must be a finite variance of at least 0, or None to learn it, not {value!r}."
        )
