"""Predictions of a model for new data, batch after batch, into a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orbitwise.cli.data import Source, batches
from orbitwise.cli.errors import CommandError
from orbitwise.cli.metrics import unnamed
from orbitwise.cli.outputs import table_writer
from orbitwise.estimators.validation import layout_of

MOST_NOTES = 5


def predict(model: Any, source: Source, file: Path, batch_size: int) -> tuple[int, list[str]]:
    """Write a row for every input; returns how many, and what there is to say of others."""
    names = getattr(model, "feature_names_in_", None)
    columns = None if names is None else [str(name) for name in names]
    count, notes = 0, []
    with table_writer(file) as write:
        for data in batches(source, columns, layout_of(model), batch_size):
            if data.X.shape[1] != model.n_features_in_:
                raise CommandError(
                    f"{source.path} has inputs of {data.X.shape[1]} numbers, but the model takes "
                    f"{model.n_features_in_}; name a column that is no input with --target or --ignore"
                )
            names = (
                {"file": data.labels} if data.is_image else {"row": [int(e.split()[1]) for e in data.labels]}
            )
            write({**names, **predictions(model, data.X)})
            count += len(data)
            notes += data.notes
        if count == 0:
            raise CommandError(f"{source.path} has no rows that can be predicted")
    more = len(notes) - MOST_NOTES
    return count, notes[:MOST_NOTES] + ([f"{more} more batches left something out"] if more > 0 else [])


def predictions(model: Any, X: NDArray[np.float64]) -> dict[str, list[Any]]:
    """The columns of the table: a class and the probability of each, or mean and standard deviation.

    A model that knows neither probabilities nor deviations has predictions alone.
    """
    with unnamed():
        if hasattr(model, "predict_proba"):
            probability = model.predict_proba(X)
            classes = model.classes_[probability.argmax(1)]
            each = {
                f"probability_{name}": probability[:, i].tolist() for i, name in enumerate(model.classes_)
            }
            return {"prediction": classes.tolist(), **each}
        if not hasattr(model, "posterior_"):
            # a kernel machine knows no distribution, and some of them no probabilities
            return _columns("prediction", model.predict(X))
        mean, deviation = model.predict(X, return_std=True, include_noise=True)
    if mean.ndim > 1:
        deviation = np.broadcast_to(deviation.reshape(len(mean), -1), mean.shape)
    return _columns("mean", mean) | _columns("standard_deviation", deviation)


def _columns(name: str, values: NDArray[Any]) -> dict[str, list[Any]]:
    """One column, or one for each of several outputs."""
    if values.ndim == 1:
        return {name: values.tolist()}
    return {f"{name}_{i}": values[:, i].tolist() for i in range(values.shape[1])}
