"""Predictions to be judged: of a test set, else leave-one-out of the training set, else of the training set.

Exact posteriors give leave-one-out predictions for nothing; others are judged on rows that they have seen,
and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike
from torch import Tensor

from orbitwise.estimators.likelihoods import class_probabilities
from orbitwise.estimators.validation import check_inputs
from orbitwise.inference.exact import ExactPosterior
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.process.process import as_blocks

SOURCES = {
    "test": "test examples, which the model has not seen",
    "leave-one-out": "training examples, each predicted from all the others",
    "training": "training examples, which the model has seen: expect worse on new ones",
}
BAND = (0.16, 0.84)


@final
@dataclass(frozen=True)
class Labelled:
    """Class probabilities beside the true classes, as numbers of `classes`; `moments` are those of f."""

    source: str
    probabilities: Float[ndarray, "n k"]
    codes: Int[ndarray, " n"]
    classes: tuple[str, ...]
    moments: tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]

    @property
    def chosen(self) -> Int[ndarray, " n"]:
        """The most probable class of every row."""
        return self.probabilities.argmax(1)

    @property
    def is_wrong(self) -> ndarray:
        """Which rows were given another class than theirs."""
        return self.chosen != self.codes

    @property
    def losses(self) -> Float[ndarray, " n"]:
        """The negative log probability of the true class of every row."""
        own = self.probabilities[np.arange(len(self.codes)), self.codes]
        return -np.log(np.maximum(own, 1e-15))


@final
@dataclass(frozen=True)
class Measured:
    """Predicted means and deviations of new targets, beside the measured ones; one column an output."""

    source: str
    mean: Float[ndarray, "n c"]
    deviation: Float[ndarray, "n c"]
    measured: Float[ndarray, "n c"]

    @property
    def residuals(self) -> Float[ndarray, "n c"]:
        """Measured minus predicted."""
        return self.measured - self.mean

    @property
    def scores(self) -> Float[ndarray, "n c"]:
        """Residuals in units of the predicted deviation."""
        return self.residuals / np.maximum(self.deviation, 1e-300)


Judged = Labelled | Measured


def judge(
    model: Any, X: ArrayLike, y: ArrayLike, X_test: ArrayLike | None, y_test: ArrayLike | None
) -> Judged:
    """The predictions that the report shows, beside what they should have been."""
    if (X_test is None) != (y_test is None):
        raise ValueError("A test set is X_test and y_test: give both, or neither.")
    is_test = X_test is not None and y_test is not None
    if hasattr(model, "classes_"):
        codes = class_codes(model, y_test if is_test else y)
        moments = None if is_test else _held_out_classes(model, codes)
        source = "test" if is_test else "training" if moments is None else "leave-one-out"
        if moments is None:
            mean, variance = (part.cpu() for part in model.moments(X_test if is_test else X))
            moments = (mean, variance)
        found = _probabilities(model, *moments)
        return Labelled(source, found.numpy(), codes, tuple(str(each) for each in model.classes_), moments)
    measured = _columns(y_test if is_test else y)
    held_out = None if is_test else _held_out_targets(model, X, measured)
    source = "test" if is_test else "training" if held_out is None else "leave-one-out"
    if held_out is None:
        rows = X_test if is_test else X
        held_out = tuple(_columns(part) for part in model.predict(rows, return_std=True, include_noise=True))
    return Measured(source, held_out[0], np.broadcast_to(held_out[1], held_out[0].shape).copy(), measured)


def class_codes(model: Any, y: Any) -> Int[ndarray, " n"]:
    """The number of every label among the classes of the model."""
    labels = np.asarray(y).ravel()
    known = {label: code for code, label in enumerate(model.classes_.tolist())}
    unknown = sorted({str(label) for label in labels.tolist() if label not in known})
    if unknown:
        raise ValueError(f"The model has no class {unknown[0]!r}; it has {', '.join(map(str, known))}.")
    return np.array([known[label] for label in labels.tolist()], dtype=np.int64)


def probability_bands(
    model: Any,
    mean: Float[Tensor, "n c"],
    variance: Float[Tensor, "n c"],
    seed: int = 0,
    num_draws: int = 200,
) -> tuple[Float[ndarray, "n k"], Float[ndarray, "n k"], Float[ndarray, "n k"]]:
    """Class probabilities from the moments of f, and the 16 % and 84 % quantiles over draws of f."""
    generator = torch.Generator().manual_seed(seed)
    # the same noise for every row, so that a band along a path is as smooth as f
    noise = torch.randn(num_draws, 1, mean.shape[1], generator=generator, dtype=mean.dtype)
    draws = (mean + variance.sqrt() * noise).flatten(0, 1)
    if isinstance(model.likelihood_, Dirichlet | Softmax):
        drawn = torch.softmax(draws, dim=-1)
    else:
        drawn = _probabilities(model, draws, torch.zeros_like(draws))
    drawn = drawn.unflatten(0, (num_draws, len(mean)))
    low, high = (drawn.quantile(level, dim=0).numpy() for level in BAND)
    middle = _probabilities(model, mean, variance).numpy()
    return middle, np.minimum(low, middle), np.maximum(high, middle)


def _probabilities(model: Any, mean: Tensor, variance: Tensor) -> Float[Tensor, "n k"]:
    return class_probabilities(model.likelihood_, mean, variance, model._scale)


def _columns(values: Any) -> Float[ndarray, "n c"]:
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)


def _held_out_classes(model: Any, codes: Int[ndarray, " n"]) -> tuple[Tensor, Tensor] | None:
    posterior = model.posterior_
    if not isinstance(posterior, ExactPosterior) or len(posterior.targets) != len(codes):
        return None
    with torch.no_grad():
        held_out = posterior.leave_one_out()
        variance = (held_out.variance - model.noise_).clamp_min(0)[:, None]
        return held_out.mean.cpu(), variance.expand_as(held_out.mean).cpu()


def _held_out_targets(
    model: Any, X: ArrayLike, measured: Float[ndarray, "n c"]
) -> tuple[Float[ndarray, "n c"], Float[ndarray, "n c"]] | None:
    """Rows with equal inputs were merged, in the order of the inputs: they are left out together."""
    posterior = model.posterior_
    if not isinstance(posterior, ExactPosterior) or not hasattr(model, "_model"):
        return None
    x = (check_inputs(model, X) - model._background).numpy()
    distinct, place = np.unique(x, axis=0, return_inverse=True)
    if as_blocks(posterior.rows)[0].num_rows != len(distinct):
        return None
    scale, shift = (part.cpu() for part in (model._scale, model._shift))
    with torch.no_grad():
        held_out = posterior.leave_one_out()
        mean, variance = (part[: len(distinct)].cpu() for part in held_out[:2])
        noise: Tensor = model._model.noise()[0].cpu()
        weight: Tensor = model._model.weight.cpu()
    targets = posterior.targets[: len(distinct)].cpu() * scale + shift
    counts = np.bincount(place.ravel())[:, None]
    sums = np.stack([np.bincount(place.ravel(), column) for column in measured.T], axis=1)
    if len(weight) != len(distinct) or not np.allclose(sums / counts, targets.numpy()):
        return None  # sample weights, or other data than the model was fitted to
    new = (variance - noise / weight).clamp_min(0) + noise
    rows = torch.from_numpy(place.ravel())
    deviation = (new[:, None] * scale.square()).sqrt()
    return (mean * scale + shift)[rows].numpy(), deviation[rows].numpy()
