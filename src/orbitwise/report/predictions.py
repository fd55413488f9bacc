"""Predictions to be judged: on a test set, by leave-one-out, or on the training set.

Without a test set, an exact posterior is judged by leave-one-out, which needs no further fit. Other
posteriors are judged on their training rows, and the report says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike
from scipy.stats import norm
from sklearn.metrics import confusion_matrix
from sklearn.utils.validation import check_consistent_length
from torch import Tensor

from orbitwise.estimators.classifier import InvariantGPClassifier, class_probabilities
from orbitwise.estimators.validation import check_inputs
from orbitwise.inference.exact import ExactPosterior
from orbitwise.likelihoods.dirichlet import Dirichlet
from orbitwise.likelihoods.softmax import Softmax
from orbitwise.process.process import as_blocks
from orbitwise.report.numbers import mean_with_error, number, wilson, with_error
from orbitwise.report.ranges import Model, Regressor

Source = Literal["test", "leave-one-out", "training"]
"""Which predictions are judged: on a test set, by leave-one-out, or on the training set."""

BAND = (0.16, 0.84)
LEVELS = np.linspace(0.05, 0.95, 19)


@final
@dataclass(frozen=True)
class Labelled:
    """Predicted class probabilities and the true classes.

    Attributes
    ----------
    source : {"test", "leave-one-out", "training"}
        Which predictions these are.
    probabilities : array of shape (n, classes)
        The predicted probability of each class.
    codes : array of shape (n,)
        The true classes, as indices of `classes`.
    classes : tuple of str
        The names of the classes.
    moments : tuple of tensor
        Posterior mean and variance of the latent function behind each prediction.
    """

    source: Source
    probabilities: Float[ndarray, "n k"]
    codes: Int[ndarray, " n"]
    classes: tuple[str, ...]
    moments: tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]

    @property
    def count(self) -> int:
        """The number of predictions."""
        return len(self.codes)

    @property
    def chosen(self) -> Int[ndarray, " n"]:
        """The most probable class per row."""
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Float[ndarray, " n"]:
        """The probability of the most probable class per row."""
        return self.probabilities.max(1)

    @property
    def is_wrong(self) -> Bool[ndarray, " n"]:
        """Which rows are predicted to have a wrong class."""
        return self.chosen != self.codes

    @property
    def num_wrong(self) -> int:
        """The number of rows with a wrong class."""
        return int(self.is_wrong.sum())

    @property
    def losses(self) -> Float[ndarray, " n"]:
        """The negative log probability of the true class per row."""
        own = self.probabilities[np.arange(self.count), self.codes]
        return -np.log(np.maximum(own, 1e-15))

    def name(self, row: int) -> str:
        """The name of an example, which is its class."""
        return self.classes[self.codes[row]]

    def error(self) -> str:
        """The share of wrong predictions in per cent, with its standard error."""
        count, wrong = self.count, self.num_wrong
        error = 100 * math.sqrt(max(wrong, 1) * max(count - wrong, 0) / count) / count
        return with_error(100 * wrong / count, error, " %")

    def confusion(self) -> Int[ndarray, "k k"]:
        """The number of examples for each true class (row) and each predicted class (column)."""
        return confusion_matrix(self.codes, self.chosen, labels=range(len(self.classes)))

    def reliability(self, num_bins: int = 10) -> list[tuple[float, float, float, float, int]]:
        """(mean confidence, share right, its Wilson interval, count) for each bin that is not empty."""
        bins = np.minimum((self.confidence * num_bins).astype(int), num_bins - 1)
        found = []
        for each in np.unique(bins):
            chosen = bins == each
            count, hits = int(chosen.sum()), int((chosen & ~self.is_wrong).sum())
            found.append((float(self.confidence[chosen].mean()), hits / count, *wilson(hits, count), count))
        return found


@final
@dataclass(frozen=True)
class Output:
    """Predicted means and standard deviations of one new target per row, and the measured ones."""

    mean: Float[ndarray, " n"]
    deviation: Float[ndarray, " n"]
    measured: Float[ndarray, " n"]

    @property
    def residuals(self) -> Float[ndarray, " n"]:
        """Measured minus predicted."""
        return self.measured - self.mean

    @property
    def scores(self) -> Float[ndarray, " n"]:
        """Residuals in units of the predicted standard deviation; ideally they are standard normal."""
        return self.residuals / np.maximum(self.deviation, 1e-300)

    @property
    def root_mean_square(self) -> tuple[float, float | None]:
        """The root mean square error, and its standard error: that of the mean square over twice the root."""
        mean, error = mean_with_error(np.square(self.residuals))
        root = math.sqrt(mean)
        return root, None if error is None or root == 0 else error / (2 * root)

    @property
    def negative_log_density(self) -> tuple[float, float | None]:
        """The mean of -log N(measured | mean, deviation²) and its standard error."""
        scale = np.log(np.maximum(self.deviation, 1e-300) * math.sqrt(2 * math.pi))
        return mean_with_error(0.5 * np.square(self.scores) + scale)

    @property
    def spread(self) -> float:
        """The standard deviation of the measured targets."""
        return float(np.std(self.measured))

    @property
    def num_inside(self) -> int:
        """The number of targets in their 95 % interval."""
        return int((np.abs(self.scores) <= 1.96).sum())

    def coverage(self) -> Float[ndarray, " l"]:
        """The share of targets inside the central interval of each of `LEVELS`."""
        return np.array([np.mean(np.abs(self.scores) <= norm.ppf(0.5 + level / 2)) for level in LEVELS])


@final
@dataclass(frozen=True)
class Measured:
    """Predicted means and standard deviations of new targets, and the measured ones; a column per output."""

    source: Source
    mean: Float[ndarray, "n c"]
    deviation: Float[ndarray, "n c"]
    measured: Float[ndarray, "n c"]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.mean)

    @property
    def outputs(self) -> list[Output]:
        """The outputs one by one."""
        columns = zip(self.mean.T, self.deviation.T, self.measured.T, strict=True)
        return [Output(*each) for each in columns]

    def name(self, row: int) -> str:
        """The name of an example, which is its first target."""
        return number(float(self.measured[row, 0]))

    def error(self) -> str:
        """The root mean square error per output, with its standard error."""
        return ", ".join(with_error(*each.root_mean_square) for each in self.outputs)


Judged = Labelled | Measured


def judge(
    model: Model, X: ArrayLike, y: ArrayLike, X_test: ArrayLike | None, y_test: ArrayLike | None
) -> Judged:
    """Return the predictions that the report shows, with the true classes or targets.

    The test set is predicted if there is one. Otherwise each training row is predicted from all other rows if
    the posterior is exact and X and y are its training data; if not, the training rows are predicted as
    usual.

    Raises
    ------
    ValueError
        If only one of X_test and y_test is given, if inputs and targets differ in length, if the number of
        columns of the targets differs from that of the model, or if a class is unknown to the model.
    """
    if (X_test is None) != (y_test is None):
        raise ValueError("A test set is X_test and y_test: give both, or neither.")
    is_test = X_test is not None
    rows, targets = (X_test, y_test) if X_test is not None and y_test is not None else (X, y)
    check_consistent_length(rows, targets)
    if isinstance(model, InvariantGPClassifier):
        codes = class_codes(model, targets)
        moments = None if is_test else _held_out_classes(model, codes)
        source = "test" if is_test else "training" if moments is None else "leave-one-out"
        if moments is None:
            mean, variance = (part.cpu() for part in model.moments(rows))
            moments = (mean, variance)
        found = _probabilities(model, *moments)
        return Labelled(source, found.numpy(), codes, tuple(str(each) for each in model.classes_), moments)
    measured = _columns(targets)
    outputs = len(model.target_scale_.scale)
    if measured.shape[1] != outputs:
        raise ValueError(
            f"The model has {outputs} output{'s' if outputs > 1 else ''}, but y has {measured.shape[1]} per "
            "row: give targets with the same columns as in the fit."
        )
    held_out = None if is_test else _held_out_targets(model, X, measured)
    source = "test" if is_test else "training" if held_out is None else "leave-one-out"
    if held_out is None:
        mean, deviation = model.predict(rows, return_std=True, include_noise=True)
        held_out = _columns(mean), _columns(deviation)
    return Measured(source, held_out[0], np.broadcast_to(held_out[1], held_out[0].shape).copy(), measured)


def class_codes(model: InvariantGPClassifier, y: ArrayLike) -> Int[ndarray, " n"]:
    """The index of each label among the classes of the model."""
    labels = np.asarray(y).ravel()
    known = {label: code for code, label in enumerate(model.classes_.tolist())}
    unknown = sorted({str(label) for label in labels.tolist() if label not in known})
    if unknown:
        raise ValueError(f"The model has no class {unknown[0]!r}; it has {', '.join(map(str, known))}.")
    return np.array([known[label] for label in labels.tolist()], dtype=np.int64)


def probability_bands(
    model: InvariantGPClassifier,
    mean: Float[Tensor, "n c"],
    variance: Float[Tensor, "n c"],
    seed: int = 0,
    num_draws: int = 200,
) -> tuple[Float[ndarray, "n k"], Float[ndarray, "n k"], Float[ndarray, "n k"]]:
    """Return class probabilities from the moments of f, and their 16 % and 84 % quantiles over draws of f.

    The band is the uncertainty of the probability itself, which vanishes if f is known.
    """
    generator = torch.Generator().manual_seed(seed)
    # the same noise for all rows makes a band along a path as smooth as f
    noise = torch.randn(num_draws, 1, mean.shape[1], generator=generator, dtype=mean.dtype)
    draws = (mean + variance.sqrt() * noise).flatten(0, 1)
    if isinstance(model.likelihood_, Dirichlet | Softmax):
        drawn = torch.softmax(model.scale_ * draws, dim=-1)
    else:
        drawn = _probabilities(model, draws, torch.zeros_like(draws))
    drawn = drawn.unflatten(0, (num_draws, len(mean)))
    low, high = (drawn.quantile(level, dim=0).numpy() for level in BAND)
    middle = _probabilities(model, mean, variance).numpy()
    return middle, np.minimum(low, middle), np.maximum(high, middle)


def _probabilities(model: InvariantGPClassifier, mean: Tensor, variance: Tensor) -> Float[Tensor, "n k"]:
    return class_probabilities(model.likelihood_, mean, variance, model.scale_)


def _columns(values: ArrayLike | None) -> Float[ndarray, "n c"]:
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)


def _held_out_classes(
    model: InvariantGPClassifier, codes: Int[ndarray, " n"]
) -> tuple[Tensor, Tensor] | None:
    posterior = model.posterior_
    if not isinstance(posterior, ExactPosterior) or len(posterior.targets) != len(codes):
        return None
    with torch.no_grad():
        held_out = posterior.leave_one_out()
        variance = (held_out.variance - model.noise_).clamp_min(0)[:, None]
        return held_out.mean.cpu(), variance.expand_as(held_out.mean).cpu()


def _held_out_targets(
    model: Regressor, X: ArrayLike, measured: Float[ndarray, "n c"]
) -> tuple[Float[ndarray, "n c"], Float[ndarray, "n c"]] | None:
    """Leave-one-out predictions of an exact regressor, which leave out rows of equal inputs together."""
    posterior = model.posterior_
    if not isinstance(posterior, ExactPosterior):
        return None
    x = (check_inputs(model, X) - model.form_.background).numpy()
    distinct, place = np.unique(x, axis=0, return_inverse=True)
    place, count = torch.from_numpy(place.ravel()), len(distinct)
    block, to = as_blocks(posterior.rows)[0], model.target_scale_
    if block.num_rows != count:
        return None
    counts = torch.bincount(place)[:, None]
    sums = torch.zeros(count, measured.shape[1], dtype=torch.float64)
    sums.index_add_(0, place, torch.from_numpy(measured))
    if not torch.allclose(sums / counts, to.targets(posterior.targets[:count])):
        return None  # the fit had sample weights or other data
    with torch.no_grad():
        held_out = posterior.leave_one_out()
        # the diagonal of Σ = LLᵀ - K: the noise of the mean of the merged targets of each row
        merged = (
            posterior.lower.square().sum(1)[:count] - posterior.process.variance(block) - posterior.jitter
        )
    noise = float(np.ravel(model.noise_)[0]) / float(to.scale[0]) ** 2
    new = (held_out.variance[:count] - merged).clamp_min(0).cpu() + noise
    deviation = (new[:, None] * to.scale.square()).sqrt()
    return to.targets(held_out.mean[:count])[place].numpy(), deviation[place].numpy()
