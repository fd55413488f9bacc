"""What estimators accept: X as a matrix or as images, targets of one or several outputs, weights that count rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight, validate_data

from orbitwise.estimators.names import is_of_images


def flatten_images(estimator: Any, X: ArrayLike) -> tuple[ArrayLike, tuple[int, ...] | None]:
    """X as a matrix, and the shape of one image when X came with image dimensions [n, h, w] or [n, c, h, w]."""
    shape = np.shape(X) if isinstance(X, np.ndarray | torch.Tensor) else ()
    if len(shape) not in (3, 4):
        return X, None
    expects_images = is_of_images(estimator.invariance) or estimator.image_shape is not None
    if not expects_images:
        raise ValueError(
            f"Found array with dim {len(shape)} and shape {tuple(shape)}: X must be [n_samples, n_features]. Images need an "
            "invariance of images or image_shape=(height, width)."
        )
    array = np.asarray(X)
    return array.reshape(shape[0], -1), tuple(shape[1:])


def check_training(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Validated inputs, targets [n, c] and weights; sets `n_features_in_`, names, the image shape and `_is_vector`."""
    flat, shape = flatten_images(estimator, X)
    x, targets = validate_data(
        estimator, flat, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=1
    )
    estimator._image_shape = estimator.image_shape if shape is None else shape
    targets = np.asarray(targets, dtype=np.float64)
    estimator._is_vector = targets.ndim == 1
    weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    return x, targets.reshape(len(x), -1), weight


def check_inputs(estimator: Any, X: ArrayLike, plain: bool = True) -> torch.Tensor:
    """Validated inputs of a fitted estimator; inputs of other functionals (`plain=False`) may have other shapes."""
    if plain:
        flat, _ = flatten_images(estimator, X)
        return torch.from_numpy(np.array(validate_data(estimator, flat, dtype=np.float64, reset=False)))
    x = torch.from_numpy(np.array(X, dtype=np.float64))
    if not bool(x.isfinite().all()):
        raise ValueError("Input contains NaN or infinity.")
    return x
