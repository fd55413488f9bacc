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


def flatten_images(estimator: Any, X: ArrayLike) -> tuple[ArrayLike, tuple[int, ...] | None]:
    """X as a matrix, and the shape of one image when X came as images [n, h, w] or [n, c, h, w]."""
    is_array = isinstance(X, np.ndarray | torch.Tensor)
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
    x, targets = validate_data(
        estimator,
        cast(Any, flat),
        cast(Any, y),
        dtype=np.float64,
        multi_output=True,
        y_numeric=True,
        ensure_min_samples=1,
        reset=reset,
    )
    targets = np.asarray(targets, dtype=np.float64)
    if reset:
        estimator._image_shape = estimator.image_shape if shape is None else shape
        estimator._is_vector = targets.ndim == 1
    weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    return cast(Any, x), targets.reshape(len(x), -1), weight


def check_inputs(estimator: Any, X: ArrayLike, plain: bool = True) -> torch.Tensor:
    """Validated inputs of a fitted estimator; those of other functionals may be pairs [n, 2, d]."""
    if plain or np.shape(X)[1:] == estimator._image_shape:
        flat, _ = flatten_images(estimator, X)
        return torch.from_numpy(
            np.array(validate_data(estimator, cast(Any, flat), dtype=np.float64, reset=False))
        )
    return check_rows(X, estimator.n_features_in_, "X")


def check_rows(inputs: Any, width: int, name: str) -> torch.Tensor:
    """Finite inputs of a functional, [n, …, d] with d the width of the training inputs."""
    x = check_numbers(inputs, name)
    if x.shape[-1] != width:
        raise ValueError(f"{name}: shape {x.shape}, but inputs of width {width} are expected.")
    return torch.from_numpy(x)


def check_numbers(values: Any, name: str, ensure_2d: bool = True) -> NDArray[np.float64]:
    """A copy of finite numbers of any number of dimensions, at least two unless said otherwise."""
    array: Any = check_array(
        values, dtype=cast(Any, np.float64), allow_nd=True, ensure_2d=ensure_2d, input_name=name
    )
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
