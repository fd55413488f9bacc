"""Predictions for more rows than memory holds: some rows at a time, in memory or into a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from orbitwise.estimators.sources import Source, as_table, number_of_rows, parts_of
from orbitwise.estimators.validation import as_array

ROWS_AT_ONCE = 8192


def predict_in_blocks(
    model: object,
    X: ArrayLike | Source,
    method: str = "predict",
    *,
    out: str | os.PathLike[str] | NDArray[Any] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
    **options: object,
) -> Iterator[Any] | NDArray[Any]:
    """Predictions for any number of rows, of which only some are in memory at a time.

    Parameters
    ----------
    model : estimator
        A fitted estimator.
    X : array-like, path, Dataset, DataLoader or Arrow table
        New inputs, as `fit` takes them: a memory-mapped array, the path of an .npy or .parquet file, a data
        set or a loader of PyTorch, a table or data set of pyarrow.
    method : str, default="predict"
        Which method predicts: "predict", "predict_proba", "predict_quantiles" or any other that takes rows.
    out : path or ndarray, default=None
        Where predictions go: an array of the right shape, such as a memory map, or the path of an .npy file
        that is made. With None they are given out, block by block.
    rows_at_once : int, default=8192
        How many rows at most make a block; loaders may give fewer.
    **options
        Passed on to the method, such as `return_std=True`.

    Returns
    -------
    iterator or ndarray
        What the method returns for one block of rows after the other; or `out`, a memory map of the file if
        it was a path.

    Examples
    --------
    >>> import numpy as np
    >>> from orbitwise import SparseGPRegressor
    >>> from orbitwise.estimators import predict_in_blocks
    >>> X = np.random.default_rng(0).uniform(-3, 3, size=(300, 1))
    >>> model = SparseGPRegressor(num_inducing=20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> [len(part) for part in predict_in_blocks(model, X, rows_at_once=200)]
    [200, 100]
    """
    check_is_fitted(model)
    parts = input_parts(model, X)
    step = max(1, int(rows_at_once))
    pieces = (
        each[start : start + step] for each in parts or [as_array(X)] for start in range(0, len(each), step)
    )
    found = (getattr(model, method)(part, **options) for part in pieces)
    if out is None:
        return found
    return _written(found, out, number_of_rows(X))


def input_parts(model: object, X: object) -> Iterator[Any] | None:
    """Some inputs after the other where X is a stream of rows or a large array; None for anything else."""
    names = getattr(model, "feature_names_in_", None)
    parts = parts_of(X, None if names is None else list(names))
    if parts is None or names is None or as_table(X) is None:
        return None if parts is None else (part.x for part in parts)
    import pandas

    return (pandas.DataFrame(part.x, columns=pandas.Index(names)) for part in parts)


def joined(parts: Iterable[Any]) -> Any:
    """Arrays, or tuples of them, one below the other."""
    found = list(parts)
    if isinstance(found[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*found, strict=True))
    return np.concatenate(found)


def _written(
    parts: Iterator[Any], out: str | os.PathLike[str] | NDArray[Any], num_rows: int | None
) -> NDArray[Any]:
    array = out if isinstance(out, np.ndarray) else None
    start = 0
    for part in parts:
        if isinstance(part, tuple):
            raise ValueError(
                "out takes one array of predictions, but these options give several: leave out out, and take "
                "the blocks one by one."
            )
        if array is None:
            if num_rows is None:
                raise ValueError(
                    "How many rows this source has is not known before it is read: give an array, such as a "
                    "memory map, as out."
                )
            shape = (num_rows, *part.shape[1:])
            array = np.lib.format.open_memmap(str(out), mode="w+", dtype=part.dtype, shape=shape)
        if start + len(part) > len(array):
            raise ValueError(f"out has {len(array):,} rows, but there are more predictions.")
        array[start : start + len(part)] = part
        start += len(part)
    if array is None or start < len(array):
        raise ValueError(f"There are {start:,} predictions, which do not fill out.")
    if isinstance(array, np.memmap):
        array.flush()
    return array
